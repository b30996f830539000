#!/bin/busybox sh
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=dash
# peerbuf_matrix.sh EXPORTER: peerbuf's own importer takes the exporter's dma-buf, every byte checked.
if [ ! -x /lab/peerbuf ]; then
	echo 'skip - peerbuf is not in this image' # what cannot be asked is no refusal
	exit
fi
answer=$(/lab/peerbuf matrix --json --exporter "$1" --importer verbs:device=rxe0 2>&1)
case $answer in
*'"verified":true'*)
	flow=${answer#*'"kernel_flow":"'}
	echo "ok - $1 x verbs: bytes verified, the kernel holds it ${flow%%\"*}"
	;;
*)
	echo "not ok - $1 x verbs: $answer"
	;;
esac

#!/bin/busybox sh
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=dash
# Takes the driver that mistakes.patch is in, tells it which one to make and runs a program over it:
# mistaken.sh MISTAKE PROGRAM ARGUMENTS
mistake=$1
program=$2
shift 2
rdma link delete rxe0
rmmod rdma_rxe
insmod /modules/mistaken.ko mistake="$mistake" || exit 1
rdma link add rxe0 type rxe netdev dum0
"/lab/$program" "$@"
echo "# $program ended with status $?"

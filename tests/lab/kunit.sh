#!/bin/busybox sh
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=dash
# The kernel's own tests of dma-bufs, fences and reservations; they run as their module is loaded.
mount -t debugfs none /sys/kernel/debug
insmod /modules/kunit.ko || exit 1
insmod /modules/dmabuf_kunit.ko || exit 1
passed=0
failed=0
for results in /sys/kernel/debug/kunit/*/results; do
	suite=${results%/results}
	suite=${suite##*/}
	# four spaces are the suite's tests; what is deeper are the parameters of one
	grep -E '^    (not )?ok ' "$results" >/tmp/kunit
	while read -r line; do
		case $line in
		*"# SKIP"*) echo "skip - KUnit $suite: $line" ;;
		ok*)
			passed=$((passed + 1))
			echo "ok - KUnit $suite: ${line#ok }"
			;;
		*)
			failed=$((failed + 1))
			echo "not ok - KUnit $suite: ${line#not ok }"
			;;
		esac
	done </tmp/kunit
done
echo "fact {\"kunit\": {\"passed\": $passed, \"failed\": $failed}}"
[ $passed -gt 0 ] && [ $failed = 0 ]

#!/bin/busybox sh
# SPDX-License-Identifier: BSD-3-Clause
# Makes the kernel warn. The lab must find its log not clean.
insmod /modules/lab_exporter.ko control=1
echo "# insmod said $?"

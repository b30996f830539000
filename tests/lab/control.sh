#!/bin/busybox sh
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=dash
# Makes the kernel tell of a mistake: control.sh warning|unlocked|order|freed
# The module goes only when its buffer has gone, which is after insmod.
insmod /modules/lab_exporter.ko control="$1"
echo "# insmod said $?"
rmmod lab_exporter

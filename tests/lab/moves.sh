#!/bin/busybox sh
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=dash
insmod /modules/lab_exporter.ko || exit 1
/lab/moves
status=$?
# the module is gone only if nothing of it is still in use
rmmod lab_exporter && echo "ok - the exporter's module is unloaded" || echo "not ok - the exporter's module is in use"
exit $status

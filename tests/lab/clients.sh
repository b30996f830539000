#!/bin/busybox sh
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=dash
# Programs that know nothing of dma-bufs still work with the patched driver.

judge() { # WHAT STATUS LOG
	if [ "$2" = 0 ]; then
		echo "ok - $1"
	else
		echo "not ok - $1: status $2"
		sed 's/^/# /' "$3"
	fi
}

pair() { # WHAT SERVER CLIENT...
	what=$1
	server=$2
	shift 2
	$server >/tmp/server.log 2>&1 &
	pid=$!
	sleep 2
	"$@" >/tmp/client.log 2>&1
	status=$?
	wait $pid || status="$status, the server's $?"
	cat /tmp/server.log >>/tmp/client.log
	judge "$what" "$status" /tmp/client.log
}

for _ in 1 2 3; do
	gid=$(grep -l '0000:0000:0000:0000:0000:ffff:0a09:0001' /sys/class/infiniband/rxe0/ports/1/gids/* | head -n 1)
	[ -n "$gid" ] && break
	sleep 1
done
gid=${gid##*/}
pair "rping, 20 times" "rping -s -a 10.9.0.1 -C 20" rping -c -a 10.9.0.1 -C 20
for tool in ib_write_bw ib_read_bw ib_send_bw; do
	options="-d rxe0 -x ${gid:-1} -s 65536 -n 100 -F"
	# shellcheck disable=SC2086 # they are several words
	pair "$tool" "$tool $options" $tool $options 127.0.0.1
done

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Looks at a series as its reviewers would: every patch applies, is clean for checkpatch --strict, and
# builds by itself without a new warning of the compiler (W=1), of sparse or of kernel-doc.
#
#   check.sh [--quick] [SERIES]      --quick: checkpatch alone, nothing is built
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
lab=$root/scripts/lab
quick=false
if [[ ${1:-} == --quick ]]; then
	quick=true
	shift
fi
series=${1:-$(find "$root/kernel-patches" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort -V | tail -n 1)}
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=lab GIT_AUTHOR_EMAIL=lab@localhost GIT_COMMITTER_NAME=lab
export GIT_COMMITTER_EMAIL=lab@localhost

failed=0
problem() {
	printf 'check: %s\n' "$*"
	failed=1
}

tree=$("$lab" tree) || exit
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# A tree of its own, kept for the next time: all of it is built with other flags than the lab's.
work=${tree%/*}/check
known=$work/.lab/known
if [[ ! -d $work ]]; then
	git clone -q "$tree" "$work.new" && cp -a "$tree/.lab" "$tree/.gitignore" "$work.new" &&
		mv "$work.new" "$work" || exit
fi
git -C "$work" am --abort 2>/dev/null
git -C "$work" checkout -q -f --detach base || exit

# No sign-off: a person adds it who can certify where the patches come from. A commit id cannot be
# looked up in a tree that has no history, nor a new file in a MAINTAINERS that is not there; RDMA has
# whole folders in it.
checkpatch() {
	(cd "$tree/.lab" && perl scripts/checkpatch.pl --no-tree --strict --no-summary --terse \
		--ignore MISSING_SIGN_OFF,UNKNOWN_COMMIT_ID,GIT_COMMIT_ID,FILE_PATH_CHANGES "$@")
}

kernel_doc() {
	(cd "$work" && PYTHONPATH=$tree/.lab/tools/lib/python \
		python3 "$tree/.lab/scripts/kernel-doc" -none -Werror "$@")
}

# All that the compiler and sparse say about what changed goes to $log. Linux 7.3 takes a sparse for too
# old that does not know __typeof_unqual__, and no release of it does.
build() {
	"$lab" make "$work" W=1 C=1 'CHECK=sparse -D__typeof_unqual__=__typeof__' \
		"-j${PEERBUF_LAB_JOBS:-$(nproc)}" modules >"$log" 2>&1
}

# Without line numbers, which another patch moves.
complaints() {
	grep -E ':[0-9]+:.* ?(warning|error):' "$log" | sed -E 's/:[0-9]+(:[0-9]+)?:/:/' | sort -u
}

if ! $quick; then
	# known is what a build of all says
	[[ -e $known ]] || git -C "$work" clean -q -xdf drivers
	if ! build; then
		tail -n 20 "$log"
		problem "the source does not build without the series"
	fi
	if [[ ! -e $known ]]; then
		grep -q '^ *CHECK ' "$log" || problem "sparse did not run"
		# what is there already is not the series' to mend
		complaints >"$known"
	fi
fi

count=0
for patch in "$root/kernel-patches/$series"/[0-9]*.patch; do
	name=${patch##*/}
	grep -q '^Signed-off-by:' "$patch" && problem "$name is signed off"
	[[ $name == 0000-* ]] && continue
	count=$((count + 1))
	checkpatch "$patch" || problem "$name: checkpatch"
	if ! git -C "$work" am -q "$patch" 2>"$log"; then
		cat "$log"
		problem "$name does not apply"
		break
	fi
	mapfile -t files < <(sed -n 's,^+++ b/\(.*\.[ch]\)$,\1,p' "$patch")
	kernel_doc "${files[@]}" || problem "$name: kernel-doc"
	$quick && continue
	if ! build; then
		grep -E 'error|Error' "$log" | head -n 20
		problem "$name does not build"
		break
	fi
	if complaints | comm -13 "$known" - | grep .; then
		problem "$name is not clean"
	fi
	printf 'check: %s: looked at\n' "$name"
done
((count)) || problem "there is no patch in kernel-patches/$series"
# what the cover letter says the series is made for
grep -q "^base-commit: $(git -C "$tree" rev-parse base)$" "$root/kernel-patches/$series"/0000-*.patch ||
	printf 'check: %s\n' "kernel-patches/$series was made for another base than this kernel's"
if ((failed)); then
	echo "check: kernel-patches/$series FAILED"
	exit 1
fi
echo "check: kernel-patches/$series: $count patches ok"

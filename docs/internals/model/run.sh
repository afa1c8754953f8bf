#!/bin/sh
# Checks fencelock.pml, sets.pml and start.pml: every configuration to its end, and every mutant until
# spin finds what it breaks. Prints the table of RESULTS.txt. Needs spin and a C compiler.
# MEMORY bounds a run in MB, LIMIT in seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
model=fencelock
pack= # many small processes are packed better by -DCOLLAPSE, one is not
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# check NAME WANT FLAGS: one row. WANT is 0 if spin must find nothing, 1 if it must find something.
check() {
	name=$1 want=$2
	shift 2
	cd "$work"
	spin "$@" -a "$here/$model.pml" > spin.log || { cat spin.log; exit 1; }
	gcc -O2 -w -DSAFETY $pack -DMEMLIM="${MEMORY:-7000}" -o pan pan.c
	timeout "${LIMIT:-600}" ./pan -m1000000 -w24 -n -E > pan.log || true
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
	case $(grep -c 'Search not completed\|pan: reached -DMEMLIM\|max search depth too small' pan.log):$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.log) in
	0:0) found=0 verdict="nothing" ;;
	*:1) found=1 verdict=$(sed -n 's/^pan:1: assertion violated *\(.*\) (at depth.*/\1/p' pan.log) ;;
	*) found=2 verdict="**not to the end**" ;;
	esac
	case $verdict in
	*stale*) verdict="an extend of what was over" ;;
	*floor*) verdict="ordered tokens" ;;
	*valid* | *basis*) verdict="two leases" ;;
	*token*) verdict="unique tokens" ;;
	esac
	[ "$found" = "$want" ] || failed=1
	echo "| $name | \`$*\` | ${states:-?} | $verdict |"
}

echo "| rules | flags | states | found |"
echo "| --- | --- | ---: | --- |"
if [ "${ONLY:-all}" != mutants ]; then
	check "all" 0 -DACQUISITIONS=3
	check "all" 0 -DACQUISITIONS=2 -DEXTENDS=2
	check "all" 0 -DACQUISITIONS=2 -DLOSSES=1 -DLOST
	check "all" 0 -DACQUISITIONS=2 -DLOSSES=1 -DEXTENDS=1
	check "all" 0 -DACQUISITIONS=2 -DLOSSES=2 -DBOOTSTRAPS
	check "all" 0 -DACQUISITIONS=2 -DLOSSES=2 -DBOOTSTRAPS -DCLOCK_BACK
	check "all" 0 -DACQUISITIONS=3 -DKEYS
	check "all" 0 -DACQUISITIONS=1 -DLOSSES=2 -DBOOTSTRAPS -DEXTENDS=2
fi
if [ "${ONLY:-all}" != rules ]; then
	check "not 1" 1 -DACQUISITIONS=2 -DNO_1
	check "not 2" 1 -DACQUISITIONS=2 -DNO_2
	check "not 3: confirms any grant" 1 -DACQUISITIONS=3 -DKEYS -DNO_3_CONFIRM
	check "not 3: extends any grant" 1 -DACQUISITIONS=2 -DEXTENDS=1 -DNO_3_EXTEND
	check "not 3: releases any grant" 1 -DACQUISITIONS=3 -DKEYS -DNO_3_RELEASE
	check "not 3: retracts what other attempts may count" 1 -DACQUISITIONS=3 -DKEYS -DNO_3_RETRACT
	check "not 3: an extend does not say that it counts" 1 -DACQUISITIONS=3 -DKEYS -DEXTENDS=1 -DKEYED_EXTENDS -DNO_3_COUNTS
	check "not 4" 1 -DACQUISITIONS=2 -DNO_4
	check "not 5: makes any absent lock again" 1 -DACQUISITIONS=2 -DEXTENDS=1 -DNO_5_AGAIN
	check "not 5: a release leaves the counter" 1 -DACQUISITIONS=2 -DEXTENDS=1 -DNO_5_RELEASE
	check "not 5: nor where another's lock stands" 1 -DACQUISITIONS=2 -DEXTENDS=1 -DNO_5_OTHERS
	check "not 7: R-1 reads" 1 -DACQUISITIONS=2 -DLOSSES=1 -DNO_7
	check "not 8: votes carry no epoch" 1 -DACQUISITIONS=2 -DLOSSES=1 -DNO_8
	check "not 8: a release carries no epoch" 1 -DACQUISITIONS=1 -DLOSSES=2 -DBOOTSTRAPS -DEXTENDS=2 -DNO_8_RELEASE
	check "not 8: the reads install no epoch" 1 -DACQUISITIONS=2 -DLOSSES=1 -DNO_8_INSTALL
	check "not 9: a rejoin draws no epoch" 1 -DACQUISITIONS=2 -DLOSSES=1 -DNO_9
	check "not 10: an admission of an earlier life" 1 -DACQUISITIONS=2 -DLOSSES=2 -DNO_10
	check "not 11: forgets its own mark" 1 -DACQUISITIONS=2 -DLOSSES=2 -DBOOTSTRAPS -DCLOCK_BACK -DNO_11_OWN
	check "not 12: no floor" 1 -DACQUISITIONS=2 -DLOSSES=2 -DBOOTSTRAPS -DNO_12_FLOOR
	check "not 12: nodes that do not answer count as lost" 1 -DACQUISITIONS=2 -DLOSSES=2 -DBOOTSTRAPS -DNO_12_LOST
	check "not 13" 1 -DACQUISITIONS=2 -DLOSSES=1 -DNO_13
	check "not 21: before the epoch is installed" 1 -DACQUISITIONS=2 -DLOSSES=1 -DEXTENDS=1 -DNO_21_EPOCH
	check "not 21: missing counters are 0" 1 -DACQUISITIONS=2 -DLOSSES=1 -DEXTENDS=1 -DNO_21_MISSING
	check "not 21: the smallest counter" 1 -DACQUISITIONS=2 -DLOSSES=1 -DEXTENDS=1 -DNO_21_SMALLEST
	check "not 21: the smallest grant" 1 -DACQUISITIONS=2 -DLOSSES=1 -DEXTENDS=1 -DNO_21_GRANT
fi

model=sets
pack=-DCOLLAPSE
if [ "${ONLY:-all}" != mutants ]; then
	check "30" 0 -DOPERATORS=1 -DEXTENDS
	check "30" 0 -DOPERATORS=2
	check "30" 0 -DOPERATORS=2 -DB_FIRST
	check "30" 0 -DOPERATORS=2 -DTHIRD
	check "30" 0 -DOPERATORS=2 -DLOSS
	check "30" 0 -DOPERATORS=2 -DLOSS -DB_FIRST
fi
if [ "${ONLY:-all}" != rules ]; then
	check "not 30: votes do not look at the map" 1 -DOPERATORS=1 -DNO_VOTES_MAP
	check "not 30: a release counts in any map" 1 -DOPERATORS=1 -DEXTENDS -DNO_RELEASE_MAP
	check "not 30: no moving map" 1 -DOPERATORS=1 -DNO_MOVING
	check "not 30: no copy" 1 -DOPERATORS=1 -DNO_COPY
	check "not 30: a lock of an earlier stay is left" 1 -DOPERATORS=1 -DNO_DELETE
	check "not 30: no floor" 1 -DOPERATORS=1 -DNO_FLOOR
	check "not 30: no floor for the present map" 1 -DOPERATORS=2 -DLOSS -DB_FIRST -DNO_FLOOR_BACK
	check "not 30: last maps in any order" 1 -DOPERATORS=2 -DB_FIRST -DNO_ORDER
	check "not 30: operators share the moving map" 1 -DOPERATORS=3 -DNO_NAMES
	check "not 30: a next map that is found does not decide" 1 -DOPERATORS=2 -DLOSS -DNO_DECIDED
	check "not 30: a lost set has the present map" 1 -DOPERATORS=2 -DLOSS -DNO_CLOSED
fi

model=start
if [ "${ONLY:-all}" != mutants ]; then
	check "26" 0 -DL0=3 -DL1=1
	check "26" 0 -DL0=3 -DL1=6
	check "26" 0 -DL0=7 -DL1=4
	check "26" 0 -DL0=7 -DL1=6
	check "26" 0 -DL0=3 -DL1=1 -DLOSS=1
	check "26" 0 -DL0=3 -DL1=6 -DLOSS=1
	check "26" 0 -DSERVERS=3 -DL0=3 -DL1=3 -DL2=6
	check "26" 0 -DSERVERS=3 -DL0=3 -DL1=6 -DL2=5
fi
if [ "${ONLY:-all}" != rules ]; then
	check "not 26: votes do not look at the map" 1 -DL0=3 -DL1=1 -DNO_VOTES_MAP
	check "not 26: a set is bootstrapped open" 1 -DL0=3 -DL1=1 -DNO_NEW
	check "not 26: a new set is opened when one other set is new" 1 -DL0=7 -DL1=4 -DNO_ALL
	check "not 26: a set is bootstrapped while one shows another list" 1 -DL0=3 -DL1=6 -DLOSS=1 -DNO_OTHER_LIST
fi
exit $failed

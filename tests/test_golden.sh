#!/bin/sh
# Vectors computed by other programs: NAME in tests/golden/vectors, and in ../shared/vectors if that exists and differs.
# Usage: test_golden.sh CARRY SOURCE-TREE NAME
set -u
carry=$1
ours=$2/tests/golden/vectors/$3
theirs=$2/../shared/vectors/$3
checked=0
for path in "$ours" "$theirs"; do
    [ -e "$path" ] || continue
    if [ $checked = 1 ] && diff -rq "$ours" "$path" > /dev/null; then continue; fi
    "$carry" check --golden "$path" || exit 1
    checked=1
done
if [ $checked = 0 ]; then
    echo "skipped: no golden vectors $3 in this clone"
    exit 77
fi

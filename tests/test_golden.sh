#!/bin/sh
# Vectors computed by other programs: NAME in tests/golden/vectors, and in ../shared/vectors if that exists and differs.
# disk-NAME is the model of NAME with the names of tensors that published folders have; its results are those of NAME.
# Usage: test_golden.sh CARRY SOURCE-TREE NAME
set -u
carry=$1
ours=$2/tests/golden/vectors/$3
theirs=$2/../shared/vectors/$3
checked=0
made=
trap '[ -z "$made" ] || rm -rf "$made"' EXIT
for path in "$ours" "$theirs"; do
    [ -e "$path" ] || continue
    if [ $checked = 1 ] && diff -rq "$ours" "$path" > /dev/null; then continue; fi
    case $3 in
    disk-*)
        results=${path%/*}/${3#disk-}
        made=$(mktemp -d)
        cp "$path"/* "${results%-vl}/expected.safetensors" "$made" || exit 1
        "$carry" check --golden "$made" || exit 1
        rm -rf "$made"
        ;;
    *) "$carry" check --golden "$path" || exit 1 ;;
    esac
    checked=1
done
if [ $checked = 0 ]; then
    echo "skipped: no golden vectors $3 in this clone"
    exit 77
fi

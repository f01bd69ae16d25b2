#!/bin/sh
# The commands that the pages name exist and are accepted; those that need nothing else are run. A page with a wrong
# option, verb, problem or file is refused. Usage: test_pages.sh CARRY PROJECT
set -u
carry=$1
project=$2
if ! command -v python3 > /dev/null; then
    echo "skipped: python3 is not installed"
    exit 77
fi
for verb in cards train serve pull; do
    if ! "$carry" list verbs | grep -q "^$verb "; then
        echo "skipped: this build has no verb $verb"
        exit 77
    fi
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

# refused TEXT LINE: a page with this line in a block is refused with TEXT.
refused() {
    printf '```sh\n%s\n```\n' "$2" > "$folder/page.md"
    if python3 "$project/tests/check_pages.py" "$carry" "$project" "$folder/page.md" > "$folder/out" || ! grep -q -e "$1" "$folder/out"; then
        cat "$folder/out"
        echo "FAILED: '$2' is not refused with '$1'"
        failures=$((failures + 1))
    fi
}
refused 'there is no verb hop' 'carry hop'
refused 'carry train has no option --stepz' 'carry --ranks 2 train --data book.txt --stepz 3'
refused 'must say diagonal or dense' 'carry bench --json scan:t64:n4'
refused 'tools/nothing does not exist' 'tools/nothing --json | sort'
refused 'make has no target nothing' 'make nothing'
refused 'ends with' 'carry cards show no-such-card'
python3 "$project/tests/check_pages.py" "$carry" "$project" || failures=$((failures + 1))
exit $((failures > 0))

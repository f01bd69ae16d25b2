#!/bin/sh
# Experiments and stored runs as used by a person and by a script. Usage: test_run.sh PATH-OF-CARRY
set -u
carry=$1
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
process=
end() {
    [ -z "$process" ] || kill -KILL "$process" 2> /dev/null
    rm -rf "$folder"
}
trap end EXIT
CARRY_WISDOM=none
CARRY_STORE=$folder/store.db
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export CARRY_WISDOM CARRY_STORE ASAN_OPTIONS
cd "$folder" || exit 2
. "$here/support.sh"

# json FILE PYTHON: every line of the file is an object, and the expression over the list `lines` is true. Prints
# failures.
if command -v python3 > /dev/null; then
    json() {
        python3 -c "import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
sys.exit(0 if ($2) else 1)" "$1" 2> json_error || fail "$1: not so: $2: $(tail -n 1 json_error) $(head -c 300 "$1")"
    }
else
    echo "skipped: without python3 no JSON is parsed here"
    json() { [ -s "$1" ] || fail "$1 is empty"; }
fi

# experiment FILE SUCCESS [MORE LINES]
experiment() {
    {
        printf 'name: %s\nhypothesis: >\n  Tiny things work. Always.\nmethods: [sequential, cyclic]\nrepeats: 25\nspread: 1000\n' "${1%.yaml}"
        printf 'grid:\n  - stage: small\n    problem: scan:dense:t{t}:n2\n    t: [8, 16]\n'
        printf 'success:\n  - %s\n' "$2"
        printf '%s\n' "${3-}"
    } > "$1"
}

# Verdicts, decisions, exit codes.
experiment met.yaml 'time(cyclic, stage=small) > 0'
experiment not_met.yaml 'speedup(cyclic, sequential, stage=small) > 1e9'
experiment failing.yaml 'error(cyclic, stage=small) < 1e-3' 'failure:
  - max(time(cyclic)) < 100'
experiment not_measured.yaml 'time(cyclic, stage=small) / (products(cyclic, t=8, stage=small) - products(cyclic, t=8, stage=small)) > 1'
expect 0 "decision: proceed" run met.yaml
grep -q "met  *time(cyclic, stage=small) > 0" out || fail "no verdict is shown"
grep -q "Tiny things work" out || fail "no hypothesis is shown"
expect 1 "decision: stop" run not_met.yaml --quiet
expect 1 "decision: stop" run failing.yaml --stage small
expect 1 "a division by zero" run not_measured.yaml
grep -q "decision: incomplete" out || fail "what is not measured is not incomplete"
expect 0 '"decision": "proceed"' run met.yaml --json --quiet
json out 'all(k in c for c in [l for l in lines if "criterion" in l] for k in ("criterion", "value", "bound", "verdict"))'
json out 'lines[-1]["decision"] == "proceed" and lines[-2]["verdict"] == "met" and lines[-2]["bound"] == 0 and lines[-2]["value"] > 0'
json out 'len([l for l in lines if "median_s" in l]) == 4 and sum(l.get("repeats", 0) for l in lines) == 100'
expect 1 '"verdict": "not measured"' run not_measured.yaml --json
json out '[l for l in lines if "criterion" in l][0]["value"] is None and lines[-1]["decision"] == "incomplete"'
before=$("$carry" runs list --json | wc -l)
expect 0 "decision: proceed" run met.yaml --no-store
[ "$("$carry" runs list --json | wc -l)" = "$before" ] || fail "--no-store stored something"

# The stored runs.
expect 0 "proceed" runs list
expect 0 '"state": "done"' runs list --json --limit 2
json out 'lines[0]["started"] > 1e9 and len(str(lines[0]["started"])) == 10 and "e+" not in open("out").read()'
json out 'len(lines) == 2 and lines[0]["results"] == 4 and lines[0]["run"] > lines[1]["run"]'
expect 0 "compiler" runs show met
grep -q "25 samples" out || fail "no samples are shown"
grep -qF "command   carry run met.yaml --json --quiet" out || fail "the command is not as typed"
expect 0 "within noise" runs compare 1 met --slack 900
expect 0 '"verdict": "within noise"' runs compare 1 met --slack 900 --json
json out 'lines[-1]["pairs"] == 4 and all(l["low"] <= l["ratio"] <= l["high"] for l in lines[:-1])'
expect 0 '"samples_s"' runs export last 1 --json
json out 'len(lines) == 2 and len(lines[1]["results"][0]["samples_s"]) == 25 and lines[1]["machine"]["cpu"] != "" and lines[1]["criteria"][0]["verdict"] == "met" and "hypothesis" in lines[1]["spec"]'
json out '0 < lines[1]["ended"] - lines[1]["started"] < 600'
expect 0 "run,name,problem" runs export 1 --csv
awk -F, 'NR == 1 { n = NF } NF != n { bad = 1 } END { exit bad || n != 21 || NR != 5 }' out || fail "the table has not 21 columns and 5 rows"
"$carry" runs export 1 --csv --samples -o samples.csv || fail "no export to a file"
awk -F, 'NR == 1 { n = NF } NF != n { bad = 1 } END { exit bad || n != 7 || NR != 101 }' samples.csv || fail "samples.csv has not 7 columns and 101 rows"
refused "there is no run '99'" runs show 99
refused "needs two runs" runs compare 1
refused "give only one of them" runs export 1 --csv --json
refused "runs list has no option --csv" runs list --csv
refused "runs show has no option --slack" runs show 1 --slack 3
refused "runs list has no option --yes" runs list --yes
refused "--samples needs --csv" runs export 1 --samples
refused "runs gc takes no run, and '1' is given" runs gc 1 --yes
refused "cannot be written" runs export 1 -o met.yaml/x.csv
mkfifo pipe
refused "pipe is not a regular file" runs export 1 -o pipe
[ -p pipe ] || fail "an export replaced a pipe by a file"
# shellcheck disable=SC2046
(ulimit -f 200; trap '' XFSZ; "$carry" runs export $(yes 1 | head -n 300) -o large.json 2> err)
[ $? = 2 ] && grep -q "large.json cannot be written: File too large" err || fail "a file that cannot grow is taken as written"
[ -z "$(ls | grep '^large')" ] || fail "a part of an export is left"
refused "there is no run store missing.db" runs list --store missing.db
[ ! -e missing.db ] || fail "a store was made by looking for it"
refused "runs has no 'lits'" runs lits

# Bad input: one error message with its place, and nothing is started.
CARRY_STORE=$folder/empty/store.db
printf 'name: a\nhypothesis: [b\n' > broken.yaml
refused "broken.yaml:3:1: this is not YAML" run broken.yaml
experiment typo.yaml 'sppedup(cyclic, sequential) > 1'
refused "typo.yaml:12:5: the criterion 'sppedup(cyclic, sequential) > 1', column 1: there is no function 'sppedup'" run typo.yaml
experiment typo.yaml 'speedup(cylcic, sequential) > 1'
refused "names the method 'cylcic'" run typo.yaml
experiment typo.yaml 'time(cyclic, t=7) > 1'
refused "fits its filters" run typo.yaml
experiment unknown.yaml '1 > 0'
sed -i 's/sequential, cyclic/sequential, quick/' unknown.yaml
refused "there is no method 'quick'" run unknown.yaml
experiment grid.yaml '1 > 0'
sed -i 's/t: \[8, 16\]/t: []/' grid.yaml
refused "grid.yaml:10:8: 't' is an empty list" run grid.yaml
refused "has no stage 'samll'" run met.yaml --stage samll
refused "run needs one experiment" run
refused "run needs one experiment" run met.yaml not_met.yaml
refused "absent.yaml" run absent.yaml
refused "is not a regular file" run .
[ ! -e "$folder/empty" ] || fail "a refused experiment made a store"
CARRY_STORE=$folder/store.db

# A store of a newer version (the version is at byte 60) is refused and stays unchanged.
cp store.db newer.db
printf '\000\000\000\143' | dd of=newer.db bs=1 seek=60 conv=notrunc 2> /dev/null
cp newer.db newer.copy
refused "newer carry (store version 99" run met.yaml --store newer.db
refused "newer carry (store version 99" runs list --store newer.db
cmp -s newer.db newer.copy || fail "a newer store was changed"
echo "no database, but a text that is long enough to look at" > text.db
refused "not a database" runs list --store text.db
refused "is not a regular file" runs list --store pipe
refused "is not a regular file" runs list --store /dev/zero

# Many small problems, to be interrupted in the middle.
{
    printf 'name: many\nhypothesis: it can be stopped\nmethods: [sequential, cyclic]\nrepeats: 200\nspread: 1000\ngrid:\n'
    printf '  - problem: scan:dense:t{t}:n{n}\n    n: [2, 3, 4, 5, 6]\n    t: ['
    seq -s ', ' 30 90
    printf '    ]\nsuccess:\n  - time(cyclic) > 0\n'
} > many.yaml

# begin_many COUNT: starts it, waits until COUNT results are printed.
begin_many() {
    : > out # of the one before
    "$carry" run many.yaml --json --store "$store" > out 2> err < /dev/null &
    process=$!
    wait_for 120 has_lines "$1" median_s out || fail "no $1 results"
}

# Ctrl-C ends cleanly and keeps the finished results.
store=$folder/interrupted.db
begin_many 3
kill -INT $process
wait $process
code=$?
process=
[ $code = 2 ] && grep -q "^carry: interrupted" err && [ "$(wc -l < err)" = 1 ] || {
    fail "Ctrl-C: exit $code"; tail -n 2 out err; }
seen=$(grep -c median_s out)
"$carry" runs list --store "$store" --json > list 2> err || fail "after Ctrl-C: $(cat err)"
json list "len(lines) == 1 and lines[0]['state'] == 'interrupted' and $seen <= lines[0]['results'] < 610"

# Killed at ten moments: the store can be read, it has every result that was printed, and the run is marked.
store=$folder/killed.db
for moment in 1 2 3 4 5 6 7 8 9 10; do
    if [ $moment -le 4 ]; then
        begin_many 0
        sleep 0.$((moment * 2 - 1))
    else
        begin_many $((moment - 4))
    fi
    kill -KILL $process
    wait $process 2> /dev/null
    process=
    seen=$(grep -c median_s out)
    [ -e "$store" ] || continue # not even begun
    "$carry" runs list --store "$store" --json > list 2> err || fail "after kill $moment: $(cat err)"
    json list "all(l['state'] == 'killed' for l in lines) and (lines[0]['results'] if lines else 0) >= $seen"
done
json list "len(lines) >= 6"
expect 0 "killed" runs show last --store "$store"
expect 0 "within noise" runs compare last last --store "$store"

# A full disk, imitated by a limit on the size of files: reported in one error message, and stored results stay.
store=$folder/full.db
sed -i 's/repeats: 200/repeats: 2000/' many.yaml
(
    trap '' XFSZ
    ulimit -f 1000
    exec "$carry" run many.yaml --quiet --store "$store" > out 2> err < /dev/null
)
code=$?
[ $code = 2 ] && [ "$(wc -l < err)" = 1 ] && grep -q "what was stored before is intact" err || {
    fail "a full disk: exit $code"; cat err; }
"$carry" runs list --store "$store" --json > list 2> err || fail "after a full disk: $(cat err)"
json list "len(lines) == 1 and lines[0]['results'] >= 1 and lines[0]['state'] != 'running'"

# Removing runs: none without --yes; runs that ended before they had stored anything, and runs beyond --keep.
newest=$("$carry" runs list --json | head -n 1 | sed 's/.*"run": \([0-9]*\).*/\1/')
refused "takes numbers only, not 'last'" runs delete last --yes
refused "no run" runs delete 99999 --yes
expect 0 "would be deleted; --yes deletes it" runs delete "$newest"
expect 0 "run " runs show "$newest"
expect 0 "deleted" runs delete "$newest" --yes
expect 2 "no run" runs show "$newest"
before=$("$carry" runs list --json | wc -l)
expect 0 "would delete" runs gc --keep 1
before=$("$carry" runs list --json | wc -l)
expect 0 "0 of $before runs deleted" runs gc --yes
expect 0 "deleting run 1" runs gc --keep 2 --yes
[ "$("$carry" runs list --json | wc -l)" = 2 ] || fail "gc --keep 2 left $("$carry" runs list | wc -l)"
expect 0 '"deleted": 2' runs gc --keep 0 --yes --json
expect 0 "no runs in" runs list

# The experiments of a project.
CARRY_DATA=/nonexistent # without those that come with the program
export CARRY_DATA
refused "there is no folder experiments" list experiments
unset CARRY_DATA
mkdir -p experiments deep/er
cp met.yaml broken.yaml experiments
(cd deep/er && "$carry" list experiments > "$folder/out" 2> "$folder/err") || fail "list experiments: $(cat err)"
grep -q "^met  *Tiny things work$" out && grep -q "this is not YAML" out || { fail "list experiments:"; cat out; }
expect 0 '"about": "Tiny things work"' list experiments --json

# Nothing is leaked (effective only in the asan preset).
ASAN_OPTIONS=detect_leaks=1
expect 0 "decision: proceed" run met.yaml
expect 0 "within noise" runs compare last last
refused "fits its filters" run typo.yaml
[ $failures = 0 ] && echo "experiments and runs behave"
exit $((failures > 0))

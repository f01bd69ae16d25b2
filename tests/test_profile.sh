#!/bin/sh
# carry profile and carry --ranks as used by a person and by a script.
# Usage: test_profile.sh PATH-OF-CARRY PATH-OF-TEST_LAB_TRACE
set -u
carry=$1
here=$(cd "$(dirname "$0")" && pwd)
checker=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CARRY_WISDOM=$folder/wisdom
CARRY_STORE=$folder/store.db
export CARRY_WISDOM CARRY_STORE
# The leak sanitizer takes seconds at the end of every process on some machines: test_lab_trace runs with it.
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export ASAN_OPTIONS
cd "$folder" || exit 2
. "$here/support.sh"

problem=scan:dense:t256:n16
quick="--repeats 5"

# A bench on two ranks, profiled: its own output, hotspots, a trace that is well-formed, a stored run.
# shellcheck disable=SC2086
expect 0 "hotspots" --ranks 2 profile bench $problem $quick -o two.json.gz
grep -q 'fastest' out || fail "the bench's own table is missing"
grep -q 'bench: inputs .*src/bench/bench.c:[0-9]' out || fail "no hotspot by source file and line"
grep -q '2 ranks' out || fail "the hotspots do not say on how many ranks"
grep -q 'run 1 in ' out || fail "the run is not said to be stored"
"$checker" two.json.gz 2 || fail "the trace of two ranks is not well-formed"
"$carry" runs show 1 --json > shown 2> err || fail "the stored run cannot be shown"
grep -q -- '--ranks 2 profile bench' shown || fail "the stored run does not have its command"

# One rank, the verb's options and profile's mixed, JSON throughout.
# shellcheck disable=SC2086
expect 0 '"by": "category"' profile --top 3 -o one.json.gz --store "$folder/other.db" bench --json --threads 2 $quick delta:t64:h1:k16:v16
"$checker" one.json.gz 1 || fail "the trace of one rank is not well-formed"
places=$(grep '"by": "place"' out | grep -vc '"tokens_per_s"')
[ "$places" -ge 1 ] && [ "$places" -le 3 ] || fail "--top 3 printed $places places beside those with tokens"
grep '"name": "forward"' out | grep -q '"tokens_per_s": [1-9]' || fail "tokens a second are not told whatever --top says"
grep -q '"algorithm": "chunk16"' out || fail "the bench's own lines are missing"
grep -q '"trace": "one.json.gz", "events": [0-9]*, "dropped": [0-9]*' out || fail "no last line with the trace"
[ -s other.db ] || fail "--store was not used"
# shellcheck disable=SC2086
expect 0 '"tokens_per_s": ' profile --top 100 --no-store -o one.json.gz bench --json $quick delta:t64:h1:k16:v16
grep '"name": "forward"' out | grep -q '"mfu": 0\.[0-9]*\|"mfu": [0-9.]*e-' || fail "no MFU where there are tokens"

# A trace is bounded, says what it omits, and its hotspots count everything. Two threads, since the bound is per thread
# and a machine with many cores would have a larger trace.
expect 0 "the trace is cut" profile --events 100 --no-store -o cut.json.gz bench --threads 2 --repeats 500 $problem
"$checker" cut.json.gz 1 || fail "a cut trace is not well-formed"
[ "$(wc -c < cut.json.gz)" -lt 100000 ] || fail "a cut trace is large"

# Other verbs.
expect 0 "hotspots" profile --no-store -o check.json.gz check scan:diagonal:t64:n4
expect 0 "hotspots" profile --no-store plan $problem
[ -s trace.json.gz ] || fail "the trace has no name of its own when none is given"

# With a GPU: its kernels, or the reason why they are missing. Without a GPU: no mention of kernels.
if "$carry" list devices | grep -q cuda && "$carry" plan scan:diagonal:t64:n4:device=cuda > /dev/null 2>&1; then
    # shellcheck disable=SC2086
    expect 0 "hotspots" profile --no-store -o gpu.json.gz bench $quick scan:diagonal:t4096:n16:device=cuda
    grep -q '^kernels' out || grep -q 'kernels are not on the trace' err || fail "neither kernels nor why there are none"
    if grep -q '^kernels' out; then
        "$checker" gpu.json.gz 2 || fail "the trace with a GPU is not well-formed"
        gunzip -c gpu.json.gz | grep -q '"name":"GPU 0"' || fail "the trace has no GPU"
        expect 0 "GPUs busy" profile diff gpu.json.gz gpu.json.gz
    else
        echo "skipped: $(cat err)"
    fi
    CARRY_CUPTI=$folder/nowhere.so
    export CARRY_CUPTI
    # shellcheck disable=SC2086
    expect 0 "kernels are not on the trace: libcupti was not found" profile --no-store bench $quick scan:diagonal:t64:n4:device=cuda
    unset CARRY_CUPTI
else
    echo "skipped: there is no GPU here"
    grep -qi 'gpu\|kernels are' out err && fail "a profile without a GPU speaks of one"
fi

# Differences: files and stored runs.
expect 0 "self A" profile diff one.json.gz check.json.gz
expect 0 "change" profile diff last two.json.gz
grep -q '1\.000' out || fail "a stored run and its trace differ"
expect 0 '"change_s": 0, "ratio": 1' profile diff 1 two.json.gz --json
gunzip -c two.json.gz > plain.json
expect 0 '"change_s": 0, "ratio": 1' profile diff plain.json two.json.gz --json

# Bad input.
refused "cannot be read" profile diff nowhere.json.gz two.json.gz
refused "nowhere" profile diff nowhere two.json.gz
head -c 1000 two.json.gz > short.json.gz
refused "ends too early" profile diff short.json.gz two.json.gz
echo '{"traceEvents": []}' > foreign.json
refused "not a trace of carry profile: it has no hotspots" profile diff two.json.gz foreign.json
echo 'no trace' > text.json
refused "not a trace" profile diff text.json two.json.gz
refused "not a regular file" profile diff /dev/zero two.json.gz
refused "two traces" profile diff two.json.gz
refused "needs a verb" profile
refused "'fly'" profile fly
refused "'list'" profile list scans
refused "no option '--colour'" profile --colour
refused "no option '--colour'" profile bench --colour
refused "not a regular file" profile --no-store -o /dev/full bench $problem
refused "needs a value" profile bench $problem -o
refused "events" profile --events 9999999 bench $problem
refused "scan:nothing" profile --no-store -o bad.json.gz bench scan:nothing
[ ! -e bad.json.gz ] || fail "a refused verb left a trace"
runs=$("$carry" runs list --json | wc -l)
refused "scan:nothing" profile -o bad.json.gz bench scan:nothing
[ "$("$carry" runs list --json | wc -l)" = "$runs" ] || fail "a refused verb left a run"
echo 'this is no database, whatever its name may say about it' > broken.db
refused "broken.db" profile --store broken.db bench $problem
if [ -e /dev/full ]; then
    # shellcheck disable=SC2086
    "$carry" profile --no-store -o full.json.gz bench $problem $quick > /dev/full 2> err
    [ $? = 2 ] && grep -q "could not be written" err || fail "a full disk behind standard output is not noticed"
fi
if [ "$(id -u)" != 0 ]; then
    mkdir locked && chmod 500 locked
    # shellcheck disable=SC2086
    "$carry" profile --no-store -o locked/t.json.gz bench $problem $quick > out 2> err
    [ $? = 2 ] && grep -q "cannot be written" err || fail "a folder that cannot be written to is not noticed"
fi
mkdir folder.json.gz
refused "not a regular file" profile --no-store -o folder.json.gz bench $problem

# Ranks.
refused "is a problem of one rank" --ranks 2 plan $problem
refused "is a problem of one rank" --ranks 2 profile check $problem
refused "does not run on ranks" --ranks 2 profile diff two.json.gz two.json.gz
refused "--ranks needs a number" --ranks 0 bench $problem
refused "--ranks needs a number" --ranks many bench $problem
refused "--ranks needs a verb" --ranks 2
# shellcheck disable=SC2086
expect 0 '"ranks": 3, "rank": ' --ranks=3 bench --json $quick $problem
refused "nothing" --ranks 2 bench scan:nothing

# Trainings: --no-store before or after the verb applies to both runs, and a refused training is not stored.
if "$carry" train --help > /dev/null 2>&1; then
    small="--task mqar --steps 2 --threads 1 --hidden 32 --layers 1 --head-dim 16"
    before=$("$carry" runs list --json 2> /dev/null | wc -l)
    expect 0 "trace: " profile --no-store -o t.json.gz train $small --batch 1 --out unstored1
    expect 0 "MB kept for it" profile -o t.json.gz train --no-store $small --batch 1 --out unstored2
    expect 2 "100000000" train $small --batch 100000000 --out refused1
    [ "$("$carry" runs list --json 2> /dev/null | wc -l)" = "$before" ] || fail "runs were stored: $("$carry" runs list)"
fi

if [ $failures != 0 ]; then
    echo "$failures failed"
    exit 1
fi
echo "carry profile behaves"

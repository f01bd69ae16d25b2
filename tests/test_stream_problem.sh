#!/bin/sh
# Streams as problems: checked, timed, planned, judged; and refusals. Usage: test_stream_problem.sh CARRY
set -u
carry=$1
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
CARRY_WISDOM=none
CARRY_STORE=$folder/store.db
NO_COLOR=1
export CARRY_WISDOM CARRY_STORE NO_COLOR
# shellcheck source=tests/support.sh
. "$here/support.sh"

# Waits are most of the stages' times, so that a busy machine does not change the result.
small=stream:config=shapes:size=16x16:chunks14
slowed=$small:slow0=80:slow1=80
expect 0 "stream " list problems
expect 0 "pipeline: stage 0 and a mesh of 1, up to 2 envelopes under way; 14 chunks" plan $small
expect 0 "mesh: stage 0 on rank 0 of a mesh of 2" plan $small:mesh2:algo=mesh
# The same pictures with a separate stage and without, bit for bit.
expect 0 "2 right, 0 wrong, 0 left out" check $small
[ "$(grep -c 'error  0.00e+00  bound  0.00e+00  ok' out)" = 2 ] || fail "not the same bits: $(cat out)"
expect 0 "4 right, 0 wrong, 0 left out" check $small:mesh2 $small:recompute=anchor:context6
expect 0 '"slower_stage_s": 0.' bench --json --repeats 1 $slowed:algo=mesh
grep -q '"overlap": 0' out || fail "no overlap is told: $(cat out)"
expect 0 "slower stage " bench --repeats 1 $small:slow0=match:algo=pipeline

# write_experiment WAIT: writes small.yaml, whose stages wait WAIT ms, and other.yaml, with one criterion that is not
# met and one without a figure.
write_experiment() {
    slowed=$small:slow0=$1:slow1=$1
    cat > small.yaml << END
name: small
hypothesis: one envelope takes turns, two overlap
methods: [pipeline]
repeats: 1
grid:
  - stage: stream
    problem: $slowed:depth{d}
    d: [1, 2]
    needs: [stream]
    unchecked: true
  - stage: scan
    problem: scan:dense:t8:n2
    methods: [sequential]
success:
  - overlap(pipeline, depth=2) >= 0.5
  - overlap(pipeline, depth=1) <= 0.3
  - time(pipeline, depth=2) / slower_stage(pipeline, depth=2) <= 1.5
  - time(pipeline, depth=1) / slower_stage(pipeline, depth=1) >= 1.3
  - memory(pipeline, depth=2) > 1000000
END
    sed -e 's/depth=1) <= 0.3/depth=1) >= 0.5/' -e 's/^  - memory.*/  - overlap(sequential) >= 0/' small.yaml > other.yaml
}

# judge FILE MET: runs the experiment; true if exactly MET criteria are met.
judge() {
    "$carry" run "$1" > "$1.out" 2>&1
    echo $? > "$1.code"
    [ "$(grep -c '^  met ' "$1.out")" = "$2" ]
}
number_of() { sed -n 's/^stored as run \([0-9]*\) .*/\1/p' "$1.out"; }

# The waits become longer each time, so that the delays of a busy machine do not change the result.
for wait in 80 240 720 2160; do
    write_experiment $wait
    judge small.yaml 5 && judge other.yaml 3 && break
done
[ "$(grep -c '^  met ' small.yaml.out)" = 5 ] || fail "not every criterion is met: $(cat small.yaml.out)"
[ "$(cat small.yaml.code)" = 0 ] || fail "exit code $(cat small.yaml.code): $(cat small.yaml.out)"
grep -q 'decision: proceed' small.yaml.out || fail "the decision: $(cat small.yaml.out)"
grep -q 'overlap 0.00  slower stage ' small.yaml.out || fail "no score of depth 1: $(cat small.yaml.out)"
"$carry" runs show "$(number_of small.yaml)" --json > run.json || fail "carry runs show"
for metric in overlap slower_stage; do
    [ "$(grep -oF "\"$metric\"" run.json | wc -l)" = 2 ] || fail "the store has no two of '$metric'"
done
# A false criterion is reported as not met, and one without a figure as not measured.
[ "$(cat other.yaml.code)" = 1 ] || fail "exit code $(cat other.yaml.code): $(cat other.yaml.out)"
grep -q 'decision: stop' other.yaml.out || fail "the other decision: $(cat other.yaml.out)"
grep -q '^  not met .*overlap(pipeline, depth=1) >= 0.5' other.yaml.out || fail "a criterion that is not met: $(cat other.yaml.out)"
[ "$(grep -c '^  met ' other.yaml.out)" = 3 ] || fail "three are met: $(cat other.yaml.out)"
grep -q '^  not measured .*overlap(sequential)' other.yaml.out || fail "a scan has no overlap: $(cat other.yaml.out)"
expect 0 "$slowed:depth2" runs compare "$(number_of small.yaml)" "$(number_of other.yaml)"
if command -v gnuplot > /dev/null; then
    expect 0 "" report last -o page.html
    grep -q 'overlap(pipeline, depth=2) &gt;= 0.5' page.html || fail "the page has no criterion"
else
    echo "skipped: gnuplot is not here"
fi

refused "stream has no size 'q'" plan stream:q4
refused "so 11 to 4096 are measured" bench $small:depth2:algo=mesh stream:config=shapes:chunks10
refused "1 to 8 envelopes" plan $small:depth9
refused "does not divide" plan $small:mesh5
refused "16 multiprocessors for decoding: it needs a GPU" plan $small:multiprocessors16
refused "no GPU has more than 4096" plan $small:multiprocessors5000
refused "at most 1023 ranks" plan $small:mesh5000
refused "48 x 32 is the nearest that works" plan stream:config=shapes:size=41x32
refused "a width and a height in pixels" plan stream:config=shapes:size=wide
refused "off, anchor or latent" plan $small:recompute=often
refused "it needs recompute=latent or anchor" plan $small:context3
refused "a recompute of 4 frames" plan $small:recompute=anchor:context4
refused "milliseconds, or match" plan $small:slow0=fast
refused "expected milliseconds" plan $small:slow1=match
refused "stages slowed by" plan $small:slow1=-5
refused "there is no topology 'ring'" bench $small:algo=ring
refused "1.3B, 14B, shapes are known" plan stream:config=2B
refused "there is no folder nowhere" plan stream:model=nowhere
refused "one of them" plan stream:model=nowhere:config=shapes
refused "is a problem of one rank" --ranks 2 check $small

if [ $failures != 0 ]; then
    echo "$failures failed"
    exit 1
fi
echo "streams as problems: all is well"

#!/bin/sh
# Training as a problem: checked, timed, planned, judged, drawn; and what it refuses. Usage: test_training_problem.sh CARRY
set -u
carry=$1
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
mkdir tmp
CARRY_WISDOM=none
CARRY_STORE=$folder/store.db
TMPDIR=$folder/tmp
export CARRY_WISDOM CARRY_STORE TMPDIR
# shellcheck source=tests/support.sh
. "$here/support.sh"

small=train:layers1:hidden16:heads2:state8:t32:b2:steps6:task=copy
expect 0 "5 right, 0 wrong, 0 left out" check $small
expect 0 "1 right, 0 wrong" check $small:delta_net:recompute:algo=cyclic
expect 0 "sequential" bench --repeats 1 $small
expect 0 "chunk: the delta rule" plan $small
expect 0 "train " list problems

cat > small.yaml << END
name: small
hypothesis: the same model by two scans
methods: [cyclic, scan]
grid:
  - stage: cpu
    problem: $small
    repeats: 1
  - stage: text
    problem: train:steps3:data=nowhere/at-all
    repeats: 1
success:
  - perplexity(cyclic, stage=cpu) / perplexity(scan, stage=cpu) <= 1.001
  - perplexity(cyclic, stage=cpu) / perplexity(scan, stage=cpu) >= 0.999
  - memory(cyclic, stage=cpu) <= memory(scan, stage=cpu)
  - perplexity(cyclic, stage=text) < 1000
END
# What was not measured leaves it undecided.
expect 1 "there is no text 'nowhere/at-all' here" run small.yaml
"$carry" runs show last --json > run.json 2> err || fail "carry runs show: $(cat err)"
for curve in "loss:cyclic, cpu" "loss:scan, cpu"; do
    [ "$(grep -oF "\"$curve\"" run.json | wc -l)" = 6 ] || fail "the store has no 6 losses '$curve'"
done
[ "$(grep -c '"not met"' run.json)" = 0 ] || fail "a criterion is not met"
if command -v gnuplot > /dev/null; then
    expect 0 "" report last -o page.html
    for curve in "cyclic, cpu</li>" "scan, cpu</li>"; do
        grep -qF "$curve" page.html || fail "the page has no curve '$curve'"
    done
else
    echo "skipped: gnuplot is not here"
fi
[ -z "$(ls -A tmp)" ] || fail "checkpoints were left behind: $(ls tmp)"

refused "train has no size 'q'" plan train:q4
refused "there is no method 'doubling'" bench train:steps2:algo=doubling
refused "there is no task" bench train:steps2:task=chess
refused "at most 100000" plan train:steps100001
refused "is zero" plan train:steps0
TMPDIR=$folder/none
expect 2 "the temporary folder" bench --repeats 1 $small

if [ $failures != 0 ]; then
    echo "$failures failed"
    exit 1
fi
echo "training as a problem: all is well"

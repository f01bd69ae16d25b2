#!/bin/sh
# Training as a problem: checked, timed, planned, judged, plotted; and refusals. Usage: test_training_problem.sh CARRY
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
  - stage: seeds
    problem: $small:seed{s}
    s: [1, 2]
    repeats: 1
  - stage: text
    problem: train:steps3:data=nowhere/at-all
    repeats: 1
success:
  - perplexity(cyclic, stage=cpu) / perplexity(scan, stage=cpu) <= 1.001
  - perplexity(cyclic, stage=cpu) / perplexity(scan, stage=cpu) >= 0.999
  - memory(cyclic, stage=cpu) <= memory(scan, stage=cpu)
  - busy(cyclic, stage=cpu) > 0
  - busy(cyclic, stage=cpu) <= 1
  - cost(cyclic, stage=cpu) > time(cyclic, stage=cpu)
  - mean(perplexity(cyclic, stage=seeds)) / mean(perplexity(scan, stage=seeds)) <= 1.001
  - perplexity(cyclic, stage=text) < 1000
failure:
  - perplexity(cyclic, stage=seeds, seed=1) == perplexity(cyclic, stage=seeds, seed=2)
END
# A criterion that was not measured leaves the experiment undecided.
expect 1 "there is no text 'nowhere/at-all' here" run small.yaml
"$carry" runs show last --json > run.json 2> err || fail "carry runs show: $(cat err)"
for curve in "loss:cyclic, cpu" "loss:scan, cpu"; do
    [ "$(grep -oF "\"$curve\"" run.json | wc -l)" = 6 ] || fail "the store has no 6 losses '$curve'"
done
# All criteria are met except two: the one of failure, since seeds differ, and the one of the missing text.
[ "$(grep -oF '"not met"' run.json | wc -l)" = 1 ] || fail "a criterion is not met: $(cat run.json)"
[ "$(grep -oF '"not measured"' run.json | wc -l)" = 1 ] || fail "a criterion is not measured: $(cat run.json)"
for figure in busy cost perplexity; do
    [ "$(grep -oF "\"$figure\"" run.json | wc -l)" = 6 ] || fail "the store has no 6 figures '$figure'"
done
"$carry" run small.yaml --stage cpu --json > figures.json 2> err
grep -q '"busy": 0*\.[0-9]*[1-9]' figures.json || grep -q '"busy": 1' figures.json || fail "no share of time: $(cat figures.json)"
grep -q '"cost_s": ' figures.json || fail "no cost: $(cat figures.json)"
if command -v gnuplot > /dev/null; then
    expect 0 "" report last -o page.html
    for curve in "cyclic, cpu</li>" "scan, cpu</li>"; do
        grep -qF "$curve" page.html || fail "the page has no curve '$curve'"
    done
else
    echo "skipped: gnuplot is not here"
fi
[ -z "$(ls -A tmp)" ] || fail "checkpoints were left behind: $(ls tmp)"

# WikiText if it is named, else the documentation; the run says which.
mkdir wiki docs
for i in 1 2 3 4 5 6 7 8; do
    echo "The cat sat on the mat and looked at the dog, which slept in the sun all day. $i" >> wiki/a.txt
done
cp wiki/a.txt docs/a.md
cat > wiki.yaml << 'END'
name: wiki
hypothesis: The text is named.
repeats: 1
methods: [chunk]
grid:
  - problem: train:layers1:hidden16:heads2:state8:t32:b1:vocab260:steps2:data=wikitext
success:
  - time(chunk) > 0
END
expect 0 'text: docs (instead of WikiText: name its folder by --wikitext or CARRY_WIKITEXT)' run wiki.yaml
expect 0 'artefact  text' runs show last
expect 0 'text: wiki' run wiki.yaml --wikitext wiki
CARRY_WIKITEXT=wiki expect 0 'text: wiki' run wiki.yaml
refused "WikiText: 'gone' does not exist (named by CARRY_WIKITEXT or --wikitext)" run wiki.yaml --wikitext gone

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

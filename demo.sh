#!/bin/sh
# Builds Carry and shows what it does: a small language model trained over two ranks, checked against one rank, and what it writes;
# a video transformer that streams over two ranks;
# the scans and the gated delta rule, checked and timed; a small experiment with its verdicts, a profile and a report to open.
# What it stores is in build/demo.
set -eu
cd "$(dirname "$0")"
tools/setup
mkdir -p build
if ! cmake --preset release > build/demo.log 2>&1 -DCARRY_TESTS=OFF || ! cmake --build --preset release >> build/demo.log 2>&1; then
    tail -n 20 build/demo.log
    echo "demo: the build failed; all of it is in build/demo.log" >&2
    exit 2
fi
carry=build/release/carry

say() { printf '\n== %s\n\n' "$1"; }

rm -rf build/demo
mkdir build/demo
CARRY_STORE=build/demo/store.db
export CARRY_STORE

# On a machine without their libraries the program is built without some verbs (tools/setup installs them).
has() { "$carry" list verbs | grep -q "^$1 "; }

train() { # FOLDER STEPS RANKS OPTION...: the same model on the text that comes with Carry
    folder=$1
    steps=$2
    ranks=$3
    shift 3
    "$carry" --ranks "$ranks" train --data README.md HACKING.md CHANGELOG.md docs/*.md docs/results/*.md library --steps "$steps" \
        --schedule constant --warmup 10 --rate 0.002 --vocab 1024 --length 256 --batch 8 --seed 7 --save-every "$steps" --eval-every "$steps" \
        --out "build/demo/$folder" "$@"
}

loss_at() { # STEP FILE
    awk -v step="$1" 'match($0, /"step": [0-9]*/) && substr($0, RSTART + 8, RLENGTH - 8) + 0 == step && match($0, /"loss": [0-9.]*/) {
        print substr($0, RSTART + 8, RLENGTH - 8); exit }' "$2"
}

if has train; then
    say "Training a Gated DeltaNet of 2 M parameters on this project's documents, with each batch divided between two ranks"
    train model 120 2

    say "Do two ranks give the same result as one? The loss of step 10: on one rank, rows divided between two, each row split over two"
    train one 10 1 --json --no-store > build/demo/one.json
    train rows 10 2 --json --no-store > build/demo/rows.json
    train split 10 2 --sequence-ranks 2 --json --no-store > build/demo/split.json
    echo "$(loss_at 10 build/demo/one.json) $(loss_at 10 build/demo/rows.json) $(loss_at 10 build/demo/split.json)" |
        awk '{ print $1, $2, $3; most = 1e-3 * $1
               if (NF != 3 || ($1 - $2) ^ 2 > most ^ 2 || ($1 - $3) ^ 2 > most ^ 2) { print "they differ"; exit 1 }
               print "they agree to a thousandth" }'

    say "Text it generates after this training"
    "$carry" generate build/demo/model -p "The scan" -n 60 --seed 3
    say "How well it predicts a page it was trained on"
    "$carry" eval build/demo/model README.md
else
    say "Training is skipped: this build does not include it (docs/testing.md lists what it needs)"
fi

say "A causal video transformer streams video for a prompt: encoding and decoding on one rank, the generator on another"
film=build/demo/shapes.avi
prompt="red circle moving left"
"$carry" --ranks 2 stream --demo --chunks 24 --prompt "$prompt" --record $film ||
    "$carry" --ranks 2 stream --demo --chunks 24 --prompt "$prompt" # a build without pictures has no films

say "The algorithms for h[t] = A[t] h[t-1] + b[t], and where they can run"
"$carry" list scans
echo
"$carry" list devices

say "Are they correct? Every algorithm against the float64 recurrence, with decays down to e^-40 and exactly zero"
"$carry" check scan:diagonal:t1000:n16:w64:initial scan:diagonal:deep:t256:n16:w64 scan:dense:bf16:t257:n33:w5 \
    scan:dense:t100:n16:w8:backward delta:t200:h2:hv4:k64:v64:initial

say "Which is fastest? The shape of experiment 026: cyclic reduction against doubling, and both against the plain loop"
"$carry" bench scan:dense:f32:t1024:n32:w1

say "The shape of experiment 044, alone and in a batch that fills the machine"
"$carry" bench scan:diagonal:f32:t256:n16:w64 scan:diagonal:f32:b64:t1024:n16:w64

say "The gated delta rule: 8 heads of 128, forward, backward and one token"
"$carry" bench delta:t1024:h8:k128:v128 delta:t1024:h8:k128:v128:backward delta:step:h32:k128:v128

say "Which algorithm is fastest for which shape (with the planner's choice)"
printf '%-36s %-14s %-14s\n' problem fastest planned
for problem in scan:diagonal:t64:n16:w64 scan:diagonal:t8192:n4 scan:diagonal:b64:t256:n16:w64 scan:dense:t1024:n4 \
    scan:dense:t1024:n32 scan:dense:b8:t256:n16:w64 scan:dense:t256:n64:w64 delta:t256:h4:k64:v64 delta:t8:h4:k64:v64 \
    delta:t4096:h1:k128:v128; do
    "$carry" bench --json --unchecked --seconds 0.05 "$problem" | awk -v problem="$problem" '
        match($0, /"algorithm": "[a-z0-9_]*"/) { name = substr($0, RSTART + 14, RLENGTH - 15) }
        match($0, /"median_s": [0-9.e+-]*/) {
            median = substr($0, RSTART + 12, RLENGTH - 12) + 0
            if (best == "" || median < least) { best = name; least = median }
            if ($0 ~ /"planned": true/) { planned = name }
        }
        END { printf "%-36s %-14s %-14s\n", problem, best, planned }'
done

say "What would run, and why"
"$carry" plan scan:diagonal:b64:t4096:n16:w64 scan:dense:t8192:n64 delta:bf16:t32768:h16:hv32:k128:v128

if has report; then
    say "An experiment: a hypothesis, a grid, criteria; a verdict on each, and a decision"
    "$carry" run experiments/demo.yaml || [ $? = 1 ] # a criterion that is not met is a result

    say "Where the time goes"
    "$carry" profile --top 8 -o build/demo/trace.json.gz bench --seconds 0.2 scan:dense:t1024:n32:algo=cyclic

    say "The reference library: what is known, and what was measured"
    "$carry" cards find --most 3 cyclic reduction

    say "The report"
    "$carry" report demo README -o build/demo/report.html
else
    say "Experiments, profiles and reports are skipped: this build has no lab (docs/testing.md lists what it needs)"
fi

say "Further reading"
line() { printf '  %-44s  %s\n' "$1" "$2"; }
line "$carry --help" "the verbs"
line "$carry list problems" "the problem grammar"
line "$carry --ranks 2 stream --serve" "live video in a browser, controlled by prompts"
line "$carry bench --grid" "evaluate the planner: its choice against the best for 60 shapes (two minutes)"
line "make claims" "measure what the documents claim"
line "docs/reading-order.md" "ten files that explain the code"
if [ -e build/demo/report.html ]; then
    say "Open these"
    if [ -e $film ]; then line "$film" "in a video player: the streamed video"; fi
    line "build/demo/report.html" "in a browser: the experiment's verdicts, tables and plots"
    line "build/demo/trace.json.gz" "in ui.perfetto.dev: the profile"
fi

#!/bin/sh
# Builds Carry and shows what it does: the scans and the gated delta rule, checked and timed, which algorithm wins where, and
# a small experiment with its verdicts, a profile and a report to open. What it stores is in build/demo.
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

say "What is here: the algorithms for h[t] = A[t] h[t-1] + b[t], and where they can run"
"$carry" list scans
echo
"$carry" list devices

say "Are they right? Every algorithm against the float64 recurrence, decays down to e^-40 and exactly zero among them"
"$carry" check scan:diagonal:t1000:n16:w64:initial scan:diagonal:deep:t256:n16:w64 scan:dense:bf16:t257:n33:w5 \
    scan:dense:t100:n16:w8:backward delta:t200:h2:hv4:k64:v64:initial

say "Which is fastest? Experiment 026's shape: cyclic reduction against doubling, and both against the plain loop"
"$carry" bench scan:dense:f32:t1024:n32:w1

say "Experiment 044's shape, alone and in a batch that fills the machine"
"$carry" bench scan:diagonal:f32:t256:n16:w64 scan:diagonal:f32:b64:t1024:n16:w64

say "The gated delta rule: 8 heads of 128, forward, backward and one token"
"$carry" bench delta:t1024:h8:k128:v128 delta:t1024:h8:k128:v128:backward delta:step:h32:k128:v128

say "Which algorithm wins where (the planner's choice beside it)"
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

rm -rf build/demo
# On a machine without the lab's libraries the program is built without these verbs (tools/setup installs them).
if "$carry" list verbs | grep -q '^report '; then
    mkdir build/demo
    CARRY_STORE=build/demo/store.db
    export CARRY_STORE

    say "An experiment: a hypothesis, a grid, criteria; a verdict on each, and a decision"
    "$carry" run experiments/demo.yaml || [ $? = 1 ] # a criterion that is not met is a result

    say "Where the time goes"
    "$carry" profile --top 8 -o build/demo/trace.json.gz bench --seconds 0.2 scan:dense:t1024:n32:algo=cyclic

    say "What is known of it, and what was measured here"
    "$carry" cards find --most 3 cyclic reduction

    say "The report"
    "$carry" report demo -o build/demo/report.html
else
    say "Experiments, profiles and reports are left out: this build has no lab (HACKING.md says what it needs)"
fi

say "Where to go on"
line() { printf '  %-36s  %s\n' "$1" "$2"; }
line "$carry --help" "the verbs"
line "$carry list problems" "the problem grammar"
line "$carry bench --grid" "the planner's exam: 60 shapes, its choice against the best (two minutes)"
line "make claims" "what the documents claim, measured here"
line "docs/reading-order.md" "the house, room by room"
if [ -e build/demo/report.html ]; then
    say "Open these"
    line "build/demo/report.html" "in a browser: the experiment's verdicts, tables and plots"
    line "build/demo/trace.json.gz" "in ui.perfetto.dev: the profile"
fi

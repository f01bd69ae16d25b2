#!/bin/sh
# Builds Carry and shows what it does: the scans, checked and timed, and which algorithm wins where.
set -eu
cd "$(dirname "$0")"
tools/setup
cmake --preset release -DCARRY_TESTS=OFF > build-demo.log 2>&1 && cmake --build --preset release >> build-demo.log 2>&1 || {
    tail -n 20 build-demo.log
    echo "demo: the build failed; all of it is in build-demo.log" >&2
    exit 2
}
rm -f build-demo.log
carry=build/release/carry

say() { printf '\n== %s\n\n' "$1"; }

say "What is here: the algorithms for h[t] = A[t] h[t-1] + b[t], and where they can run"
"$carry" list scans
echo
"$carry" list devices

say "Are they right? Every algorithm against the float64 recurrence, decays down to e^-40 and exactly zero among them"
"$carry" check scan:diagonal:t1000:n16:w64:initial scan:diagonal:deep:t256:n16:w64 scan:dense:bf16:t257:n33:w5 \
    scan:dense:t100:n16:w8:backward

say "Which is fastest? Experiment 026's shape: cyclic reduction against doubling, and both against the plain loop"
"$carry" bench scan:dense:f32:t1024:n32:w1

say "Experiment 044's shape, alone and in a batch that fills the machine"
"$carry" bench scan:diagonal:f32:t256:n16:w64 scan:diagonal:f32:b64:t1024:n16:w64

say "Small matrix products: Carry's kernels against a loop of OpenBLAS calls"
"$carry" bench matmul:b4096:n16 matmul:b4096:n32 matmul:b1024:n64

say "What would run, and why"
"$carry" plan scan:diagonal:b64:t4096:n16:w64 scan:dense:t8192:n64 scan:dense:b8:t256:n16:w64 scan:diagonal:t8192:n4

say "Where to go on"
echo "  $carry --help                     the verbs"
echo "  $carry list problems              the problem grammar"
echo "  $carry bench --grid               the planner's exam: 60 shapes, its choice against the best (two minutes)"
echo "  docs/reading-order.md             the house, room by room"

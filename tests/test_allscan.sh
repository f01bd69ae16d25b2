#!/bin/sh
# Problems of several ranks from the command line: on threads, and under mpirun if it is installed.
# Usage: test_allscan.sh PATH-OF-CARRY
set -u
carry=$1
tests=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
CARRY_WISDOM=none
CARRY_STORE=$folder/store.db
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
TMPDIR=$folder
NO_COLOR=1
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export CARRY_WISDOM CARRY_STORE ASAN_OPTIONS TMPDIR NO_COLOR OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
. "$tests/support.sh"
small=allscan:wy:bf16:h2:k9:v5:p3

# A single process uses threads as ranks.
expect 0 '"bytes_per_rank": 180' bench --json --repeats 3 $small:algo=chain
grep -q '"ranks": 3' out || fail "the ranks are not told"
expect 0 'received 0.00018 MB' bench --repeats 3 $small
expect 0 '"exposed": 0' bench --json --repeats 3 delta:f32:t32:h2:k8:v8:p2:algo=chain
expect 0 '10 right, 0 wrong' check $small
expect 0 '10 right, 0 wrong' check allscan:factors:f32:h1:k1:v1:p3
expect 0 'dv ' check delta:f32:t32:h2:k8:v8:p2:backward
expect 0 'dv ' check delta:f32:t32:h2:k8:v8:keygate:p2:backward
expect 0 'over 3 ranks (threads)' plan $small
expect 0 '"algorithm": "serial"' plan --json $small:algo=lasp1
expect 0 'over 3 ranks (threads)' --ranks 4 plan $small
expect 0 '10 right' --ranks 3 check $small
refused "is for 3 ranks, and there are 2" --ranks 2 bench $small
refused "is for 3 ranks, and there are 2" --ranks 2 check $small
refused "is a problem of one rank" --ranks 2 check scan:dense:t8:n2
refused "check --golden does not run on ranks" --ranks 2 check --golden nothing
expect 0 '5 right, 0 wrong' check allreduce:bf16:2x6:p2 allgather:f32:n12:p3 reducescatter:bf16:n12:p4 broadcast:n7:p7 \
    sendrecv:n5:p5
expect 0 'predicted' bench --repeats 3 allreduce:f32:3x4:p2
refused 'a number that 3 ranks can share' check allgather:n4:p3
refused 'neither a word' check allreduce:2x:p2
expect 0 'simulated' plan cluster:wy:bf16:h4:k16:v16:p20
expect 0 'planned' bench --unchecked --repeats 3 cluster:wy:bf16:h4:k16:v16:p20
expect 0 'no ceilings, no shares' bench --unchecked --repeats 3 cluster:wy:bf16:h4:k16:v16:p20
expect 0 '"algorithm": "heads"' bench --json --unchecked --repeats 3 cluster:wy:bf16:h4:k16:v16:p20
grep -q 'ceilings' out && fail "a simulation has ceilings of this machine"
grep -q '"share": [0-9]' out && fail "a simulation has a share of this machine's ceilings"
refused 'p1 to p4096' plan cluster:wy:p4097
# A video stream over simulated GPUs: one GPU takes blocks x forwards; several GPUs have links between them.
expect 0 '27.33 frames/s predicted' plan streamcluster
expect 0 'mesh over 2 GPUs' plan streamcluster:gpus2:algo=mesh
expect 0 '"algorithm": "stages"' bench --json --unchecked --repeats 3 streamcluster:gpus4
refused 'no more than blocks' plan streamcluster:gpus41
refused "there is no method 'ring'" plan streamcluster:gpus2:algo=ring
# A GPU for each rank.
refused 'each of 1024 ranks needs a GPU' plan allscan:wy:p1024:device=gpus
refused 'each of 1024 ranks needs a GPU' plan delta:t1024:p1024:device=gpus
refused "expected cpu, cuda" plan scan:dense:t8:n2:device=gpus
refused "'p0'" bench allscan:wy:p0
refused "p1 to p1024" check allscan:wy:p1025
refused "only factors have rows" plan allscan:wy:r3:p2

cat > tiny.yaml << 'END'
name: tiny
hypothesis: What a rank receives does not grow.
repeats: 3
spread: 1000
grid:
  - stage: ranks
    problem: allscan:{kind}:bf16:h2:k8:v8:p{p}
    kind: [wy, diagonal]
    p: [2, 3]
    methods: [chain, gather]
  - stage: gpus
    problem: allscan:wy:h2:k8:v8:p2:device=cuda
    methods: [chain]
    needs: [gpus]
success:
  - received(chain, wy, p=3, stage=ranks) == received(chain, wy, p=2, stage=ranks)
failure:
  - error(chain, stage=ranks) > 0.1
END
CUDA_VISIBLE_DEVICES= # the stage gpus is not measured anywhere: no criterion about ranks on a CPU decides for it
export CUDA_VISIBLE_DEVICES
expect 1 "decision: incomplete" run tiny.yaml
grep -q '^  allscan:wy:bf16:h2:k8:v8  *chain  *256  *256$' out || fail "no table of what is received"
grep -q 'not measured: ' out || fail "no reason where GPUs are missing"
sed '/stage: gpus/,/needs/d' tiny.yaml > whole.yaml
expect 0 "decision: proceed" run whole.yaml --no-store
expect 0 "decision: proceed" --ranks 3 run whole.yaml --no-store
expect 1 "decision: incomplete" --ranks 3 run tiny.yaml
[ "$(grep -c '^decision' out)" = 1 ] || fail "not rank 0 alone printed"
expect 1 "more than the 2 ranks" --ranks 2 run tiny.yaml --no-store

if ! "$carry" list collectives | grep -q '^mpi ' || ! mpirun --version 2> /dev/null | grep -q 'Open MPI'; then
    echo "skipped: a build with MPI and Open MPI's mpirun are not both here"
    [ $failures = 0 ] && exit 77
    exit 1
fi

# launch CODE WORDS N ARGUMENTS...: as expect, as N processes.
launch() {
    code=$1
    words=$2
    ranks=$3
    shift 3
    timeout -k 5 600 mpirun --oversubscribe --mca btl_vader_single_copy_mechanism none -n "$ranks" "$carry" "$@" \
        > out 2> err < /dev/null
    got=$?
    if [ $got != "$code" ] || ! cat out err | grep -qF -e "$words"; then
        fail "mpirun -n $ranks carry $*: exit $got (expected $code), expected to read '$words', read:"
        tail -n 8 out err
    fi
}
launch 0 '"bytes_per_rank": 180' 3 bench --json --repeats 3 $small
[ "$(grep -c '"algorithm": "chain"' out)" = 1 ] || fail "not rank 0 alone printed"
launch 0 '10 right, 0 wrong' 4 check $small
launch 0 'over 3 ranks (mpi)' 3 plan $small
launch 0 'dv ' 2 check delta:f32:t32:h2:k8:v8:p2:backward
launch 1 'decision: incomplete' 3 run tiny.yaml
[ "$(grep -c 'stored as run' out)" = 1 ] || fail "not rank 0 alone stored"
launch 2 'is for 3 ranks, and there are 2' 2 bench $small
[ "$(grep -c '^carry: ' err)" = 1 ] || fail "not one error message"
launch 1 'more than the 2 ranks' 2 run tiny.yaml --no-store
"$carry" runs list > out || fail "runs list"
[ "$(grep -c tiny out)" = 3 ] || fail "three runs were to be stored"
# Ranks continue a run that one process began, and do not repeat its measurements.
expect 0 "decision: proceed" run whole.yaml --name cut --store cut.db
launch 0 'decision: proceed' 3 run --continue cut --store cut.db
[ "$(grep -c 'runs  ' out)" = 0 ] || fail "ranks measured what was measured"
[ $failures = 0 ] && echo "ranks work together"
exit $((failures > 0))

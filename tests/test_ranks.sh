#!/bin/sh
# carry on ranks from the command line: variables that launchers set, and mpirun itself if it is installed.
# Usage: test_ranks.sh PATH-OF-CARRY
set -u
carry=$1
tests=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
CARRY_WISDOM=none
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
TMPDIR=$folder
export CARRY_WISDOM ASAN_OPTIONS TMPDIR
unset CARRY_RANK CARRY_RANKS CARRY_MEET OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK PMI_RANK PMI_SIZE PMIX_RANK SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_NTASKS
. "$tests/support.sh"
quick="--seconds 0.01 scan:dense:t32:n4"
"$carry" list collectives > collectives || fail "list collectives"
grep -q '^threads ' collectives || fail "list collectives has no threads"
if grep -q '^mpi ' collectives; then has_mpi=1; else has_mpi=0; fi

# Threads.
expect 0 '"ranks": 2' --ranks 2 bench --json --deadline 120 $quick
[ "$(grep -c sequential out)" = 1 ] || fail "not rank 0 alone printed"
refused "positive number, not '0'" bench --deadline 0 $quick
refused "positive number, not '-1'" bench --deadline -1 $quick
refused "positive number, not 'soon'" --ranks 2 bench --deadline soon $quick
refused "at most 1e8" bench --deadline 1e300 $quick
refused "no option '--deadline" list --deadline 3 scans

# Processes without MPI: only rank 0 prints, differences and bad arguments are reported once, and no folder is left.
expect 0 '"ranks": 2' --processes 2 bench --json --deadline 120 $quick
[ "$(grep -c sequential out)" = 1 ] || fail "not rank 0 alone printed"
expect 0 "right, 0 wrong" --processes 3 check --deadline 120 delta:f32:t40:h2:k8:v8:p3
refused "give one" --ranks 2 --processes 2 bench $quick
refused "--processes needs a number from 1 to" --processes 0 bench $quick
refused "is for 4 ranks, and there are 2" --processes 2 check allscan:wy:f32:h2:k8:v8:p4
refused "list does not run on ranks" --processes 2 list scans
if ls -d "$folder"/carry-* > /dev/null 2>&1; then fail "a folder of processes is left"; fi

# until_true COMMAND...: repeats it for 60 s at most.
until_true() {
    tries=0
    until "$@"; do
        [ $tries -lt 1200 ] || { fail "not within 60 s: $*"; return 1; }
        sleep 0.05
        tries=$((tries + 1))
    done
}
gone() { [ ! -d "/proc/$1" ] || grep -q '^State:.Z' "/proc/$1/status"; }
ranks_of() { pgrep -P "$1"; }
has_two() { [ "$(ranks_of "$1" | wc -l)" = 2 ]; }

# The folder of a run that was killed is removed by a later one, but not while it is recent or its run continues.
"$carry" --processes 2 bench --seconds 1000 scan:dense:t2048:n64 > out 2> err &
run=$!
until_true has_two $run
ls -d "$folder"/carry-ranks-* > /dev/null 2>&1 || fail "no folder of a run"
touch -d '1 hour ago' "$folder"/carry-ranks-*
expect 0 '"ranks": 2' --processes 2 bench --json --deadline 120 $quick
ls -d "$folder"/carry-ranks-* > /dev/null 2>&1 || fail "the folder of a running run was removed"
kill -9 $run
wait $run 2> /dev/null
ls -d "$folder"/carry-ranks-* > /dev/null 2>&1 || fail "the test expects a folder to be left"
touch -d '1 hour ago' "$folder"/carry-ranks-*
expect 0 '"ranks": 2' --processes 2 bench --json --deadline 120 $quick
if ls -d "$folder"/carry-ranks-* > /dev/null 2>&1; then fail "the folder of a killed run is left"; fi

# Stopped ranks do not keep the command running once all others have ended.
"$carry" --processes 2 bench --deadline 2 --seconds 1000 scan:dense:t2048:n64 > out 2> err &
run=$!
until_true has_two $run
first=$(ranks_of $run | head -n 1)
second=$(ranks_of $run | tail -n 1)
kill -STOP "$second"
kill -9 "$first"
tries=0
until gone $run || [ $tries -ge 2400 ]; do sleep 0.05; tries=$((tries + 1)); done
gone $run || fail "a stopped rank keeps the command after the other has ended"
kill -9 $run 2> /dev/null
wait $run 2> /dev/null
grep -q "is it stopped" err || fail "a stopped rank was ended without a word: $(cat err)"

# with VALUES WORD ARGUMENTS...: expect or refused, in an environment that has those values.
with() {
    values=$1
    shift
    for value in $values; do export "${value?}"; done
    "$@"
    for value in $values; do unset "${value%%=*}"; done
}

# silent ARGUMENTS...: exit 2, without any output.
silent() {
    "$carry" "$@" > out 2> err < /dev/null
    got=$?
    if [ $got != 2 ] || [ -s out ] || [ -s err ]; then
        fail "carry $*: exit $got (expected 2), or said something:"
        cat out err
    fi
}

# Variables with values that no launcher writes are ignored, and the process runs alone.
for rank in '' -1 4 x 0x1 99999999999999999999; do
    with "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=$rank" expect 0 "threads" list collectives
    with "PMI_SIZE=4 PMI_RANK=$rank" expect 0 "threads" list collectives
done
for size in '' 0 -4 many 4x 99999999999999999999; do
    with "OMPI_COMM_WORLD_SIZE=$size OMPI_COMM_WORLD_RANK=0" expect 0 "threads" list collectives
    with "SLURM_STEP_NUM_TASKS=$size SLURM_PROCID=0" expect 0 "threads" list collectives
done
with "SLURM_NTASKS=4 SLURM_PROCID=0" expect 0 "threads" list collectives # a batch script, no step of it
with "SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=0" expect 0 "threads" list collectives
with "PMIX_RANK=0" expect 0 "threads" list collectives
with "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0" expect 0 "sequential" bench $quick

# Carry's own variables cannot be leftovers of another program: an invalid number is refused, instead of running alone.
with "CARRY_MEET=$folder CARRY_RANKS=2 CARRY_RANK=5" refused "CARRY_RANK is '5' and CARRY_RANKS is '2'" bench $quick
with "CARRY_MEET=$folder CARRY_RANKS=many CARRY_RANK=0" refused "CARRY_RANKS is 'many'" bench $quick
with "CARRY_MEET=$folder" refused "CARRY_RANK is ''" list scans
with "CARRY_MEET=$folder CARRY_RANKS=1 CARRY_RANK=0" expect 0 "sequential" bench $quick

# Each launcher is recognised by its own variables, and only rank 0 prints refusals.
for values in "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=" "PMI_SIZE=4 PMI_RANK=" "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=" \
    "SLURM_NTASKS=4 SLURM_STEP_ID=0 SLURM_PROCID=" "PMIX_NAMESPACE=x PMIX_RANK="; do
    with "${values}0" refused "list does not run on ranks" list scans
    with "${values}2" silent list scans
done
with "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0" refused "mpirun started 4: leave --ranks out" --ranks 3 bench $quick
with "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0" refused "leave --processes out" --processes 4 bench $quick
with "SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=0" refused "srun has started this process as a rank" --processes 3 bench $quick
if [ $has_mpi = 0 ]; then
    with "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0" \
        refused "started by mpirun as one of 4 processes, but this build has no MPI" bench $quick
    with "SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=2" silent bench $quick
fi
if [ $has_mpi = 0 ] || ! mpirun --version 2> /dev/null | grep -q 'Open MPI'; then
    echo "skipped: a build with MPI and Open MPI's mpirun are not both here"
    exit $((failures > 0))
fi

# launch CODE WORDS N ARGUMENTS...: as expect, with N processes. Lines printed by mpirun itself do not count.
launch() {
    code=$1
    words=$2
    ranks=$3
    shift 3
    timeout -k 5 600 mpirun --oversubscribe --allow-run-as-root --mca btl_vader_single_copy_mechanism none -n "$ranks" \
        "$carry" "$@" > out 2> err < /dev/null
    got=$?
    if [ $got != "$code" ] || ! cat out err | grep -qF -e "$words"; then
        fail "mpirun -n $ranks carry $*: exit $got (expected $code), expected to read '$words', read:"
        tail -n 8 out err
    fi
}

launch 0 '"ranks": 3' 3 bench --json $quick
[ "$(grep -c '"algorithm": "sequential"' out)" = 1 ] || fail "not rank 0 alone printed"
launch 0 'sequential' 2 --ranks 2 bench $quick
launch 0 'sequential' 1 bench $quick
if grep -q 'several ranks' out; then fail "one process of mpirun is not alone"; fi
launch 0 'carry ' 3 --version
[ "$(wc -l < out)" = 1 ] || fail "the version is printed by every rank"
for words in "list scans" "--ranks 2 bench $quick" "bench scan:nothing" "bench --deadline 0 $quick" "profile bench $quick"; do
    launch 2 'carry: ' 3 $words
    [ "$(grep -c '^carry: ' err)" = 1 ] || fail "mpirun -n 3 carry $words: not one error message"
    [ -s out ] && fail "mpirun -n 3 carry $words: refused, and printed"
done
# One process has other options: all three report it, each with its rank.
launch 2 'the ranks differ' 2 bench $quick : -n 1 "$carry" bench --hot $quick
for rank in 0 1 2; do
    [ "$(grep -c "^carry: rank $rank: " err)" = 1 ] || fail "rank $rank does not say that the ranks differ"
done
[ $failures = 0 ] && echo "ranks behave"
exit $((failures > 0))

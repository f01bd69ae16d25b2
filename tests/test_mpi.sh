#!/bin/sh
# Ranks that are processes: the tests of collectives under mpirun, and a rank that is killed.
# Usage: test_mpi.sh PATH-OF-TEST_COMM_COLLECTIVES
set -u
program=$1
command -v mpirun > /dev/null || { echo "skipped: mpirun is not here"; exit 77; }
if ! mpirun --version 2> /dev/null | grep -q 'Open MPI'; then
    echo "skipped: the options below are Open MPI's"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
TMPDIR=$folder
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export TMPDIR ASAN_OPTIONS
failures=0

launch() {
    timeout -k 5 "$1" mpirun --oversubscribe --allow-run-as-root --mca btl_vader_single_copy_mechanism none \
        --mca orte_base_help_aggregate 0 -np "$2" "$program" ${3:+"$3"}
}

for ranks in 2 3; do
    if launch 120 $ranks > "$folder/log" 2>&1; then
        echo "$ranks processes: ok"
    else
        echo "FAILED: $ranks processes"
        cat "$folder/log"
        failures=$((failures + 1))
    fi
done

# kill -9 of one rank. The launcher may end the other before its deadline; whoever does, nothing may be left after it.
for ranks in 2 3; do
    launch 60 $ranks wait > "$folder/log" 2>&1 &
    launcher=$!
    waited=0
    while [ "$(grep -c 'is process' "$folder/log")" -lt $ranks ] && [ $waited -lt 100 ]; do
        sleep 0.1
        waited=$((waited + 1))
    done
    victim=$(sed -n 's/^rank 1 is process //p' "$folder/log")
    if [ -z "$victim" ]; then
        echo "FAILED: rank 1 of $ranks did not start"
        cat "$folder/log"
        failures=$((failures + 1))
        kill $launcher
        continue
    fi
    kill -9 "$victim"
    start=$(date +%s)
    wait $launcher
    code=$?
    seconds=$(($(date +%s) - start))
    if [ $code -eq 0 ] || [ $seconds -gt 10 ]; then
        echo "FAILED: after a kill mpirun ended with $code in $seconds s"
        cat "$folder/log"
        failures=$((failures + 1))
    fi
    for process in $(sed -n 's/^rank [0-9]* is process //p' "$folder/log"); do
        if kill -0 "$process" 2> /dev/null; then
            echo "FAILED: process $process is left"
            kill -9 "$process"
            failures=$((failures + 1))
        fi
    done
    echo "kill of rank 1 of $ranks: ended with $code in $seconds s"
done
[ $failures -eq 0 ]

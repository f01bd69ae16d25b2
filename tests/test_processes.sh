#!/bin/sh
# Ranks that are processes without MPI (kind "processes"), 2 and 3 of them: the tests of collectives, of GPU memory
# (ipc, staged), of All-Scan and of the delta rule. Usage: test_processes.sh PATH-OF-TEST...
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export ASAN_OPTIONS

for ranks in 2 3; do
    for program in "$@"; do
        CARRY_MEET=$(mktemp -d "$folder/XXXXXX")
        CARRY_RANKS=$ranks
        export CARRY_MEET CARRY_RANKS
        processes=
        rank=0
        while [ $rank -lt $ranks ]; do
            CARRY_RANK=$rank timeout -k 5 900 "$program" > "$folder/log.$rank" 2>&1 &
            processes="$processes $!"
            rank=$((rank + 1))
        done
        bad=0
        for process in $processes; do
            wait "$process" || bad=1
        done
        if [ $bad = 0 ]; then
            echo "${program##*/} on $ranks processes: ok"
        else
            echo "FAILED: ${program##*/} on $ranks processes"
            cat "$folder"/log.*
            failures=$((failures + 1))
        fi
    done
done
[ $failures -eq 0 ]

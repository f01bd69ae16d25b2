#!/bin/sh
# A rank that MPI does not return to ends itself with a message; the other ranks end by their deadline.
# Usage: stuck_rank.sh PATH-OF-STUCK_WORKER
set -u
worker=$1
. "$(dirname "$0")/support.sh"
if ! mpirun --version 2> /dev/null | grep -q 'Open MPI'; then
    echo "skipped: the options below are Open MPI's, whose mpirun is not here"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
TMPDIR=$folder
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export TMPDIR ASAN_OPTIONS
failures=0

for where in testsome isend; do
    rm -f "$folder"/code.*
    # The shell around each rank keeps its exit code, since mpirun forgets it with --enable-recovery.
    # shellcheck disable=SC2016
    timeout -k 5 300 mpirun --oversubscribe --allow-run-as-root --enable-recovery --mca btl_vader_single_copy_mechanism none \
        --mca orte_base_help_aggregate 0 -np 3 \
        sh -c '"$0" 2 "$1"; echo $? > "$2/code.$OMPI_COMM_WORLD_RANK"' "$worker" $where "$folder" > "$folder/log" 2>&1
    [ $? != 124 ] || fail "$where: not all ranks have ended within 300 s"
    [ "$(cat "$folder/code.1" 2> /dev/null)" = 2 ] || fail "$where: rank 1, which is stuck, did not end with 2"
    has_lines 1 '^carry: [a-z-]*: .*MPI has not returned [0-9.]* s after the deadline' "$folder/log" ||
        fail "$where: rank 1 did not say that MPI has not returned"
    for rank in 0 2; do
        [ "$(cat "$folder/code.$rank" 2> /dev/null)" = 1 ] || fail "$where: rank $rank did not end with 1"
    done
    has_lines 2 '^told: E[A-Z]*: all-reduce: rank [0-9]* ' "$folder/log" || fail "$where: not one error message from ranks 0 and 2"
    [ $failures = 0 ] || { cat "$folder/log"; break; }
done
[ $failures = 0 ]

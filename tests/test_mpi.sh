#!/bin/sh
# Ranks that are processes: the tests of collectives, of All-Scan and of the delta rule under mpirun, and a rank that is killed.
# Usage: test_mpi.sh PATH-OF-TEST_COMM_COLLECTIVES PATH-OF-TEST_COMM_FAILURES PATH-OF-TEST_SCAN_ALL_SCAN PATH-OF-TEST_DELTA_RANKS
#   PATH-OF-TEST_DELTA_RANKS_GOLDEN PATH-OF-TEST_COMM_DEVICE
set -u
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
. "$(dirname "$0")/support.sh"
failing=$2
delta=$4
golden=$5

launch() {
    timeout -k 5 "$1" mpirun --oversubscribe --allow-run-as-root --mca btl_vader_single_copy_mechanism none \
        --mca orte_base_help_aggregate 0 -np "$2" "$3" ${4:+"$4"}
}

for ranks in 2 3; do
    for program in "$1" "$2" "$3" "$6"; do
        if launch 900 $ranks "$program" > "$folder/log" 2>&1; then
            echo "${program##*/} on $ranks processes: ok"
        else
            echo "FAILED: ${program##*/} on $ranks processes"
            cat "$folder/log"
            failures=$((failures + 1))
        fi
    done
done

# one RANKS PROGRAM TEST: runs a single test, on more processes than there are cores.
one() {
    CMOCKA_TEST_FILTER=$3
    export CMOCKA_TEST_FILTER
    if launch 900 "$1" "$2" > "$folder/log" 2>&1; then
        echo "${2##*/} on $1 processes: ok"
    else
        echo "FAILED: ${2##*/} on $1 processes"
        cat "$folder/log"
        failures=$((failures + 1))
    fi
    unset CMOCKA_TEST_FILTER
}
one 8 "$delta" every_number_of_ranks_equals_one
one 9 "$3" test_every_algorithm_works_on_many_ranks
one 3 "$golden" "*"

# Sends a signal to rank 1 and checks how the others end. KILL: the launcher notices, and may end the others before
# their deadline of 5 s. STOP: only the deadline can notice, and rank 0 must report it.
disturb() {
    signal=$1
    ranks=$2
    : > "$folder/log" # the ranks of the last one are not to be taken for those of this one
    launch 300 "$ranks" "$failing" "wait 60" > "$folder/log" 2>&1 &
    launcher=$!
    wait_for 120 has_lines "$ranks" 'is process' "$folder/log"
    victim=$(sed -n 's/^rank 1 is process //p' "$folder/log")
    if [ -z "$victim" ]; then
        echo "FAILED: rank 1 of $ranks did not start"
        wait $launcher # until its timeout: killing this shell would leave what it started
        return 1
    fi
    kill "-$signal" "$victim"
    start=$(date +%s)
    wait $launcher
    code=$?
    seconds=$(($(date +%s) - start))
    echo "$signal of rank 1 of $ranks: ended with $code in $seconds s"
    bad=0
    if [ $code -eq 0 ] || [ $seconds -ge 290 ]; then
        echo "FAILED: that is no failure, or the others have not ended"
        bad=1
    fi
    if [ "$signal" = STOP ] && ! grep -q 'told: E[A-Z]*: all-reduce: rank [0-9].*s waited' "$folder/log"; then
        echo "FAILED: nobody said which rank did not come"
        bad=1
    fi
    for process in $(sed -n 's/^rank [0-9]* is process //p' "$folder/log"); do
        if ! wait_for 60 gone "$process"; then
            echo "FAILED: process $process is left"
            kill -9 "$process"
            bad=1
        fi
    done
    return $bad
}

# A rank that never leaves MPI_Init, as if it had died there: the other ends about 32 s after its deadline of 6 s.
start=$(date +%s)
cat > "$folder/late" << END
#!/bin/sh
[ "\${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-0}}" = 1 ] && exec sleep 1000
exec "$failing" "wait 6"
END
chmod +x "$folder/late"
launch 300 2 "$folder/late" > "$folder/log" 2>&1
seconds=$(($(date +%s) - start))
echo "a rank that does not start: ended in $seconds s"
if [ $seconds -ge 290 ] || ! grep -q '^carry: MPI_Init: MPI has not returned' "$folder/log"; then
    echo "FAILED: it was waited for"
    cat "$folder/log"
    failures=$((failures + 1))
fi

for ranks in 2 3; do
    for signal in KILL STOP; do
        if ! disturb $signal $ranks; then
            cat "$folder/log"
            failures=$((failures + 1))
        fi
    done
done
[ $failures -eq 0 ]

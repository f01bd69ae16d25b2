#!/bin/sh
# Ranks that are killed (-9) or stopped, a random one at a random moment, under Open MPI's mpirun: the others end, none of
# them with 0, and no process is left.
#
# mpirun ends all ranks as soon as one process was killed, before a deadline could pass. Every other time it is
# therefore run with --enable-recovery, which leaves the survivors alone, and each of them must print one error message:
# operation, rank, seconds. This is done over shared memory and over TCP, where a dead peer's socket closes. A stopped
# process is noticed only by the deadline.
#
# Usage: [KILLS=50] [SEED=n] kill_ranks.sh PATH-OF-RANKS_WORKER [gpu]
set -u
worker=$1
where=${2:-cpu}
kills=${KILLS:-8}
random=${SEED:-$(date +%s)}
ranks=4
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
log=$folder/log
codes=$folder/codes
failures=0
slowest=0
ended=0
echo "seed $random"

draw() { # NUMBER: into $drawn, from 0 to below it
    random=$(((random * 1103515245 + 12345) % 2147483648))
    drawn=$((random / 65536 % $1))
}

fail() {
    echo "FAILED: $*"
    bad=1
}

processes() {
    sed -n 's/^rank [0-9]* is process //p' "$log"
}

# A survivor prints one error message and ends with 1. Over TCP, Open MPI may not return from a write to the dead rank;
# then the guard ends the survivor with 2 (stuck_rank.sh).
check_survivors() {
    survivors=$((ranks - 1))
    message='^told after [0-9.]* s: E[A-Z]*: [a-z-]*: rank [0-9]* .*([0-9.]* s waited)'
    told=$(grep -c '^told' "$log")
    stuck=$(grep -c '^carry: [a-z-]*:.* MPI has not returned [0-9.]* s after the deadline' "$log")
    [ $((told + stuck)) = $survivors ] || fail "not one error message from each of $survivors ranks"
    [ "$(grep -c "$message" "$log")" = "$told" ] || fail "an error message without operation, rank or seconds"
    [ "$(grep -c '^1$' "$codes")" = "$told" ] || fail "not every survivor with an error message ended with 1"
    [ "$(grep -c '^2$' "$codes")" = "$stuck" ] || fail "not every survivor that was stuck in MPI ended with 2"
    ended=$((ended + stuck))
}

# disturb SIGNAL RANK MILLISECONDS RECOVERY TRANSPORT. Sets $early to 1 if the ranks ended before the signal, because
# one of them waited for a busy machine for longer than the deadline.
disturb() {
    bad=0
    early=0
    : > "$log"
    : > "$codes"
    # The shell around each rank keeps its exit code, since mpirun forgets it with --enable-recovery.
    # shellcheck disable=SC2016,SC2086
    # TCP over the loopback only: there a connection to a dead rank is refused; on another interface Open MPI may wait
    # for it.
    timeout -k 5 300 mpirun --oversubscribe --allow-run-as-root --mca btl_vader_single_copy_mechanism none --mca btl_tcp_if_include lo \
        --mca orte_base_help_aggregate 0 $4 --mca btl "$5" -np $ranks \
        sh -c '"$0" "$1" "$3"; code=$?; echo $code >> "$2"; exit $code' "$worker" $deadline "$codes" "$where" > "$log" 2>&1 &
    launcher=$!
    wait_for 120 has_lines $ranks 'is process' "$log"
    victim=$(sed -n "s/^rank $2 is process //p" "$log")
    if [ -z "$victim" ]; then
        fail "rank $2 did not start"
        kill $launcher
        wait $launcher
        return
    fi
    sleep "0.$(printf '%03d' "$3")"
    kill "-$1" "$victim" 2> /dev/null || early=1
    start=$(date +%s%N)
    if [ "$1" = STOP ]; then
        wait_for 120 has_lines 1 '^told' "$log"
        [ -n "$4" ] && wait_for 120 has_lines $((ranks - 1)) . "$codes" && kill -9 "$victim" # mpirun leaves a stopped process
    fi
    wait $launcher
    code=$?
    [ "$(grep -c '^told' "$log")" -lt $ranks ] || early=1
    [ $early = 0 ] || return
    milliseconds=$((($(date +%s%N) - start) / 1000000))
    [ $milliseconds -gt $slowest ] && slowest=$milliseconds
    echo "$1 of rank $2 after 0.$(printf '%03d' "$3") s, $5${4:+, survivors left alone}: all ended in $milliseconds ms"
    [ $milliseconds -lt 290000 ] || fail "the survivors have not ended"
    if [ -n "$4" ]; then
        check_survivors
    elif [ $code = 0 ]; then
        fail "mpirun ended with 0"
    fi
    if [ "$1" = STOP ] && ! grep -q '^told .*s waited)' "$log"; then fail "nobody said which rank did not come"; fi
    for process in $(processes); do
        if ! wait_for 60 gone "$process"; then
            fail "process $process is left"
            kill -9 "$process"
        fi
    done
}

i=0
while [ $i -lt "$kills" ]; do
    draw $ranks
    rank=$drawn
    draw 700
    moment=$drawn
    signal=KILL
    recovery=
    transport=vader,self
    [ $((i % 4)) = 3 ] && signal=STOP
    [ $((i % 2)) = 0 ] || [ $((i % 8)) = 7 ] && recovery=--enable-recovery
    [ $((i / 2 % 2)) = 1 ] && transport=tcp,self
    deadline=3
    disturb $signal $rank "$moment" "$recovery" $transport
    while [ $early = 1 ] && [ $deadline -lt 100 ]; do
        deadline=$((deadline * 2))
        echo "the ranks ended before one was disturbed: once more with a deadline of $deadline s"
        disturb $signal $rank "$moment" "$recovery" $transport
    done
    [ $early = 0 ] || fail "the ranks ended before one was disturbed"
    if [ $bad != 0 ]; then
        cat "$log" "$codes"
        failures=$((failures + 1))
    fi
    i=$((i + 1))
done
echo "$kills disturbed, $failures wrong, $ended stuck in MPI and ended by their guard, the slowest end after $slowest ms (deadline 3 s)"
[ $failures = 0 ]

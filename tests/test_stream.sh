#!/bin/sh
# carry stream as a program: output and refusals, the same pictures for all numbers of ranks, Ctrl-C, ranks that are
# killed, a supervisor that restarts it. Usage: test_stream.sh PATH-OF-CARRY
# shellcheck disable=SC2086 # $small and $limited are several words
set -u
carry=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CARRY_WISDOM=none
NO_COLOR=1
OMPI_MCA_btl_vader_single_copy_mechanism=none
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export CARRY_WISDOM NO_COLOR OMPI_MCA_btl_vader_single_copy_mechanism ASAN_OPTIONS
. "$(dirname "$0")/support.sh"
out=$folder/out
err=$folder/err

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# expect CODE PATTERN ARGUMENTS...: ends with CODE, and standard output (code 0) or the one line on standard error
# matches.
expect() {
    code=$1
    pattern=$2
    shift 2
    timeout 600 "$carry" "$@" > "$out" 2> "$err"
    got=$?
    [ $got = "$code" ] || fail "carry $* ended with $got, not $code: $(cat "$err")"
    if [ "$code" = 0 ]; then
        grep -q "$pattern" "$out" || fail "carry $* does not print '$pattern': $(cat "$out" "$err")"
    else
        [ "$(wc -l < "$err")" = 1 ] || fail "carry $* says more or less than one line: $(cat "$err")"
        grep -q "$pattern" "$err" || fail "carry $* does not say '$pattern': $(cat "$err")"
    fi
}

# await FILE PATTERN: waits until a line of the file matches.
await() { wait_for 120 has_lines 1 "$2" "$1" || fail "nothing like '$2' within 120 s: $(tail -5 "$1")"; }

# Words of a command.
limited="timeout --foreground -k 120 600" # a signal that it gets is passed on once, and 120 s later SIGKILL
small="--config shapes --size 32x32 --levels 1000,500"

what_it_prints() {
    expect 0 'carry --ranks 2 stream' stream --help
    expect 0 'the weights are random' stream $small --chunks 2
    expect 0 'period .*, predicted .*; B/(B+P-1) 66.7 %' --ranks 2 stream $small --chunks 12
    grep -q '^overlap score .* over 2 chunks: .* the gate of 0.30$' "$out" || fail "no score: $(cat "$out")"
    expect 0 'all-reduces of the mesh a forward: 18 (12 large, 6 small)' --ranks 3 stream $small --chunks 3
    expect 0 '"done": true, "chunks": 3, "frames": 9,' stream $small --chunks 3 --json
    [ "$(grep -c '"stage1_s"' "$out")" = 4 ] || fail "not a line per chunk and one at the end"
    expect 0 '"recompute_s": 0.0*[1-9]' stream $small --chunks 3 --json --recompute latent
    expect 0 '"encode_s": [0-9.e-]*[1-9]' stream $small --chunks 3 --json --recompute anchor
    # A single rank cannot overlap its stages: it has no score, and does not pass the gate.
    timeout 600 "$carry" stream $small --chunks 12 --gate --slow-stage0 20 > "$out" 2>&1
    code=$?
    [ $code = 1 ] || fail "the gate: $(cat "$out")"
    expect 0 '^overlap score: none, since one rank denoises and decodes in turn (carry --ranks 2 overlaps them)$' stream $small --chunks 12
    ! grep -q 'gate' "$out" || fail "one rank is judged by the gate: $(cat "$out")"
    # Waits that are long compared with the work of a chunk, and longer each time, so that delays of a busy machine do
    # not count.
    passed=
    for wait in 100 300 900; do
        timeout 600 "$carry" --ranks 2 stream $small --chunks 14 --gate --slow-stage0 $wait --slow-stage1 $wait > "$out" 2>&1 &&
            passed=yes && break
    done
    [ -n "$passed" ] || fail "the gate is not passed: $(cat "$out")"
}

what_it_refuses() {
    expect 2 '64 x 64 is the nearest that works' stream --config shapes --size 70x60
    expect 2 '16384 x 64 is the nearest' stream --config shapes --size 99999999999x64
    expect 2 'such as 64x64' stream --config shapes --size 64
    expect 2 'such as 64x64' stream --config shapes --size -64x64
    expect 2 'a mesh of 4 does not divide 6 heads' --ranks 5 stream --config shapes
    expect 2 'needs a number' stream --config shapes --kv-bias nan
    expect 2 '^carry: --fp8: .*does not multiply 8-bit floats' stream $small --chunks 1 --fp8 --device cpu
    expect 2 'kv_bias is 0' stream --config shapes --kv-bias 0
    expect 2 'noise is -1' stream --config shapes --noise -1
    expect 2 'steps is' stream --config shapes --levels 800,900
    expect 2 'falling numbers' stream --config shapes --levels ,
    expect 2 'needs a whole number' stream --config shapes --steps 1000,500
    expect 2 'noise levels go after --levels' stream --config shapes --steps 1000
    expect 2 'give one of them' stream --config shapes --steps 2 --levels 1000,500
    expect 2 'begin at level 500: this model begins at 1000' stream --config shapes --levels 500,250
    expect 0 '' stream --config shapes --size 16x16 --steps 5 --chunks 1 --prompt zebra
    grep -q 'does not know' "$err" && fail 'a model of random weights is said to know words'
    expect 0 '' stream --demo --chunks 1 -p 'Red (zebra:1.5) MOON, zebra circle'
    grep -q "does not know 'zebra', 'moon': it was trained on red green" "$err" || fail "unknown words: $(cat "$err")"
    expect 0 '' stream --demo --chunks 1 -p '(purple triangle:0.5) moving up'
    grep -q 'does not know' "$err" && fail 'words of the demo are called unknown'
    expect 2 'depth' stream --config shapes --depth 9
    expect 2 'depth' stream --config shapes --depth 0
    expect 2 'off, anchor or latent' stream --config shapes --recompute sometimes
    expect 2 'pipeline or mesh' stream --config shapes --topology ring
    expect 2 'window' stream --config shapes --window 2
    expect 2 'frames a second' stream --config shapes --fps -3
    expect 2 'wait longer (--deadline)' stream --config shapes --fps 0.01
    expect 2 'slowed by' stream --config shapes --slow-stage0 -5
    expect 2 'expected seconds' stream --config shapes --change-prompt -1
    expect 2 'nono' stream --config nono
    expect 2 'config.json' stream --model "$folder/nowhere"
    expect 2 'give one of them' stream --model a --config shapes
    expect 2 'options only' stream circle
    expect 2 'at most 4096' stream --config shapes --prompt "$(head -c 5000 /dev/zero | tr '\0' x)"
    expect 2 'not UTF-8' stream --config shapes --prompt "$(printf 'blue \377 square')"
    expect 2 'leave --state out' stream --config shapes --supervise --state "$folder/x"
    expect 2 'processes needs --supervise' stream $small --chunks 1 --processes 3
    expect 2 'context needs --recompute' stream $small --chunks 1 --context 3
    expect 2 'a shift of 0' stream $small --chunks 1 --shift 0
    for option in address token token-file record-to; do
        expect 2 "^carry: --$option needs --serve" stream $small --chunks 1 --$option x
    done
    expect 2 'of which a trace has nothing\|without the lab' stream $small --chunks 1 --supervise --trace "$folder/trace"
    echo 'notes of mine' > "$folder/notes"
    expect 2 'not what a stream has kept' stream $small --chunks 1 --state "$folder/notes"
    [ "$(cat "$folder/notes")" = 'notes of mine' ] || fail "a file that is no state was replaced"
    expect 2 '^carry: --state: .*notes' stream $small --chunks 1 --state "$folder/notes/below"
}

# The same bytes for all numbers of ranks, as long as the same number of them generate.
same_pictures() {
    for run in 1:mesh 2:pipeline; do
        timeout 600 "$carry" --ranks "${run%:*}" stream $small --chunks 3 --topology "${run#*:}" --seed 3 \
            --prompt "(blue:1.5) square \\( moving ∞" --out "$folder/$run" > "$out" 2>&1 || fail "$run: $(cat "$out")"
    done
    [ "$(find "$folder/1:mesh" -name 'frame-*.ppm' | wc -l)" = 9 ] || fail "not 9 frames"
    diff -r "$folder/1:mesh" "$folder/2:pipeline" > /dev/null || fail "a stage of its own changes the pictures"
    expect 2 'is not empty' stream $small --chunks 1 --out "$folder/1:mesh"
    diff -r "$folder/1:mesh" "$folder/2:pipeline" > /dev/null || fail "a refused folder was written to"
    mkdir "$folder/linked" && echo mine > "$folder/mine" && ln -s "$folder/mine" "$folder/linked/frame-000000.ppm"
    expect 2 'frame-000000.ppm cannot be written' stream $small --chunks 1 --out "$folder/linked" --overwrite
    [ "$(cat "$folder/mine")" = mine ] || fail "a frame was written through a symbolic link"
    expect 0 'chunk' stream $small --chunks 1 --out "$folder/1:mesh" --overwrite
}

pages() {
    if timeout 600 "$carry" stream $small --serve --headless 2>&1 | grep -q 'built without the page'; then
        expect 2 'without the page' stream $small --serve
        return
    fi
    expect 2 'needs\|token' stream $small --serve --address 0.0.0.0
    expect 2 'a token has 16 to 255 characters, not 5' stream $small --serve --port 0 --chunks 1 --token short
    echo 'short' > "$folder/token"
    expect 2 'a token has 16 to 255 characters, not 5' stream $small --serve --port 0 --chunks 1 --token-file "$folder/token"
    CARRY_TOKEN=short
    export CARRY_TOKEN
    expect 2 'a token has 16 to 255 characters, not 5' stream $small --serve --port 0 --chunks 1
    unset CARRY_TOKEN
    expect 2 'give one of them' stream $small --serve --token-file "$folder/token" --token 0123456789abcdef
    expect 2 '^carry: --token-file: .*missing' stream $small --serve --token-file "$folder/missing"
    expect 2 "cannot be recorded to: No such" stream $small --serve --port 0 --chunks 1 --record-to "$folder/nowhere"
    expect 2 "cannot be recorded to: Not a" stream $small --serve --port 0 --chunks 1 --record-to "$carry"
    $limited "$carry" stream $small --serve --port 0 --json > "$folder/serve" 2>&1 &
    server=$!
    await "$folder/serve" 'http://127.0.0.1:[0-9]'
    port=$(sed -n 's/.*127.0.0.1:\([0-9]*\).*/\1/p' "$folder/serve" | head -1)
    expect 2 "$port" stream $small --serve --port "$port"
    kill -INT $server
    wait $server || fail "Ctrl-C of a page: $(tail -3 "$folder/serve")"
    if timeout 600 "$carry" stream $small --chunks 1 --serve --address ::1 --port 0 > "$out" 2>&1; then
        grep -q '^http://\[::1\]:[0-9]*/$' "$out" || fail "no browser opens $(grep http "$out")"
    fi # or this machine has no IPv6
    timeout 600 "$carry" stream $small --chunks 3 --record "$folder/film.avi" > "$out" 2>&1 || fail "$(cat "$out")"
    grep -q '9 frames in' "$out" || fail "the recording: $(cat "$out")"
    # Frames that come faster than they are written are dropped and counted. None is lost where positions run out: all
    # frames are accounted for.
    timeout 600 "$carry" stream --config shapes --size 16x16 --steps 1 --no-clean --chunks 400 --fps 400 \
        --record "$folder/fast.avi" > "$out" 2>&1 || fail "$(cat "$out")"
    grep -q '; 1 cut,' "$out" || fail "positions did not run out: $(cat "$out")"
    accounted=$(awk '/ frames in / { print $1 + $5 }' "$out")
    [ "$accounted" = 1200 ] || fail "$accounted frames of 1200 are accounted for: $(cat "$out")"
}

# Output that was asked for and could not be saved is reported at the end, on standard error and in JSON, and the exit
# code is 1. A stream that only writes files ends there, with exit code 2.
full_disk() {
    mkdir "$folder/full"
    # The device itself if it can be created; otherwise a link to it, which is not followed and gives an error as well.
    mknod "$folder/full/frame-000004.ppm" c 1 7 2> /dev/null || ln -s /dev/full "$folder/full/frame-000004.ppm"
    expect 2 'frame-000004.ppm cannot be written' stream $small --chunks 4 --out "$folder/full" --overwrite
    [ "$(find "$folder/full" -name 'frame-*' -type f | wc -l)" = 4 ] || fail "half a picture is left"
    timeout 600 "$carry" stream $small --serve --headless 2>&1 | grep -q 'built without the page' && return
    ln -sf /dev/full "$folder/full/frame-000004.ppm"
    timeout 600 "$carry" stream $small --chunks 4 --json --out "$folder/full" --overwrite --serve --port 0 > "$out" 2> "$err"
    code=$?
    [ $code = 1 ] || fail "pictures on a full disk end with $code: $(cat "$err")"
    grep -q '^carry: not all was saved: .*frame-000004.ppm cannot be written' "$err" || fail "not said: $(cat "$err")"
    tail -1 "$out" | grep -q '"done": true, "chunks": 4,.*"saved": false, "unsaved": ".*frame-000004' ||
        fail "no word of it in JSON: $(tail -1 "$out")"
    # A limit on the size of files (in units of 512 or 1024 bytes) is an error of the recording, like a full disk.
    (
        ulimit -f 20
        timeout 600 "$carry" stream $small --chunks 30 --fps 100 --json --record "$folder/full.avi" 2> "$err" | tail -1 > "$out"
        tail -1 "$out" | grep -q '"done": true, "chunks": 30,.*"saved": false, "unsaved": ".*full.avi ends after'
    ) || fail "a recording that ended: $(cat "$out" "$err")"
    grep -q '^carry: not all was saved: the recording .*full.avi ends after [0-9]* frames' "$err" ||
        fail "not said: $(cat "$err")"
    : > "$err" # before it is looked at: the last run's says the same
    (
        ulimit -f 20
        exec $limited "$carry" stream $small --fps 100 --json --record "$folder/again.avi"
    ) > "$folder/log" 2> "$err" &
    process=$!
    await "$err" 'ends after'
    kill -INT $process
    wait $process
    code=$?
    [ $code = 1 ] || fail "Ctrl-C after a recording that ended: $code: $(cat "$err")"
    expect 0 '"saved": true' stream $small --chunks 2 --json --record "$folder/saved.avi"
}

# Eight results wait for stage 0 at the end, which takes 1.4 times the deadline to show them and sends nothing more: it is
# not reported as missing. Longer each time, so that delays of a busy machine do not count.
slow_end() {
    passed=
    for deadline in 5 15 45; do
        timeout 600 "$carry" --ranks 3 stream $small --chunks 9 --depth 8 --slow-stage0 $((180 * deadline)) \
            --deadline $deadline --json > "$out" 2> "$err" && passed=yes && break
    done
    [ -n "$passed" ] || fail "a slow end: $(cat "$err")"
    grep -q '"done": true, "chunks": 9,' "$out" || fail "a slow end: $(cat "$out")"
}

# Ctrl-C and a closed terminal end the stream between chunks, with the table.
interrupted() {
    signals='INT HUP'
    case $(sed -n 's/^SigIgn:.*\(.\)$/\1/p' /proc/$$/status) in
        [13579bdf]) signals=INT ;; # nohup: it stays ignored
    esac
    for signal in $signals; do
        for ranks in 1 3; do
            : > "$folder/log"
            $limited "$carry" --ranks $ranks stream $small --json > "$folder/log" 2>&1 &
            process=$!
            await "$folder/log" '"chunk": 2,'
            kill -$signal $process
            wait $process || fail "SIG$signal on $ranks ranks: $(tail -3 "$folder/log")"
            tail -1 "$folder/log" | grep -q '"done": true' || fail "SIG$signal on $ranks ranks has no end"
        done
    done
}

ranks=3

# killed RANK MOMENT [SIGNAL]: the others print an error message and end, none of them with 0. On a busy machine ranks may
# miss each other before one is killed: then once more, with a longer deadline.
killed() {
    for deadline in 3 6 12 24 48 96; do
        killed_within "$@" && return
        echo "the ranks ended before rank $1 was disturbed, with a deadline of $deadline s"
    done
    fail "the ranks ended before rank $1 was disturbed: $(cat "$log")"
}

# 1: ranks ended before one was disturbed.
killed_within() {
    log=$folder/log
    : > "$log"
    : > "$folder/codes"
    : > "$folder/pids"
    how=${3:-KILL}
    most=$((40 * deadline))
    set -- "$1" "$2" $small --deadline $deadline
    case $2 in
        idle) # it begins with what a supervisor would have kept: paused
            printf '0 0 1 {"pause": true}\n' > "$folder/paused"
            set -- "$@" --state "$folder/paused" ;;
        call) set -- "$@" --slow-stage1 700 ;; # the mesh is asleep in a call most of the time
        collective) set -- "$@" --size 128x128 ;; # and here in an all-reduce
        queued) # eight chunks wait for stage 0 where the leader is the victim, else for the mesh: work for 64 s or more
            set -- "$@" --depth 8 "--slow-stage$((1 - $1))" $((2667 * deadline))
            most=$((50 * deadline / 3)) ;; # of which one chunk may be under way
    esac
    victim=$1
    moment=$2
    shift 2
    # The shell around each rank records its process number and its exit code.
    # shellcheck disable=SC2016
    timeout -k 5 $((100 * deadline)) mpirun --oversubscribe --allow-run-as-root --enable-recovery -np $ranks sh -c '
        folder=$1
        shift
        "$0" stream -v "$@" &
        echo "$OMPI_COMM_WORLD_RANK $!" >> "$folder/pids"
        wait $!
        echo "$OMPI_COMM_WORLD_RANK $?" >> "$folder/codes"' "$carry" "$folder" "$@" > "$log" 2>&1 &
    launcher=$!
    await "$log" 'a mesh of 2'
    sleep 1.5
    if [ -s "$folder/codes" ] || ! kill "-$how" "$(sed -n "s/^$victim //p" "$folder/pids")" 2> /dev/null; then
        wait $launcher
        return 1
    fi
    start=$(date +%s%N)
    bad=$failures
    wait_for $most has_lines $((ranks - 1)) "^[^$victim] " "$folder/codes" || fail "the others have not ended after $most s"
    milliseconds=$((($(date +%s%N) - start) / 1000000))
    [ "$how" = STOP ] && kill -9 "$(sed -n "s/^$victim //p" "$folder/pids")" # nothing else would end it
    wait $launcher
    echo "rank $victim, $how, $moment: the others ended in $milliseconds ms"
    for rank in 0 1 2; do
        [ $rank = "$victim" ] && continue
        grep -q "carry: rank $rank: ..*" "$log" || fail "rank $rank said nothing"
        grep -q "^$rank 2$" "$folder/codes" || fail "rank $rank did not end with 2"
    done
    while read -r rank process; do
        if ! wait_for 60 gone "$process"; then
            fail "rank $rank is left"
            kill -9 "$process"
        fi
    done < "$folder/pids"
    [ $bad = $failures ] || cat "$log" "$folder/codes"
    return 0
}

# The process number of the child, or of rank $1 of it.
child_rank() {
    for process in $(pgrep -f "carry .*--state .*/carry-stream-.*supervised-$$"); do
        if [ "$1" = all ] || grep -zq "^OMPI_COMM_WORLD_RANK=$1\$" "/proc/$process/environ" 2> /dev/null; then
            [ "$(cat "/proc/$process/comm")" = carry ] && echo "$process"
        fi
    done
}

no_child() { [ -z "$(child_rank all)" ]; }

# supervised WHAT ARGUMENTS...: after a kill the stream restarts at a hard cut, and later ends cleanly.
supervised() {
    what=$1
    shift
    : > "$folder/log" # before it is looked at
    $limited "$carry" "$@" $small --supervise --json --deadline 20 --prompt "supervised-$$" > "$folder/log" 2> "$err" &
    supervisor=$!
    await "$folder/log" '"epoch": 0,.*"under_way"'
    sleep 0.3
    victims=$(child_rank "$what" | head -1)
    [ -n "$victims" ] || fail "no child to kill"
    kill -9 $victims
    await "$folder/log" '"epoch": 1,.*"under_way"'
    await "$err" 'restart 1 at a hard cut'
    sleep 0.3
    kill -INT $supervisor
    wait $supervisor || fail "the supervisor did not end with 0: $(cat "$err")"
    tail -1 "$folder/log" | grep -q '"done": true.*"restarts": 1' || fail "no clean end: $(tail -1 "$folder/log")"
    wait_for 60 no_child || fail "a child is left: $(child_rank all)"
    # An earlier epoch does not come back.
    sed -n 's/.*"epoch": \([0-9]*\),.*under_way.*/\1/p' "$folder/log" | sort -nc 2> /dev/null ||
        fail "epochs are not in order"
    echo "supervised, $what killed: $(grep -c '"under_way"' "$folder/log") chunks in two lives"
}

# The second process writes after the output of the first, not over it, and also ends.
two_lives() {
    record="--record $folder/lives.avi"
    timeout 600 "$carry" stream $small --serve --headless 2>&1 | grep -q 'built without the page' && record=
    # shellcheck disable=SC2086
    supervised all stream --out "$folder/lives" $record
    chunks=$(grep -c '"under_way"' "$folder/log")
    [ "$(find "$folder/lives" -name 'frame-*.ppm' | wc -l)" -ge $((3 * chunks)) ] || fail "frames were written over"
    [ -z "$record" ] || [ -s "$folder/lives-restart-1.avi" ] || fail "no recording after the restart"
}

# A command that cannot work is not repeated; one that always dies is given up.
given_up() {
    expect 2 'nearest' stream --config shapes --size 70x64 --supervise
    timeout 600 "$carry" stream $small --supervise --json 2> "$err" | head -1 > /dev/null
    grep -q 'has no reader any more' "$err" || fail "output that nobody reads: $(cat "$err")"
    : > "$folder/log"
    $limited "$carry" stream $small --supervise --json --prompt "supervised-$$" > "$folder/log" 2> "$err" &
    supervisor=$!
    await "$folder/log" '"epoch": 0,.*"under_way"'
    kills=0
    last=
    began=$(date +%s)
    until gone $supervisor || [ $kills = 40 ]; do
        child=$(child_rank all | head -1)
        if [ -n "$child" ] && [ "$child" != "$last" ] && kill -9 "$child" 2> /dev/null; then
            kills=$((kills + 1))
            last=$child
        fi
        sleep 0.05
    done
    if [ $kills = 40 ] && ! wait_for 60 gone $supervisor && [ $(($(date +%s) - began)) -gt 400 ]; then
        kill -INT $supervisor
        wait $supervisor
        echo "not seen: this machine takes more than a minute to start six times"
        return
    fi
    gone $supervisor || fail "it goes on for ever"
    kill -INT $supervisor 2> /dev/null
    wait $supervisor
    code=$?
    [ $code = 2 ] || fail "it ended with $code"
    grep -q 'died 6 times within a minute' "$err" || fail "$(cat "$err")"
}

# Memory that runs out in the middle: the stream continues with a smaller window, and pictures that were shown are kept.
memory_runs_out() {
    for ranks in 1 2; do
        kept=$folder/kept-$ranks
        $limited "$carry" --ranks $ranks stream $small --window 21 --chunks 24 --fail-memory 9 --out "$kept" --json \
            > "$out" 2> "$err" || fail "a stream on $ranks ranks whose memory runs out: $(cat "$err")"
        grep -q 'window of 21 frames: the stream goes on with 12' "$err" || fail "no smaller window: $(cat "$err")"
        grep -q 'window of 12 frames: the stream goes on with 6' "$err" || fail "no smaller window: $(cat "$err")"
        [ "$(grep -c '"chunk":' "$out")" = 24 ] || fail "$(grep -c '"chunk":' "$out") chunks were shown, not 24"
        [ "$(find "$kept" -name 'frame-*' | wc -l)" -ge 72 ] || fail "frames of 24 chunks were not all kept"
        tail -n 1 "$out" | grep -q '"restarts": [23],' || fail "restarts are not told: $(tail -n 1 "$out")"
    done
    $limited "$carry" stream $small --window 9 --chunks 9 --fail-memory 5 --record "$folder/memory.avi" > "$out" 2> "$err"
    if ! grep -q 'without' "$err"; then
        frames=$(awk '/ frames in /{ n += $1 } END { print n + 0 }' "$out")
        [ "$frames" -ge 27 ] || fail "$frames frames were recorded of 27: $(cat "$out" "$err")"
        [ -s "$folder/memory.avi" ] && [ -s "$folder/memory-restart-1.avi" ] || fail "a recording is missing"
    fi
    $limited "$carry" stream $small --window 3 --chunks 9 --fail-memory 5 > "$out" 2> "$err"
    [ $? = 2 ] || fail "memory that runs out at the smallest window does not end the stream"
    grep -q 'a window of 3 frames cannot be smaller' "$err" || fail "no reason: $(cat "$err")"
}

what_it_prints
what_it_refuses
memory_runs_out
same_pictures
pages
full_disk
slow_end
interrupted
supervised all --ranks 2 stream
two_lives
given_up
if mpirun --version 2> /dev/null | grep -q 'Open MPI'; then
    for moment in idle call collective; do
        for rank in 0 1 2; do
            killed $rank $moment
        done
    done
    for signal in KILL STOP; do
        killed 0 queued $signal
        killed 1 queued $signal
    done
    killed 2 call STOP
    for rank in 0 1 2; do
        supervised $rank stream --processes 3
    done
else
    echo "skipped: ranks that are killed: Open MPI's mpirun is not here"
fi
echo "$failures wrong"
[ $failures = 0 ]

#!/bin/sh
# The first Ctrl-C or SIGTERM ends every verb at any moment, with exit code 2 and the word "interrupted". None of these
# commands could end by itself: each has work for many minutes, or reads a pipe without a writer. Usage:
# test_interrupt.sh PATH-OF-CARRY
#
# Nothing here depends on how busy the machine is. The signal is sent when the process has worked or sleeps, not after a fixed
# time; after it, the process may work for LIMIT ms of processor time and no longer, and must have ended after 120 s.
set -u
carry=$(realpath "$1") || exit 2
LIMIT=${LIMIT:-3000}
. "$(dirname "$0")/support.sh"
folder=$(mktemp -d)
process=
trap '[ -z "$process" ] || kill -9 $process 2> /dev/null; rm -rf "$folder"' EXIT
cd "$folder" || exit 2
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
CARRY_STORE=$folder/store.db
export ASAN_OPTIONS CARRY_STORE
slowest=0
seen=0

# The processor time of the process in hundredths of a second, and its state.
worked() {
    sed 's/.*) //' /proc/$process/stat 2> /dev/null | awk '{ print $12 + $13, $1 }'
}

# True if the process has worked for 0.3 s or, if it reads a pipe, handles signals and sleeps.
has_begun() {
    set -- "$1" $(worked)
    [ $# = 3 ] || return 0 # it has ended: the signal will not be sent
    if [ "$1" = fifo ]; then
        is_caught "$process" && [ "$3" = S ]
    else
        [ "$2" -ge 30 ]
    fi
}

# True if it has ended or has worked for too long; sets own, the milliseconds that it has worked since the signal.
has_ended() {
    set -- $(worked)
    [ $# = 2 ] && [ "$2" != Z ] || return 0
    own=$((($1 - before) * 10))
    [ $own -gt "$LIMIT" ]
}

# interrupted SIGNAL INPUT ARGUMENTS...: starts the command, sends the signal, and checks that it ends. INPUT: a file,
# or `fifo` for a fifo without a writer.
interrupted() {
    signal=$1
    input=$2
    shift 2
    if [ "$input" = fifo ]; then
        rm -f fifo && mkfifo fifo && exec 3<> fifo
    fi
    what="carry $1 $2 ${3:-}"
    "$carry" "$@" < "$input" > out 2> err &
    process=$!
    wait_for 120 has_begun "$input" || fail "$what has not begun: $(tail -2 err)"
    seen=$((seen + 1))
    set -- $(worked)
    before=${1:-0}
    own=0
    kill "-$signal" $process || fail "$what ended by itself: $(tail -2 err)"
    wait_for 120 has_ended || fail "$what: alive 120 s after SIG$signal"
    if [ $own -gt "$LIMIT" ]; then fail "$what: worked for $own ms after SIG$signal"; fi
    kill -9 $process 2> /dev/null
    wait $process 2> /dev/null
    code=$?
    process=
    [ $own -le $slowest ] || slowest=$own
    echo "$own ms: SIG$signal, exit $code: $what"
    [ $code = 2 ] && grep -q interrupted err || fail "$what: exit $code where 2 was expected: $(tail -2 err)"
}

# A model and a text, if this build can train.
if "$carry" tokenizer --help > /dev/null 2>&1 &&
    "$carry" tokenizer train --bytes -o bytes > /dev/null 2>&1; then
    awk 'BEGIN { for (i = 0; i < 60000; i++) print "the quick brown fox " i " jumps over the lazy dog" }' > book.txt
    for i in 1 2 3 4 5 6 7 8 9 10; do cat book.txt; done > long.txt
    "$carry" train --data book.txt --steps 1 --no-store --out run --threads 1 --hidden 32 --layers 1 --head-dim 16 --batch 1 \
        --length 64 --eval-every 0 > out 2> err || fail "no model: $(tail -2 err)"
fi

again() { # PROBLEM: twenty times, of which each takes seconds
    for i in $(seq 20); do echo "$1"; done
}
interrupted INT /dev/null bench delta:t300000:h1:k64:v64 --threads 1 --seconds 600
interrupted TERM /dev/null check $(again delta:t300000:h1:k64:v64) --threads 1
interrupted INT /dev/null check $(again allscan:dense:h2:k64:v64:p200)
interrupted TERM /dev/null bench scan:dense:t20000:n32 --threads 1 --seconds 600
interrupted INT /dev/null plan --measure $(again scan:dense:t100000:n64) --threads 1
if [ -e run/latest ]; then
    interrupted INT fifo generate run -p -
    interrupted TERM fifo tokenizer encode bytes
    interrupted INT /dev/null eval run long.txt --threads 1
    interrupted TERM /dev/null train --task mqar --steps 100000 --no-store --out more --threads 1 --hidden 32 --layers 1 --head-dim 16 \
        --batch 8 --eval-every 1 --eval-batches 100000
    # With ranks as processes, the signal goes to the first process, which passes it on once: the step is finished and
    # saved, and no temporary folder is left.
    mkdir tmp
    TMPDIR=$folder/tmp "$carry" --processes 2 train --device cpu --task copy --vocab 64 --hidden 32 --layers 1 --batch 2 --length 32 \
        --steps 1000000 --eval-every 0 --save-every 1000000 --log-every 5 --no-store --threads 1 --out two > two.log 2>&1 &
    process=$!
    wait_for 120 has_lines 1 '^step ' two.log
    kill -TERM $process
    wait $process
    code=$?
    process=
    if [ $code != 2 ] || [ ! -e two/latest ] || [ -n "$(ls tmp)" ]; then
        fail "two processes: exit $code, $(ls two), $(ls tmp)"
        cat two.log
    fi
fi
cat > long.yaml << 'END'
name: long
hypothesis: It ends.
methods: [sequential]
grid:
  - stage: cpu
    problem: scan:dense:f32:t{t}:n32:w1
    t: [200000, 200001, 200002, 200003, 200004, 200005, 200006, 200007, 200008, 200009]
    repeats: 100
success:
  - error(sequential) < 1
failure:
  - error(sequential) > 1
END
interrupted INT /dev/null run long.yaml --threads 1
[ $failures = 0 ] && echo "$seen were interrupted; at most $slowest ms of processor time after the signal"
[ $failures = 0 ]

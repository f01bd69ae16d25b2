#!/bin/sh
# The first Ctrl-C or SIGTERM ends every verb, whatever it is in the middle of: within two seconds, of which a loaded
# machine may make more (LIMIT). Each of these works or waits for minutes. Usage: test_interrupt.sh PATH-OF-CARRY
set -u
carry=$(realpath "$1") || exit 2
LIMIT=${LIMIT:-15}
folder=$(mktemp -d)
process=
trap '[ -z "$process" ] || kill -9 $process 2> /dev/null; rm -rf "$folder"' EXIT
cd "$folder" || exit 2
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
CARRY_STORE=$folder/store.db
export ASAN_OPTIONS CARRY_STORE
failures=0
slowest=0
early=0
seen=0

# interrupted SIGNAL INPUT ARGUMENTS...: it runs for a while, gets the signal, and ends soon. INPUT: a file
# or a fifo that nobody writes to.
interrupted() {
    signal=$1
    input=$2
    shift 2
    if [ "$input" = fifo ]; then
        rm -f fifo && mkfifo fifo && exec 3<> fifo
    fi
    "$carry" "$@" < "$input" > out 2> err &
    process=$!
    sleep "${BEFORE:-2}"
    if ! kill -0 $process 2> /dev/null; then
        wait $process
        code=$?
        process=
        echo "carry $* ended by itself with $code: $(tail -2 err)"
        early=$((early + 1))
        return
    fi
    seen=$((seen + 1))
    start=$(date +%s%N)
    kill "-$signal" $process
    waited=0
    while kill -0 $process 2> /dev/null && [ $waited -lt $((LIMIT * 20)) ]; do
        sleep 0.05
        waited=$((waited + 1))
    done
    milliseconds=$((($(date +%s%N) - start) / 1000000))
    if kill -0 $process 2> /dev/null; then
        echo "FAILED: carry $*: SIG$signal has not ended it within $LIMIT s"
        failures=$((failures + 1))
        kill -9 $process
    fi
    wait $process 2> /dev/null
    code=$?
    process=
    [ $milliseconds -le $slowest ] || slowest=$milliseconds
    echo "$milliseconds ms: SIG$signal, exit $code: carry $*"
    if [ $code = 0 ]; then # it was done at that moment, as far as can be told
        seen=$((seen - 1))
        early=$((early + 1))
    fi
}

# A model and a text, where this build trains.
if "$carry" tokenizer --help > /dev/null 2>&1 &&
    "$carry" tokenizer train --bytes -o bytes > /dev/null 2>&1; then
    awk 'BEGIN { for (i = 0; i < 60000; i++) print "the quick brown fox " i " jumps over the lazy dog" }' > book.txt
    "$carry" train --data book.txt --steps 1 --no-store --out run --threads 1 --hidden 32 --layers 1 --head-dim 16 --batch 1 \
        --length 64 --eval-every 0 > out 2> err || { echo "FAILED: no model: $(tail -2 err)"; failures=1; }
fi

interrupted INT /dev/null bench delta:t300000:h1:k64:v64 --threads 1
interrupted TERM /dev/null check delta:t300000:h1:k64:v64 --threads 1
interrupted INT /dev/null check allscan:dense:h2:k64:v64:p200
interrupted TERM /dev/null bench scan:dense:t20000:n32 --threads 1
interrupted INT /dev/null plan --measure scan:dense:t100000:n64 --threads 1
if [ -e run/latest ]; then
    interrupted INT fifo generate run -p -
    interrupted TERM fifo tokenizer encode bytes
    interrupted INT /dev/null eval run book.txt --threads 1
    interrupted TERM /dev/null train --task mqar --steps 100000 --no-store --out more --threads 1 --hidden 32 --layers 1 --head-dim 16 \
        --batch 8 --eval-every 1 --eval-batches 100000
fi
cat > long.yaml << 'END'
name: long
hypothesis: It ends.
methods: [sequential]
grid:
  - stage: cpu
    problem: scan:dense:f32:t{t}:n32:w1
    t: [200000]
success:
  - error(sequential) < 1
failure:
  - error(sequential) > 1
END
interrupted INT /dev/null run long.yaml --threads 1
[ $seen -ge 3 ] || { echo "FAILED: only $seen could be interrupted, $early ended before"; failures=$((failures + 1)); }
[ $failures = 0 ] && echo "every verb ends; the slowest after $slowest ms"
[ $failures = 0 ]

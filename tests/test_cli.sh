#!/bin/sh
# The program as used by a person and by a script. Usage: test_cli.sh PATH-OF-CARRY
set -u
carry=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CARRY_WISDOM=$folder/wisdom
export CARRY_WISDOM
# The leak sanitizer takes seconds at the end of every process on some machines: a few runs at the end of this file have it.
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export ASAN_OPTIONS
. "$(dirname "$0")/support.sh"

# expect CODE WORDS ARGUMENTS...: exit code, and words that standard output and standard error together contain.
expect() {
    code=$1
    words=$2
    shift 2
    "$carry" "$@" > "$folder/out" 2> "$folder/err" < /dev/null
    got=$?
    if [ $got != "$code" ] || ! cat "$folder/out" "$folder/err" | grep -qF -e "$words"; then
        echo "FAILED: carry $*: exit $got (expected $code), expected to read '$words', read:"
        head -n 5 "$folder/out" "$folder/err"
        failures=$((failures + 1))
    fi
}

# refused WORDS ARGUMENTS...: exit 2, exactly one line on standard error, nothing on standard output.
refused() {
    words=$1
    expect 2 "$@"
    if [ "$(wc -l < "$folder/err")" != 1 ] || [ -s "$folder/out" ]; then
        echo "FAILED: refusal for '$words' is not one error message on standard error alone:"
        cat "$folder/out" "$folder/err"
        failures=$((failures + 1))
    fi
}

# Help, on every verb, with an example.
expect 0 "carry VERB" --help
expect 0 "carry 0." --version
for verb in $("$carry" list verbs | cut -d ' ' -f 1); do
    expect 0 "Example:" "$verb" --help
    expect 0 "--json" "$verb" -h
done
expect 2 "carry VERB"
refused "no verb 'fly'" fly
refused "no option '--colour'" bench --colour
refused "no option '-x'" list scans -x

# Lists.
for what in scans deltas kernels devices ops problems rates codecs configs verbs; do
    expect 0 "" list $what
    expect 0 '"name": ' list $what --json
done
refused "one word" list
refused "no list of 'cats'" list cats

# Problems that cannot be.
for bad in "" ":" "scan" "scan:dense:diagonal" "scan:dense:" "scan::dense" "scan:dense:t0" "scan:dense:q5" "scan:dense:T5" \
    "scan:dense:t99999999999999999999" "scan:dense:t4000000000:n4000000000" "scan:dense:f32:bf16" "scan:dense:t5:t6" \
    "scan:dense:algo=quick" "scan:dense:algo=" "scan:dense:algo=matmul_log" "scan:dense:out=f16" "scan:dense:device=tpu" \
    "scan:diagonal:chunk=x" "flight:t5" "matmul:b1000000000:n1000000:k100000" "scan:diagonal:f16:deep" "delta:f32:bf16" "delta:f32:bf16:p2" "matmul:bf16:f16" "cluster:wy:f32:bf16" "delta:k257" "delta:h2:hv3" "delta:step:backward" "delta:q3" \
    "delta:algo=chunk7" "attention:d100000" "attention:f32:bf16" "attention:q0" "attention:t5" "attention:algo=flash" \
    "attention:h1000000:q4000000000:kv4000000000"; do
    for verb in check bench plan; do
        [ "$verb $bad" = "plan scan:diagonal:f16:deep" ] && continue
        "$carry" $verb "$bad" > "$folder/out" 2> "$folder/err"
        if [ $? != 2 ] || [ "$(wc -l < "$folder/err")" != 1 ] || [ -s "$folder/out" ]; then
            echo "FAILED: carry $verb '$bad' is not refused by one error message:"
            cat "$folder/out" "$folder/err"
            failures=$((failures + 1))
        fi
    done
done
refused "needs a whole number" bench --repeats many scan:dense
refused "needs a positive number" bench --seconds -1 scan:dense
refused "needs a value: a whole number" bench scan:dense --threads
refused "not 'a?b'" bench scan:dense --repeats "$(printf 'a\nb')"
refused "on a machine with" check --threads 5000 scan:dense
refused "on a machine with" list --threads 1000 scans
expect 0 "plan PROBLEM" help plan
"$carry" plan --help > "$folder/out.help"
cmp -s "$folder/out" "$folder/out.help" || { echo "FAILED: help plan is not plan --help"; failures=$((failures + 1)); }
refused "there is no verb 'plam'" help plam
refused "no kernels named 'mmx'" check --kernels mmx scan:dense
refused "takes no problem" bench --grid scan:dense

# Results, for people and for programs.
expect 0 "0 wrong" check scan:dense:t33:n5:w2 scan:diagonal:bf16:t20:n3:w4:initial
expect 0 '"ok": true' check --json scan:diagonal:t33:backward
expect 0 "0 wrong" check scan:dense:bf16:t33:n5:backward:initial scan:diagonal:f16:t33:n5:w3:backward:reversed \
    scan:dense:f16:t20:n3:w2:backward:reversed:initial
expect 0 "0 wrong" check delta:t70:h2:hv4:k20:v33:initial delta:bf16:t33:nogate delta:step:h2:k16:v16 delta:t40:backward:h1 delta:t70:h4:k16:v16:gates=mixed delta:t40:h4:k16:v16:gates=zero:backward delta:t70:h2:k16:v16:given
expect 0 "cyclic" bench --repeats 5 scan:dense:t64:n8
expect 0 '"planned": true' bench --json --repeats 5 scan:dense:t64:n8
expect 0 "measured;" plan --measure scan:dense:t64:n8
expect 0 "wisdom" plan scan:dense:t64:n8
expect 0 "predicted" plan --kernels plain scan:dense:t64:n8
expect 0 "wisdom" plan scan:dense:t64:n8
expect 0 "nothing is measured" plan --measure delta:t64
expect 0 "predicted" plan scan:diagonal:t64:n8
"$carry" bench --json --repeats 3 scan:dense:f32:t1024:n8:w1 > "$folder/out" 2> "$folder/err"
head -n 1 "$folder/out" | grep -q '"ceilings": {"gemm_gflops": [0-9.e+]*, "copy_gbytes_s": [0-9.e+]*}' || {
    echo "FAILED: the first line of bench --json has no ceilings"; failures=$((failures + 1)); }
for field in problem algorithm device median_s spread repeats products gflops gbytes_s share error planned; do
    grep '"algorithm": "cyclic"' "$folder/out" | grep -q "\"$field\": " || {
        echo "FAILED: bench --json has no $field"; failures=$((failures + 1)); }
done
grep '"algorithm": "cyclic"' "$folder/out" | grep -q '"products": 3069,' || { echo "FAILED: cyclic's products"; failures=$((failures + 1)); }
grep '"algorithm": "hillis_steele"' "$folder/out" | grep -q '"products": 18434,' || { echo "FAILED: hillis_steele's products"; failures=$((failures + 1)); }
expect 0 "left out" check scan:diagonal:deep:t50:n4
refused "does not hold" check scan:diagonal:deep:t50:n4:algo=matmul_log

# Wisdom: damaged, another machine's, unwritable: a word, and the work goes on.
# Processes that measure at the same time keep each other's plans, except that one that waited too long for the
# lock, and says so, may lose its own and another's.
rm -f "$folder/wisdom"
workers=
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    "$carry" plan --measure --wisdom "$folder/wisdom" scan:dense:t$((8 * i)):n2 > /dev/null 2> "$folder/plan-$i" &
    workers="$workers $!"
done
for worker in $workers; do wait "$worker"; done
late=$(grep -l 'cannot be locked' "$folder"/plan-* | wc -l)
[ "$(grep -c '^plan ' "$folder/wisdom")" -ge $((12 - 2 * late)) ] || {
    echo "FAILED: $(grep -c '^plan ' "$folder/wisdom") of 12 plans were kept, $late came too late"; failures=$((failures + 1)); }
rm -f "$folder/wisdom.lock"
echo "not wisdom" > "$folder/wisdom"
expect 0 "is ignored: line 1" plan scan:dense:t64:n8
printf 'carry-wisdom 1\nmachine Abacus, 1 cores, beads, carry 0.0.1\nend 00000000\n' > "$folder/wisdom"
expect 0 "from another machine" plan scan:dense:t64:n8
mkdir "$folder/wall"
head -c 2000000 /dev/zero > "$folder/large"
expect 0 "wall is not a regular file" plan --wisdom "$folder/wall" scan:dense:t64:n8
mkfifo "$folder/pipe"
expect 0 "pipe is not a regular file" plan --wisdom "$folder/pipe" scan:dense:t64:n8
[ -p "$folder/pipe" ] || { echo "FAILED: a pipe was replaced by a wisdom file"; failures=$((failures + 1)); }
expect 0 "Not a directory" plan --wisdom "$folder/large/wisdom" scan:dense:t64:n8
expect 0 "predicted" plan --wisdom none scan:dense:t64:n8
expect 0 "more than the" plan --wisdom "$folder/large" scan:dense:t64:n8

# A full disk: output that could not be written is reported.
if [ -w /dev/full ]; then
    "$carry" list scans > /dev/full 2> "$folder/err"
    [ $? = 2 ] && grep -q "could not be written" "$folder/err" || { echo "FAILED: a full disk goes unsaid"; failures=$((failures + 1)); }
fi

# Ctrl-C ends cleanly, keeps the finished results, and leaves no half-written wisdom.
rm -f "$folder/wisdom"
many=$(awk 'BEGIN { for (i = 0; i < 400; i++) printf "scan:dense:t16:n4 " }') # small ones, so that some are done soon
# shellcheck disable=SC2086
"$carry" bench --unchecked --seconds 0.02 $many > "$folder/out" 2> "$folder/err" &
process=$!
wait_for 300 has_lines 1 "sequential .*%.*%" "$folder/out"
kill -INT $process
wait $process
[ $? = 2 ] && grep -q "interrupted" "$folder/err" && grep -q "sequential .*%.*%" "$folder/out" || {
    echo "FAILED: Ctrl-C:"; cat "$folder/out" "$folder/err"; failures=$((failures + 1)); }
if ls "$folder"/wisdom.?????? > /dev/null 2>&1; then
    echo "FAILED: a half-written wisdom was left"
    failures=$((failures + 1))
fi

# No colour and no progress bar into a file.
if grep -q "$(printf '\033')" "$folder/out" "$folder/err"; then
    echo "FAILED: escape sequences in a file"
    failures=$((failures + 1))
fi

# Nothing is leaked, after success or a refusal (effective only in the asan preset).
ASAN_OPTIONS=detect_leaks=1
expect 0 "0 wrong" check scan:dense:t20:n3 scan:diagonal:t20:backward matmul:n5 \
    attention:h2:q5:kv9:d3:bias attention:bf16:h2:q5:kv9:d3:backward
expect 0 "sequential" bench --repeats 2 --seconds 0.01 scan:dense:t20:n3
refused "no scan algorithm" plan scan:dense:algo=quick
[ $failures = 0 ] && echo "the program behaves"
exit $((failures > 0))

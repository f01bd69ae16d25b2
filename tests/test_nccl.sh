#!/bin/sh
# NCCL that is missing, and NCCL that fails at its start: it is replaced, with a message. Two processes that share the
# one GPU claim to be on different machines (each has its own hostname), so that each seems to have a separate GPU: NCCL
# is tried, finds the same GPU twice and refuses. Skipped without a GPU, `unshare -u` or NCCL. Usage: test_nccl.sh
# PATH-OF-CARRY
set -u
carry=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
unshare -u true 2> /dev/null || { echo "skipped: no namespaces for hostnames here"; exit 77; }
"$carry" list devices 2> /dev/null | grep -q cuda || { echo "skipped: there is no GPU here"; exit 77; }
"$carry" list collectives | grep -q '^nccl ' || { echo "skipped: this build has no NCCL"; exit 77; }

# two WORDS: both ranks run, and rank 0's log contains the words.
two() {
    words=$1
    CARRY_MEET=$(mktemp -d "$folder/XXXXXX")
    CARRY_RANKS=2
    export CARRY_MEET CARRY_RANKS
    for rank in 1 0; do
        unshare -u sh -c "hostname machine$rank && CARRY_RANK=$rank exec timeout -k 5 300 '$carry' bench -v --unchecked --repeats 3 \
            --device cuda allscan:wy:bf16:h2:k16:v16:p2" > "$folder/log.$rank" 2>&1 &
        process=$!
    done
    wait "$process"
    code=$?
    wait
    if [ $code != 0 ] || ! grep -q "$words" "$folder/log.0"; then
        echo "FAILED: exit $code, expected to read '$words', read:"
        cat "$folder/log.0"
        failures=$((failures + 1))
    else
        grep "$words" "$folder/log.0" | head -1
    fi
}

real=${CARRY_NCCL:-}
CARRY_NCCL=$folder/none.so
export CARRY_NCCL
if ! ldconfig -p 2> /dev/null | grep -q libnccl.so.2; then
    two 'NCCL is not used: "nccl" needs libnccl.so.2, which was not found'
fi
CARRY_NCCL=${real:-$(find / -xdev -name libnccl.so.2 2> /dev/null | head -1)}
if [ -n "$CARRY_NCCL" ]; then
    two 'NCCL is not used: NCCL, rank'
else
    echo "a failing NCCL was not tried: no libnccl.so.2 was found"
fi
[ $failures = 0 ]

#!/bin/sh
# carry cards: the library that comes with the project passes its check, searches rank the right page first, and bad input is
# one error message. Usage: test_cards.sh PATH-OF-CARRY FOLDER-OF-THE-PROJECT
set -u
carry=$1
project=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CARRY_WISDOM=none
export CARRY_WISDOM
# The leak sanitizer takes seconds at the end of every process on some machines; the last run of this file has it.
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export ASAN_OPTIONS
failures=0

fail() {
    echo "FAILED: $1"
    head -n 8 "$folder/out" "$folder/err"
    failures=$((failures + 1))
}

# expect CODE WORDS ARGUMENTS...: exit code, and words that standard output and standard error together contain.
expect() {
    code=$1
    words=$2
    shift 2
    "$carry" cards "$@" > "$folder/out" 2> "$folder/err" < /dev/null
    got=$?
    if [ $got != "$code" ] || ! cat "$folder/out" "$folder/err" | grep -qF -e "$words"; then
        fail "carry cards $*: exit $got (expected $code), expected to read '$words'"
    fi
}

# refused WORDS ARGUMENTS...: exit 2, exactly one line on standard error, nothing on standard output.
refused() {
    words=$1
    expect 2 "$@"
    if [ "$(wc -l < "$folder/err")" != 1 ] || [ -s "$folder/out" ]; then
        fail "refusal for '$words' is not one error message on standard error alone"
    fi
}

# first ID WORDS...: the search for WORDS must list page ID first.
first() {
    id=$1
    shift
    expect 0 "" --library "$library" find "$@"
    if [ "$(head -n 1 "$folder/out" | cut -d ' ' -f 1)" != "$id" ]; then
        fail "find $* does not put $id first"
    fi
}

library=$project/library

# The gate: every id, every claim's evidence, every figure of a finding in its source.
expect 0 ": 0 problems" --library "$library" check
expect 0 '"ok": true' --library "$library" check --json
cards=$(sed -n 's/.*"cards": \([0-9]*\),.*/\1/p' "$folder/out")
findings=$(sed -n 's/.*"findings": \([0-9]*\),.*/\1/p' "$folder/out")
if [ "${cards:-0}" -lt 24 ] || [ "${findings:-0}" -lt 5 ]; then
    fail "the library has ${cards:-no} cards and ${findings:-no} findings"
fi

# Sources, topics and findings that people who bring up a streaming video transformer asked for, by id. Sources that
# they called high have a priority of 1.
high="nccl-user-guide pytorch-cuda-semantics funcol-rfc-93173 ezyang-state-of-compile dynamo-deep-dive making-dl-go-brrrr
    streamdiffusionv2 gpipe pipedream-2bw zero-bubble-pp pytorch-pipelining-api pipedit pagedattention cuda-graphs-guide dit-paper"
medium="scaling-dl-nccl nccl-tuning flash-attention funcol-source pytorch-issue-138773 vllm-torch-compile lightx2v-vae cogvideox-vae
    seedance pytorch-distributed-api profiling-torch-compile pytorch-profiler-tensorboard cuda-async-execution"
topics="01-nccl-internals 05-cuda-streams 06-cuda-graphs 09-dynamo-tracing 11-functional-collectives
    12-compile-distributed-interaction 13-classic-pipeline-parallelism 14-activation-memory-in-pp 15-pipeline-scheduling-theory
    16-roofline-model 17-reading-profiler-traces 18-bandwidth-accounting 19-producer-consumer-backpressure
    20-message-framing-versioning 21-idempotency-and-replay 22-kv-cache-management 23-vae-latency-chunking 24-video-dit-scheduling"
wanted="160-collectives-cost-9-ms attention-kernel-with-key-bias functional-collectives-fixed-compilation
    remaining-graph-break-is-cache-slicing decode-and-recompute-are-a-third rank-0-out-of-the-mesh envelope-and-result-contracts
    proving-overlap forty-uniform-blocks"
"$carry" cards --library "$library" list --json > "$folder/list"
# has KIND IDS...: every id is a page of that kind.
has() {
    kind=$1
    shift
    for id in "$@"; do
        grep -q "\"id\": \"$id\", \"kind\": \"$kind\"" "$folder/list" || fail "the library has no $kind $id"
    done
}
# shellcheck disable=SC2086
has card $high $medium
# shellcheck disable=SC2086
has topic $topics
# shellcheck disable=SC2086
has finding $wanted
# shellcheck disable=SC2086
if [ "$(echo $high $medium | wc -w)-$(echo $topics | wc -w)-$(echo $wanted | wc -w)" != 28-18-9 ]; then
    fail "the list of wanted pages is not 28 sources, 18 topics and 9 findings"
fi
for id in $high; do
    grep -qx 'priority: 1' "$library/cards/$id.md" || fail "$id does not have priority 1"
done
# Detailed cards of the reading order are tier 3 and have both parts.
for id in streamdiffusionv2 gpipe funcol-rfc-93173 pytorch-pipelining-api pipedream-2bw; do
    if ! grep -qx 'tier: 3' "$library/cards/$id.md" || ! grep -q '(tier 2)$' "$library/cards/$id.md" ||
        ! grep -q '(tier 3)$' "$library/cards/$id.md"; then
        fail "$id is not in detail"
    fi
done
# Texts that a card must cite (line breaks are ignored): ID|TEXT.
while IFS='|' read -r id text; do
    tr -s ' \n' ' ' < "$library/cards/$id.md" | grep -qF -e "$text" || fail "$id does not cite $text"
done << 'CITED'
nccl-user-guide|0.113 ms for 21 MiB
nccl-user-guide|which algorithm NCCL selects
nccl-tuning|NCCL_PROTO
scaling-dl-nccl|when a collective regresses
pytorch-cuda-semantics|collectives under compilation
funcol-rfc-93173|9.6 to 24.5
funcol-source|9.6 to 24.5
funcol-rfc-93173|The eager trap
pytorch-issue-138773|Slower when
vllm-torch-compile|way of debugging graph breaks
ezyang-state-of-compile|graph_breaks = 2, unique_graphs 12–14
dynamo-deep-dive|160 graph breaks
dynamo-deep-dive|Why bounds as SymInt failed
cuda-graphs-guide|unstable or neutral
gpipe|B/(B+P-1)
gpipe|50 % at B = 1 and two stages
pipedream-2bw|no backward pass
pytorch-pipelining-api|Adopt once the topology is proven
pagedattention|hard cut
making-dl-go-brrrr|33 %
streamdiffusionv2|Figure 5: 2–5 ms
streamdiffusionv2|Figure 16
streamdiffusionv2|Figure 13
streamdiffusionv2|stream batch
dit-paper|Conditioning must reach every stage
lightx2v-vae|107 ms
cogvideox-vae|107 ms
seedance|107 ms
pytorch-distributed-api|10 minutes
profiling-torch-compile|To prove overlap look for
pytorch-profiler-tensorboard|spans
cuda-async-execution|Event and wait rules for a communication stream
pipedit|Where it stands
zero-bubble-pp|Where it stands
flash-attention|Where it stands
CITED
# Each of these findings has figures of other people and our own, and belongs to a topic.
for id in $wanted; do
    if ! grep -q -E 'source: docs/(results|attempts)/' "$library/findings/$id.md" || ! grep -q '^topics: \[' "$library/findings/$id.md"; then
        fail "the finding $id lacks a figure of ours, or a topic"
    fi
done

# The library is found from any folder of the project.
mkdir -p "$folder/project/a/b"
cp -r "$library" "$folder/project/library"
cp -r "$project/docs" "$folder/project/docs"
(cd "$folder/project/a/b" && "$carry" cards check) > "$folder/out" 2> "$folder/err" || fail "the library upwards is not found"
(cd / && CARRY_DATA=/nonexistent "$carry" cards list) > "$folder/out" 2> "$folder/err"
if [ $? != 2 ] || ! grep -q 'no folder from here upwards' "$folder/err"; then fail "a library is found in /"; fi

# Searching: words, forms of words, phrases, and texts that are not words.
first decoupled-look-back look-back
first decoupled-look-back single pass prefix scan copy
first zeco All-Scan
first nccl-user-guide ncclCommAbort
first cyclic-reduction odd-even elimination
first flash-attention IO-awareness
first streamdiffusionv2 frames sink tokens rolling
first mpi-fault-handling revoke communicator
first zero-bubble-pp bubbles backward split gradient parameters
first roofline operational intensity
first wy-representation householder products
first pagedattention fragmentation
first 19-producer-consumer-backpressure backpressure
first 21-idempotency-and-replay idempotency
expect 0 "dynamo-deep-dive" --library "$library" find graph break
expect 0 "no page has all of these" --library "$library" find zebra householder
expect 1 "nothing in" --library "$library" find zebra
expect 0 "and " --library "$library" find --most 1 scan
expect 0 "cyclic-reduction" --library "$library" find 'cyclic"' 'NEAR(' '*'
expect 0 '"line": ' --library "$library" find --json graph
refused "needs a letter or a digit" --library "$library" find '"*" --' '('
refused "needs words" find
# shellcheck disable=SC2046
refused "more than the 32" --library "$library" find $(seq 40)

# Order: prerequisites come first, with the reason.
expect 0 "gated-deltanet needs it" --library "$library" order --goal sequence-parallel
expect 0 "" --library "$library" order --goal delta-rule
if ! awk '$2 == "wy-representation" { wy = NR } $2 == "deltanet" { d = NR } $2 == "gated-deltanet" { g = NR }
          END { exit !(wy > 0 && wy < d && d < g) }' "$folder/out"; then
    fail "the order of the delta rule is not WY, DeltaNet, Gated DeltaNet"
fi
# Bringing a pipeline up: the model and the question of what binds it, then the five papers and interfaces in the order asked for.
expect 0 "" --library "$library" order --goal pipeline-bring-up
order=$(awk 'NR > 1 { printf "%s ", $2 }' "$folder/out")
if [ "$order" != "dit-paper making-dl-go-brrrr streamdiffusionv2 gpipe funcol-rfc-93173 pytorch-pipelining-api pipedream-2bw " ]; then
    fail "the order for bringing a pipeline up is: $order"
fi
for topic in scans delta-rule sequence-parallel pipeline gpu-kernels streaming-video measurement; do
    expect 0 '"place": 1' --library "$library" order --goal "$topic" --json
done
refused "needs --goal" --library "$library" order
refused "no topic 'cats'" --library "$library" order --goal cats
refused "no topic 'nccl'" --library "$library" order --goal nccl
refused "is for cards order" --library "$library" list --goal scans

# Showing.
expect 0 "Blelloch" --library "$library" show blelloch
expect 0 "NCCL user guide" --library "$library" show nccl
expect 0 '"kind":"finding"' --library "$library" show cyclic-reduction-on-cpus --json
expect 0 "cyclic-reduction" --library "$library" for cyclic-reduction-on-cpus
expect 0 '"evidence":' --library "$library" for cyclic-reduction-on-cpus --json
refused "no finding 'nccl'" --library "$library" for nccl
refused "no page 'cats?'" --library "$library" show "cats$(printf '\033')"
refused "needs one id" --library "$library" show
refused "needs one id" --library "$library" show a b
refused "one of find" --library "$library"
refused "has no 'fly'" fly
refused "is not a library" --library "$folder" list
refused "needs a value" list --library

# Sharpen lists an actionable without a figure, and no longer when it has one.
own=$folder/project/library
expect 0 "lack a figure" --library "$own" sharpen
before=$("$carry" cards --library "$own" sharpen --json | wc -l)
sed -i 's/^actionables:$/actionables:\n  - {text: think}/' "$own/cards/nccl-user-guide.md"
after=$("$carry" cards --library "$own" sharpen --json | wc -l)
if [ "$after" != $((before + 1)) ]; then fail "sharpen went from $before to $after"; fi

# A fault that check finds: exit 1, each fault with its place. A broken page under another verb: exit 2.
sed -i 's/"6\.2"/"6.3"/' "$own/findings/cyclic-reduction-on-cpus.md"
expect 1 "findings/cyclic-reduction-on-cpus.md" --library "$own" check
expect 1 "6.3 is not in 'docs/attempts/scan.md'" --library "$own" check
rm "$own/cards/gpipe.md"
expect 1 "'gpipe', which is not a card" --library "$own" check
expect 1 '"rule": "broken-id"' --library "$own" check --json
printf -- '---\nid: odd\n  title: bad\n---\n' > "$own/cards/odd.md"
expect 1 "cards/odd.md:" --library "$own" check
refused "cards/odd.md:" --library "$own" find scan
printf -- '---\nid: odd\n' > "$own/cards/odd.md"
refused "cards/odd.md:1:1" --library "$own" list
head -c 2000000 /dev/zero > "$own/cards/odd.md"
refused "2000000 bytes" --library "$own" list
{ printf -- '---\nid: odd\ntitle: '; head -c 70000 /dev/zero | tr '\0' x; printf '\n---\n'; } > "$own/cards/odd.md"
refused "bytes of front matter" --library "$own" list
rm "$own/cards/odd.md"
mkfifo "$own/cards/odd.md"
refused "not a regular file" --library "$own" list

unset ASAN_OPTIONS
expect 0 "cyclic" --library "$library" find cyclic reduction

if [ $failures -gt 0 ]; then
    echo "$failures failures"
    exit 1
fi
echo "carry cards: as expected"

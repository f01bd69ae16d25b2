#!/bin/sh
# Builds Carry and shows in five minutes what it does: a video transformer that streams over two ranks; a small language model that is
# trained over two ranks, checked against one rank and served; the scans and the gated delta rule, checked and timed; an experiment with
# its verdict and a report. It ends with what was measured, what to open, and three commands to try. Its files are in build/demo.
set -eu
cd "$(dirname "$0")"
tools/setup
mkdir -p build
if ! cmake --preset release > build/demo.log 2>&1 -DCARRY_TESTS=OFF || ! cmake --build --preset release >> build/demo.log 2>&1; then
    tail -n 20 build/demo.log
    echo "demo: the build failed; all of it is in build/demo.log" >&2
    exit 2
fi
carry=build/release/carry
out=build/demo

say() { printf '\n== %s\n\n' "$1"; }
line() { printf '  %-24s  %s\n' "$1" "$2"; }
# On a machine without their libraries the program is built without some verbs (tools/setup installs them).
has() { "$carry" list verbs | grep -q "^$1 "; }

rm -rf "$out"
mkdir "$out"
CARRY_STORE=$out/store.db
export CARRY_STORE
: > $out/measured

keep() { # NAME COMMAND...: shows the output and keeps it in NAME.log
    name=$1
    shift
    { "$@" 2>&1 || echo $? > $out/failed; } | tee "$out/$name.log"
    if [ -e $out/failed ]; then exit "$(cat $out/failed)"; fi
}

measured() { # WHAT VALUE: a line of the summary
    if [ -n "$2" ]; then line "$1" "$2" >> $out/measured; fi
}

train() { # NAME STEPS RANKS OPTION...: the same model on the text that comes with Carry
    name=$1
    steps=$2
    ranks=$3
    shift 3
    "$carry" --ranks "$ranks" train --data README.md HACKING.md CHANGELOG.md docs/*.md docs/results/*.md library --steps "$steps" \
        --schedule constant --warmup 10 --rate 0.002 --vocab 1024 --length 256 --batch 8 --seed 7 --save-every "$steps" --eval-every "$steps" \
        --out "$out/$name" "$@"
}

loss_at() { # STEP NAME
    awk -v step="$1" 'match($0, /"step": [0-9]*/) && substr($0, RSTART + 8, RLENGTH - 8) + 0 == step && match($0, /"loss": [0-9.]*/) {
        print substr($0, RSTART + 8, RLENGTH - 8); exit }' "$out/$2.json"
}

ask() { # ADDRESS: the usage of a completion, as "TOKENS CACHED"
    curl -fsS "$1/v1/completions" -d @- << 'BODY' | sed -n 's/.*"prompt_tokens":\([0-9]*\).*"cached_tokens":\([0-9]*\).*/\1 \2/p'
{"max_tokens": 8, "temperature": 0, "prompt": "A linear recurrence is h[t] = A[t] h[t-1] + b[t]. A scan computes
 all of its states at once: products of transitions are associative, so that parts of a sequence can be reduced
 apart and put together. The gated delta rule is a recurrence whose state is a matrix, which is written and read
 with keys and queries, and which a gate decays. Both are computed in chunks: products of matrices inside of
 a chunk, and one state from each chunk to the next."}
BODY
}

serve() {
    "$carry" serve $out/model --port 0 --json > $out/serve.json 2> $out/serve.log &
    server=$!
    trap 'kill $server 2> /dev/null || true' EXIT
    while [ ! -s $out/serve.json ] && kill -0 $server 2> /dev/null; do sleep 0.1; done
    address=$(sed -n 's/.*"address": "\([^"]*\)".*/\1/p' $out/serve.json)
    ask "$address" > $out/first
    ask "$address" > $out/second
    kill $server
    wait $server
    trap - EXIT
    if [ ! -s $out/second ]; then
        echo "demo: the server did not answer; $out/serve.log has its messages" >&2
        exit 1
    fi
    echo "the first request: $(awk '{ print $1 " tokens of a prompt, " $2 " of them cached" }' $out/first)"
    echo "the same again:    $(awk '{ print $1 " tokens of a prompt, " $2 " of them cached" }' $out/second)"
    measured "prompt, second time" "$(awk '{ print $2 " of " $1 " tokens came from a cached state" }' $out/second)"
}

echo "Four stops: video from a prompt, a language model, scans and the delta rule, an experiment with its verdict."

say "1 of 4. Pictures first: a video transformer streams what the prompt says, encoding and decoding on one rank, generating on another"
film=$out/shapes.avi
prompt="red circle moving left"
if "$carry" stream --help | grep -q -e --record; then set -- --record $film; else set --; fi # a build without pictures has no films
keep stream "$carry" --ranks 2 stream --demo --chunks 24 --prompt "$prompt" "$@"
measured "video" "$(sed -n 's/^\([0-9]* chunks, [0-9]* frames\), the first after \([^;]*\);.*/\1, the first after \2/p' $out/stream.log)"

if has train; then
    say "2 of 4. A Gated DeltaNet of 2 M parameters learns this project's documents, with each batch divided between two ranks"
    keep train train model 120 2
    measured "training" "loss $(sed -n 's/^step 1\/.* loss \([0-9.]*\).*/\1/p' $out/train.log) at step 1, $(sed -n 's/^step 120\/.* loss \([0-9.]*\).*/\1/p' $out/train.log) at step 120"

    say "Do two ranks give the same result as one? The loss of step 10: on one rank, rows divided between two, each row split over two"
    train one 10 1 --json --no-store > $out/one.json
    train rows 10 2 --json --no-store > $out/rows.json
    train split 10 2 --sequence-ranks 2 --json --no-store > $out/split.json
    echo "$(loss_at 10 one) $(loss_at 10 rows) $(loss_at 10 split)" |
        awk '{ print $1, $2, $3; most = 1e-3 * $1
               if (NF != 3 || ($1 - $2) ^ 2 > most ^ 2 || ($1 - $3) ^ 2 > most ^ 2) { print "they differ"; exit 1 }
               print "they agree to a thousandth" }'
    measured "one rank and two" "losses $(loss_at 10 one), $(loss_at 10 rows) and $(loss_at 10 split) at step 10"

    say "Text it writes after this training: words of the documents, no sense yet"
    "$carry" generate $out/model -p "The scan" -n 60 --seed 3
    say "How well it predicts a page it was trained on"
    "$carry" eval $out/model README.md
    if has serve && command -v curl > /dev/null; then
        say "Served over HTTP: a prompt that was read before is not read again"
        serve
    fi
else
    say "2 of 4. Training is skipped: this build does not include it (docs/testing.md lists what it needs)"
fi

say "3 of 4. The algorithms for h[t] = A[t] h[t-1] + b[t], and where they can run"
"$carry" list scans
echo
"$carry" list devices

say "Are they correct? Every algorithm against the float64 recurrence, with decays down to e^-40 and exactly zero"
keep check "$carry" check scan:diagonal:t1000:n16:w64:initial scan:diagonal:deep:t256:n16:w64 scan:dense:bf16:t257:n33:w5 \
    scan:dense:t100:n16:w8:backward delta:t200:h2:hv4:k64:v64:initial

say "Which is fastest? Cyclic reduction against doubling, and both against the plain loop"
keep scan "$carry" bench scan:dense:f32:t1024:n32:w1
measured "scan of 1,024 steps" "$(awk '$1 == "sequential" { a = $2 " " $3 } $1 == "hillis_steele" { b = $2 " " $3 } $1 == "cyclic" { c = $2 " " $3 }
    END { print "loop " a ", cyclic reduction " c ", doubling " b }' $out/scan.log)"

say "The gated delta rule: 8 heads of 128, forward, backward and one token"
keep delta "$carry" bench delta:t1024:h8:k128:v128 delta:t1024:h8:k128:v128:backward delta:step:h32:k128:v128
measured "delta rule" "$(awk '/ fastest/ { print "forward of 1,024 tokens, 8 heads: " $2 " " $3; exit }' $out/delta.log)"

say "What would run for other shapes, and why"
"$carry" plan scan:diagonal:b64:t4096:n16:w64 scan:dense:t8192:n64 delta:bf16:t32768:h16:hv32:k128:v128

if has report; then
    say "4 of 4. An experiment: a hypothesis, a grid, criteria; a verdict on each, and a decision"
    "$carry" run experiments/demo.yaml > $out/run.log || [ $? = 1 ] # a criterion that is not met is a result
    cat $out/run.log
    measured "experiment" "$(sed -n 's/^decision: //p' $out/run.log): cyclic reduction against doubling"

    say "Where the time goes"
    "$carry" profile --top 8 -o $out/trace.json.gz bench --seconds 0.2 scan:dense:t1024:n32:algo=cyclic

    say "The reference library: what is known, and what was measured"
    "$carry" cards find --most 3 cyclic reduction
    set -- demo
    if has train; then set -- demo README; fi
    "$carry" report "$@" -o $out/report.html > $out/report.log
else
    say "4 of 4. Experiments, profiles and reports are skipped: this build has no lab (docs/testing.md lists what it needs)"
fi

say "What was measured"
cat $out/measured

say "What to open"
if [ -e $film ]; then line "$film" "in a video player: the streamed video"; fi
if [ -e $out/report.html ]; then
    line "$out/report.html" "in a browser: the experiment's verdicts, tables and plots"
    line "$out/trace.json.gz" "in ui.perfetto.dev: the profile"
fi
line "README.md" "figures, what runs where, and which page to read next"

say "Three commands to try next"
echo "  $carry --ranks 2 stream --demo --serve"
echo "      live video in a browser, controlled by prompts"
echo "  $carry pull Qwen/Qwen3.5-0.8B && $carry serve hf:Qwen/Qwen3.5-0.8B"
echo "      a published model with a chat page at http://127.0.0.1:8080"
echo "  ./test.sh"
echo "      decide within ten minutes whether this machine computes right"

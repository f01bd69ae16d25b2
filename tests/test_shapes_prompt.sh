#!/bin/sh
# The demo's model shows what the prompt says: streams of 4 chunks of a form in every colour and direction, and 4 more of
# another prompt, judged by their pixels. Usage: test_shapes_prompt.sh CARRY SOURCE
set -eu
carry=$1
model=$2/models/shapes
if [ ! -e "$model/model.safetensors" ]; then
    echo "skipped: $model is not there (carry train dit makes such a model)"
    exit 77
fi
# Exit code 1 means that some prompt was not followed; their number is judged here.
line=$("$carry" train dit --eval "$model" --second-prompt --forms 1 --stream 4 --json | tail -n 1) || [ $? -eq 1 ]
number() {
    printf '%s\n' "$line" | sed -n "s/.*\"$1\": *\([0-9][0-9]*\).*/\1/p"
}
prompts=$(number prompts)
for what in colours directions turned; do
    count=$(number $what)
    echo "$what: $count of $prompts"
    # 19 of 20: a sampler with four steps may fail sometimes; a model that ignores the prompt gets one of six and of
    # five.
    if [ "$prompts" -ne 30 ] || [ $((20 * count)) -lt $((19 * prompts)) ]; then
        echo "$what: fewer than 19 of 20 follow the prompt: $line" >&2
        exit 1
    fi
done

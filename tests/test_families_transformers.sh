#!/bin/sh
# A tiny random checkpoint of every family that transformers saves: Carry's logits equal those of transformers to 1e-4,
# and its 64 greedy tokens are the same; and again after carry train, whose folder transformers loads key for key.
# CARRY_PYTHON names the Python with torch and transformers; CARRY_FAMILIES the families, by default all.
set -eu
carry=$1
python=${CARRY_PYTHON:-python3}
script=$(dirname "$0")/families_transformers.py
if ! "$python" -c 'import torch, transformers, safetensors' 2>/dev/null; then
    echo "skipped: $python has no torch, transformers and safetensors"
    exit 77
fi
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
families=${CARRY_FAMILIES:-$("$python" "$script" --list)}
prompt=$("$python" "$script" --prompt)
failed=0

run_python() {
    "$python" "$script" "$@" > "$made/log" 2>&1 || { cat "$made/log"; exit 1; }
}

# compare FOLDER TITLE
compare() {
    "$carry" generate "$1" --ids -p "$prompt" -n 64 --temperature 0 --dtype f32 > "$made/text" 2> "$made/error" ||
        { cat "$made/error"; failed=1; return; }
    if [ "$(tail -n 1 "$made/text")" = "$(cat "$1/greedy.txt")" ]; then text=equal; else text=DIFFERENT failed=1; fi
    "$carry" check --golden "$1" > "$made/checked" 2>&1 || true # gradients of f32 references are farther away
    logits=$(awk '$4 == "logits" { print $6 }' "$made/checked")
    awk '$4 == "logits" || $4 == "loss" { near += ($6 < 1e-4) } END { exit near != 2 }' "$made/checked" || failed=1
    echo "$2: 64 tokens $text, logits ${logits:-missing}"
    [ -n "$logits" ] || cat "$made/checked"
}

mkdir "$made/first"
for family in $families; do set -- "$@" "$made/first/$family"; done
shift
run_python make "$@"
for family in $families; do
    compare "$made/first/$family" "$family"
    CARRY_STORE=$made/store "$carry" train --model "$made/first/$family" --task copy --steps 2 --batch 2 --length 64 \
        --out "$made/$family" > "$made/log" 2>&1 || { cat "$made/log"; exit 1; }
done
set --
for family in $families; do set -- "$@" "$made/$family/latest"; done
run_python load "$@"
for family in $families; do
    compare "$made/$family/latest" "$family after training"
done
exit $failed

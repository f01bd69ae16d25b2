#!/bin/sh
# gated_deltaproduct: Carry gives the results of flash-linear-attention's own class, and that class loads the folder
# that carry train --model saved, key for key, with the same logits, loss and gradients. CARRY_PYTHON names the Python
# with torch, transformers, triton and fla.
set -eu
carry=$1
python=${CARRY_PYTHON:-python3}
here=$(dirname "$0")
if ! "$python" -c 'import torch, triton, transformers, fla' 2>/dev/null; then
    echo "skipped: $python has no torch, triton, transformers and fla"
    exit 77
fi
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir "$made/model"
"$python" "$here/fla_roundtrip.py" make "$made/model" > "$made/log" 2>&1 || { cat "$made/log"; exit 1; }
"$carry" check --golden "$made/model" > "$made/log" 2>&1 || { cat "$made/log"; exit 1; }
tail -n 1 "$made/log"
CARRY_STORE=$made/store "$carry" train --model "$made/model" --task copy --steps 2 --batch 2 --length 64 --out "$made/tuned" \
    > "$made/log" 2>&1 || { cat "$made/log"; exit 1; }
"$python" "$here/fla_roundtrip.py" load "$made/tuned/latest" > "$made/log" 2>&1 || { cat "$made/log"; exit 1; }
"$carry" check --golden "$made/tuned/latest" > "$made/log" 2>&1 || { cat "$made/log"; exit 1; }
tail -n 1 "$made/log"

#!/bin/sh
# transformers loads the folder that carry train --model FOLDER saved, key for key, with the same logits. CARRY_PYTHON
# names the Python with torch and transformers.
set -eu
carry=$1
vectors=$2/tests/golden/vectors
python=${CARRY_PYTHON:-python3}
here=$(dirname "$0")
if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
    echo "skipped: $python has no torch and transformers"
    exit 77
fi
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
for model in lm-qwen3_5 lm-qwen3_next-dense lm-olmo_hybrid; do
    CARRY_STORE=$made/store "$carry" train --model "$vectors/$model" --task copy --steps 2 --batch 2 --length 64 \
        --out "$made/$model" > "$made/log" 2>&1 || { cat "$made/log"; exit 1; }
    "$python" "$here/hybrid_roundtrip.py" "$made/$model/latest" > "$made/log" 2>&1 || { cat "$made/log"; exit 1; }
    "$carry" check --golden "$made/$model/latest" > "$made/checked" 2>&1 || true
    # Both sides compute in f32 and differ by about 1e-5 here; another model's logits differ by about 1.
    awk '$4 == "logits" || $4 == "loss" { print; seen += ($6 < 5e-5) } END { exit seen != 2 }' "$made/checked" ||
        { cat "$made/checked"; exit 1; }
done

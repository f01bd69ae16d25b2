#!/bin/sh
# check --golden tells gradients that are wrong from those that f32 cannot give to the bound. In lm-qwen3_5 logits and loss are right, and every
# gradient over the bound (two may be near it) moves further than that with the last bits of the weights; in lm-olmo_hybrid one that was changed does not.
set -eu
carry=$1
vectors=$2
if [ ! -e "$vectors/lm-qwen3_5" ] || [ ! -e "$vectors/lm-olmo_hybrid" ]; then
    echo "skipped: the vectors are not here"
    exit 77
fi
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$carry" check --golden "$vectors/lm-qwen3_5" --device cpu > "$made/log" || true
awk '($4 == "logits" || $4 == "loss") && $NF == "ok" { right++ }
     / wrong, / { wrong = $3 }
     / of the wrong move further/ { unsettled = $1 }
     END { exit right != 2 || wrong - unsettled > 2 }' "$made/log" || { cat "$made/log"; exit 1; }
cp -r "$vectors/lm-olmo_hybrid" "$made/changed"
chmod -R u+w "$made/changed"
python3 - "$made/changed/expected.safetensors" << 'END'
import json, struct, sys
with open(sys.argv[1], "r+b") as file:
    size = struct.unpack("<Q", file.read(8))[0]
    begin, end = json.loads(file.read(size))["grad.model.norm.weight"]["data_offsets"]
    file.seek(8 + size + begin)
    values = struct.unpack(f"<{(end - begin) // 4}f", file.read(end - begin))
    file.seek(8 + size + begin)
    file.write(struct.pack("<f", values[0] + 0.01 * max(map(abs, values))))
END
code=0
"$carry" check --golden "$made/changed" --device cpu > "$made/log" || code=$?
if [ "$code" -ne 1 ] || ! grep -q '63 right, 1 wrong' "$made/log" || grep -q 'of the wrong move' "$made/log"; then
    cat "$made/log"
    exit 1
fi

#!/bin/sh
# check --golden finds one changed element of one gradient, and names it.
# Usage: test_golden_gradients.sh CARRY SOURCE-TREE
set -eu
carry=$1
vectors=$2/tests/golden/vectors
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
for name in lm-olmo_hybrid:63 lm-qwen3_5:56; do
    right=${name#*:}
    name=${name%:*}
    cp -r "$vectors/$name" "$made/$name"
    chmod -R u+w "$made/$name"
    python3 - "$made/$name/expected.safetensors" << 'END'
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
    "$carry" check --golden "$made/$name" --device cpu > "$made/log" || code=$?
    if [ "$code" -ne 1 ] || ! grep -q "$right right, 1 wrong" "$made/log" ||
        ! grep -q 'grad.model.norm.weight .*WRONG' "$made/log"; then
        echo "FAILED: $name with one changed gradient: exit code $code"
        cat "$made/log"
        exit 1
    fi
done

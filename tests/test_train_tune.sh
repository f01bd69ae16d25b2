#!/bin/sh
# carry train on examples: adapters are used, merged and refused by name, and kill -9 at any moment changes no bit of runs with LoRA and with Muon.
# Usage: [KILLS=10] test_train_tune.sh PATH-OF-CARRY SOURCE-TREE
set -u
carry=$1
golden=$2/tests/golden/finetune
kills=${KILLS:-2}
tests=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
CARRY_WISDOM=none
CARRY_STORE=$folder/store.db
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export CARRY_WISDOM CARRY_STORE ASAN_OPTIONS
. "$tests/support.sh"

fail() {
    echo "FAILED: $*"
    exit 1
}

refused() { # text arguments...
    text=$1
    shift
    "$carry" "$@" > out 2>&1 && fail "carry $* was accepted"
    grep -q -- "$text" out || fail "carry $*: '$text' is not in: $(cat out)"
}

moved() { # another step than $1 is the newest, or process $2 has ended
    [ "$(readlink killed/latest 2> /dev/null)" != "$1" ] || ! kill -0 "$2" 2> /dev/null
}

base="--model $golden --data $golden/examples.jsonl --length 96 --batch 3 --no-store --device cpu --rate 0.005"
"$carry" train $base --steps 4 --lora-rank 4 --out lora > out 2>&1 || fail "$(cat out)"
"$carry" generate "$golden" --adapter lora -p '1 + 2 =' -n 4 --device cpu > adapted 2> err || fail "$(cat err)"
"$carry" merge "$golden" lora/latest merged > out 2>&1 || fail "$(cat out)"
"$carry" generate merged -p '1 + 2 =' -n 4 --device cpu > from_merged 2> err || fail "$(cat err)"
cmp -s adapted from_merged || fail "the merged model writes another text than the model with its adapter"
refused "choose from all-linear, in_proj_qkv" train $base --lora-rank 4 --lora-targets queries --out none
refused "is an adapter" generate lora -p x
refused "needs the model that it is for" train --task copy --lora-rank 4 --no-store --out none
refused "expected refuse or cut" train $base --long-examples shorten --out none
refused "expected f32 or bf16" train $base --optimizer-state f16 --out none
refused "expected all, or names separated by commas" train --task copy --dtype bf16 --fp8 gate --no-store --out none
refused "give --dtype bf16" train --task copy --fp8 all --no-store --out none
refused "omit --fp8" train $base --dtype bf16 --lora-rank 4 --fp8 all --out none
refused "compute capability 8.9" train --task copy --dtype bf16 --fp8 all --no-store --device cpu --out none
"$carry" train $base --steps 2 --save-every 0 --out unsaved > out 2>&1 || fail "$(cat out)"
grep -q "no checkpoint was written" out || fail "--save-every 0 says: $(cat out)"
[ ! -e unsaved/latest ] || fail "--save-every 0 wrote a checkpoint"
refused "need a tokenizer" train --data "$golden/examples.jsonl" --no-store --out none
refused "merge needs a model" merge "$golden" lora
sed 's/"r": 4/"r": 5/' lora/latest/adapter_config.json > other.json
mkdir other
cp lora/latest/adapter_model.safetensors other/
cp other.json other/adapter_config.json
refused "the adapter is for another model" generate "$golden" --adapter other -p x --device cpu

for kind in "--lora-rank 4 --lora-dropout 0.1" "--optimizer muon" "--optimizer-state bf16" \
    "--optimizer muon --optimizer-state bf16"; do
    long="$base $kind --steps 40 --save-every 1 --log-every 40"
    rm -rf whole killed
    "$carry" train $long --out whole > out 2>&1 || fail "$(cat out)"
    done=0
    while [ $done -lt "$kills" ]; do
        if [ -e killed/latest ]; then
            "$carry" train --resume killed --no-store > out 2>&1 &
        else
            rm -rf killed
            "$carry" train $long --out killed > out 2>&1 &
        fi
        pid=$!
        before=$(readlink killed/latest 2> /dev/null)
        wait_for 120 moved "$before" $pid || fail "no step within two minutes: $(cat out)"
        kill -9 $pid 2> /dev/null
        wait $pid 2> /dev/null
        done=$((done + 1))
    done
    "$carry" train --resume killed --no-store > out 2>&1 || fail "resume: $(cat out)"
    for file in optimizer.safetensors $([ -e whole/latest/adapter_model.safetensors ] && echo adapter_model.safetensors || echo model.safetensors); do
        cmp "killed/latest/$file" "whole/latest/$file" || fail "$kind: another $file after $done kills"
    done
done
echo "carry train on examples: all is well"

#!/bin/sh
# Damaged weights are refused by eval, generate, stream and train --model, and memory is asked for only when the files have what
# a configuration names. Usage: test_weights.sh PATH-OF-CARRY
set -u
carry=$(realpath "$1") || exit 2
tests=$(dirname "$(realpath "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
. "$tests/support.sh"
CARRY_STORE=$folder/store.db
export CARRY_STORE
unset OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK PMI_RANK PMI_SIZE PMIX_RANK SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_NTASKS

i=0
while [ $i -lt 300 ]; do
    echo "the $((i * 7 % 13)) cats of house $((i * i % 29)) carried state along the sequence."
    i=$((i + 1))
done > book.txt
expect 0 "step 4/4" train --data book.txt --hidden 32 --layers 1 --head-dim 16 --batch 2 --length 32 --vocab 300 --steps 4 \
    --save-every 2 --keep 2 --out run --no-store
step=run/step-4

# byte FILE OFFSET OCTAL: one byte is overwritten.
byte() {
    printf "\\$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2> /dev/null
}
# The last element of the file, in any tensor: the top byte of an f32 gets the largest exponent.
size=$(wc -c < $step/model.safetensors)

for verb in "eval $step book.txt" "generate $step -p the -n 4" "train --model $step --data book.txt --steps 1 --no-store --out more"; do
    cp -a $step kept
    "$carry" $verb > out 2> err < /dev/null || fail "carry $verb: $(cat err)"
    rm -rf more
    byte $step/model.safetensors $((size - 4)) 001 # one byte of a fraction: no value looks wrong
    refused "model.safetensors has other bytes than were written" $verb
    rm -rf more
    cp kept/model.safetensors $step/model.safetensors
    truncate -s -4 $step/model.safetensors
    expect 2 "model.safetensors" $verb
    cp kept/model.safetensors $step/model.safetensors
    rm $step/train.json # without checksums a value that cannot be is still found, and named
    byte $step/model.safetensors $((size - 1)) 176
    refused "weights are finite and at most 1e+08" $verb
    grep -q "element [0-9]* of [a-z_.0-9]*weight is " err || fail "the tensor is not named: $(cat err)"
    byte $step/model.safetensors $((size - 1)) 177
    byte $step/model.safetensors $((size - 2)) 377
    refused "weights are finite and at most 1e+08" $verb
    rm -rf $step more
    mv kept $step
done

# A video model: its steps, and the final folder of a run.
expect 0 "step 2/2" train dit --layers 1 --dim 24 --heads 2 --size 16 --batch 4 --chunks 2 --steps 2 --out video
for model in video video/step-2; do
    weights=$model/model.safetensors
    expect 0 "" stream --model $model --chunks 1 --size 16x16
    cp $weights kept
    byte $weights $(($(wc -c < $weights) - 4)) 001
    expect 2 "model.safetensors has other bytes than were written" stream --model $model --chunks 1 --size 16x16
    cp kept $weights
done
rm video/config.json # a run that has not ended: its newest complete step
expect 0 "" stream --model video --chunks 1 --size 16x16

# In a training's folder the newest intact step is used, with a warning.
byte $step/model.safetensors $((size - 4)) 001
expect 0 "step-4 is skipped" eval run book.txt

# A configuration that asks for far more than the weights hold: refused at once, within a limit on memory.
cp -a run/step-2 large
rm large/train.json
sed -i 's/"intermediate_size": *[^,]*/"intermediate_size": 4000000/; s/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 8/' large/config.json
(ulimit -v 3000000 && timeout 600 "$carry" eval large book.txt --threads 1 > out 2> err)
[ $? = 2 ] && grep -q "has no tensor\|has shape" err || fail "a configuration beyond its weights: $(cat err)"
(ulimit -v 3000000 && timeout 600 "$carry" train --model large --data book.txt --steps 1 --no-store --out more --threads 1 > out 2> err)
[ $? = 2 ] && grep -q "has no tensor\|has shape" err || fail "a configuration beyond its weights, trained: $(cat err)"

[ $failures = 0 ] && echo "damaged weights are refused by name"
exit $((failures > 0))

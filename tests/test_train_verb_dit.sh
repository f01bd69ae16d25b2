#!/bin/sh
# carry train dit from the command line: runs that continue, and refusals. Usage: test_train_verb_dit.sh CARRY
set -u
carry=$1
tests=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
CARRY_WISDOM=none
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export CARRY_WISDOM ASAN_OPTIONS
unset OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK PMI_RANK PMI_SIZE PMIX_RANK SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_NTASKS
. "$tests/support.sh"
small="--layers 1 --dim 24 --heads 2 --size 16 --batch 4 --chunks 2 --log-every 1"

# latest is the run's newest checkpoint: the run continues beside it, not in it.
expect 0 "step 4/4" train dit $small --steps 4 --out run
cp -r run whole
expect 0 "going on from run/step-4" train dit --resume run/latest --steps 6
[ ! -e run/step-4/latest ] || fail "a run went on inside its own checkpoint"
expect 0 "step 8/8" train dit --resume run/ --steps 8
expect 0 "step 8/8" train dit --resume whole --steps 8
cmp run/model.safetensors whole/model.safetensors || fail "two ways to resume give two models"
refused "is one checkpoint" train dit --resume run/step-8 --steps 9

# A run does not need the model that it started from, which may be moved; its own options cannot change.
expect 0 "step 2/2" train dit $small --model run --steps 2 --out later
mv run gone
expect 0 "step 4/4" train dit --resume later --steps 4
refused "seed cannot be changed when a run is resumed" train dit --resume later --steps 6 --seed 9
refused "model cannot be changed when a run is resumed" train dit --resume later --steps 6 --model gone

# An evaluation: pictures of the trained size, and options that have an effect or are refused.
expect 1 "prompts" train dit --eval later --forms 1 --stream 2 --json
cp out as-learned
expect 1 "prompts" train dit --eval later --forms 1 --stream 2 --json --size 16
cmp -s out as-learned || fail "--eval takes pictures of another size than the run's"
expect 1 "prompts" train dit --eval later --forms 1 --stream 2 --json --size 32
cmp -s out as-learned && fail "--size makes no difference to --eval"
refused "forms is 0" train dit --eval later --forms 0
refused "forms is 4" train dit --eval later --forms 4
refused "stream 0" train dit --eval later --stream 0
refused "give --eval" train dit $small --steps 1 --second-prompt --out no
[ ! -e no ] || fail "a refused run left a folder"

if [ $failures != 0 ]; then
    echo "$failures failures"
    exit 1
fi
echo "carry train dit: all is well"

#!/bin/sh
# carry train from the command line: a text, bad inputs, ranks, a full disk, and kill -9 at any moment.
# Usage: [KILLS=30] test_train.sh PATH-OF-CARRY
set -u
carry=$1
kills=${KILLS:-6}
tests=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
CARRY_WISDOM=none
CARRY_STORE=$folder/store.db
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export CARRY_WISDOM CARRY_STORE ASAN_OPTIONS
unset OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK PMI_RANK PMI_SIZE PMIX_RANK SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_NTASKS
. "$tests/support.sh"

i=0
while [ $i -lt 1500 ]; do
    echo "the $((i * 7 % 13)) cats of house $((i * i % 29)) carried state along the sequence, and slept."
    i=$((i + 1))
done > book.txt
small="--hidden 32 --layers 2 --head-dim 16 --batch 4 --length 32 --vocab 300"

# loss FILE: the loss of the last step.
loss() {
    grep '"norm"' "$1" | tail -n 1 | sed 's/.*"loss": \([^,]*\),.*/\1/'
}

# A text as the only argument, and its results: a model folder, a run in the store, a curve.
expect 0 "trained/book/latest" train --data book.txt $small --steps 12 --log-every 4
grep -q "held out: " out || fail "nothing was held out"
for file in config.json model.safetensors tokenizer.json optimizer.safetensors train.json; do
    [ -s trained/book/latest/$file ] || fail "no $file in the checkpoint"
done
if "$carry" runs > runs 2> /dev/null; then
    grep -q "train .*book" runs || fail "the run is not in the store"
    "$carry" report last -o report.html > out 2> err || fail "no report: $(cat err)"
    grep -q "loss" report.html || fail "the report has no loss"
fi
expect 0 "trained/book-2/latest" train book.txt $small --steps 2
refused "holds a run already" train book.txt $small --steps 2 --out trained/book
mkdir other linked
echo mine > other/notes.txt
ln -s linked link
refused "is not an empty folder" train book.txt $small --steps 1 --out other
refused "is not an empty folder" train book.txt $small --steps 1 --out link/
expect 0 "step 1/1" train book.txt $small --steps 1 --no-store --out other --overwrite
[ "$(cat other/notes.txt)" = mine ] || fail "--overwrite changed a file that is not the run's"
[ -z "$(ls linked)" ] || fail "a link was followed"
expect 0 '"step": 14' train --resume trained/book --steps 14 --json
expect 0 "all 14 steps are done" train --resume trained/book/latest

# A file of options; unknown keys and bad values are reported with their place.
printf 'data: book.txt\nsteps: 3\nhidden: 32\nlayers: 1\nlength: 16\nrate: 0.01\n' > run.yaml
if "$carry" train --config run.yaml --out yaml > out 2> err; then
    grep -q "step 3/3" out || fail "the file's steps were not done"
    expect 0 "step 2/2" train --config run.yaml --steps 2 --out yaml-2
    expect 0 "all 3 steps are done" train --config run.yaml --resume yaml
    sed 's/steps: 3/steps: 5/' run.yaml > more.yaml
    refused "more.yaml has another steps than the run in yaml" train --config more.yaml --resume yaml
    expect 0 "step 4/4" train --config more.yaml --resume yaml --steps 4
    sed 's/steps: 3/eval-data: book.txt/' run.yaml > other.yaml
    refused "another eval-data" train --config other.yaml --resume yaml
    printf 'data: book.txt\n  stepz: 3\n' > bad.yaml
    expect 2 "bad.yaml:" train --config bad.yaml
    printf 'data: book.txt\nstepz: 3\n' > bad.yaml
    refused "bad.yaml:2:" train --config bad.yaml
    printf 'data: book.txt\nrate: .nan\n' > bad.yaml
    refused "bad.yaml:2:" train --config bad.yaml
else
    grep -q "without the lab" err || fail "--config: $(cat err)"
fi

# A missing device and an unknown name of a device are refused before work begins.
refused "cpu, cuda or cuda:N is accepted" train --data book.txt --device gpu --out no
refused "there is no device cuda:4096" train --data book.txt --device cuda:4096 --out no
expect 0 "; on cpu" train --data book.txt $small --steps 1 --device cpu --out on-cpu
refused "there is no device cuda:4096" generate on-cpu -p cats --device cuda:4096
refused "there is no device cuda:4096" eval on-cpu book.txt --device cuda:4096

# Bad input: an error message, and no folder is made.
: > empty.txt
head -c 4000 /dev/urandom > binary.txt
printf 'x' > one.txt
refused "empty" train --data empty.txt --out no
refused "binary.txt" train --data binary.txt --out no
refused "too few" train --data one.txt --out no
refused "nowhere.txt" train --data nowhere.txt --out no
mkdir many
i=0
while [ $i -lt 257 ]; do
    head -n 2 book.txt > many/$i
    i=$((i + 1))
done
refused "more than 256 texts" train $small --out no many/*
rm many/0
expect 0 "step 1/1" train $small --steps 1 --no-store --out all many/*
refused "needs a text or a task" train
refused "two things" train --data book.txt --task copy
refused "no task 'nap'" train --task nap --out no
refused "no method 'magic'" train --data book.txt --method magic
refused "no option '--stepz" train --data book.txt --stepz 3
refused "steps is 0" train --data book.txt --steps 0
refused "rate needs a finite number" train --data book.txt --rate nan
refused "rate is -1" train --data book.txt --rate -1
refused "to 0.999999999" train --data book.txt --beta1 1
refused "no schedule" train --data book.txt --schedule never
refused "no type 'f8'" train --data book.txt --dtype f8
refused "batch of 4 rows" --ranks 3 train --data book.txt $small --out no
refused "sequence of 33 tokens" --ranks 2 train --data book.txt $small --length 33 --sequence-ranks 2 --out no
refused "2 ranks cannot be grouped by 3" --ranks 2 train --data book.txt --sequence-ranks 3
refused "cannot be written" train --data book.txt --out /proc/no/such
refused "no checkpoint" train --resume .
refused "nowhere" train --resume nowhere
refused "needs the run's folder" train --resume
refused "--hidden cannot be changed" train --resume trained/book --hidden 64
for option in expand-v init forget; do
    refused "$option cannot be changed when a run is resumed" train --resume trained/book --$option 0.5
done
refused "is one checkpoint" train --resume trained/book/step-12

# Options without an effect are refused, not ignored.
model="--data book.txt --model trained/book/latest --length 32 --steps 1 --out no"
for option in "hidden 64" "layers 3" "type delta_net" "conv 0" "expand-v 2" "init 0.1" "forget 2" tie "vocab 400"; do
    refused "omit one of them" train $model --$option
    grep -q -e "--${option% *} " err || fail "--${option% *} is not named: $(cat err)"
done
refused "--pairs applies only to the task mqar" train --data book.txt --pairs 8 --out no
refused "--pairs applies only to the task mqar" train --task copy --pairs 8 --out no
refused "--eval-data applies to texts" train --task copy --eval-data book.txt --out no
refused "--vocab applies to a tokenizer" train --data book.txt --tokenizer trained/book/latest --vocab 400 --out no
refused "--forget applies to gates" train --data book.txt --type delta_net --forget 2 --out no
expect 0 "step 1/1" train --task mqar --pairs 4 --length 32 --vocab 64 --hidden 32 --layers 1 --steps 1 --out recall
expect 0 "step 1/1" train --task mqar --model recall/latest --length 32 --vocab 64 --steps 1 --out recall-2
expect 0 "step 2/2" train --resume recall-2 --steps 2
mkdir wide && sed 's/"vocab_size": [0-9]*/"vocab_size": 77/' trained/book/latest/config.json > wide/config.json
refused "vocabulary 77" train --data book.txt --tokenizer trained/book/latest --architecture wide/config.json --out no
cp -r trained/book torn
truncate -s 1000 torn/step-14/model.safetensors
expect 0 "step 14 is incomplete" train --resume torn
[ ! -e no ] || fail "a refused run left a folder"

# Rows that were trained on are not used for a later evaluation, nor are held-out rows trained on.
expect 0 "step 2/2" train --data book.txt $small --steps 2 --eval-every 0 --out blind
refused "blind was trained on the whole text" train --resume blind --steps 4 --eval-every 1
expect 0 "step 4/4" train --resume blind --steps 4 --eval-every 1 --eval-data many/1
refused "holds out a part of its text" train --resume trained/book --steps 16 --eval-every 0
expect 0 "step 16/16" train --resume trained/book --steps 16 --eval-every 1

# Ranks: the same curve.
run="--data book.txt $small --steps 8 --json --log-every 1"
"$carry" train $run --out one > one.json || fail "one rank"
"$carry" --ranks 2 train $run --out two > two.json || fail "two ranks"
"$carry" --ranks 2 train $run --sequence-ranks 2 --out split > split.json || fail "two sequence ranks"
for other in two split; do
    awk -v a="$(loss one.json)" -v b="$(loss $other.json)" \
        'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a > 0 && d < 2e-4 * a) }' ||
        fail "$other: loss $(loss $other.json), one rank $(loss one.json)"
done

# Presets by name, and a window of steps in a profile, after which the training ends.
expect 2 "expected gdn-130m, gdn-130m-128k, gdn-1b or deltanet-13m" train --preset gdn --task copy --steps 1 --out none
if "$carry" runs > runs 2> /dev/null; then # a build with the lab
    expect 2 "are steps of train, not of bench" profile --profile-steps 2 bench scan:dense:t8:n2
    "$carry" profile --no-store train --preset deltanet-13m --layers 1 --hidden 16 --heads 1 --batch 1 --length 16 --dtype f32 --no-store \
        --device cpu --profile-from 2 --profile-steps 3 --out window -o window.json.gz --json > window.json 2> /dev/null ||
        fail "a window of a training was not profiled"
    grep -q '"name": "step".*"calls": 3,' window.json || fail "the window has not three steps"
    few="train --preset deltanet-13m --layers 1 --hidden 16 --heads 1 --batch 1 --length 16 --dtype f32 --no-store --device cpu --out few"
    expect 2 "--profile-from 0: expected 1 or more, the first step being 1" profile --no-store $few --steps 3 --profile-from 0
    expect 2 "--profile-steps 0: expected 1 or more" profile --no-store $few --steps 3 --profile-steps 0
    expect 2 "--profile-from 4: the training ends after step 3" profile --no-store $few --steps 3 --profile-from 4
    [ ! -e few ] || fail "a window that cannot be was trained"
    expect 2 "--profile-from 9: no step was recorded" profile --no-store -o few.json.gz $few --tokens 48 --profile-from 9
    expect 2 "the training goes on after step 4" profile --no-store train --resume window --no-store --steps 6 \
        --profile-from 2 --profile-steps 3
    [ -e window/step-4 ] || fail "a profiled training did not end after its window"
    # On a GPU, also the emulated one: only the window's steps, both replayed as a graph and launched one by one.
    if "$carry" plan delta:t64:h1:k16:v16:device=cuda > /dev/null 2>&1; then
        for way in replayed --no-graph; do
            # shellcheck disable=SC2046
            "$carry" profile --no-store -o gpu.json.gz train --preset deltanet-13m --layers 1 --hidden 16 --heads 1 --batch 1 --length 16 --dtype f32 \
                --no-store --device cuda $([ $way = replayed ] || echo $way) --profile-from 3 --profile-steps 2 --out window$way > window-gpu 2> err ||
                fail "a window of a training on a GPU: $(cat err)"
            grep -o 'a step, of 2: [0-9]* kernels' window-gpu >> kernels || grep -q 'kernels are not on the trace' err || fail "no kernels: $(cat window-gpu)"
        done
        if [ -s kernels ]; then
            [ "$(sort -u kernels | wc -l)" = 1 ] || fail "kernels of a step differ: $(cat kernels)"
        fi
        cmp windowreplayed/step-4/model.safetensors window--no-graph/step-4/model.safetensors || fail "a graph has other bits"
    fi
fi

# A learning rate that is too high: the step and the tensor are named, the state before is saved.
expect 2 "the first tensor that was not finite" train --data book.txt $small --rate 1000 --decay 1000 --warmup 0 \
    --clip 0 --steps 60 --out blown
[ -e blown/latest/train.json ] || fail "a loss that is not finite left no checkpoint"

# A text that shrinks during the run: its second window cannot be read, and the training on the first is kept.
yes abcdefghijklmnopqrstuvwxyzabcdefghijklmnop | head -c 6000000 > shrinks.txt
"$carry" train --data shrinks.txt --hidden 16 --head-dim 16 --layers 1 --length 256 --batch 32 --vocab 310 \
    --eval-every 0 --steps 2000 --save-every 100000 --log-every 1 --no-store --out shrunk > shrinks.out 2> err &
pid=$!
while ! grep -q "step 1/" shrinks.out 2> /dev/null && kill -0 $pid 2> /dev/null; do sleep 0.05; done
truncate -s 2000000 shrinks.txt
wait $pid
[ $? = 2 ] || fail "a text that shrinks: exit"
grep -q "shrank while it was in use.* is in shrunk/step-" err || fail "a text that shrinks: $(cat err)"
[ -e shrunk/latest/train.json ] || fail "a text that shrinks left no checkpoint"

# Start to first step.
"$carry" train --data book.txt --steps 1 --eval-every 0 --out quick --json > quick.json || fail "the first step"

# Ctrl-C finishes the step and saves.
"$carry" train --data book.txt $small --steps 100000 --out stopped --log-every 1 > out 2> err &
pid=$!
while ! grep -q "step 3/" out 2> /dev/null && kill -0 $pid 2> /dev/null; do sleep 0.05; done
kill -INT $pid
wait $pid
[ $? = 2 ] || fail "Ctrl-C: exit"
grep -q "to go on: carry train --resume stopped" err || fail "Ctrl-C: $(cat err)"
[ -e stopped/latest/train.json ] || fail "Ctrl-C left no checkpoint"

# A full disk, imitated by ulimit -f: the old checkpoint stays.
"$carry" train $run --out full > /dev/null || fail "before the disk was full"
(ulimit -f 64; "$carry" train --resume full --steps 12 --no-store > out 2> err; echo $? > code)
[ "$(cat code)" = 2 ] || fail "a full disk: exit $(cat code)"
grep -q "that of step 8 is kept" err || fail "a full disk: $(cat err)"
expect 0 '"step": 12' train --resume full --steps 12 --json

# kill -9 at random moments: a run that is resumed until it is done ends with the result of an undisturbed one.
long="--data book.txt $small --steps 60 --save-every 2 --json --log-every 1"
"$carry" train $long --no-store --out whole > whole.json || fail "the undisturbed run"
done=0
rm -rf killed
seed=$(date +%s)
echo "kill seed $seed"
while [ $done -lt "$kills" ]; do
    if [ -e killed/latest ]; then
        "$carry" train --resume killed --no-store --json > part.json 2> part.err &
    else
        "$carry" train $long --no-store --out killed > part.json 2> part.err &
    fi
    pid=$!
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    sleep "$(awk -v s=$seed 'BEGIN { printf "%.3f", 0.05 + s % 1000 / 1000.0 }')"
    kill -9 $pid 2> /dev/null
    wait $pid 2> /dev/null
    done=$((done + 1))
    if grep -q '"step": 60' part.json; then # it was done before: begin again
        [ "$(loss part.json)" = "$(loss whole.json)" ] || fail "resumed: $(loss part.json), whole $(loss whole.json)"
        rm -rf killed
    fi
done
if [ ! -e killed/latest ]; then
    "$carry" train $long --no-store --out killed > part.json 2> part.err || fail "begun again: $(cat part.err)"
else
    "$carry" train --resume killed --no-store --json > part.json 2> part.err || fail "resume: $(cat part.err)"
fi
if grep -q '"step": 60' part.json; then
    [ "$(loss part.json)" = "$(loss whole.json)" ] || fail "after $done kills: $(loss part.json), not $(loss whole.json)"
fi
cmp killed/latest/model.safetensors whole/latest/model.safetensors || fail "other weights after $done kills"
cmp killed/latest/optimizer.safetensors whole/latest/optimizer.safetensors || fail "other state after $done kills"

if [ $failures != 0 ]; then
    echo "$failures failures"
    exit 1
fi
echo "carry train: all is well after $done kills"

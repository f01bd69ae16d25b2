#!/bin/sh
# Trainings in the run store: names, threads, options, curves, comparisons, exports. Usage: test_training_runs.sh
# PATH-OF-CARRY
set -u
carry=$1
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CARRY_WISDOM=none
CARRY_STORE=$folder/store.db
ASAN_OPTIONS=detect_leaks=0
export CARRY_WISDOM CARRY_STORE ASAN_OPTIONS
cd "$folder" || exit 2
. "$here/support.sh"
small="--task mqar --vocab 32 --length 16 --batch 4 --hidden 32 --layers 1 --heads 1 --head-dim 16 --eval-every 5 --log-every 1 --device cpu"

# Names, a series, the threads that were used.
# shellcheck disable=SC2086
train() { expect 0 "step" train $small "$@"; }
train --steps 20 --seed 1 --threads 2 --name 'first "quoted"' --out a
expect 0 'first "quoted"' runs list
"$carry" runs show last > shown
grep -q "threads  *2$" shown || fail "not the 2 threads that were used: $(grep threads shown)"
grep -q "ranks  *1$" shown || fail "no number of ranks: $(grep ranks shown)"
grep -q "device  *cpu" shown || fail "no device"
train --steps 20 --seed 2 --threads 1 --name sweep/ --out b
train --steps 20 --seed 1 --threads 1 --name sweep/ --out c
expect 0 "sweep/2" runs list --name sweep/
[ "$(grep -c sweep/ out)" = 2 ] || fail "the series has not two runs"
expect 0 "hotspots" profile --name seen bench scan:dense:t64:n4 --repeats 2 --threads 2 -o trace.json.gz
"$carry" runs show seen > shown
grep -q "threads  *2$" shown || fail "a profile has not the 2 threads that were used: $(grep threads shown)"

# The curve as a table: a row per step, a column per metric.
expect 0 "run,name,step," runs export 1 --csv
head -n 1 out | grep -q ",loss," || fail "the table has no loss: $(head -n 1 out)"
[ "$(wc -l < out)" = 21 ] || fail "$(wc -l < out) lines for 20 steps and a heading"
awk -F, 'NR == 1 { n = NF } NF != n { exit 1 }' out || fail "the rows of the table have not the same length"
expect 0 '"_step":20' runs export 1 --history
refused "--samples" runs export 1 --csv --samples

# The stored options are a configuration that trains the same.
if command -v python3 > /dev/null; then
    "$carry" runs export 2 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["spec"], end="")' > again.yaml
    expect 0 "step 20/20" train --config again.yaml --device cpu --threads 1 --out d --name again
    expect 0 '"loss_difference": 0,' runs compare 2 again --json
else
    echo "skipped: without python3 the options are not read from JSON"
fi

# Two trainings compared: with the same seed there is no difference, with another one there is an interval.
expect 0 "held-out loss" runs compare 1 3
grep -q "loss  *[0-9.]*  *[0-9.]*  B - A +0.0000  +0.0000 to +0.0000  within noise" out || { fail "equal trainings differ"; cat out; }
grep -q "tokens/s" out && grep -q "memory, most" out || fail "no speed or no memory is compared"
grep -q "another machine or number of threads" out || fail "2 threads against 1 are not told"
expect 0 '"loss_steps": 20,' runs compare 1 2 --json
grep -q '"loss_difference": 0,' out && fail "another seed has the same losses"
grep -q '"eval_loss_steps": [1-9]' out || fail "no held-out losses are compared"

# The report has the options and one plot for both losses.
expect 0 "report" report 1 -o report.html
grep -q 'id="hyperparameters"' report.html && grep -q "<dt>seed</dt><dd>1</dd>" report.html || fail "no hyperparameters"
if command -v gnuplot > /dev/null; then
    grep -q "> held out<" report.html && grep -q "> training<" report.html || fail "the losses are not named in one plot"
    grep -q "eval_loss over steps" report.html && fail "the held-out loss has a plot of its own"
    [ "$(grep -c ">loss over steps<" report.html)" -ge 1 ] || fail "no plot of the loss"
    expect 0 "report" report 1 3 -o report.html
    grep -q "> run 1, [^<]*, chunk<" report.html || fail "the legend of two trainings does not name their method"
else
    echo "skipped: without gnuplot there are no plots"
fi

# --no-store also applies when the run continues.
runs=$("$carry" runs list --json | wc -l)
train --steps 4 --no-store --out quiet
expect 0 "step 6/6" train --resume quiet --steps 6 --device cpu
[ "$("$carry" runs list --json | wc -l)" = "$runs" ] || fail "a run without the store is stored when it goes on"
expect 0 "step 8/8" train --resume quiet --steps 8 --device cpu --store other.db
[ "$("$carry" runs list --json --store other.db | wc -l)" = 1 ] || fail "a store that is named is not used on resume"

# A configuration that says where its text comes from: reported if the text is missing; with the text it trains.
printf 'data: text/here.txt\ndownload: put a text into text/here.txt\nvocab: 300\nlength: 16\nbatch: 2\nhidden: 32\nlayers: 1\nheads: 1\nhead-dim: 16\nsteps: 2\neval-every: 0\n' > text.yaml
refused "there is no text/here.txt: put a text into text/here.txt" train --config text.yaml --out from-text --device cpu
[ ! -e from-text ] || fail "a training without its text made a folder"
mkdir text && seq -s ' words and ' 2000 > text/here.txt
expect 0 "step 2/2" train --config text.yaml --out from-text --device cpu

# Event files: read by this reader, which knows only the format, and by TensorBoard's if it is installed.
expect 0 "events.out.tfevents." runs export 1 last --tensorboard events
event_file=$(head -n 1 out)
refused "exists already" runs export 1 --tensorboard events
refused "omit --output" runs export 1 --tensorboard other -o x
[ ! -e other ] || fail "a refused export made a folder"
cat > reader.py << 'END'
import struct, sys
table = []
for i in range(256):
    c = i
    for _ in range(8):
        c = (c >> 1) ^ (0x82f63b78 if c & 1 else 0)
    table.append(c)
def masked(data):
    c = 0xffffffff
    for b in data:
        c = table[(c ^ b) & 255] ^ (c >> 8)
    c ^= 0xffffffff
    return (((c >> 15) | (c << 17)) + 0xa282ead8) & 0xffffffff
def fields(data):
    at = 0
    def varint():
        nonlocal at
        value = shift = 0
        while True:
            b = data[at]; at += 1
            value |= (b & 127) << shift; shift += 7
            if b < 128:
                return value
    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 1:
            yield key >> 3, struct.unpack('<d', data[at:at + 8])[0]; at += 8
        elif key & 7 == 5:
            yield key >> 3, struct.unpack('<f', data[at:at + 4])[0]; at += 4
        else:
            n = varint(); yield key >> 3, data[at:at + n]; at += n
data = open(sys.argv[1], 'rb').read()
at, losses, version = 0, [], None
while at < len(data):
    head = data[at:at + 8]
    length = struct.unpack('<Q', head)[0]
    assert struct.unpack('<I', data[at + 8:at + 12])[0] == masked(head)
    body = data[at + 12:at + 12 + length]
    assert struct.unpack('<I', data[at + 12 + length:at + 16 + length])[0] == masked(body)
    at += 16 + length
    event = dict(fields(body))
    version = event.get(3, version)
    if 5 in event:
        value = dict(fields(dict(fields(event[5]))[1]))
        if value[1] == b'loss':
            losses.append((event[2], value[2]))
assert version == b'brain.Event:2', version
print(losses)
END
cat > expected.py << 'END'
import json, struct, sys
run = json.load(sys.stdin)
single = lambda x: struct.unpack('<f', struct.pack('<f', x))[0]
print([(m["step"], single(m["value"])) for m in run["metrics"] if m["name"] == "loss"])
END
# JSON has 15 digits of a double, which may round to the neighbour of the float in the event file.
cat > same.py << 'END'
import ast, sys
a, b = (ast.literal_eval(open(name).read()) for name in sys.argv[1:])
sys.exit(0 if len(a) == 20 and [x[0] for x in a] == [x[0] for x in b] and
         all(abs(x[1] - y[1]) <= 2e-7 * abs(x[1]) for x, y in zip(a, b)) else 1)
END
cat > tensorboard_reader.py << 'END'
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]); events.Reload()
assert "eval_loss" in events.Tags()["scalars"], events.Tags()
print([(e.step, e.value) for e in events.Scalars("loss")])
END
if command -v python3 > /dev/null; then
    "$carry" runs export 1 --json | python3 expected.py > expected.txt || fail "no losses in the JSON export"
    python3 reader.py "$event_file" > read.txt 2> err || fail "the event file is not as the format says: $(tail -n 1 err)"
    python3 same.py expected.txt read.txt || fail "the event file has other losses: $(head -c 200 read.txt)"
    if python3 -c 'import tensorboard' 2> /dev/null; then
        python3 tensorboard_reader.py "$event_file" > read.txt 2> err || fail "tensorboard cannot read it: $(tail -n 1 err)"
        python3 same.py expected.txt read.txt || fail "tensorboard reads other losses: $(head -c 200 read.txt)"
    else
        echo "skipped: TensorBoard's own reader, which is not installed"
    fi
else
    echo "skipped: without python3 event files are not read back"
fi
[ $failures = 0 ] && echo "stored trainings are as they were"
exit $((failures > 0))

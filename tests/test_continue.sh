#!/bin/sh
# Experiments whose stages are measured by several invocations, and reasons to end measuring early. Usage:
# test_continue.sh PATH-OF-CARRY
set -u
carry=$1
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
process=
end() {
    [ -z "$process" ] || kill -KILL "$process" 2> /dev/null
    rm -rf "$folder"
}
trap end EXIT
CARRY_WISDOM=none
CARRY_STORE=$folder/store.db
ASAN_OPTIONS=detect_leaks=0
export CARRY_WISDOM CARRY_STORE ASAN_OPTIONS
cd "$folder" || exit 2
. "$here/support.sh"

# experiment FILE MORE-OF-STAGE-B LINES: writes an experiment with two stages, whose criteria use only the first unless
# LINES add others.
experiment() {
    {
        printf 'name: %s\nhypothesis: both stages matter\nmethods: [sequential, cyclic]\nrepeats: 3\nspread: 1000\n' "${1%.yaml}"
        printf 'grid:\n  - stage: a\n    problem: scan:dense:t{t}:n2\n    t: [8, 16]\n'
        printf '  - stage: b\n    problem: scan:dense:t{t}:n2\n    t: [8, 32]\n%s\n' "$2"
        printf '%s\n' "$3"
    } > "$1"
}
measured() { "$carry" runs show last | grep -c ' samples '; }
result() { "$carry" runs export last --csv | sed -n "$1p"; }

# A criterion about one stage does not decide for another stage that was not measured.
experiment two.yaml '' 'success:
  - time(cyclic, stage=a) > 0'
expect 1 "decision: incomplete" run two.yaml --stage a
grep -q "met  *time(cyclic, stage=a) > 0" out || fail "the criterion about the measured stage is not met"
[ "$(measured)" = 4 ] || fail "$(measured) of 4 results of stage a are stored"
before=$(result 2)

# The other stage is added to the run; earlier measurements stay as they were, and the decision covers both.
expect 0 "decision: proceed" run --continue last --stage b
grep -q "stored as run 1 " out || fail "a continued run is not the same run"
grep -q "t16" out && fail "what was measured before is measured again"
[ "$(measured)" = 8 ] || fail "$(measured) of 8 results are stored after continuing"
[ "$(result 2)" = "$before" ] || fail "continuing changed a result: $before, then $(result 2)"
[ "$("$carry" runs list --json | wc -l)" = 1 ] || fail "continuing made another run"
[ "$("$carry" runs show 1 | grep -c 'success  met')" = 1 ] || fail "the criteria are not those of the last decision"
expect 0 "invocations.json" runs show 1
expect 0 "decision: proceed" run --continue 1
[ "$(measured)" = 8 ] || fail "continuing a whole run changed it"

# min and max do not decide while a stage is still missing; a criterion that no later figure can change does.
experiment largest.yaml '' 'success:
  - time(cyclic, stage=a) > 0
failure:
  - max(time(cyclic)) < 100'
expect 1 "decision: incomplete" run largest.yaml --stage a
grep -q "the stage 'b' is not wholly measured" out || fail "nothing says which stage is missing"
expect 1 "decision: stop" run --continue last
experiment certain.yaml '' 'success:
  - time(cyclic, stage=a) > 0
failure:
  - 2 * max(time(cyclic)) + 1 > 0'
expect 1 "decision: stop" run certain.yaml --stage a

# stop_when: by a criterion, and once the decision is known; the other problems have the reason why they were not
# measured.
experiment early.yaml '' 'stop_when: decided
success:
  - time(cyclic, stage=a, t=8) < 0'
expect 1 "decision: stop" run early.yaml
grep -q "not measured: stopped early: the decision is known" out || fail "measuring went on after the decision"
[ "$(measured)" = 2 ] || fail "$(measured) results were measured where one problem decides"
experiment criterion.yaml '' 'stop_when:
  - time(cyclic, stage=a) > 0
success:
  - time(cyclic, stage=a) > 0'
expect 1 "decision: incomplete" run criterion.yaml
grep -q "stopped early: time(cyclic, stage=a) > 0" out || fail "stop_when has no effect"
[ "$(measured)" = 4 ] || fail "$(measured) of 4 results were measured before stop_when"

# A budget: a problem that has begun is finished, the others are left out; with a budget for one stage, the other stage
# is still measured.
experiment budget.yaml '' 'budget: 1e-9
success:
  - time(cyclic) > 0'
expect 1 "the experiment has spent its budget of 1e-09 s" run budget.yaml
[ "$(measured)" = 2 ] || fail "$(measured) results within a budget of one problem"
expect 1 "the experiment has spent its budget of 1e-09 s" run --continue last
[ "$(measured)" = 2 ] || fail "a continued run has a new budget"
experiment stage_budget.yaml '    budget: 1e-9' 'success:
  - time(cyclic, stage=a) > 0'
expect 1 "the stage 'b' has spent its budget of 1e-09 s" run stage_budget.yaml
[ "$(measured)" = 6 ] || fail "$(measured) results where one stage has a budget of one problem"

# Priorities: the higher first.
experiment first.yaml '    priority: 2' 'success:
  - time(cyclic) > 0'
expect 0 "decision: proceed" run first.yaml
[ "$(grep '^scan' out | head -n 2 | tail -n 1)" = "scan:dense:t32:n2" ] || fail "the stage of the higher priority is not first"

# Killed in the middle: no result is lost, and the remaining problems are measured.
{
    printf 'name: many\nhypothesis: it can be killed\nmethods: [sequential, cyclic]\nrepeats: 20\nspread: 1000\ngrid:\n'
    printf '  - problem: scan:dense:t{t}:n{n}\n    n: [2, 3, 4]\n    t: ['
    seq -s ', ' 30 45
    printf '    ]\nsuccess:\n  - time(cyclic) > 0\n'
} > many.yaml
"$carry" run many.yaml --json > out 2> err < /dev/null &
process=$!
wait_for 120 has_lines 5 median_s out || fail "no five results"
kill -KILL $process 2> /dev/null
wait $process 2> /dev/null
process=
number=$("$carry" runs list --limit 1 | awk 'NR == 2 { print $1 }')
expect 0 "decision: proceed" run --continue many --quiet
grep -q "stored as run $number " out || fail "the killed run was not continued"
[ "$(measured)" = 96 ] || fail "$(measured) of 96 results after a kill and --continue"

# Refused, and the run is left as it was.
refused "there is no run 'none'" run --continue none
refused "omit the file" run --continue 1 two.yaml
refused "omit --no-store" run --continue 1 --no-store
refused "has no stage 'c'" run --continue 1 --stage c
experiment typo.yaml '    budget: -1' 'success:
  - time(cyclic) > 0'
refused "'budget' must be more than 0" run typo.yaml
experiment typo.yaml '    priority: high' 'success:
  - time(cyclic) > 0'
refused "typo.yaml:13:15: " run typo.yaml
experiment typo.yaml '' 'stop_when: tiem(cyclic) > 0
success:
  - time(cyclic) > 0'
refused "there is no function 'tiem'" run typo.yaml
if command -v git > /dev/null; then
    git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one || fail "no repository"
    expect 1 "decision: incomplete" run two.yaml --stage a
    "$carry" runs export last --json > before.json
    git -c user.name=a -c user.email=a@b commit -q --allow-empty -m two
    refused "and this folder is at" run --continue last
    "$carry" runs export last --json > after.json
    cmp -s before.json after.json || fail "a refused --continue changed the run"
    git checkout -q HEAD~1
    expect 0 "decision: proceed" run --continue last
else
    echo "skipped: without git no other commit"
fi

# Names: a run's own, and a series whose runs are numbered.
experiment named.yaml '' 'success:
  - time(cyclic) > 0'
expect 0 "proceed" run named.yaml --name 'my run'
expect 0 "my run" runs list --limit 1
expect 0 "proceed" run named.yaml --name sweep/
expect 0 "proceed" run named.yaml --name sweep/
expect 0 "sweep/2" runs list --limit 1
expect 0 "run" runs list --name sweep/
[ "$(wc -l < out)" = 3 ] || fail "runs list --name sweep/ shows $(wc -l < out) lines, not two runs and a heading"
[ $failures = 0 ] && echo "experiments are continued"
exit $((failures > 0))

#!/bin/sh
# The hill-climb in a repository of its own, with tests and a profile that are a number in a file: nothing depends on
# how fast this machine is. Usage: test_climb.sh PATH-OF-CARRY
set -u
carry=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git=$(command -v git) || {
    echo "skipped: git is not here"
    exit 77
}
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
CARRY_STORE=$folder/store.db
CARRY_WISDOM=$folder/wisdom
TMPDIR=$folder
GIT_CONFIG_GLOBAL=/dev/null
GIT_AUTHOR_NAME=climber
GIT_AUTHOR_EMAIL=climber@example.org
GIT_COMMITTER_NAME=climber
GIT_COMMITTER_EMAIL=climber@example.org
export ASAN_OPTIONS CARRY_STORE CARRY_WISDOM TMPDIR GIT_CONFIG_GLOBAL GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL \
    GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL
unset SLURM_JOB_ID GIT_DIR GIT_INDEX_FILE GIT_WORK_TREE
failures=0

complain() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# expect CODE WORDS ARGUMENTS...: the exit code, and words that the output must contain.
expect() {
    code=$1
    words=$2
    shift 2
    "$carry" climb "$@" > "$folder/out" 2> "$folder/err" < /dev/null
    got=$?
    if [ $got != "$code" ] || ! cat "$folder/out" "$folder/err" | grep -qF -e "$words"; then
        complain "climb $*: exit $got (expected $code), expected to read '$words', read:"
        tail -n 5 "$folder/out" "$folder/err"
    fi
}

# refused WORDS ARGUMENTS...: exit 2, one line on standard error, nothing else, and neither log nor branch has moved.
refused() {
    before=$(cat climb.md 2> /dev/null; git rev-parse HEAD)
    expect 2 "$@"
    if [ "$(wc -l < "$folder/err")" != 1 ] || [ -s "$folder/out" ]; then
        complain "refusal for '$1' is not one error message on standard error alone:"
        cat "$folder/out" "$folder/err"
    fi
    [ "$before" = "$(cat climb.md 2> /dev/null; git rev-parse HEAD)" ] || complain "the refusal for '$1' changed something"
}

# same WHAT ACTUAL EXPECTED
same() {
    [ "$2" = "$3" ] || complain "$1: '$2', expected '$3'"
}

# A project whose throughput is the number in speed plus 0, 1 or 2 in turn: that is its noise.
project() {
    mkdir "$1"
    cd "$1" || exit 1
    git init -q -b main .
    echo 100 > speed
    echo 0 > "$1.turn"
    cat > profile.sh << END
turn=\$(cat "$1.turn")
echo \$(((turn + 1) % 3)) > "$1.turn"
[ ! -e "$1.kill" ] || kill -9 "\$(cat "$1.kill")"
echo "not JSON"
echo "{\"throughput\": \$((\$(cat speed) + turn)), \"mfu\": 0.25, \"samples\": [1, 2, 3], \"hotspots\": \"walk 61 %\"}"
END
    echo 'test "$(cat speed)" -lt 1000 || { echo "the speed is absurd"; exit 3; }' > tests.sh
    git add -A
    git commit -qm "a project"
}

# Refusals before there is a climb.
cd "$folder" && mkdir nowhere && cd nowhere || exit 1
GIT_CEILING_DIRECTORIES=$folder
export GIT_CEILING_DIRECTORIES
expect 2 "not in a git working tree" lint
project "$folder/one"
refused "needs a word"
refused "climb has no 'jump'" jump
refused "there is no climb.md" lint
refused "there is no climb.md" try --hypothesis x
refused "there is no climb.md" list
refused "needs --profile" start
refused "no metric 'joy'" start --metric joy --profile true
refused "3 to 200 runs" start --repeats 2 --profile true
refused "must be one line" start --profile 'one
two'
refused "options only" start --profile true now
refused "does not lie in the repository" start --profile true --log "$folder/log.md"
expect 2 "there is no baseline: the profile command printed no JSON" start --profile true
expect 2 "there is no baseline: the profile command failed with exit 4: oh" start --profile 'echo oh >&2; exit 4'
expect 2 "the profile command took more than 0.3 s" start --profile "sleep 600" --timeout 0.3
expect 2 "the tests command fails with exit 3" start --profile 'sh profile.sh' --tests 'exit 3'
echo stray > stray
refused "the working tree has changes (stray)" start --profile 'sh profile.sh'
rm stray
same "entries before the start" "$(ls)" "profile.sh
speed
tests.sh"

# The baseline.
expect 0 "entry 0" start --profile 'sh profile.sh' --tests 'sh tests.sh' --repeats 5
expect 0 "1 entries, all in order" lint
refused "has a baseline" start --profile 'sh profile.sh'
same "commits after the start" "$(git rev-list --count HEAD)" 2
same "the tree after the start" "$(git status --porcelain)" ""
grep -q '^- samples: 100, 101, 102, 100, 101$' climb.md || complain "the baseline's samples are not in the log"
refused "nothing is changed" try --hypothesis "doing nothing helps"
refused "needs --hypothesis" try
refused "needs --hypothesis" try --hypothesis " "
refused "no entry '7'" show 7
refused "no entry 'x'" show x

# An improvement is committed; a new file comes along, an ignored one does not.
echo 120 > speed
echo new > new.txt
printf '*.o\n.carry/\n' > .gitignore
mkdir -p .carry && touch .carry/store.db
echo object > some.o
expect 0 "kept" try --hypothesis "a larger number is
    faster" --title "speed: 120" --next "larger still"
same "the tree after an improvement" "$(git status --porcelain)" ""
same "the commit's subject" "$(git log -1 --format=%s HEAD~1)" "speed: 120"
same "the commit's files" "$(git show --format= --name-only HEAD~1)" ".gitignore
new.txt
speed"
same "the log's commit" "$(git show --format= --name-only HEAD)" "climb.md"
grep -q "^- commit: $(git rev-parse HEAD~1)$" climb.md || complain "the entry does not name its commit"
for line in "## 1. speed: 120" "- hypothesis: a larger number is faster" "- next: larger still" "- hotspots: walk 61 %" \
    "- tests: \`sh tests.sh\`" "- profile: \`sh profile.sh\`" "- job: none" "- trace: none" "- mfu: 0.25" \
    "- change: 3 files, +4 -1: .gitignore, new.txt, speed" "- decision: kept"; do
    grep -qxF -e "$line" climb.md || complain "the log does not have the line '$line'"
done

# A change that breaks a test, one that is slower, one within noise, one below the threshold: recorded, not committed.
head=$(git rev-parse HEAD)
echo 5000 > speed
refused "cannot be compared with it" try --hypothesis x --profile 'sh other.sh'
expect 1 "the speed is absurd" try --hypothesis "much faster, and wrong"
expect 1 "the tests failed with exit 3" try --hypothesis "much faster, and wrong"
echo 90 > speed
expect 1 "slower than the best" try --hypothesis "a smaller number"
echo 121 > speed
expect 1 "within noise of the best" try --hypothesis "hardly larger"
echo 130 > speed
expect 1 "below the threshold of 20 %" try --hypothesis "larger, by a little" --threshold 20
echo 'exit 1' > profile.sh
expect 1 "the profile command failed with exit 1" try --hypothesis "no profile"
git checkout -q profile.sh
same "the branch after refusals" "$(git rev-parse HEAD)" "$head"
same "the change after refusals" "$(cat speed)" 130
expect 0 "8 entries, all in order" lint
expect 0 '"decision": "refused"' show 3 --json
expect 0 "much faster, and wrong" list
"$carry" climb list --json | python3 -c 'import json, sys
rows = [json.loads(line) for line in sys.stdin]
assert [row["entry"] for row in rows] == list(range(8)), rows
assert rows[1]["gain_baseline"] > 1.15 and rows[2]["throughput"] is None, rows' || complain "list --json"

# With a build command, the best version is built and measured as well; files that the build makes are not part of the
# change.
expect 0 "measured in turns" try --hypothesis "larger" --build 'cp speed built.o && touch left-over'
same "worktrees" "$(git worktree list | wc -l)" 1
git ls-tree -r --name-only HEAD | grep -q left-over && complain "what the build left was committed"
rm left-over
expect 2 "no longer builds" try --hypothesis x --build "$(echo 140 > speed; echo 'test "$(cat speed)" = 140')"
git checkout -q speed
if command -v gnuplot > "$folder/out"; then
    expect 0 "" plot -o "$folder/climb.svg"
    grep -q "</svg>" "$folder/climb.svg" || complain "the plot is no SVG"
else
    echo "not tested: climb plot, since gnuplot is not here"
fi
mkdir "$folder/bin"
for tool in sh env git cat; do ln -sf "$(command -v $tool)" "$folder/bin/$tool"; done
env PATH="$folder/bin" "$carry" climb plot -o "$folder/other.svg" > "$folder/out" 2>&1
same "the exit without gnuplot" $? 2
grep -q "gnuplot is not installed" "$folder/out" || complain "that gnuplot is missing is not said: $(cat "$folder/out")"

# A log edited by hand: one error message, and nothing is lost. A log without its last entries is recognised by git.
cp climb.md "$folder/good"
sed 's/larger still/smaller still/' "$folder/good" > climb.md
refused "was edited by hand" lint
echo 150 > speed
refused "was edited by hand" try --hypothesis "on an edited log"
refused "was edited by hand" list
cp "$folder/good" climb.md
echo "a remark" >> climb.md
refused "was edited by hand" lint
sed '/^## 8/,$d' "$folder/good" | sed '$d' > climb.md
expect 1 "entries are gone" lint
refused "entries are gone" try --hypothesis "on a shortened log"
cp "$folder/good" climb.md
expect 0 "9 entries" lint
same "the change" "$(cat speed)" 150
git checkout -q speed

# The loop: three proposals, the second is worse, the third fails.
cat > "$folder/propose.sh" << 'END'
[ -f "$CARRY_CLIMB_LOG" ] && [ ${#CARRY_CLIMB_BEST} = 40 ] || exit 9
echo "title: proposal $CARRY_CLIMB_ITERATION"
echo "hypothesis: by its number"
case $CARRY_CLIMB_ITERATION in
1) echo 200 > speed ;;
2) echo 100 > speed ;;
3) echo "no idea" >&2; exit 5 ;;
esac
END
echo dirty > speed
refused "commit or stash" loop --propose "sh $folder/propose.sh" --iterations 3
git checkout -q speed
refused "needs --propose" loop --iterations 3
expect 0 "1 of 3 proposals were kept" loop --propose "sh $folder/propose.sh" --iterations 3
same "the speed after the loop" "$(cat speed)" 200
same "the tree after the loop" "$(git status --porcelain)" " M climb.md"
same "worktrees after the loop" "$(git worktree list | wc -l)" 1
same "folders after the loop" "$(find "$folder" -maxdepth 1 -name 'carry-climb-*')" ""
grep -qxF -e "- reason: the proposer failed with exit 5: no idea" climb.md || complain "the failed proposal is not recorded"
expect 0 "12 entries, all in order" lint
[ "$(git -C . log --format=%s -2 | tail -n 1)" = "proposal 1" ] || complain "the kept proposal is not on the branch"

# Ctrl-C in the loop: the worktree is removed, nothing is recorded.
cat > "$folder/stop.sh" << 'END'
while [ ! -s "$PIDFILE" ]; do :; done
kill -INT "$(cat "$PIDFILE")"
exec sleep 600
END
PIDFILE=$folder/pid
export PIDFILE
before=$(cat climb.md)
(
    exec "$carry" climb loop --propose "sh $folder/stop.sh" --iterations 3 > "$folder/out" 2> "$folder/err"
) &
loop=$!
echo $loop > "$folder/pid.new" && mv "$folder/pid.new" "$PIDFILE"
wait $loop
same "the exit of an interrupted loop" $? 2
grep -q "interrupted" "$folder/err" || complain "an interrupted loop does not say so"
same "the log after Ctrl-C" "$(cat climb.md)" "$before"
same "worktrees after Ctrl-C" "$(git worktree list | wc -l)" 1

# kill -9 while the profile runs: log and branch have not changed, and the next climb removes leftovers.
project "$folder/two"
expect 0 "entry 0" start --profile 'sh profile.sh' --repeats 3
echo 150 > speed
before=$(cat climb.md; git rev-parse HEAD)
cat > "$folder/launch.sh" << 'END'
echo $$ > "$KILLFILE"
exec "$@"
END
KILLFILE=$folder/two.kill
export KILLFILE
sh "$folder/launch.sh" "$carry" climb try --hypothesis killed --build true > "$folder/out" 2>&1
same "the exit of a killed climb" $? 137
rm -f "$KILLFILE"
same "log and branch after kill -9" "$(cat climb.md; git rev-parse HEAD)" "$before"
same "the change after kill -9" "$(cat speed)" 150
expect 0 "1 entries" lint

# kill -9 before and after every call of git from the first commit on: the branch has its old or its new commit, never
# one in between; the log is readable; the next climb continues.
mkdir "$folder/wrap"
cat > "$folder/wrap/git" << END
#!/bin/sh
case " \$* " in *" commit-tree "*) touch "\$KILLSTATE.on" ;; esac
if [ -e "\$KILLSTATE.on" ]; then
    echo x >> "\$KILLSTATE"
    if [ "\$(wc -l < "\$KILLSTATE")" = "\$KILLAT" ]; then
        [ "\$KILLWHEN" = after ] && "$git" "\$@" < /dev/stdin
        kill -9 \$PPID
        exit 1
    fi
fi
exec "$git" "\$@"
END
chmod +x "$folder/wrap/git"
KILLSTATE=$folder/state
export KILLSTATE KILLAT KILLWHEN
# survive VERB...: kills at every call; each time the state must be the one before the commit or the one after it.
survive() {
    cp -R . "$folder/fresh"
    at=1
    moved=0
    ended=no
    while [ $ended = no ] && [ $at -lt 40 ]; do
        for KILLWHEN in before after; do
            [ $at -lt 6 ] && [ $KILLWHEN = after ] && continue # only new objects, without references: equals `before` the next call
            rm -rf "$folder/work" "$KILLSTATE" "$KILLSTATE.on"
            cp -R "$folder/fresh" "$folder/work"
            cd "$folder/work" || exit 1
            KILLAT=$at
            PATH=$folder/wrap:$PATH "$carry" climb "$@" > "$folder/out" 2>&1
            code=$?
            if [ $code = 0 ]; then
                ended=yes
                break
            fi
            [ $code = 137 ] || complain "killed at git call $at ($KILLWHEN): exit $code: $(tail -n 2 "$folder/out")"
            expect 0 "all in order" lint
            state="$(grep -c '^## ' climb.md) $(git rev-list --count HEAD) $(git show HEAD:climb.md | grep -c '^## ')"
            case $state in
            "1 2 1") ;;
            "2 4 2")
                moved=$((moved + 1))
                same "the tree after a commit that was finished" "$(git status --porcelain)" ""
                same "its content" "$(cat speed)" 150
                git fsck --no-dangling > "$folder/out" 2>&1 || complain "git fsck: $(cat "$folder/out")"
                ;;
            *) complain "killed at git call $at ($KILLWHEN): entries, commits, committed entries: $state" ;;
            esac
            git rev-parse -q --verify refs/climb/pending && complain "a pending commit is left"
        done
        at=$((at + 1))
    done
    [ $ended = yes ] && [ $moved -ge 2 ] || complain "climb $1 was never killed late enough ($at, $moved)"
    cd "$folder/fresh" || exit 1
    rm -rf "$folder/work"
}
survive try --hypothesis "killed at any moment"
rm -rf "$folder/fresh"
cd "$folder/two" && git checkout -q speed || exit 1
survive loop --propose 'echo 150 > speed' --iterations 1
cd "$folder/two" || exit 1

# Two climbs at once, and a job that finds another tree than the one it was submitted with.
echo 150 > speed
refused "not what it was when this was submitted" try --hypothesis x --tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904
expect 1 "another climb is under way" try --hypothesis x --tests "$carry climb try --hypothesis y"
expect 0 "kept" try --hypothesis "as a job" --on local
grep -q -e "^- job: local [0-9]" climb.md || complain "the entry does not name its job"
echo 120 > speed
expect 1 "slower than the best" try --hypothesis "as a job" --on local
refused "the moon" try --hypothesis x --on "the moon"
expect 0 "is " try --hypothesis "later" --on local --no-wait
"$carry" job wait last > "$folder/out" 2>&1
same "the exit of the job" $? 1
expect 0 "all in order" lint

# Tune: a tiny scan, after which the planner uses the result.
expect 0 "saved in the wisdom" tune scan:diagonal:t64:n4:w2 --seconds 0.005 --threads 1
grep -q "^plan 1 .* scan:diagonal:f32:b1:t64:n4:w2 " "$CARRY_WISDOM" || complain "tune saved no wisdom"
"$carry" plan scan:diagonal:t64:n4:w2 --threads 1 | grep -q wisdom || complain "the planner does not use what tune saved"
expect 0 "not saved: /proc/nowhere cannot be written" tune scan:diagonal:t64:n4:w2 --seconds 0.005 --threads 1 --wisdom /proc/nowhere
expect 0 '"kept": true' tune delta:t64:h1:k16:v16 --seconds 0.005 --threads 1 --json
expect 0 "the wisdom holds plans of scans only" tune delta:t64:h1:k16:v16 --seconds 0.005 --threads 1
refused "so omit them" tune scan:dense:algo=cyclic
refused "needs a problem" tune
refused "no problem family" tune flight:t5

[ $failures = 0 ] && echo "climb: all as expected"
exit $((failures > 0))

#!/bin/sh
# carry job, on the local queue. Usage: test_job.sh PATH-OF-CARRY
set -u
carry=$(realpath "$1") || exit 2
folder=$(mktemp -d)
mkdir "$folder/a b%c"
here="$folder/a b%c"
CARRY_STORE="$here/store.db"
export CARRY_STORE
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export ASAN_OPTIONS
. "$(dirname "$0")/support.sh"

# The worker may not have ended yet.
unmount() {
    grep -qF " $folder/small " /proc/mounts || return 0
    wait_for 60 umount "$folder/small" 2> /dev/null
}

# Cancels all jobs, also after a failure.
clean_up() {
    touch "$folder/gate" "$folder/gate2"
    for id in $("$carry" job list --json 2> /dev/null | grep -E '"state": "(queued|running|cancelling)"' |
        sed 's/{"id": \([0-9]*\),.*/\1/'); do
        "$carry" job cancel "$id" > /dev/null 2>&1
    done
    unmount
    rm -rf "$folder"
}
trap clean_up EXIT

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# expect CODE WORDS ARGUMENTS...: exit code, and words that standard output and standard error together contain.
expect() {
    code=$1
    words=$2
    shift 2
    "$carry" "$@" > "$folder/out" 2> "$folder/err" < /dev/null
    got=$?
    if [ $got != "$code" ] || ! cat "$folder/out" "$folder/err" | grep -qF -e "$words"; then
        fail "carry $*: exit $got (expected $code), expected to read '$words', read:"
        head -n 5 "$folder/out" "$folder/err"
    fi
}

refused() {
    words=$1
    expect 2 "$@"
    if [ "$(wc -l < "$folder/err")" != 1 ] || [ -s "$folder/out" ]; then
        fail "refusal for '$words' is not one error message on standard error alone:"
        cat "$folder/out" "$folder/err"
    fi
}

# submit ARGUMENTS...: prints the number.
submit() {
    "$carry" job submit --json "$@" < /dev/null | sed 's/{"id": \([0-9]*\),.*/\1/'
}

until_there() { wait_for 120 test -s "$1" || fail "$1 has not come"; }

# worker_of KEEPER: its parent; never a number that must not be killed.
worker_of() {
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$1/status")
    if [ "${parent:-0}" -gt 1 ] && tr '\0' ' ' < "/proc/$parent/cmdline" | grep -q "job work"; then
        echo "$parent"
    else
        echo "FAILED: the parent of process '$1' is no worker" >&2
        echo none
    fi
}

# An empty store, and arguments that are not understood.
refused "there is no run store" job list
refused "a job needs a command" job submit -- ""
expect 0 "no jobs yet" job list
refused "no jobs yet" job wait last
refused "needs one of" job
refused "has no 'fly'" job fly
refused "needs -- and a command" job submit
refused "needs -- and a command" job submit echo
refused "needs -- and a command" job submit --
refused "does not begin with -" job submit -- -x
refused "no job system 'cloud'" job submit --on cloud -- true
refused "takes no command" job list -- true
refused "takes no 'all'" job list all
refused "job list has no option --tail" job list --tail 3
refused "job submit has no option --show-logs" job submit --show-logs -- true
refused "job logs has no option --on" job logs 1 --on slurm
refused "there is no run store" job list --store "$folder/typo.db"
refused "there is no run store" job wait 1 --store "$folder/typo.db"
[ ! -e "$folder/typo.db" ] || fail "a store was made by looking for it"
for bad in 0 1x x1 "" " 1" 99999999999999999999 1.0; do
    refused "is not a job" job wait "$bad"
    refused "is not a job" job cancel "$bad"
done
refused "the number of one job" job logs
refused "the number of one job" job logs 1 2
refused "there is no job 77" job wait 77
refused "there is no job 77" job logs 77
refused "there is no job 77" job cancel 77
mkdir "$folder/empty"
PATH_BEFORE=$PATH
PATH=$folder/empty
"$carry" job submit --on slurm -- true > "$folder/out" 2> "$folder/err"
got=$?
PATH=$PATH_BEFORE
[ $got = 2 ] && grep -q "sbatch is not here" "$folder/err" && [ "$(wc -l < "$folder/err")" = 1 ] || {
    fail "a missing sbatch:"; cat "$folder/out" "$folder/err"; }
expect 0 "no jobs yet" job list

# Arguments, folder and environment arrive unchanged; standard input is empty.
cd "$here" || exit 2
id=$(CARRY_TEST_WORD="two words" submit --name "odd name" -- sh -c 'printf "<%s>" "$@"; echo; echo "$CARRY_TEST_WORD"; pwd; cat' sh \
    "a b" "it's" '"' '$HOME' 'new
line' '' '\' '*')
cd "$folder" || exit 2
expect 0 "done, exit code 0" job wait "$id" --show-logs
for words in "<a b><it's><\"><\$HOME><new" 'line><><\><*>' "two words" "$here"; do
    grep -qF -e "$words" "$folder/out" || { fail "'$words' is not in the log:"; cat "$folder/out"; }
done
expect 0 "odd_name" job list
[ "$(ls "$here/jobs" | grep -c "^$id\\.")" = 1 ] || fail "files of an ended job are left"

# Exit codes.
id=$(submit -- sh -c 'exit 3')
expect 1 "failed, exit code 3" job wait "$id"
id=$(submit -- sh -c 'kill -9 $$')
expect 1 "failed, exit code 137" job wait "$id"
id=$(submit -- "$folder/nowhere/program")
expect 1 "exit code 127" job wait last --show-logs
grep -q "nowhere/program: No such file" "$folder/out" || fail "the log does not say that the program is missing"
expect 1 '"state": "failed"' job wait "$id" --json
grep -q '"code": 127}' "$folder/out" || fail "no code in JSON"

# Order, and one at a time, with two submitters and several workers at once. The gate keeps the first one running until
# all are there.
cat > "$folder/one" << 'SCRIPT'
mkdir "$1/busy" 2> /dev/null || echo overlap >> "$1/overlaps"
echo "$2" >> "$1/order"
while [ "$2" = 1 ] && [ ! -e "$1/gate" ]; do sleep 0.02; done
sleep 0.02
rmdir "$1/busy"
SCRIPT
first=$(submit -- sh "$folder/one" "$folder" 1)
for n in 2 3 4; do submit -- sh "$folder/one" "$folder" $n > /dev/null; done
until_there "$folder/order"
touch "$folder/gate"
expect 0 "done" job wait $((first + 3)) --seconds 600
[ "$(tr '\n' ' ' < "$folder/order")" = "1 2 3 4 " ] || { fail "order:"; cat "$folder/order"; }
pids=
for submitter in a b; do
    (for n in 1 2 3 4; do submit -- sh "$folder/one" "$folder" $submitter$n > /dev/null; done) &
    pids="$pids $!"
done
for worker in 1 2 3; do
    "$carry" job work &
    pids="$pids $!"
done
for pid in $pids; do wait "$pid"; done
for id in $(seq $((first + 4)) $((first + 11))); do expect 0 "done" job wait "$id" --seconds 600; done
[ "$(wc -l < "$folder/order")" = 12 ] || { fail "not every job ran once:"; cat "$folder/order"; }
[ ! -e "$folder/overlaps" ] || fail "two jobs ran at once"

# Cancelling a queued job, a running one, and one that ignores signals and has children; leftover processes are ended.
rm -f "$folder/gate"
running=$(submit -- sh -c 'echo $$ > "$1/pid"; sleep 1000; echo never' sh "$folder")
queued=$(submit -- touch "$folder/never")
until_there "$folder/pid"
expect 0 '"state": "cancelled"' job cancel "$queued" --json
expect 0 "cancelled" job cancel "$running"
expect 1 "cancelled, exit code 143" job wait "$running"
expect 1 "cancelled" job wait "$queued"
expect 0 "cancelled" job cancel "$running"
[ ! -e "$folder/never" ] || fail "a cancelled job ran"
wait_for 60 gone "$(cat "$folder/pid")" || fail "a cancelled job runs on"
rm "$folder/pid"
deaf=$(submit -- sh -c 'trap "" TERM; (echo $$; sh -c "echo \$\$ >> $1/children; sleep 1000") & echo $$ > "$1/pid"; while :; do sleep 1; done' sh "$folder")
until_there "$folder/pid"
until_there "$folder/children"
expect 0 "cancelled" job cancel "$deaf"
for pid in $(cat "$folder/pid" "$folder/children"); do
    wait_for 60 gone "$pid" || fail "process $pid of a cancelled job runs on"
done
rm "$folder/pid" "$folder/children"
id=$(submit -- sh -c 'sleep 1000 & echo $! > "$1/pid"' sh "$folder")
expect 0 "done" job wait "$id"
wait_for 60 gone "$(cat "$folder/pid")" || fail "what a job left behind runs on"
refused "has ended already: done" job cancel "$id"

# Waiting ends after the time limit and by Ctrl-C, and the job continues.
rm -f "$folder/pid"
id=$(submit -- sh -c 'echo $PPID > "$1/pid"; while [ ! -e "$1/gate" ]; do sleep 0.02; done; exit 7' sh "$folder")
until_there "$folder/pid"
refused "has not ended after 0.1 s" job wait "$id" --seconds 0.1
expect 0 "running" job list
"$carry" job wait "$id" > "$folder/out" 2> "$folder/err" &
waiter=$!
until_caught $waiter
kill -INT $waiter
wait $waiter
[ $? = 2 ] && grep -q "interrupted; job $id goes on" "$folder/err" || { fail "Ctrl-C:"; cat "$folder/out" "$folder/err"; }

# The worker is killed: the job continues and keeps its verdict, and the next one waits for it.
keeper=$(cat "$folder/pid")
kill -9 "$(worker_of "$keeper")"
next=$(submit -- sh -c '[ -e "$1/gate" ]' sh "$folder")
expect 0 "running" job list
refused "has not ended" job wait "$next" --seconds 0.3
touch "$folder/gate"
expect 1 "failed, exit code 7" job wait "$id" --seconds 600
expect 0 "done" job wait "$next" --seconds 600

# The worker and the keeper of its job are killed, as by a reboot: the job is lost, its command has ended, and queued
# jobs continue with the next worker.
rm -f "$folder/pid" "$folder/gate"
id=$(submit -- sh -c 'echo $PPID $$ > "$1/pid"; sleep 1000' sh "$folder")
next=$(submit -- sh -c 'echo went on > "$1/next"' sh "$folder")
until_there "$folder/pid"
read -r keeper command < "$folder/pid"
worker=$(worker_of "$keeper")
kill -STOP "$worker"
kill -9 "$keeper" "$worker"
wait_for 60 gone "$keeper" "$worker" || fail "a killed worker or keeper is left"
expect 0 "lost" job list
"$carry" job work || fail "job work: exit $?"
until_there "$folder/next"
expect 1 "lost, exit code -" job wait "$id"
expect 0 "done" job wait "$next" --seconds 600
wait_for 60 gone "$command" || fail "the command of a lost job runs on"

# Logs: the end of a huge one, binary bytes, following.
id=$(submit -- sh -c 'seq 1 2000000; printf "last without newline"')
expect 0 "done" job wait "$id" --seconds 600
expect 0 "last without newline" job logs "$id" --tail 3
[ "$(head -n 2 "$folder/out" | tr '\n' ' ')" = "1999999 2000000 " ] || { fail "tail:"; head -n 5 "$folder/out"; }
"$carry" job logs "$id" | cmp -s - "$here/jobs/$id.log" || fail "logs does not print the log"
"$carry" job logs "$id" --tail 1000000000 | cmp -s - "$here/jobs/$id.log" || fail "a long tail is not the whole log"
[ "$("$carry" job logs "$id" --tail 0 | wc -c)" = 0 ] || fail "--tail 0 prints"
id=$(submit -- sh -c 'printf "a\"\\\\\001\377\n"; head -c 5000 /dev/zero | tr "\0" x; echo')
expect 0 '"line": "a\"\\\u0001?"}' job wait "$id" --json --show-logs
[ "$(grep -c '"line": ' "$folder/out")" = 3 ] || fail "a long line does not come in two pieces"
id=$(submit -- sh -c 'for i in 1 2 3; do echo $i; sleep 0.2; done')
expect 0 "3" job logs --follow "$id"
[ "$(tr '\n' ' ' < "$folder/out")" = "1 2 3 " ] || { fail "follow:"; cat "$folder/out"; }

id=$(submit -- true)
expect 0 "exit code 0" job wait "$id"
grep -qE " [nu]s$" "$folder/out" && fail "a time that no file's clock can tell: $(cat "$folder/out")"

# Two stores in one folder do not share their jobs.
expect 0 "job 1: " job submit --store "$here/other.db" -- echo other
expect 0 "other" job wait last --store "$here/other.db" --show-logs
[ -e "$here/other.db.jobs/1.log" ] || fail "no folder of its own for another store"
refused "a database" job list --store "$folder/one"

# A job that fills the disk: its output is cut short, its verdict is kept, and the queue continues when there is space
# again.
mkdir "$folder/small"
if mount -t tmpfs -o size=400k none "$folder/small" 2> /dev/null; then
    id=$(submit --store "$folder/small/store.db" -- sh -c 'head -c 1000000 /dev/zero 2> /dev/null; rm "$1"; exit 5' sh \
        "$folder/small/jobs/1.log")
    expect 1 "failed, exit code 5" job wait "$id" --store "$folder/small/store.db" --seconds 600
    unmount
else
    echo "not tested: a full disk, since no file system can be mounted here"
fi

# Scripts in place of Slurm's programs: malformed answers, a controller that does not answer, a job that Slurm has
# forgotten.
mkdir "$folder/slurm"
for program in sbatch squeue sacct scontrol scancel; do
    printf '#!/bin/sh\ncat > "%s/input"\ncat "%s/%s.out"\ncat "%s/%s.err" >&2\nexit "$(cat "%s/%s.code")"\n' "$folder/slurm" \
        "$folder/slurm" $program "$folder/slurm" $program "$folder/slurm" $program > "$folder/slurm/$program"
    chmod +x "$folder/slurm/$program"
done
# plays PROGRAM CODE OUTPUT ERRORS
plays() {
    echo "$2" > "$folder/slurm/$1.code"
    printf '%b' "$3" > "$folder/slurm/$1.out"
    printf '%b' "$4" > "$folder/slurm/$1.err"
}
forgets() {
    plays squeue 1 "" "slurm_load_jobs error: Invalid job id specified\n"
    plays sacct 1 "" "Slurm accounting storage is disabled\n"
    plays scontrol 1 "" "slurm_load_jobs error: Invalid job id specified\n"
}
CARRY_STORE=$here/slurm.db
PATH=$folder/slurm:$PATH_BEFORE
for answer in "" "\n" "0\n" "abc\n" "12abc\n" "12 \n" " 12\n" "-12\n" "12;\n" "12;a b\n" "12\n13\n" "12345678901\n" \
    "Submitted batch job 12\n"; do
    plays sbatch 0 "$answer" ""
    refused "which is not a job number" job submit --on slurm -- true
done
plays sbatch 1 "" "sbatch: error: invalid partition\n"
refused "sbatch refused the job: sbatch: error: invalid partition" job submit --on slurm -- true
expect 0 "no jobs yet" job list
plays sbatch 0 "12;there\n" ""
plays squeue 0 "CLUSTER: there\nRUNNING\n" ""
id=$(submit --on slurm -- sh -c 'exit 9')
expect 0 '"external": "12;there"' job list --json
refused "has not ended after 0.2 s" job wait "$id" --seconds 0.2
plays squeue 1 "" "slurm_load_jobs error: Unable to contact slurm controller\n"
"$carry" job logs "$id" || fail "logs asks a controller that is away"
refused "Unable to contact slurm controller" job wait "$id" --seconds 0.2
expect 0 "as last known" job list
plays scancel 1 "" "scancel: error: Access denied\n"
plays squeue 0 "RUNNING\n" ""
refused "Access denied" job cancel "$id"
expect 0 "running" job list
for case in "FAILED|9:0 failed,.exit.code.9" "TIMEOUT|0:0 failed,.exit.code.-" "COMPLETED|0:0 done" "CANCELLED.by.0|0:15 cancelled" \
    "OUT_OF_MEMORY|0:125 failed" "NODE_FAIL|1:0 failed"; do
    plays sbatch 0 "13\n" ""
    plays squeue 0 "RUNNING\n" ""
    id=$(submit --on slurm -- true)
    forgets
    plays sacct 0 "$(echo "${case% *}" | tr . ' ')\n" ""
    "$carry" job wait "$id" > "$folder/out" 2>&1
    grep -q "${case#* }" "$folder/out" || { fail "sacct says ${case% *}:"; cat "$folder/out"; }
done
plays squeue 0 "RUNNING\n" ""
id=$(submit --on slurm -- sh -c 'exit 11')
forgets
plays scontrol 0 "JobId=13 JobName=sh UserId=root(0) JobState=FAILED Reason=X Requeue=1 ExitCode=11:0 RunTime=0\n" ""
expect 1 "failed, exit code 11" job wait "$id"
plays squeue 0 "RUNNING\n" ""
id=$(submit --on slurm -- sh -c 'exit 9')
plays sbatch 0 "14\n" ""
printf '#!/bin/sh\ncat > "%s/script"\ncat "%s/sbatch.out"\n' "$folder/slurm" "$folder/slurm" > "$folder/slurm/sbatch"
later=$(submit --on slurm -- sh -c 'exit 9')
forgets
expect 1 "lost" job wait "$id"
(sh "$folder/slurm/script")
[ $? = 9 ] || fail "the batch script does not give the command's exit code"
expect 1 "failed, exit code 9" job wait "$later"
PATH=$PATH_BEFORE

# A host that cannot be reached does not hide what others tell. Here ssh runs its command in a folder for each host.
if command -v git > /dev/null && command -v setsid > /dev/null; then
    mkdir "$folder/ssh" "$folder/hosts" "$folder/hosts/near" "$folder/hosts/far" "$folder/tree"
    CARRY_STORE=$folder/hosts/store.db
    cat > "$folder/ssh/ssh" << 'END'
#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
host=$1
shift
[ ! -e "$HOSTS/$host.dead" ] || { echo "no route to it" >&2; exit 255; }
cd "$HOSTS/$host" || exit 255
HOME=$PWD
eval "$*"
END
    chmod +x "$folder/ssh/ssh"
    HOSTS=$folder/hosts
    export HOSTS
    PATH=$folder/ssh:$PATH
    cd "$folder/tree" && git init -q . && echo a > a && git add a &&
        git -c user.name=a -c user.email=a@b commit -q -m one || exit 2
    expect 0 "running" job submit --on ssh:near -- sh -c "while [ ! -e $folder/leave ]; do sleep 0.1; done"
    expect 0 "running" job submit --on ssh:far -- sleep 1000
    touch "$HOSTS/far.dead" "$folder/leave"
    near_is_done() { "$carry" job list --json 2> err | grep '"id": 1,' | grep -q '"state": "done"'; }
    wait_for 60 near_is_done || fail "a job of another host than the dead one is not asked about"
    grep -q "job 2 as last known: far cannot be reached" err || fail "nothing says that a host is not reached"
    "$carry" job list --json 2> err | grep '"id": 2,' | grep -q '"state": "running"' ||
        fail "a job of a dead host has no row"
    rm "$HOSTS/far.dead"
    expect 0 "cancelled" job cancel 2
    PATH=$PATH_BEFORE
    cd "$here" || exit 2
fi
CARRY_STORE=$here/store.db

if [ -s "$here/jobs/worker.log" ]; then
    fail "the workers complained:"
    head -n 5 "$here/jobs/worker.log"
fi
id=$("$carry" job list --json | sed -n '1s/{"id": \([0-9]*\),.*/\1/p')
# Nothing is leaked (effective only in the asan preset).
ASAN_OPTIONS=detect_leaks=1
expect 0 "done" job list --json
expect 0 "done" job wait "$id" --show-logs
[ $failures = 0 ] && echo "jobs are queued, run, waited for and cancelled"
exit $((failures > 0))

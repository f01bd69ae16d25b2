#!/bin/sh
# carry job --on slurm, with a real Slurm of one node that this test starts in a temporary folder: munged, slurmctld and
# slurmd of its own, on free ports of the loopback, and ends by their process numbers. Usage: test_slurm.sh PATH-OF-CARRY
set -u
if [ "${CARRY_SLURM_TEST_LIMIT:-}" = "" ]; then
    CARRY_SLURM_TEST_LIMIT=600
    export CARRY_SLURM_TEST_LIMIT
    exec timeout -k 15 $CARRY_SLURM_TEST_LIMIT sh "$0" "$@"
fi

skip() {
    echo "skipped: $*"
    exit 77
}

PATH=$PATH:/usr/sbin:/sbin
for program in munged slurmctld slurmd sbatch squeue scontrol scancel sinfo; do
    command -v $program > /dev/null || skip "$program is not here"
done
[ "$(id -u)" = 0 ] || skip "a Slurm of one's own needs to be root"
[ -r /proc/self/stat ] || skip "/proc cannot be read"
[ -w /tmp ] || skip "/tmp cannot be written"

carry=$(realpath "$1") || exit 2
folder=$(mktemp -d /tmp/carry-slurm.XXXXXX) # short, since it holds a socket
. "$(dirname "$0")/support.sh"
daemons=

# Our processes that Slurm has detached (slurmstepd and the programs of a job), found by the files that they have open.
ours() {
    for process in /proc/[0-9]*; do
        [ "$process" != "/proc/$$" ] || continue
        if readlink "$process"/fd/* 2> /dev/null | grep -qF -e "$folder/slurmd.log" -e "$folder/a b%c/jobs/"; then
            echo "${process#/proc/}"
        fi
    done
}

# Ends jobs first, then slurmd and slurmctld, then munged, each by its number, and with SIGKILL if it does not end.
clean_up() {
    trap '' TERM INT
    for job in $(kill -0 "${slurmctld:-none}" 2> /dev/null && timeout 60 squeue --noheader --format=%i 2> /dev/null); do
        timeout 60 scancel --full --signal=KILL "$job" > /dev/null 2>&1
        timeout 60 scancel "$job" > /dev/null 2>&1
    done
    for pid in $daemons; do kill "$pid" 2> /dev/null; done
    for pid in $daemons; do
        wait_for 10 gone "$pid"
        kill -9 "$pid" 2> /dev/null
        wait "$pid" 2> /dev/null
    done
    for pid in $(ours); do kill -9 "$pid"; done
    rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 2' INT TERM

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

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

submit() { "$carry" job submit --on slurm --json "$@" < /dev/null | sed 's/{"id": \([0-9]*\),.*/\1/'; }

until_there() { wait_for 120 test -s "$1" || fail "$1 has not come"; }

# Two free ports, near a number that differs between tests running at once.
free_port() {
    port=$1
    while cat /proc/net/tcp /proc/net/tcp6 2> /dev/null | grep -qi ":$(printf '%04X' "$port") "; do port=$((port + 1)); done
    echo "$port"
}

start_slurm() {
    mkdir -m 755 "$folder/munge"
    mkdir -m 700 "$folder/state" "$folder/spool"
    chmod 755 "$folder"
    head -c 1024 /dev/urandom > "$folder/munge/key"
    chmod 400 "$folder/munge/key"
    munged --foreground --num-threads=1 --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
        --log-file="$folder/munge/log" --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed" \
        > "$folder/munged.out" 2>&1 &
    munged=$!
    wait_for 60 test -S "$folder/munge/socket"
    controller_port=$(free_port $((20000 + $$ % 10000)))
    node_port=$(free_port $((controller_port + 1)))
    cat > "$folder/slurm.conf" << CONF
ClusterName=carry
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$node_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
MpiDefault=none
ReturnToService=2
KillWait=2
MessageTimeout=5
NodeName=localhost NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=1 RealMemory=1 State=UNKNOWN
PartitionName=test Nodes=localhost Default=YES MaxTime=10 State=UP
CONF
    # No control groups are used; a Slurm that needs them all the same must not ask systemd for them.
    printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' > "$folder/cgroup.conf"
    SLURM_CONF=$folder/slurm.conf
    export SLURM_CONF
    unset SQUEUE_FORMAT SBATCH_PARTITION
    slurmctld -D -i -f "$SLURM_CONF" > "$folder/slurmctld.out" 2>&1 &
    slurmctld=$!
    slurmd -D -N localhost -f "$SLURM_CONF" > "$folder/slurmd.out" 2>&1 &
    daemons="$! $slurmctld $munged"
    if ! wait_for 120 is_up; then
        tail -n 5 "$folder"/*.out "$folder"/*.log
        skip "a Slurm of one node does not come up here"
    fi
}

is_up() { sinfo --noheader --format=%T 2> /dev/null | grep -q idle; }

start_slurm
mkdir "$folder/a b%c"
cd "$folder/a b%c" || exit 2
CARRY_STORE="$folder/a b%c/store.db"
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export CARRY_STORE ASAN_OPTIONS

# Arguments, folder, environment and exit code arrive.
id=$(CARRY_TEST_WORD="two words" submit --name "odd name" -- sh -c 'printf "<%s>" "$@"; echo; echo "$CARRY_TEST_WORD"; pwd' sh \
    "a b" "it's" '"' '$HOME' 'new
#SBATCH --hold
line' '' '\' '*')
expect 0 "done, exit code 0" job wait "$id" --show-logs --seconds 300
for words in "<a b><it's><\"><\$HOME><new" 'line><><\><*>' "two words" "$folder/a b%c"; do
    grep -qF -e "$words" "$folder/out" || { fail "'$words' is not in the log:"; cat "$folder/out"; }
done
expect 0 '"on": "slurm"' job list --json
grep -q '"external": "[1-9][0-9]*"' "$folder/out" || fail "Slurm's number is not listed"
id=$(submit -- sh -c 'exit 3')
expect 1 "failed, exit code 3" job wait "$id" --seconds 300
id=$(submit -- exit 5) # a builtin of the batch script's shell is no program
expect 1 "failed, exit code 127" job wait "$id" --seconds 300

# Cancelling a job that waits for the node, and the one that runs on it.
running=$(submit -- sh -c 'echo $$ > "$1/pid"; sleep 1000' sh "$folder")
until_there "$folder/pid"
pending=$(submit -- touch "$folder/never")
expect 0 "queued" job list
grep -q running "$folder/out" || { fail "no job runs:"; cat "$folder/out"; }
expect 0 "cancelled" job cancel "$pending"
expect 0 "cancel" job cancel "$running"
expect 1 "cancelled" job wait "$running" --seconds 300
expect 1 "cancelled" job wait "$pending" --seconds 300
# Slurm reports cancelled once it has sent the signal. A zombie process (Z) counts as ended.
wait_for 60 gone "$(cat "$folder/pid")" || fail "a cancelled job runs on"
[ ! -e "$folder/never" ] || fail "a cancelled job ran"

# An attempt of a hill-climb as a Slurm job, without waiting: the entry is written when the job has run.
if command -v git > /dev/null; then
    mkdir "$folder/climb" && cd "$folder/climb" || exit 2
    GIT_CONFIG_GLOBAL=/dev/null
    GIT_AUTHOR_NAME=climber
    GIT_AUTHOR_EMAIL=climber@example.org
    GIT_COMMITTER_NAME=climber
    GIT_COMMITTER_EMAIL=climber@example.org
    export GIT_CONFIG_GLOBAL GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL
    git init -q -b main .
    echo 100 > speed
    echo 'echo "{\"throughput\": $(cat speed), \"samples\": [1, 1, 1]}"' > profile.sh
    git add -A
    git commit -qm "a project"
    expect 0 "entry 0" climb start --profile 'sh profile.sh' --tests true --repeats 3
    echo 150 > speed
    expect 0 "job" climb try --hypothesis "half as fast again" --on slurm --no-wait
    expect 0 "slurm" job list
    expect 0 "done, exit code 0" job wait last --seconds 300
    expect 0 "2 entries, all in order" climb lint
    grep -q "half as fast again" climb.md || { fail "the attempt is not in the log:"; cat climb.md; }
    [ -z "$(git status --porcelain)" ] || { fail "the change was not committed:"; git status --short; }
    cd "$folder/a b%c" || exit 2
else
    echo "skipped: a climb as a job: git is not here"
fi

# Without the file that the batch script writes, Slurm's own state counts; without Slurm, the file does.
last=$("$carry" job list --json | sed -n '1s/.*"id": \([0-9]*\).*/\1/p')
next=$((last + 1))
id=$(submit -- sh -c 'mkdir "$1"; exit 4' sh "$folder/a b%c/jobs/$next.end.new")
[ "$id" = $next ] || fail "job $id is not the next after $pending"
expect 1 "failed, exit code 4" job wait "$id" --seconds 300
id=$(submit -- sh -c 'exit 6')
until_there "$folder/a b%c/jobs/$id.end"
is_idle() { ! squeue --noheader 2> /dev/null | grep -q .; }
wait_for 60 is_idle # until the node has reported to the controller
kill "$slurmctld"
wait "$slurmctld"
expect 1 "failed, exit code 6" job wait "$id" --seconds 300
[ $failures = 0 ] && echo "jobs on a real Slurm are submitted, waited for and cancelled"
exit $((failures > 0))

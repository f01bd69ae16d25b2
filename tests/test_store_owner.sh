#!/bin/sh
# Which user's store is used, and which queued jobs are started. Usage: test_store_owner.sh PATH-OF-CARRY
set -u
carry=$(realpath "$1") || exit 2
tests=$(dirname "$(realpath "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
. "$tests/support.sh"
unset CARRY_STORE SUDO_UID
ASAN_OPTIONS=detect_leaks=0
export ASAN_OPTIONS

# A project whose queue holds `touch ran`, without a worker: the worker and the keeper of job 1 are killed.
mkdir -p owner/.carry owner/below
(cd owner && "$carry" job submit -- sh -c 'echo $PPID > pid; sleep 1000' > out)
wait_for 120 test -s owner/pid || fail "job 1 does not run"
(cd owner && "$carry" job submit -- touch "$folder/ran" > out) # while a worker is at work, so that no second one is started
keeper=$(cat owner/pid)
worker=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$keeper/status")
[ "${worker:-0}" -gt 1 ] && tr '\0' ' ' < "/proc/$worker/cmdline" | grep -q "job work" || { fail "no worker"; exit 1; }
kill -STOP "$worker"
kill -9 "$keeper" "$worker"
wait_for 60 gone "$keeper" "$worker" || fail "a killed worker or keeper is left"

# started WHAT...: nothing may have been started by it, not even a second later.
started() {
    sleep 1
    [ ! -e "$folder/ran" ] || fail "$* started the queue"
    rm -f "$folder/ran"
}

# Another user's store above the working folder is refused by every verb.
cp -a owner other
if chown -R 65534 other 2> /dev/null; then
    cd other/below || exit 2
    for verb in "job list" "job work" "job wait last" "job logs last" "runs list" "report last"; do
        refused "belongs to user 65534" $verb
        started "$verb below another user's store"
    done
    refused "belongs to user 65534" job submit -- true
    started "job submit below another user's store"
    cp -a "$folder/owner/.carry" "$folder/other/.carry.mine" # a folder of ours with a store or jobs of theirs in it
    mv "$folder/other/.carry" "$folder/other/.carry.theirs"
    mv "$folder/other/.carry.mine" "$folder/other/.carry"
    expect 0 "touch" job list
    chown 65534 "$folder/other/.carry/store.db"
    refused "belongs to user 65534" job list
    chown "$(id -u)" "$folder/other/.carry/store.db"
    chown 65534 "$folder/other/.carry/jobs"
    refused "belongs to user 65534" job list
    cd "$folder" || exit 2
    SUDO_UID=65534 # root that works for the user by sudo looks at that user's store, and runs none of its jobs
    export SUDO_UID
    chown -R 65534 other/.carry
    cd other || exit 2
    expect 0 "touch" job list
    refused "belongs to user 65534" job submit -- true
    started "job submit under sudo"
    unset SUDO_UID
    cd "$folder" || exit 2
    expect 0 "touch" job list --store other/.carry/store.db # named: it is used, but its owner's jobs are not run
    refused "belongs to user 65534" job submit --store other/.carry/store.db -- true
    started "job submit into another user's store"
else
    echo "not tested: another user's store, since this user may not give files away"
fi

# A queue that was copied with its folder is held, and stays held when another job is submitted to it.
cp -a owner copied
cd copied || exit 2
expect 0 "held" job list
started "job list in a copy"
refused "was submitted in another folder" job wait 2
expect 0 "job 3: " job submit -- true
expect 0 "done" job wait last --seconds 600
expect 0 "held" job list
"$carry" job work || fail "job work: exit $?"
started "job submit and job work in a copy"
expect 0 "job 2: " job release 2
expect 0 "done" job wait 2 --seconds 600
[ -e "$folder/ran" ] || fail "a released job did not run"
rm -f "$folder/ran"
refused "is not held, it is done" job release 2

# Listing the user's own queue, reading its logs and waiting start nothing; job work continues it.
cd "$folder/owner/below" || exit 2
expect 0 "queued" job list
"$carry" job logs 2 || fail "job logs: exit $?"
refused "no worker is at work" job wait 2
started "looking"
"$carry" job work || fail "job work: exit $?"
[ -e "$folder/ran" ] || fail "work did not run the queue"

# A misspelt name does not create a store.
cd "$folder" || exit 2
CARRY_STORE=$folder/typo/store.db
export CARRY_STORE
for verb in "runs list" "job list" "job wait last" "report last" "profile diff 1 2"; do
    refused "there is no run store" $verb
done
[ ! -e "$folder/typo" ] || fail "a store was made by looking for it"

[ $failures = 0 ] && echo "stores of others are not used, and queues from elsewhere are not started"
exit $((failures > 0))

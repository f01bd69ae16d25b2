#!/bin/sh
# Jobs in a store that came with a clone: nothing is run and no host is contacted, whatever the rows say.
# Usage: test_job_foreign.sh PATH-OF-CARRY
set -u
carry=$(realpath "$1") || exit 2
tests=$(dirname "$(realpath "$0")")
python3 -c 'import sqlite3' 2> /dev/null || { echo "skipped: there is no python3 with sqlite3 here"; exit 77; }
command -v git > /dev/null || { echo "skipped: there is no git here"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
. "$tests/support.sh"
unset CARRY_STORE SUDO_UID
ASAN_OPTIONS=detect_leaks=0
export ASAN_OPTIONS
git config --global --get user.name > /dev/null 2>&1 || {
    GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@localhost GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@localhost
    export GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL
}

# Programs that would reach another machine: each records its call. ssh runs the script here, as a host would.
mkdir bin there
cat > bin/ssh << END
#!/bin/sh
echo "ssh \$*" >> "$folder/calls"
for command in "\$@"; do :; done
cd "$folder/there" && eval "\$command"
END
for name in squeue sacct scontrol scancel sbatch; do
    printf '#!/bin/sh\necho "%s $*" >> "%s/calls"\necho RUNNING\n' $name "$folder" > bin/$name
done
chmod +x bin/*
PATH=$folder/bin:$PATH
export PATH

# A project as someone else publishes it: a store whose rows claim to be from this host and the clone's folder.
mkdir -p theirs/.carry && cd theirs && git init -q .
XDG_STATE_HOME=$folder/their-state "$carry" job submit -- true > ../out || fail "submit: exit $?"
XDG_STATE_HOME=$folder/their-state "$carry" job wait last > ../out || fail "wait: exit $?"
cat > ../forge.py << 'END'
import os, sqlite3, sys
clone = sys.argv[1]
db = sqlite3.connect(".carry/store.db")
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
states = ["queued", "running", "cancelling", "held", "anything", "Running"]
rows = [("ssh:victim", e) for e in (".carry/jobs/x;id>PWNED", ".carry/jobs/%d-abc123", "$(id>PWNED)")]
rows += [("slurm", "17"), ("slurm", "--user=root"), ("local", "")]
number = 1
for system, external in rows:
    for state in states:
        number += 1
        name = external % number if "%" in external else external
        db.execute("INSERT INTO jobs(id, system, name, arguments, folder, state, external, log, submitted, started, pid, "
                   "process_start, boot, host) VALUES(?, ?, 'x', ?, ?, ?, ?, ?, 1, 1, ?, ?, ?, ?)",
                   (number, system, '["touch", "%s/ran"]' % os.path.dirname(clone), "/", state, name,
                    "%s/.carry/jobs/%d.log" % (clone, number), 1, 1, boot, os.uname().nodename))
        open(".carry/jobs/%d.environment" % number, "w").write("PATH=/usr/bin:/bin\0")
db.commit()
db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
print(number)
END
last=$(python3 ../forge.py "$folder/clone") || fail "the rows were not written"
git add -A -f . && git commit -q -m project
cd "$folder" && git clone -q theirs clone && cd clone || exit 2
: > "$folder/calls"

# untouched WHAT: no program was called and nothing was run.
untouched() {
    [ ! -s "$folder/calls" ] || fail "$1 called: $(head -n 3 "$folder/calls")"
    [ -z "$(find "$folder" -name PWNED)" ] || fail "$1 ran a command of the store"
    [ ! -e "$folder/ran" ] || fail "$1 ran a job of the store"
    : > "$folder/calls"
    rm -f "$folder/ran"
}
expect 0 "held" job list
untouched "job list"
[ "$(grep -c ' held ' out)" = $((last - 1)) ] || fail "not every row is held: $(cat out)"
id=2
while [ $id -le "$last" ]; do
    "$carry" job logs $id > out 2> err || fail "job logs $id: exit $?"
    expect 2 "was submitted" job wait $id --seconds 5
    "$carry" job cancel $id > out 2> err
    untouched "logs, wait or cancel of job $id"
    id=$((id + 1))
done
"$carry" job work > out 2> err || fail "job work: exit $?"
untouched "job work"
expect 0 "queued" job submit -- true
expect 0 "done" job wait last --seconds 100
untouched "a job submitted beside them"

# The user's own jobs, by the same ssh: later changes of the store do not replace what was submitted.
mkdir "$folder/own" && cd "$folder/own" && git init -q . && mkdir .carry || exit 2
expect 0 "running" job submit --on ssh:victim -- touch done-there
expect 0 "done" job wait 1 --seconds 100
expect 0 "running" job submit --on ssh:victim -- sleep 100
external=$(python3 -c 'import sqlite3; print(sqlite3.connect(".carry/store.db").execute("SELECT external FROM jobs WHERE id = 2").fetchone()[0])')
: > "$folder/calls"
edit() { python3 -c 'import sqlite3, sys; d = sqlite3.connect(".carry/store.db"); d.execute(sys.argv[1]); d.commit()' "$1"; }
for change in "external = '.carry/jobs/2-a;touch PWNED'" "system = 'ssh:another'" "state = 'anything'"; do
    edit "UPDATE jobs SET $change WHERE id = 2"
    expect 0 "held" job list
    untouched "a row that was changed by $change"
    edit "UPDATE jobs SET external = '$external', system = 'ssh:victim', state = 'running' WHERE id = 2"
done
edit "UPDATE jobs SET external = '.carry/jobs/2-a;touch PWNED' WHERE id = 2"
expect 0 "running" job release 2 # the owner may take it over, and still no shell sees a name that carry does not write
expect 0 "which is not a job's folder" job list
untouched "a released row"
edit "UPDATE jobs SET external = '$external' WHERE id = 2"
"$carry" job release 2 > out 2> err
expect 0 "cancelled" job cancel 2

# A host that answers with another name than that of mktemp.
cat > "$folder/bin/ssh" << 'END'
#!/bin/sh
cat > /dev/null
echo '.carry/jobs/3-abcde/ x86_64'
END
refused "where a new folder was expected" job submit --on ssh:victim -- true
[ -z "$(find "$folder/state" -type f 2> /dev/null)" ] || fail "records of jobs that ended: $(find "$folder/state" -type f)"

[ $failures = 0 ] && echo "jobs of a store from elsewhere are held, and ask no host"
exit $((failures > 0))

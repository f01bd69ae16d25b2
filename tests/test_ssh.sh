#!/bin/sh
# Jobs on another machine, which is this one behind an sshd on the loopback interface. Usage: test_ssh.sh PATH-OF-CARRY
set -u
carry=$1
here=$(cd "$(dirname "$0")" && pwd)
sshd=$(PATH=$PATH:/usr/sbin:/usr/local/sbin command -v sshd)
for program in ssh ssh-keygen python3 git tar setsid; do
    command -v $program > /dev/null || { echo "skipped: there is no $program here"; exit 77; }
done
[ -n "$sshd" ] || { echo "skipped: there is no sshd here"; exit 77; }
folder=$(mktemp -d)
daemon=
end() {
    [ -z "$daemon" ] || kill "$daemon" 2> /dev/null
    rm -rf "$folder"
}
trap end EXIT
CARRY_WISDOM=none
CARRY_STORE=$folder/store/store.db
CARRY_SSH_CONFIG=$folder/ssh_config
ASAN_OPTIONS=detect_leaks=0
export CARRY_WISDOM CARRY_STORE CARRY_SSH_CONFIG ASAN_OPTIONS
mkdir "$folder/there" "$folder/bin" "$folder/store"
cd "$folder" || exit 2
. "$here/support.sh"

# A separate daemon: its keys, port and home belong to the test.
ssh-keygen -q -t ed25519 -N '' -f host_key && ssh-keygen -q -t ed25519 -N '' -f user_key || exit 2
cp user_key.pub authorized_keys
answers_or_ended() {
    ! kill -0 $daemon 2> /dev/null ||
        ssh -F "$folder/ssh_config" -oBatchMode=yes there true < /dev/null > /dev/null 2> "$folder/ssh.err"
}

# begin_sshd: starts it on a free port; if another process takes the port meanwhile, on the next one.
begin_sshd() {
    for attempt in 1 2 3 4 5; do
        port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
        cat > "$folder/sshd_config" << END
ListenAddress 127.0.0.1:$port
HostKey $folder/host_key
AuthorizedKeysFile $folder/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
SetEnv HOME=$folder/there PATH=$folder/bin:$PATH
ForceCommand cd $folder/there && eval "\$SSH_ORIGINAL_COMMAND"
END
        cat > "$folder/ssh_config" << END
Host there
    HostName 127.0.0.1
    Port $port
    IdentityFile $folder/user_key
    IdentitiesOnly yes
    UserKnownHostsFile $folder/known_hosts
    StrictHostKeyChecking accept-new
    LogLevel ERROR
Host nowhere
    HostName 127.0.0.1
    Port 1
END
        "$sshd" -D -e -f "$folder/sshd_config" > "$folder/sshd.log" 2>&1 &
        daemon=$!
        wait_for 60 answers_or_ended && kill -0 $daemon 2> /dev/null && return 0
        kill $daemon 2> /dev/null
        wait $daemon 2> /dev/null
        daemon=
    done
    return 1
}
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd 2> /dev/null # where it separates its privileges
begin_sshd || { echo "skipped: sshd does not start here: $(tail -n 1 sshd.log) $(tail -n 1 ssh.err)"; exit 77; }

# A project with names that have a special meaning in a shell.
mkdir -p "project/it's \$(touch pwned); a folder" && cd project || exit 2
git init -q . && printf 'ignored\nout\nerr\n' > .gitignore && echo secret > ignored && echo tracked > tracked && echo new > new
echo inside > "it's \$(touch pwned); a folder/file"
git add tracked .gitignore && git -c user.name=a -c user.email=a@b commit -q -m one
expect 0 "running" job submit --on ssh:there -- sh -c 'cat tracked new; ls ignored; pwd; exit 3'
expect 1 "failed, exit code 3" job wait last --show-logs --seconds 600
grep -qx tracked out && grep -qx new out || { fail "the tree is not there"; cat out; }
grep -q "ls: .*ignored" out || fail "what git ignores was copied"
grep -q "/there/.carry/jobs/1-" out || fail "the job did not run in a folder of its own"
[ -z "$(ls "$folder/there/.carry/jobs")" ] || fail "the job's folder is left there: $(ls "$folder/there/.carry/jobs")"

# Arguments and folders arrive unchanged; files come back; a deleted tracked file is not an error.
rm tracked
cd "it's \$(touch pwned); a folder" || exit 2
expect 0 "running" job submit --on ssh:there --bring 'made,absent,sub/x;y' -- sh -c 'cat file; printf "%s|" "$@"; mkdir ../sub; echo made > ../made; echo xy > "../sub/x;y"' sh "a 'b' \"c\"" '$(touch pwned)' '*' '' 'END OF JOB
two lines'
cd ..
expect 0 "done, exit code 0" job wait last --show-logs --seconds 600
grep -qF "a 'b' \"c\"|\$(touch pwned)|*||END OF JOB" out || { fail "words are changed on the way"; cat out; }
grep -qx inside out || fail "the job did not run in its folder"
grep -q "its files: .*/2.files" out || fail "nothing says where the files are"
[ "$(cat "$folder/store/jobs/2.files/made")" = made ] && [ "$(cat "$folder/store/jobs/2.files/sub/x;y")" = xy ] || fail "files did not come back"
[ -z "$(find "$folder" -name pwned)" ] || fail "a name was run as a command: $(find "$folder" -name pwned)"

# The log is followed while the job runs; cancelling ends all of its processes.
expect 0 "running" job submit --on ssh:there -- sh -c 'echo begun; sleep 1000 & echo $! > '"$folder"'/sleeper; wait'
has_begun() { "$carry" job logs last 2> /dev/null | grep -q begun; }
wait_for 120 has_begun
wait_for 60 test -s "$folder/sleeper"
expect 0 "begun" job logs last
expect 0 "running" job list
expect 0 "cancelled" job cancel last
wait_for 60 gone "$(cat "$folder/sleeper")" || fail "a cancelled job's processes are left there"
expect 1 "cancelled" job wait last --seconds 600

# The connection is lost in the middle: the job continues, nothing is lost, and it is found again.
expect 0 "running" job submit --on ssh:there --bring result -- sh -c 'while [ ! -e '"$folder"'/go ]; do sleep 0.1; done; echo result > result; echo finished'
kill $daemon
wait $daemon 2> /dev/null
daemon=
expect 2 "cannot be reached by ssh, or the connection was lost" job wait last --seconds 1
expect 0 "as last known" job list
expect 2 "cannot be reached by ssh" job cancel last
touch "$folder/go"
begin_sshd || fail "sshd does not start again"
expect 0 "done, exit code 0" job wait last --show-logs --seconds 600
grep -qx finished out && [ "$(cat "$folder/store/jobs/4.files/result")" = result ] || fail "what the job did without us is lost"

# A host that cannot be reached does not hide what the others tell.
sed 's/^Host there/Host other/' ssh_config > other_config && cat other_config >> ssh_config
expect 0 "running" job submit --on ssh:there -- sh -c "while [ ! -e $folder/leave ]; do sleep 0.1; done"
older=$("$carry" job list --json | sed -n '1s/.*"id": \([0-9]*\).*/\1/p')
expect 0 "running" job submit --on ssh:other -- sleep 1000
newer=$("$carry" job list --json | sed -n '1s/.*"id": \([0-9]*\).*/\1/p')
cp ssh_config both_config && sed '/^Host other/,$s/Port .*/Port 1/' both_config > ssh_config
touch "$folder/leave"
older_is_done() { "$carry" job list --json 2> err | grep "\"id\": $older," | grep -q '"state": "done"'; }
wait_for 60 older_is_done || fail "a job of another host than the dead one is not asked about"
grep -q "job $newer as last known" err || fail "nothing says that a host is not reached"
"$carry" job list --json 2> err | grep "\"id\": $newer," | grep -q '"state": "running"' || fail "a job of the dead host has no row"
mv both_config ssh_config
expect 0 "cancelled" job cancel "$newer"

# Refused before anything is created: hosts that look like options, unknown hosts, programs for another processor.
jobs=$("$carry" job list --json | wc -l)
for host in ssh:-oProxyCommand=x ssh: 'ssh:a b' 'ssh:a;b' 'ssh:u@-x' 'ssh:$(x)'; do
    refused "names no host" job submit --on "$host" -- true
done
refused "nowhere cannot be reached by ssh" job submit --on ssh:nowhere -- true
refused "there is no job system 'sssh:x'" job submit --on sssh:x -- true
refused "from ssh:HOST only" job submit --on local --bring x -- true
printf '#!/bin/sh\necho sparc64\n' > "$folder/bin/uname"
chmod +x "$folder/bin/uname"
cp "$(command -v git)" ./program
refused "there is sparc64: build it there" job submit --on ssh:there -- ./program
rm "$folder/bin/uname"
[ "$("$carry" job list --json | wc -l)" = "$jobs" ] || fail "a refused job is in the list"
[ -z "$(ls "$folder/there/.carry/jobs")" ] || fail "a refused job left a folder there"

# A copied store does not cause connections: its jobs are held.
expect 0 "running" job submit --on ssh:there -- true
mkdir "$folder/copy" && cp "$folder"/store/store.db* "$folder/copy/"
CARRY_STORE=$folder/copy/store.db expect 0 "held" job list
expect 0 "done" job wait last --seconds 600

# A climb whose build, tests and figures run on the other machine; attempts are kept or refused here.
git checkout -q tracked && rm -rf sub made program new
printf 'echo "{\\"throughput\\": $(cat speed)}"\n' > profile.sh
echo 100 > speed
git add -A && git -c user.name=a -c user.email=a@b commit -q -m two
git config user.name a && git config user.email a@b
expect 0 "entry 0" climb start --profile 'sh profile.sh' --tests 'pwd; test -e speed'
echo 200 > speed
expect 0 "kept" climb try --on ssh:there --hypothesis 'a larger number is faster'
grep -q "job: ssh:there" climb.md || { fail "the entry does not name the machine"; tail -n 20 climb.md; }
echo 300 > speed
expect 1 "refused" climb try --on ssh:there --tests 'test -d .git' --hypothesis 'what runs there has no repository'
refused "nowhere cannot be reached" climb try --on ssh:nowhere --hypothesis 'nobody is there'
[ -z "$(ls "$folder/there/.carry/jobs")" ] || fail "a climb left a folder there: $(ls "$folder/there/.carry/jobs")"
[ $failures = 0 ] && echo "jobs run on another machine"
exit $((failures > 0))

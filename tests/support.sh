# Shared by the shell tests of verbs, which source it after they set `carry`, in a folder of their own. Not a test by
# itself.
failures=0
XDG_STATE_HOME=$PWD/state # records of jobs
export XDG_STATE_HOME

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# wait_for SECONDS COMMAND...: repeats the command until it succeeds; fails if it has not within SECONDS by the clock.
# Tests wait for events, with a limit far longer than a busy machine needs, and never for a fixed time.
wait_for() {
    wait_end=$(($(date +%s) + $1))
    shift
    until "$@"; do
        [ "$(date +%s)" -lt $wait_end ] || return 1
        sleep 0.05
    done
}

# has_lines COUNT PATTERN FILE: at least COUNT lines of the file match.
has_lines() { [ "$(grep -c -e "$2" "$3" 2> /dev/null)" -ge "$1" ] 2> /dev/null; }

# gone PID...: true if the processes have ended; their parents may not have waited for them yet.
gone() {
    for gone_pid in "$@"; do
        if kill -0 "$gone_pid" 2> /dev/null && ! grep -q '^State:.[ZX]' "/proc/$gone_pid/status" 2> /dev/null; then return 1; fi
    done
}

# Until the process is carry, no longer the shell that was forked for it and may have a handler too, and has a handler for
# SIGINT; or 120 s have passed.
until_caught() { wait_for 120 is_caught "$1"; }
is_caught() {
    [ "$(cat "/proc/$1/comm" 2> /dev/null)" = "${carry##*/}" ] &&
        grep -q '^SigCgt:.*[2367abef]$' "/proc/$1/status" 2> /dev/null
}

# expect CODE WORDS ARGUMENTS...: exit code, and words that standard output and standard error together contain.
expect() {
    code=$1
    words=$2
    shift 2
    "$carry" "$@" > out 2> err < /dev/null
    got=$?
    if [ $got != "$code" ] || ! cat out err | grep -qF -e "$words"; then
        fail "carry $*: exit $got (expected $code), expected to read '$words', read:"
        tail -n 8 out err
    fi
}

# refused WORDS ARGUMENTS...: exit 2, exactly one line on standard error, nothing on standard output.
refused() {
    words=$1
    expect 2 "$@"
    if [ "$(wc -l < err)" != 1 ] || [ -s out ]; then
        fail "refusal for '$words' is not one error message on standard error alone:"
        cat out err
    fi
}

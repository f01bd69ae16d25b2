# What shell tests of verbs share; read by them after `carry` is set, in a folder of their own. No test by itself.
failures=0
XDG_STATE_HOME=$PWD/state # records of jobs
export XDG_STATE_HOME

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# Until the process is carry, no longer the shell that was forked for it and may have a handler too, and has a handler for
# SIGINT; or 30 s have passed.
until_caught() {
    waited=0
    until { [ "$(cat "/proc/$1/comm" 2> /dev/null)" = "${carry##*/}" ] &&
        grep -q '^SigCgt:.*[2367abef]$' "/proc/$1/status" 2> /dev/null; } || [ $waited -ge 600 ]; do
        sleep 0.05
        waited=$((waited + 1))
    done
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

#!/bin/sh
# Every mistake of mistakes.txt gets its message. Usage: test_mistakes.sh CARRY FEATURES, of the build: lab train page serve cpu
set -u
program=$1
has=" - $2 "
table=$(cd "$(dirname "$0")" && pwd)/mistakes.txt
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"
ln -s "$program" "$folder/bin/carry"
PATH=$folder/bin:$PATH
CARRY_WISDOM=none
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export PATH CARRY_WISDOM ASAN_OPTIONS
unset CARRY_STORE XDG_CACHE_HOME HF_HOME
HF_HUB_CACHE=hub
export HF_HUB_CACHE
[ "$(id -u)" = 0 ] || has="$has user "
[ -w /dev/full ] && has="$has full "
mkdir "$folder/work"
cd "$folder/work" || exit 1
echo text > file
mkdir folder
head -c 3000 /dev/zero > zeros
echo secret > locked
chmod 000 locked
# Values that depend on the build are read from it.
families=$(carry list problems | awk '{ printf "%s%s", n++ ? ", " : "", $1 }')
ranked=$(for verb in plan check bench run train stream; do
    carry list verbs | awk -v v="$verb" '$1 == v { print $1; exit }'; done | awk '{ printf "%s%s", n++ ? ", " : "", $1 }')
cores=$(nproc)
most=$((cores * 4 < 64 ? 64 : cores * 4))
threads="$most on a machine with $cores core$([ "$cores" = 1 ] || echo s)"
failures=0
count=0
skipped=0
while IFS= read -r line; do
    case "$line" in '#'* | '') continue ;; esac
    needs=$(echo "$line" | cut -d '|' -f 1)
    command=$(echo "$line" | cut -d '|' -f 2 | sed 's/^ *//; s/ *$//')
    message=$(echo "$line" | cut -d '|' -f 3- | sed "s/^ *//; s/FAMILIES/$families/; s/RANKED/$ranked/; s/THREADS/$threads/")
    missing=""
    for need in $needs; do
        case "$has" in *" $need "*) ;; *) missing=$need ;; esac
    done
    if [ -n "$missing" ]; then
        echo "skipped (needs $missing): $command"
        skipped=$((skipped + 1))
        continue
    fi
    count=$((count + 1))
    sh -c "$command" > "$folder/out" 2> "$folder/err" < /dev/null
    code=$?
    echo "carry: $message" > "$folder/expected"
    if [ $code != 2 ] || [ -s "$folder/out" ] || ! cmp -s "$folder/err" "$folder/expected"; then
        echo "FAILED: $command: exit $code, printed:"
        cat "$folder/out" "$folder/err"
        echo "expected: exit 2, and alone on standard error:"
        cat "$folder/expected"
        failures=$((failures + 1))
    fi
done < "$table"
echo "$count mistakes, $failures without their message, $skipped skipped"
[ $((count + skipped)) -ge 40 ] && [ $failures = 0 ]

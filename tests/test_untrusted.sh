#!/bin/sh
# Texts and sizes from untrusted sources: escape sequences and formulas, sizes that overflow, the umask, a full disk.
# Usage: test_untrusted.sh PATH-OF-CARRY
set -u
carry=$(realpath "$1") || exit 2
tests=$(dirname "$(realpath "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
. "$tests/support.sh"
CARRY_STORE=$folder/store.db
CARRY_WISDOM=none
export CARRY_STORE CARRY_WISDOM
escape=$(printf '\033')

# A run whose name has an escape sequence and begins like a formula.
cat > named.yaml << 'YAML'
name: "=1+2\e]0;owned\a\e[31mred"
hypothesis: A name is a text.
methods: [sequential]
repeats: 25
spread: 1000
grid:
  - stage: small
    problem: scan:dense:t{t}:n2
    t: [8]
success:
  - time(sequential, stage=small) > 0
YAML
"$carry" run named.yaml > out 2> err || fail "run: $(cat err)"
for verb in "runs list" "runs show last"; do
    "$carry" $verb > out 2> err || fail "$verb: $(cat err)"
    grep -q "=1+2" out || fail "$verb does not show the name"
    if grep -q "$escape" out; then
        fail "$verb prints an escape sequence"
    fi
done
"$carry" runs export last --csv > table.csv 2> err || fail "export: $(cat err)"
grep -q "\"'=1+2" table.csv || fail "the name is not quoted for spreadsheets: $(head -n 3 table.csv)"

# Sizes whose product is more than an integer holds.
for problem in block:bf16:h2:d9223372036854775807 block:bf16:h9223372036854775807:d2 \
    block:bf16:h3037000500:d3037000500; do
    expect 2 "carry: " plan "$problem"
done

# Terms that cancel leave a small state with the rounding errors of large ones: that is correct.
expect 0 "0 wrong" check allscan:factors:f32:h1:k1:v1:p3

# File permissions follow the umask.
(umask 077 && "$carry" profile plan scan:diagonal:t8:n4 -o private.json.gz > out 2> err) || fail "profile: $(cat err)"
[ "$(stat -c %a private.json.gz)" = 600 ] || fail "a trace under umask 077 has mode $(stat -c %a private.json.gz)"
(umask 022 && "$carry" profile plan scan:diagonal:t8:n4 -o shared.json.gz > out 2> err) || fail "profile: $(cat err)"
[ "$(stat -c %a shared.json.gz)" = 644 ] || fail "a trace under umask 022 has mode $(stat -c %a shared.json.gz)"

# A trace that could not be written is not named.
if [ -w /dev/full ] && mkdir small && mount -t tmpfs -o size=4k none small 2> /dev/null; then
    head -c 4096 /dev/zero > small/full
    "$carry" profile --no-store plan scan:diagonal:t8:n4 -o small/trace.json.gz > out 2> err
    [ $? = 2 ] && grep -q "No space left" err || fail "a full disk: $(cat err)"
    grep -q "trace: small" out && fail "a trace is named that is not there"
    umount small
else
    echo "not tested: a full disk, since no file system can be mounted here"
fi

[ $failures = 0 ] && echo "texts, sizes and files from elsewhere do no harm"
exit $((failures > 0))

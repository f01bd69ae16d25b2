#!/bin/sh
# carry pull against a local server that answers as the Hugging Face hub does. Usage: test_pull.sh CARRY
set -u
carry=$1
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v python3 > /dev/null; then
    echo "skipped: python3 is not here"
    exit 77
fi
work=$(mktemp -d)
cd "$work" || exit 1
. "$here/support.sh"
"$carry" pull x/y > out 2> err
if grep -q 'needs libcurl' err; then
    echo "skipped: this build has no libcurl"
    exit 77
fi
mkdir -p remote/sub
head -c 3000000 /dev/urandom > remote/model.safetensors
printf '{"a": 1}' > remote/config.json
printf 'x' > 'remote/sub/with space.txt'
: > remote/empty.txt
python3 "$here/hub_server.py" remote port log &
server=$!
trap 'kill $server 2> /dev/null; cd /; rm -rf "$work"' EXIT
wait_for 120 test -s port || fail "no server"
unset HF_TOKEN HF_HUB_CACHE
HF_ENDPOINT=http://127.0.0.1:$(cat port)
HF_HOME=$work/home
export HF_ENDPOINT HF_HOME
commit=0123456789abcdef0123456789abcdef01234567
model=home/hub/models--test--model
same() {
    for file in model.safetensors config.json 'sub/with space.txt' empty.txt; do
        cmp -s "remote/$file" "$model/snapshots/$commit/$file" || fail "$1: $file differs"
    done
}

# Everything, in ranges; then nothing.
printf '{}' > config
refused 'carry pull test/model' generate hf:test/model -p a
expect 0 "\"commit\": \"$commit\"" pull test/model --part 500000 --json
same "first"
[ "$(cat $model/refs/main)" = $commit ] || fail "refs/main"
[ "$(readlink "$model/snapshots/$commit/sub/with space.txt")" = "../../../blobs/$(printf 'blob 1\0x' | sha1sum | cut -c1-40)" ] || fail "link"
[ "$(grep -c '^model.safetensors' log)" = 6 ] || fail "ranges: $(cat log)"
find home -name '*.carry*' -path '*blobs*' | grep -q . && fail "temporary files are left"
expect 0 '"fetched_bytes": 0' pull test/model@v1 --json
[ "$(cat $model/refs/v1)" = $commit ] || fail "refs/v1"
refused 'no chat template' tokenizer render hf:test/model config
refused 'config.json' generate hf:test/model -p a # found in the cache; it is no language model

# Patterns.
rm -rf home
expect 0 '"files": 1' pull test/model --include '*.json' --json
[ ! -e $model/snapshots/$commit/model.safetensors ] || fail "--include"
refused 'no file that --include selects' pull test/model --include '*.gguf'

# Files with the same bytes are fetched once.
rm -rf home
: > log
cp remote/model.safetensors remote/sub/same.safetensors
expect 0 '"files": 5' pull test/model --part 500000 --json
cmp -s remote/model.safetensors $model/snapshots/$commit/sub/same.safetensors || fail "the copy differs"
[ "$(grep -c 'safetensors' log)" = 6 ] || fail "ranges of a copy: $(cat log)"
rm remote/sub/same.safetensors

# Killed in the middle: the next call fetches only what is missing.
rm -rf home
: > log
touch remote/slow
"$carry" pull test/model --part 500000 > out 2> err &
pull=$!
wait_for 120 test -s "$model/blobs/$(sha256sum < remote/model.safetensors | cut -c1-64).carry.parts" || fail "no range was complete before the kill"
wait_for 120 has_lines 6 '^model.safetensors' log || fail "ranges before the kill"
kill -9 $pull
wait $pull 2> /dev/null
rm remote/slow
: > log
expect 0 'files' pull test/model --part 500000
same "resumed"
[ "$(grep -c '^model.safetensors' log)" -le 5 ] || fail "nothing was resumed: $(cat log)"

# A range request that stalls is repeated.
rm -rf home
touch remote/slow
(wait_for 120 has_lines 7 '^model.safetensors' log; rm remote/slow) &
: > log
expect 0 'files' pull test/model --part 500000 --stall 1
same "stalled"

# Damaged once: fetched again. Damaged each time: refused, and not kept.
rm -rf home
printf 'x\n' > remote/damage
expect 0 'files' pull test/model
same "damaged once"
rm -rf home
printf 'x\nx\nx\nx\n' > remote/damage
refused 'model.safetensors was damaged on the way' pull test/model
[ ! -e $model/snapshots/$commit/model.safetensors ] || fail "a damaged file was kept"
rm remote/damage

# Sizes come first: a model that does not fit on the disk is refused before anything is fetched.
rm -rf home
touch remote/huge
: > log
refused 'needs 1e+06 GB more on the disk' pull test/model
[ ! -s log ] || fail "fetched although the disk is too small: $(cat log)"
rm remote/huge

# A server without ranges; a token; models, revisions and endpoints that do not exist.
rm -rf home
touch remote/noranges
expect 0 'files' pull test/model --part 500000
same "no ranges"
rm -rf home remote/noranges
echo secret > remote/token
refused 'HF_TOKEN' pull test/model
HF_TOKEN=secret expect 0 'files' pull test/model
HF_TOKEN=wrong refused '401' pull test/model
rm -rf home
touch remote/elsewhere
HF_TOKEN=secret expect 0 'files' pull test/model
grep -q 'another host' log && fail "the token was sent to another host"
rm remote/token remote/elsewhere
refused '404' pull test/none
refused '404' pull test/model@nope
refused 'expected OWNER/NAME' pull ../x
refused 'expected OWNER/NAME' generate hf:a/b/c -p x
refused 'expected http' pull test/model --endpoint ftp://x
refused 'one model' pull
expect 0 'Example' pull --help
expect 2 'carry' pull test/model --endpoint http://127.0.0.1:9

[ $failures = 0 ] && echo "pull: all as expected"
[ $failures = 0 ]

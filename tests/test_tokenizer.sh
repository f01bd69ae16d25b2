#!/bin/sh
# carry tokenizer: train, encode, decode; refusals and exit codes. Usage: test_tokenizer.sh CARRY SOURCE
set -u
carry=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/support.sh"
bad=0

fails() {
    echo "failed: $1"
    bad=1
}

# refuses WORDS COMMAND...: exit 2, one error message with these words.
refuses() {
    words=$1
    shift
    "$@" > "$work/out" 2> "$work/err" < /dev/null
    code=$?
    [ $code = 2 ] || fails "$* ended with $code, not 2"
    grep -q -- "$words" "$work/err" || fails "$* says: $(cat "$work/err")"
    [ "$(wc -l < "$work/err")" = 1 ] || fails "$* says more than an error message"
}

golden=$source/tests/golden/tokenizer
"$carry" tokenizer train "$golden/text.txt" --vocab 600 --added '<|endoftext|>,<|pad|>' -o "$work/t" > "$work/out" || fails train
"$carry" tokenizer encode "$golden" "$golden/text.txt" > "$work/theirs" || fails "encode with the golden tokenizer"
"$carry" tokenizer encode "$work/t" "$golden/text.txt" > "$work/ours" || fails "encode with the new tokenizer"
cmp -s "$work/theirs" "$work/ours" || fails "the trained tokenizer gives other numbers"
"$carry" tokenizer decode "$work/t" --keep-special < "$work/ours" > "$work/text" || fails decode
cmp -s "$work/text" "$golden/text.txt" || fails "the decoded text is another"
[ "$("$carry" tokenizer encode "$golden" -t '<|endoftext|>')" = 0 ] || fails "the special token has another number"
[ "$("$carry" tokenizer decode "$golden" 0 66)" = a ] || fails "special tokens are left out, and 66 is a"
"$carry" tokenizer encode "$golden" -t abc --json | grep -q '"bytes": 3, "tokens": ' || fails "encode --json"
"$carry" tokenizer train --bytes -o "$work/b" --json | grep -q '"vocabulary": 257, "merges": 0' || fails "train --bytes"
head -c 3000 /dev/urandom > "$work/random"
"$carry" tokenizer encode "$work/b" "$work/random" --as-text | "$carry" tokenizer decode "$work/b" > "$work/again"
cmp -s "$work/random" "$work/again" || fails "random bytes come back changed"
# Options without an effect are refused, and an unreadable input is an error.
"$carry" tokenizer decode "$work/b" < "$work" > "$work/out" 2> "$work/err"
[ $? = 2 ] || fails "decode of an input that cannot be read is no success"
many=$(i=100; while [ $i -lt 165 ]; do printf '%s,' "$i"; i=$((i + 1)); done)
refuses 'more than 64' "$carry" tokenizer train --bytes --added "$many" -o "$work/many"
refuses 'takes the tokenizer and --text alone' "$carry" tokenizer encode "$work/b" -t abc nowhere.txt
refuses 'takes the tokenizer alone' "$carry" tokenizer show "$work/b" more
refuses 'does not take --vocab' "$carry" tokenizer encode "$work/b" -t abc --vocab 300
refuses 'are options of tokenizer encode' "$carry" tokenizer decode "$work/b" 66 --as-text
refuses 'is an option of tokenizer decode' "$carry" tokenizer encode "$work/b" -t abc --keep-special
refuses 'learns nothing' "$carry" tokenizer train --bytes --vocab 300 -o "$work/many"
refuses 'least 0' "$carry" tokenizer train "$golden/text.txt" --least 0 -o "$work/many"
[ ! -e "$work/many" ] || fails "a refused tokenizer was written"
# Ctrl-C while the text is read: no tokenizer is made from a part of it. A sparse file takes seconds to read and no
# space.
truncate -s 1G "$work/zeros"
"$carry" tokenizer train "$work/zeros" --binary --vocab 300 -o "$work/part" > "$work/out" 2> "$work/err" &
pid=$!
until_caught $pid
kill -INT $pid
wait $pid
[ $? = 2 ] || fails "Ctrl-C while a text is read is no success"
grep -q interrupted "$work/err" || fails "Ctrl-C: $(cat "$work/err")"
[ ! -e "$work/part" ] || fails "Ctrl-C left a tokenizer of a part of the text"
"$carry" tokenizer --help | grep -q '^Example' || fails "--help has no example"

: > "$work/empty"
printf 'a\0b' > "$work/zero"
refuses 'is empty' "$carry" tokenizer train "$work/empty"
refuses '0 byte' "$carry" tokenizer train "$work/zero"
refuses 'there is no file or folder' "$carry" tokenizer train "$work/none"
refuses 'vocabulary of 9' "$carry" tokenizer train "$golden/text.txt" --vocab 9
refuses 'needs a text' "$carry" tokenizer train
refuses 'needs a tokenizer.json' "$carry" tokenizer encode
refuses 'cannot be read' "$carry" tokenizer encode "$work/none"
refuses 'no tokenizer.json\|line 1' "$carry" tokenizer encode "$golden/text.txt"
refuses 'token 0 is 600' "$carry" tokenizer decode "$golden" 600
refuses 'not a token id' "$carry" tokenizer decode "$golden" 1 x
refuses 'train, encode, decode' "$carry" tokenizer sing
[ $bad = 0 ] && echo "carry tokenizer does what it says"
exit $bad

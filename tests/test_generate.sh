#!/bin/sh
# carry generate and carry eval as used by a person and by a script. Usage: test_generate.sh PATH-OF-CARRY MAKE-MODEL
set -u
carry=$1
make_model=$2
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
process=
end() {
    [ -z "$process" ] || kill -KILL "$process" 2> /dev/null
    rm -rf "$folder"
}
trap end EXIT
CARRY_WISDOM=none
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export CARRY_WISDOM ASAN_OPTIONS
cd "$folder" || exit 2
. "$here/support.sh"
# python EXPRESSION: must be true for the list `lines` of the printed objects. Prints failures.
python() {
    python3 -c "import json
lines = [json.loads(line) for line in open('out', encoding='utf-8')]
assert $1" 2> json_error || fail "not so: $1: $(tail -n 1 json_error) $(head -c 300 out)"
}
if ! command -v python3 > /dev/null; then
    echo "skipped: without python3 no JSON is parsed here"
    python() { [ -s out ] || fail "nothing was printed"; }
fi

"$make_model" model 257 && "$make_model" bytes 256 && "$make_model" other 1000 && "$make_model" nan 257 nan || exit 2
printf 'The quick brown fox jumps over the lazy dog.\n%.0s' 1 2 3 4 5 6 7 8 9 > text
printf ' = Robert = \n \n Robert <unk> is an actor . \n' > wiki.some.tokens

# Text: the prompt and its continuation, the same for the same seed.
expect 0 'Hello' generate model -p Hello -n 20 --seed 3
cp out first
expect 0 'Hello' generate model -p Hello -n 20 --seed 3
cmp -s out first || fail "the same seed gave another text"
expect 0 'Hello' generate model -p Hello -n 20 --seed 4
if cmp -s out first; then fail "another seed gave the same text"; fi
grep -v '^computing in ' err && fail "more than the type was said on standard error"
expect 0 'Hello' generate model -p Hello -n 20 --seed 3 --dtype bf16
expect 2 "--dtype 'f8': expected f32, bf16 or f16" generate model -p Hello --dtype f8
expect 0 'tokens/s, the first token after' generate model -p Hello -n 5 -v

# Several prompts at once equal each alone; the same prompt again has another text.
expect 0 '--- 2 of 3 ---' generate model -p Hello -p World -p Hello -n 12
expect 0 '"prompt": "World"' generate model -p Hello -p World -p Hello -n 12 --json
cp out three
python "[x['prompt'] for x in lines] == ['Hello', 'World', 'Hello'] and lines[0]['text'] != lines[2]['text']"
python "all(x['tokens'] <= 12 and x['prompt_tokens'] == 5 and x['seconds'] > 0 and x['tokens_per_s'] > 0 for x in lines)"
expect 0 World generate model -p World -n 12 --json
python "[x['text'] for x in lines] == [json.loads(open('three').read().splitlines()[1])['text']]"

# Prompts: empty, any bytes, a file's lines, standard input.
expect 0 '"prompt": ""' generate model -p '' -n 4 --json
printf 'one\r\n\ntwo' > prompts
expect 0 one generate model --file prompts -n 4 --json
python "[x['prompt'] for x in lines] == ['one', 'two']"
printf 'a\000b\377' | "$carry" generate model -p - -n 4 --json > out 2> err || fail "a prompt of bytes was refused: $(cat err)"
python "lines[0]['prompt'] == 'a\\0b\\ufffd' and lines[0]['prompt_tokens'] == 4"
expect 0 x generate model -p "$(printf 'x\377\303')" -n 60
if command -v iconv > /dev/null; then
    iconv -f UTF-8 -t UTF-8 out > /dev/null 2>&1 || fail "what was printed is no UTF-8"
fi

# Ends.
expect 0 '"ended": "length"' generate model -p Hello -n 6 --temperature 0 --json
cp out whole
if command -v python3 > /dev/null; then
    stop=$(python3 -c "import json; t = json.loads(open('whole').read())['text']; print(t[3:5].strip() or t[1])")
    expect 0 '"ended": "stop"' generate model -p Hello -n 6 --temperature 0 --json --stop "$stop"
    python "lines[0]['text'] == json.loads(open('whole').read())['text'].split('$stop')[0]"
fi
"$carry" generate bytes -p Hello -n 100000000 > out 2> err &
process=$!
has_text() { [ "$(wc -c < out)" -ge 500 ]; }
wait_for 120 has_text
kill -INT $process
wait $process
code=$?
process=
[ $code = 2 ] && grep -q 'interrupted: 0 of 1 texts are whole' err || fail "Ctrl-C: exit $code: $(cat err)"
[ "$(head -c 5 out)" = Hello ] || fail "Ctrl-C: the text is gone"
[ "$(wc -c < out)" -ge 500 ] || fail "Ctrl-C: the text was not printed as it came"
if [ -e /dev/full ]; then
    "$carry" generate bytes -p Hello -n 100000000 > /dev/full 2> err
    [ $? = 2 ] && grep -q 'could not be written' err || fail "a full disk went unseen: $(cat err)"
fi

# Choices: min-p 1 leaves the likeliest token; a penalty changes what is likely.
expect 0 '"text"' generate model -p Hello -n 6 --temperature 1 --min-p 1 --json
python "lines[0]['text'] == json.loads(open('whole').read())['text']"
expect 0 '"ids"' generate model -p '1 2 3' -n 40 --temperature 0 --repetition-penalty 1000 --json --ids
python "len(set(lines[0]['ids'])) == len(lines[0]['ids']) and not {1, 2, 3} & set(lines[0]['ids'])"
refused 'min-p is 2' generate model -p x --min-p 2

# Token ids as input and output; no tokenizer is needed, and the tokens are the same as with one.
expect 0 '"ids": ' generate other -p '1, 2 999' --ids -n 5 --temperature 0 --json
python "len(lines[0]['ids']) == lines[0]['tokens'] and lines[0]['prompt_tokens'] == 3 and max(lines[0]['ids']) < 1000"
expect 0 '' generate other -p '1 2 999' --ids -n 5 --temperature 0
grep -Eq '^[0-9]+( [0-9]+)*$' out || fail "no numbers: $(cat out)"
refused 'is not part of a token id' generate other --ids -p '1 x'
refused 'token 0 of the prompt is 1000: the model has ids from 0 to 999' generate other --ids -p 1000
refused 'do not go with it' generate other --ids -p 1 --stop x

# A prompt that is read once: a text that continues from its state equals one that continues the whole prompt.
expect 0 '"text"' generate model -p 'Hello World, how' -n 12 --temperature 0 --json
cp out at_once
expect 0 '"tokens": 0' generate model -p 'Hello World' -n 0 --state-save state --json
expect 0 '"prompt_tokens": 5' generate model -p ', how' -n 12 --temperature 0 --state-load state --json
python "lines[0]['text'] == json.loads(open('at_once').read())['text']"
refused 'of one prompt' generate model -p a -p b -n 4 --state-save state
refused 'needs a prompt of a token' generate model -p '' -n 4 --state-load state
refused 'other' generate other --ids -p 1 -n 4 --state-load state
head -c 100 state > cut_state
refused 'cut_state' generate model -p a -n 4 --state-load cut_state

# A prompt whose beginning another process has read continues from that state, with the same text.
long=$(seq -s ' ' 1 300)
expect 0 '"cached_tokens": 0' generate other --ids -p "$long 7" -n 6 --temperature 0 --cache-dir cache --json
cp out first
expect 0 '"cached_tokens": 256' generate other --ids -p "$long 8" -n 6 --temperature 0 --cache-dir cache --json
expect 0 '"cached_tokens": ' generate other --ids -p "$long 7" -n 6 --temperature 0 --cache-dir cache --json
python "lines[0]['ids'] == json.loads(open('first').read())['ids'] and lines[0]['cached_tokens'] >= 256"
for file in cache/*.prefix; do
    printf 'x' | dd of="$file" bs=1 seek=2000 conv=notrunc status=none
done
expect 0 '"cached_tokens": 0' generate other --ids -p "$long 7" -n 6 --temperature 0 --cache-dir cache --json
python "lines[0]['ids'] == json.loads(open('first').read())['ids']"

# Sizes of the engine. A folder that cannot be written causes a warning, and the text is still generated.
expect 0 '"ids"' generate other --ids -p "$long" -n 6 --temperature 0 --json --memory 64M --context 400 --sequences 2 --cache-host 1MiB --cache-device 2.5M
expect 0 '"ids"' generate other --ids -p "$long" -p '1 2' -n 6 --temperature 0 --json --same-bits --sequences 1 --no-cache
cp out one_by_one
expect 0 '"ids"' generate other --ids -p "$long" -p '1 2' -n 6 --temperature 0 --json --same-bits
python "[x['ids'] for x in lines] == [json.loads(x)['ids'] for x in open('one_by_one')]"
# Types of states: texts of the same length; a file of one type is refused by an engine of another, by name.
for types in '--kv-type fp8' '--state-type bf16' '--kv-type fp8 --state-type bf16' '--kv-type bf16 --state-type f32'; do
    # shellcheck disable=SC2086 # several options
    expect 0 '"ids"' generate other --ids -p "$long" -n 6 --temperature 0 --json $types --state-save typed
    # shellcheck disable=SC2086
    expect 0 '"ids"' generate other --ids -p 7 -n 6 --temperature 0 --json $types --state-load typed
done
refused 'and this engine none and bf16' generate other --ids -p 7 -n 2 --state-type bf16 --state-load typed
expect 0 '"ids"' generate other --ids -p 7 -n 2 --json --kv-type fp8 --state-load typed
refused "kv-type 'int8': expected f32, bf16, f16 or fp8" generate other --ids -p 1 --kv-type int8
refused "state-type 'int8': expected f32 or bf16; rounding errors" generate other --ids -p 1 --state-type int8
refused "state-type 'fp8': expected f32 or bf16" generate other --ids -p 1 --state-type fp8

refused "memory needs bytes above 0, as in 512M or 2G, not '1X'" generate other --ids -p 1 --memory 1X
for bytes in 0 -1 nan 1e3 '' M 1GG 1.5iB 99999999T; do
    refused 'needs bytes above 0' generate other --ids -p 1 --cache-host "$bytes"
done
refused 'allow more memory or set a smaller context' generate other --ids -p 1 --memory 1K
refused 'is longer than the context of 200 tokens' generate other --ids -p "$long" --context 200
refused '--no-cache does not go with' generate other --ids -p 1 --no-cache --cache-dir x
refused '--cache-dir-size needs --cache-dir' generate other --ids -p 1 --cache-dir-size 1M
refused 'is more than --memory' generate other --ids -p 1 --memory 1M --cache-device 2M
refused '--cache-dir text is not a folder' generate other --ids -p 1 --cache-dir text
if [ -d /proc/self ]; then
    expect 0 'prefixes are no longer stored in /proc/self' generate other --ids -p "$long" -n 6 --temperature 0 --cache-dir /proc/self
fi
(trap '' XFSZ && ulimit -f 1 && "$carry" generate other --ids -p "$long" -n 6 --temperature 0 --cache-dir full > limited 2> err)
[ $? = 0 ] && grep -q 'prefixes are no longer stored in full: ' err || fail "a full cache folder: $(cat err)"
[ "$(wc -w < limited)" = 6 ] || fail "a full cache folder: $(cat limited)"
[ -z "$(ls -A full)" ] || fail "a full cache folder has parts of files: $(ls -A full)"

# Guesses change nothing but the time.
for temperature in 0 0.3; do
    expect 0 '"ids"' generate other --ids -p '1 2 3 1 2 3 1 2' -n 50 --temperature $temperature --same-bits --json
    cp out plain
    expect 0 '"drafted_tokens"' generate other --ids -p '1 2 3 1 2 3 1 2' -n 50 --temperature $temperature --same-bits --json --draft ngram --draft-tokens 3
    python "lines[0]['ids'] == json.loads(open('plain').read())['ids'] and 0 <= lines[0]['accepted_tokens'] <= lines[0]['drafted_tokens']"
done
refused "--draft 'bigram': expected ngram, mtp or none" generate other --ids -p 1 --draft bigram
refused 'gated_deltanet: multi-token heads are not supported' generate other --ids -p 1 --draft mtp
refused '--draft-tokens 17: expected 1 to 16' generate other --ids -p 1 --draft ngram --draft-tokens 17
refused '--draft-tokens needs --draft ngram' generate other --ids -p 1 --draft-tokens 4

# Random weights need a configuration alone.
expect 0 '"prompt_tokens": 3' generate tiny --random --ids -p '1 2 3' -n 4 --json
expect 0 '"prompt_tokens": 3' generate tiny --random --quantise q4_k --ids -p '1 2 3' -n 4 --json
refused "--quantise 'q9': expected fp8_block" generate tiny --random --quantise q9 --ids -p 1
refused '--quantise is for --random' generate tiny --quantise q4_k --ids -p 1
refused 'has no tokenizer' generate tiny --random -p a
refused "did you mean 'tiny'" generate tinny --random --ids -p 1

# Chats: the template of the folder is rendered.
cp -r model chat
"$carry" tokenizer train --bytes --added '<|endoftext|>,<|im_start|>,<|im_end|>' -o chat > /dev/null || fail "no tokenizer for a chat"
"$make_model" wide 259 && cp wide/* chat/
refused 'no chat template' generate chat --chat -p Hi
printf '%s' "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}" > chat/chat_template.jinja
expect 0 '"prompt_tokens": 21' generate chat --chat -p Hi -n 4 --json
python "lines[0]['prompt'] == 'Hi'"
expect 0 '"prompt_tokens": 40' generate chat --chat -p Hi -n 4 --json --no-think
expect 0 '"prompt_tokens": 36' generate chat --chat -p Hi --system short -n 4 --json
printf '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]' > messages
expect 0 '"prompt": "c"' generate chat --chat --messages messages -n 4 --json
printf '[{"role": "tool", "content": "a", "reasoning": null}]' > tools
expect 0 '"prompt_tokens": 29' generate chat --chat --messages tools -p x -n 4 --json
printf '[1]' > wrong
refused 'message 1' generate chat --chat --messages wrong -p x
refused 'need --chat' generate chat -p x --system y
refused 'need --chat' generate chat -p x --tools tools
# The next turn continues from the state after the answer: its tokens follow those of the first turn.
expect 0 '"tokens": 6' generate chat --chat -p Hi -n 6 --temperature 0 --json --state-save turn
expect 0 '"prompt_tokens": 24' generate chat --chat -p Bye -n 6 --temperature 0 --json --state-load turn
refused 'has the chat so far' generate chat --chat -p x --state-load turn --system y
if command -v python3 > /dev/null; then
    turn() { python3 -c "import sys; print(*[257, *b'user\n', *sys.argv[1].encode(), 258, *b'\n', 257, *b'assistant\n'])" "$1"; }
    expect 0 '"tokens": 6' generate chat --ids -p "$(turn Hi)" -n 6 --temperature 0 --json
    answer=$(python3 -c "import json; print(*json.loads(open('out').read())['ids'])")
    expect 0 '"tokens": 6' generate chat --ids -p "$(turn Hi) $answer 258 10 $(turn Bye)" -n 6 --temperature 0 --json
    cp out at_once
    expect 0 '"prompt_tokens": 24' generate chat --ids -p "258 10 $(turn Bye)" -n 6 --temperature 0 --json --state-load turn
    python "lines[0]['ids'] == json.loads(open('at_once').read())['ids']"
fi
printf '%s' '{{ bos_token }}[INST]{{ messages[-1].content ~ extra }}{{ tools | length }}{% if not add_generation_prompt %}x{% endif %}' > chat/chat_template.jinja
printf '{"extra": "abc"}' > variables
expect 0 '"prompt_tokens": 12' generate chat --chat -p Hi --tools tools --variables variables -n 4 --json
refused 'cannot turn thinking on' generate chat --chat -p Hi --think
printf '%s' '{% if messages %}{{ raise_exception("No way: " ~ messages[0].role) }}{% endif %}' > chat/chat_template.jinja
refused 'No way: user' generate chat --chat -p Hi
printf 'a\n{%% include "x" %%}' > chat/chat_template.jinja
refused "line 2: the tag 'include' is not supported" generate chat --chat -p Hi
printf '%s' '{{ messages[0].content }}|{{ eos_token }}|{{ add_generation_prompt }}' > chat/chat_template.jinja
printf '{"messages": [{"role": "user", "content": "Hi"}]}' > chat.json
expect 0 'Hi|<|endoftext|>|True' tokenizer render chat chat.json
expect 0 '"text":"Hi||"' tokenizer render chat/chat_template.jinja chat.json --json
refused 'needs a model folder' tokenizer render chat

# The type is that of the weights if the processor has fast products in it, and the first line names it.
mkdir narrow && "$make_model" narrow 257 bf16 || fail "no model in bf16"
expect 0 'computing in f32: the weights are f32' generate model -p Hi -n 2 --device cpu
expect 0 'computing in f32: the weights are f32' eval model text --device cpu
for verb in 'generate narrow -p Hi -n 2' 'eval narrow text'; do
    expect 0 ': the weights are bf16, ' $verb --device cpu
    head -n 1 err | grep -q 'computing in bf16: .* the CPU has\|computing in f32: .* without fast' || fail "the type: $(cat err)"
    expect 0 'computing in f32: --dtype' $verb --dtype f32 --device cpu
    expect 0 '"dtype": "f16"' $verb --dtype f16 --json --device cpu
done

# Evaluation.
expect 0 'bits per byte' eval model text
expect 0 '"bits_per_byte"' eval model text --json
python "lines[0]['tokens'] == lines[0]['bytes'] == 404 and abs(lines[0]['perplexity'] - 2.718281828459045 ** lines[0]['loss']) < 1e-3 * lines[0]['perplexity'] and 'words' not in lines[0]"
expect 0 '"tokens": 404' eval bytes text --json
expect 0 '"tokens": 405' eval model text --start --json
expect 0 '"length": 64' eval model text --length 64 --json
expect 0 '"dtype": "bf16"' eval model text --dtype bf16 --json
expect 0 '"words": 12' eval model wiki.some.tokens --json
python "abs(__import__('math').log(lines[0]['word_perplexity']) * 12 / lines[0]['tokens'] - lines[0]['loss']) < 1e-4"
expect 0 'perplexity per word' eval model wiki.some.tokens
expect 0 'all: loss' eval model text wiki.some.tokens

# A training's folder.
mkdir run && cp -r model run/step-5 && cp -r model run/step-20 && printf x > run/step-20/model.safetensors
expect 0 'step-20 is skipped' generate run -p Hello -n 2
expect 0 'run/step-5' eval run text --json

# The whole way, from a text.
CARRY_STORE=$folder/store.db
export CARRY_STORE
expect 0 'carry generate' train --data text --vocab 270 --hidden 32 --layers 1 --steps 3 --length 32 --batch 2 --out trained
expect 0 '"prompt_tokens"' generate trained -p 'The quick' -n 8 --json
cp out from_run
expect 0 'The quick' generate trained/latest -p 'The quick' -n 8 --json
python "lines[0]['text'] == json.loads(open('from_run').read())['text']"
expect 0 '"bytes": 405' eval trained text --start --json

# Refusals.
mkdir nothing
cp -r model cut && head -c 3000 model/model.safetensors > cut/model.safetensors
cp -r model mismatched && "$carry" tokenizer train text --vocab 300 -o mismatched > /dev/null
head -c 3000 /dev/urandom > random
printf 'a\000b' > zero
: > empty
refused 'needs a model' generate
refused 'needs a prompt' generate model
refused 'after -p' generate model Hello
refused 'gone' generate gone -p x
refused 'is not a folder' generate text -p x
refused 'holds no model' generate nothing -p x
refused 'model.safetensors' generate cut -p x
refused 'no tokenizer.json, and a vocabulary of 1000' generate other -p x
refused 'do not belong together' generate mismatched -p x
refused 'the temperature is -1' generate model -p x --temperature -1
refused "needs a number, not 'nan'" generate model -p x --temperature nan
refused 'top-p is 0' generate model -p x --top-p 0
refused 'top-p is 1.5' generate model -p x --top-p 1.5
refused "needs a number, not 'nan'" generate model -p x --top-p nan
refused 'top-k needs a whole number' generate model -p x --top-k -3
refused '-n 0' generate model -p x -n 0
refused 'an empty prompt needs' generate bytes -p ''
refused 'has no prompt' generate model --file empty
refused 'gone cannot be read' generate model --file gone
refused 'standard input can be read once' generate model -p - -p -
refused 'element 0 of model.norm.weight is nan' generate nan -p x
refused 'needs a model' eval model
refused "dtype 'f8': expected f32, bf16 or f16" eval model text --dtype f8
refused 'gone' eval gone text
refused 'empty is empty' eval model empty
refused 'zero' eval model zero
refused 'random' eval model random
refused 'element 0 of model.norm.weight is nan' eval nan text
refused 'expected 1 to' eval model text --length 99999999
printf a > single
refused 'nothing before it' eval bytes single
expect 0 'tokens of 2999 bytes' eval model random --binary
expect 0 '' generate bytes -p x -n 60 --temperature 1 --top-p 1 --regex '(yes|no)(, (yes|no)){0,2}!' --json
python "__import__('re').fullmatch('(yes|no)(, (yes|no)){0,2}!', lines[0]['text']) and lines[0]['ended'] == 'end'"
printf '{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}' > schema.json
expect 0 '' generate bytes -p x -n 200 --temperature 1 --top-p 1 --json-schema schema.json --json
python "all(isinstance(v, bool) for v in json.loads(lines[0]['text']))"
refused 'character 1: ( without )' generate bytes -p x --regex '(a'
refused 'no.json' generate bytes -p x --json-schema no.json
printf '{"not": {}}' > schema.json
refused '"not"' generate bytes -p x --json-schema schema.json
expect 0 'Example' generate --help
expect 0 'Example' eval --help

if [ $failures = 0 ]; then echo "generate and eval: all as expected"; fi
exit "$failures"

#!/bin/sh
# carry chat: chat_test.py has the cases. Usage: test_chat.sh CARRY MAKE-MODEL
set -u
carry=$1
make_model=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v python3 > /dev/null; then
    echo "skipped: python3 is not here"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CARRY_WISDOM=none
export CARRY_WISDOM
cd "$folder" || exit 2
"$carry" tokenizer train --bytes --added '<|endoftext|>,<|im_start|>,<|im_end|>' -o tiny > /dev/null && "$make_model" wide 259 && cp wide/* tiny/ || exit 2
printf '%s' "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}" > tiny/chat_template.jinja
"$carry" tokenizer train --bytes --added '<unused>' -o endless > /dev/null && "$make_model" narrow 257 && cp narrow/* endless/ || exit 2 # no token ends its texts
printf '%s' "{%- for m in messages %}{{ m.content + '\n' }}{% endfor %}" > endless/chat_template.jinja
"${CARRY_TEST_PYTHON:-python3}" "$here/chat_test.py" "$carry" tiny endless "$@"

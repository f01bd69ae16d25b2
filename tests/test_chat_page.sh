#!/bin/sh
# The chat page of carry serve in a headless Chromium: chat_page_test.py has the cases. Skipped, with the reason, where Chromium or Python's
# websocket module is missing. Usage: test_chat_page.sh CARRY MAKE-MODEL [CASE ...]
set -u
carry=$1
make_model=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
python=
for candidate in python3 /usr/bin/python3; do # a Python of one's own may lack the system's modules
    if "$candidate" -c 'import websocket' 2> /dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "skipped: Python's websocket module is not installed"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CARRY_WISDOM=none
PYTHONDONTWRITEBYTECODE=1
export CARRY_WISDOM PYTHONDONTWRITEBYTECODE
cd "$folder" || exit 2
"$carry" tokenizer train --bytes --added '<|endoftext|>,<|im_start|>,<|im_end|>' -o tiny > /dev/null && "$make_model" wide 259 && cp wide/* tiny/ || exit 2
cat > tiny/chat_template.jinja << 'TEMPLATE'
{%- if tools %}{{ '<|im_start|>system\n' + tools | tojson + '<tool_call>{"name"}<|im_end|>\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
TEMPLATE
"$python" "$here/chat_page_test.py" "$carry" tiny "$@"

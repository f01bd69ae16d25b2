#!/bin/sh
# Formats, tools and reasoning of carry serve: serve_tools_test.py has the cases. Usage: test_serve_tools.sh CARRY MAKE-MODEL
set -u
carry=$1
make_model=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v python3 > /dev/null; then
    echo "skipped: python3 is not installed"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CARRY_WISDOM=none
export CARRY_WISDOM
cd "$folder" || exit 2
"$carry" tokenizer train --bytes --added '<|endoftext|>,<|im_start|>,<|im_end|>' -o tiny > /dev/null && "$make_model" wide 259 && cp wide/* tiny/ || exit 2
cat > tiny/chat_template.jinja << 'TEMPLATE'
{%- if tools %}{{ '<|im_start|>system\n' + tools | tojson + ('<tool_call><function=name>' if style == 'xml' else '<tool_call>{"name"}') + '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if enable_thinking %}{{ '<think>\n' }}{% endif %}{% endif %}
TEMPLATE
"${CARRY_TEST_PYTHON:-python3}" "$here/serve_tools_test.py" "$carry" tiny "$@"

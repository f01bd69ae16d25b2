"""Chat templates from Python: variables, defaults, errors."""

from __future__ import annotations

import json

import pytest

import libcarry

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ m.tool_calls | default('') }}\n{% endfor %}"
    "{{ tools | tojson }}{% if add_generation_prompt %}[a]{% endif %}{{ enable_thinking }}{{ messages[-1].thinking }}"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, "pad_token": None}))
    return tmp_path


def test_a_chat_is_rendered_with_special_tokens_and_defaults(folder):
    assert libcarry.render_chat(folder, [{"role": "user", "content": "h\u00e9"}]) == "<s>[user]h\u00e9\nnull[a]"


def test_tools_variables_and_reasoning_reach_the_template(folder):
    messages = [{"role": "assistant", "content": "x", "tool_calls": None, "reasoning": "r"}]
    text = libcarry.render_chat(folder, messages, tools=[{"name": "f"}], add_generation_prompt=False, enable_thinking=True)
    assert text == '<s>[assistant]x\n[{"name": "f"}]Truer'


def test_a_refusal_of_the_template_is_a_value_error():
    with pytest.raises(ValueError, match="only users"):
        libcarry.render_template("{{ raise_exception('only users, not ' ~ role) }}", role="x")


def test_errors_name_the_line():
    with pytest.raises(ValueError, match="line 2"):
        libcarry.render_template("a\n{{ x + 1 }}")
    with pytest.raises(Exception, match="line 1: the tag 'include' is not supported"):
        libcarry.render_template("{% include 'x' %}")


def test_messages_must_be_objects(folder):
    with pytest.raises(ValueError, match="message 1"):
        libcarry.render_chat(folder, ["hi"])

"""Chat templates: the prompt of a conversation, as transformers' apply_chat_template makes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from ctypes import byref, c_void_p, string_at
from typing import Any

from . import _context
from ._library import lib


def _render(function: Callable[..., int], source: bytes, variables: dict[str, Any]) -> str:
    made = c_void_p()
    context = _context.Context(1)
    context.check(function(context.handle, source, json.dumps(variables).encode(), byref(made)))
    try:
        return string_at(made.value or 0).decode()
    finally:
        lib.carry_render_free(made)


def render_chat(
    folder: str | os.PathLike[str],
    messages: list[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    documents: list[dict[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str:
    """The text of a conversation by the chat template of a model's folder. Other variables, such as enable_thinking, go
    to the template. A template that refuses the messages (raise_exception) raises ValueError with its text."""
    given = {"messages": messages, "tools": tools, "documents": documents, "add_generation_prompt": add_generation_prompt}
    return _render(lib.carry_render_chat, os.fsencode(folder), {**given, **variables})


def render_template(source: str, **variables: Any) -> str:
    """Any template, with these variables only."""
    return _render(lib.carry_render_template, source.encode(), variables)

"""Several prompts of `Model.generate`, through an engine that lives for the call."""

from __future__ import annotations

from ctypes import byref, c_bool, c_int64, c_uint64, c_void_p
from typing import Any, NamedTuple

import numpy as np

from ._context import Context
from ._engine import REASONS, EngineEvent, EngineOptions, EngineRequest
from ._library import lib

SEQUENCES = 16


class Rules(NamedTuple):
    """How tokens are sampled, and those that end a text."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition: float
    seed: int
    ends: list[int]


def is_list_of_prompts(prompt: Any) -> bool:
    """A list of texts or rows, not a row of token numbers."""
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and (isinstance(prompt[0], str) or np.ndim(prompt[0]) > 0)


def _request(row: np.ndarray, tokens: int, rules: Rules) -> EngineRequest:
    ends = (c_int64 * len(rules.ends))(*rules.ends)
    return EngineRequest(
        ids=(c_int64 * row.size)(*row.tolist()),
        id_count=row.size,
        tokens=tokens,
        temperature=rules.temperature,
        top_k=rules.top_k,
        top_p=rules.top_p,
        min_p=rules.min_p,
        repetition=rules.repetition,
        seed=rules.seed,
        logprobs=-1,
        ends=ends,
        end_count=len(ends),
        ignore_ends=len(ends) == 0,
    )


def generate_together(
    context: Context, model: int, rows: list[np.ndarray], tokens: int, rules: Rules
) -> list[list[int]]:
    """The tokens after each row. The caller has the model's lock."""
    engine, number, event, is_busy = c_void_p(), c_uint64(), EngineEvent(), c_bool(True)
    longest = max(row.size for row in rows) + tokens
    options = EngineOptions(sequences=min(len(rows), SEQUENCES), context=longest, queue=len(rows), no_cache=True)
    context.check(lib.carry_engine_new(model, byref(engine), byref(options)))
    texts: dict[int, list[int]] = {}
    try:
        for row in rows:
            request = _request(row, tokens, rules)
            context.check(lib.carry_engine_submit(context.handle, engine, byref(request), byref(number)))
            texts[number.value] = []
        while is_busy.value:
            context.check(lib.carry_engine_step(engine, byref(is_busy)))
            while lib.carry_engine_next(engine, byref(event)):
                if event.token >= 0:
                    texts[event.request].append(event.token)
                elif REASONS[event.reason] == "failed":
                    raise RuntimeError((event.message or b"").decode("utf-8", "replace"))
    finally:
        lib.carry_engine_close(engine)
    return list(texts.values())

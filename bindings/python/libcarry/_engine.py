"""carry_engine of include/carry/engine.h for engine.py: structures and declarations."""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE, POINTER, c_bool, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64,
    c_void_p,
)  # fmt: skip
from typing import Any

from ._library import lib
from ._structs import Sized

REASONS = ("none", "length", "end", "stop", "context", "cancelled", "failed")


class EngineOptions(Sized):
    """carry_engine_options"""

    _fields_ = [
        ("size", c_size_t),
        ("device", c_int),
        ("dtype", c_int),
        ("sequences", c_int64),
        ("context", c_int64),
        ("step_tokens", c_int64),
        ("queue", c_int64),
        ("memory", c_size_t),
        ("no_cache", c_bool),
        ("cache_device", c_size_t),
        ("cache_host", c_size_t),
        ("cache_dir", c_char_p),
        ("cache_dir_bytes", c_size_t),
        ("same_bits", c_bool),
        ("draft", c_char_p),
        ("draft_tokens", c_int64),
        ("kv_type", c_char_p),
        ("state_type", c_char_p),
    ]


class EngineEvent(Sized):
    """carry_engine_event"""

    _fields_ = [
        ("size", c_size_t),
        ("request", c_uint64),
        ("user", c_void_p),
        ("token", c_int64),
        ("logprob", c_double),
        ("top_count", c_int),
        ("top_tokens", POINTER(c_int32)),
        ("top_logprobs", POINTER(c_float)),
        ("text", c_void_p),
        ("text_bytes", c_size_t),
        ("reason", c_int),
        ("status", c_int),
        ("message", c_char_p),
        ("prompt_tokens", c_int64),
        ("cached_tokens", c_int64),
        ("tokens", c_int64),
        ("first_s", c_double),
        ("seconds", c_double),
        ("state", c_uint64),
        ("drafted_tokens", c_int64),
        ("accepted_tokens", c_int64),
        ("stop", c_int64),
        ("text_before", c_int64),
    ]


ON_EVENT = CFUNCTYPE(c_bool, c_void_p, POINTER(EngineEvent))
CONSTRAIN = CFUNCTYPE(c_bool, c_void_p, c_int64, POINTER(c_uint32))


class EngineRequest(Sized):
    """carry_engine_request"""

    _fields_ = [
        ("size", c_size_t),
        ("ids", POINTER(c_int64)),
        ("id_count", c_int64),
        ("text", c_char_p),
        ("text_bytes", c_size_t),
        ("is_rendered", c_bool),
        ("tokens", c_int64),
        ("temperature", c_double),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("min_p", c_double),
        ("repetition", c_double),
        ("seed", c_uint64),
        ("logprobs", c_int),
        ("ends", POINTER(c_int64)),
        ("end_count", c_int64),
        ("ignore_ends", c_bool),
        ("stops", POINTER(c_char_p)),
        ("stop_count", c_int64),
        ("state", c_uint64),
        ("keep_state", c_bool),
        ("no_cache", c_bool),
        ("on_event", ON_EVENT),
        ("user", c_void_p),
        ("frequency", c_double),
        ("presence", c_double),
        ("bias_ids", POINTER(c_int64)),
        ("biases", POINTER(c_float)),
        ("bias_count", c_int64),
        ("constrain", CONSTRAIN),
        ("constraint", c_void_p),
        ("regex", c_char_p),
        ("json_schema", c_char_p),
        ("same_prompt", c_uint64),
    ]


class EngineStats(Sized):
    """carry_engine_stats"""

    _fields_ = [
        ("size", c_size_t),
        *((name, c_int64) for name in (
            "waiting", "active", "states", "slots", "free_slots", "pages", "free_pages", "steps", "requests",
            "finished", "cancelled", "failed", "prompt_tokens", "cached_tokens", "tokens", "snapshots",
            "host_snapshots", "file_snapshots",
        )),
        ("cache_device", c_size_t),
        ("cache_host", c_size_t),
        ("cache_dir", c_size_t),
        ("drafted_tokens", c_int64),
        ("accepted_tokens", c_int64),
    ]  # fmt: skip


_OUT = POINTER(c_void_p)
_U64 = POINTER(c_uint64)

PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "carry_engine_open": (c_int, [c_void_p, _OUT, c_char_p, POINTER(EngineOptions)]),
    "carry_engine_new": (c_int, [c_void_p, _OUT, POINTER(EngineOptions)]),
    "carry_engine_close": (None, [c_void_p]),
    "carry_engine_submit": (c_int, [c_void_p, c_void_p, POINTER(EngineRequest), _U64]),
    "carry_engine_cancel": (None, [c_void_p, c_uint64]),
    "carry_engine_step": (c_int, [c_void_p, POINTER(c_bool)]),
    "carry_engine_next": (c_bool, [c_void_p, POINTER(EngineEvent)]),
    "carry_engine_state_length": (c_int, [c_void_p, c_uint64, POINTER(c_int64)]),
    "carry_engine_state_fork": (c_int, [c_void_p, c_uint64, _U64]),
    "carry_engine_state_roll_back": (c_int, [c_void_p, c_uint64, c_int64]),
    "carry_engine_state_save": (c_int, [c_void_p, c_uint64, c_char_p]),
    "carry_engine_state_load": (c_int, [c_void_p, _U64, c_char_p]),
    "carry_engine_state_to_host": (c_int, [c_void_p, c_uint64]),
    "carry_engine_state_move": (c_int, [c_void_p, c_uint64, c_void_p, _U64]),
    "carry_engine_state_drop": (c_int, [c_void_p, c_uint64]),
    "carry_engine_state_cache": (c_int, [c_void_p, c_uint64]),
    "carry_engine_statistics": (None, [c_void_p, POINTER(EngineStats)]),
    "carry_engine_context": (c_int64, [c_void_p]),
    "carry_engine_vocabulary": (c_int64, [c_void_p]),
}

for _name, (_result, _arguments) in PROTOTYPES.items():
    try:
        _function = getattr(lib, _name)
    except AttributeError:
        raise ImportError(f"the library has no function {_name}: it was built from other sources") from None
    _function.restype, _function.argtypes = _result, _arguments

"""Many texts at once with one model, and states as objects. include/carry/engine.h from Python.

with libcarry.Engine("Qwen3.5-0.8B", dtype="bf16") as engine:
    requests = [engine.submit(text, max_new_tokens=64) for text in ("Once upon a time", "The delta rule")]
    for request in requests:
        print(request.result(), request.cached_tokens)
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from ctypes import byref, c_bool, c_char_p, c_float, c_int64, c_uint64, c_void_p, string_at
from typing import Any

import numpy as np

from . import _context
from ._engine import REASONS, EngineEvent, EngineOptions, EngineRequest, EngineStats
from ._library import lib
from ._values import device_number, dtype_number, id_list, token_array
from .chat import render_chat


class EngineState:
    """The state after a prompt and its text: what the model remembers of them. Made by `submit(keep_state=True)`."""

    def __init__(self, engine: Engine, handle: int) -> None:
        self._engine, self._handle = engine, handle
        engine._states[handle] = self

    def _call(self, function: Any, *arguments: Any) -> None:
        if self._handle == 0:
            raise ValueError("the state was dropped")
        self._engine._call(function, self._handle, *arguments)

    def __len__(self) -> int:
        """The number of its tokens."""
        tokens = c_int64()
        self._call(lib.carry_engine_state_length, byref(tokens))
        return tokens.value

    def fork(self) -> EngineState:
        """A copy that goes on by itself. Keys and values are shared until one of both changes them."""
        made = c_uint64()
        self._call(lib.carry_engine_state_fork, byref(made))
        return EngineState(self._engine, made.value)

    def roll_back(self, tokens: int) -> None:
        """Forget the last tokens, 16 at most, exactly."""
        self._call(lib.carry_engine_state_roll_back, tokens)

    def save(self, path: str | os.PathLike[str]) -> None:
        """To a file, for `Engine.load_state` with the same model."""
        self._call(lib.carry_engine_state_save, os.fsencode(path))

    def to_host(self) -> None:
        """Move it to host memory, where it takes no memory of the device. The next use moves it back."""
        self._call(lib.carry_engine_state_to_host)

    def move(self, engine: Engine) -> EngineState:
        """Move it to another engine of the same model and type, on any device. This one is dropped."""
        made = c_uint64()
        with engine._lock:
            self._call(lib.carry_engine_state_move, engine._opened(), byref(made))
        self._engine._states.pop(self._handle, None)
        self._handle = 0
        return EngineState(engine, made.value)

    def drop(self) -> None:
        """Give its memory back."""
        handle, self._handle = self._handle, 0
        if handle != 0 and self._engine._handle is not None:
            self._engine._states.pop(handle, None)
            self._engine._call(lib.carry_engine_state_drop, handle)


class Request:
    """A prompt that was submitted, and its text as far as it has come."""

    def __init__(self, engine: Engine, number: int, is_text: bool) -> None:
        self._engine, self._is_text = engine, is_text
        self.number = number
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.text = ""
        self.reason: str | None = None  # "length", "end", "stop", "context", "cancelled" or "failed"
        self.message = ""
        self.prompt_tokens = self.cached_tokens = 0
        self.drafted_tokens = self.accepted_tokens = 0
        self.first_s = self.seconds = 0.0
        self.state: EngineState | None = None

    def cancel(self) -> None:
        """End it at the next step."""
        self._engine._cancel(self.number)

    def result(self) -> Any:
        """Run the engine until this request has ended: its text, or its tokens if the prompt was tokens."""
        while self.reason is None:
            self._engine.step()
        if self.reason == "failed":
            raise RuntimeError(self.message)
        return self.text if self._is_text else self.tokens

    def __iter__(self) -> Iterator[Any]:
        """Pieces of the text, or tokens, as they come."""
        shown = 0
        while True:
            whole: Any = self.text if self._is_text else self.tokens
            if len(whole) > shown:
                yield whole[shown:] if self._is_text else whole[shown]
                shown = len(whole) if self._is_text else shown + 1
            elif self.reason is None:
                self._engine.step()
            elif self.reason == "failed":
                raise RuntimeError(self.message)
            else:
                return

    def _take(self, event: EngineEvent) -> None:
        self.text += string_at(event.text, event.text_bytes).decode("utf-8", "replace") if event.text_bytes else ""
        if event.token >= 0:
            self.tokens.append(event.token)
            self.logprobs.append(event.logprob)
            return
        self.reason, self.message = REASONS[event.reason], (event.message or b"").decode("utf-8", "replace")
        self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
        self.first_s, self.seconds = event.first_s, event.seconds
        self.drafted_tokens, self.accepted_tokens = event.drafted_tokens, event.accepted_tokens
        self.state = EngineState(self._engine, event.state) if event.state != 0 else None


def _close(lock: threading.RLock, handle: int) -> None:
    with lock:
        lib.carry_engine_close(handle)


class Engine:
    """A model that serves many requests at once. Any thread may call it; one at a time drives it."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        dtype: str = "f32",
        device: str | int = "cpu",
        sequences: int = 0,
        context: int = 0,
        step_tokens: int = 0,
        queue: int = 0,
        memory: int = 0,
        cache: bool = True,
        cache_device: int = 0,
        cache_host: int = 0,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_dir_bytes: int = 0,
        same_bits: bool = False,
        draft: str | None = None,
        draft_tokens: int = 0,
        kv_type: str | None = None,
        state_type: str | None = None,
    ) -> None:
        """Open a model's folder as `libcarry.load` does. 0 means the default of include/carry/engine.h.

        Args:
            sequences: texts at once.
            context: tokens of a prompt and its text, at most.
            memory: bytes of all states; taken here, and no more later.
            cache: keep states of prompts, so that later ones with the same beginning need not read it again.
            cache_host, cache_dir: bytes of host memory and a folder for states that leave the device.
            same_bits: the same results whatever runs beside a request.
            draft: "ngram": guess next tokens from the text itself and verify them together; the same text, sooner.
                "mtp": guess with the checkpoint's multi-token heads.
            draft_tokens: guesses of a text in a step.
            kv_type: type in which keys and values are stored: "f32", "bf16", "f16" or "fp8" (that of dtype).
            state_type: type in which states of recurrent layers are stored: "f32" or "bf16" ("f32").
        """
        self._context = _context.Context(_context._threads)
        self._lock = threading.RLock()
        self._is_stepping = False
        self.folder = os.fspath(folder)
        self._requests: dict[int, Request] = {}
        self._states: weakref.WeakValueDictionary[int, EngineState] = weakref.WeakValueDictionary()
        options = EngineOptions(
            device=device_number(device),
            dtype=dtype_number(dtype),
            sequences=sequences,
            context=context,
            step_tokens=step_tokens,
            queue=queue,
            memory=memory,
            no_cache=not cache,
            cache_device=cache_device,
            cache_host=cache_host,
            cache_dir=None if cache_dir is None else os.fsencode(cache_dir),
            cache_dir_bytes=cache_dir_bytes,
            same_bits=same_bits,
            draft=None if draft is None else draft.encode(),
            draft_tokens=draft_tokens,
            kv_type=None if kv_type is None else kv_type.encode(),
            state_type=None if state_type is None else state_type.encode(),
        )
        made = c_void_p()
        handle = self._context.handle
        self._context.check(lib.carry_engine_open(handle, byref(made), os.fsencode(folder), byref(options)))
        self._handle: int | None = made.value
        self._finalizer = weakref.finalize(self, _close, self._lock, self._handle)
        self._finalizer.atexit = False
        self.context_tokens = int(lib.carry_engine_context(made))
        self.vocabulary = int(lib.carry_engine_vocabulary(made))

    def _opened(self) -> int:
        if self._handle is None:
            raise ValueError("the engine was closed")
        return self._handle

    def _call(self, function: Any, *arguments: Any) -> None:
        with self._lock:
            self._context.check(function(self._opened(), *arguments))

    def _cancel(self, number: int) -> None:
        with self._lock:
            lib.carry_engine_cancel(self._opened(), number)

    def _check_idle(self, name: str) -> None:
        """Refuse a call from a callback of this engine: its lock is held by this thread."""
        if self._is_stepping:
            raise RuntimeError(f"Engine.{name} was called by a callback of a step of the same engine: call it afterwards")

    def close(self) -> None:
        """End all requests and free the model. Not inside a callback of a step."""
        with self._lock:
            self._check_idle("close")
            self._handle = None
            self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def submit(
        self,
        prompt: Any,
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 0.95,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 1,
        eos_token_id: int | Iterable[int] | None = None,
        stop: str | Iterable[str] = (),
        state: EngineState | None = None,
        keep_state: bool = False,
        cache: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        regex: str | None = None,
        json_schema: Any = None,
        is_rendered: bool = False,
        same_prompt: Request | None = None,
    ) -> Request:
        """Queue a prompt: text (the folder's tokenizer is built in), or token numbers.

        Args:
            temperature: 0 takes the likeliest token.
            eos_token_id: the token or tokens that end the text. None: those of the model. (): none.
            stop: texts that end it; they are not part of it.
            state: goes on from it; it remains as it is.
            keep_state: the request has a `state` when it has ended, also with max_new_tokens=0.
            frequency_penalty, presence_penalty: subtracted from the logit of a token for each time it is in the text,
                and once.
            logit_bias: numbers that are added to the logits of tokens.
            regex: a regular expression that the whole text matches, as far as it goes.
            json_schema: a JSON schema that the text matches, as text or as the object it stands for.
            is_rendered: the prompt is a rendered chat, before which the tokenizer puts no tokens.
            same_prompt: a request with the same prompt that was submitted before: both read it once.
        """
        biases = {} if logit_bias is None else logit_bias
        schema = json_schema if json_schema is None or isinstance(json_schema, str) else json.dumps(json_schema)
        stops = [stop] if isinstance(stop, str) else list(stop)
        request = EngineRequest(
            tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition=repetition_penalty,
            seed=seed,
            stops=(c_char_p * len(stops))(*(text.encode() for text in stops)),
            stop_count=len(stops),
            state=0 if state is None else state._handle,
            keep_state=keep_state,
            no_cache=not cache,
            is_rendered=is_rendered,
            frequency=frequency_penalty,
            presence=presence_penalty,
            bias_ids=(c_int64 * len(biases))(*biases.keys()),
            biases=(c_float * len(biases))(*biases.values()),
            bias_count=len(biases),
            regex=None if regex is None else regex.encode(),
            json_schema=None if schema is None else schema.encode(),
            same_prompt=0 if same_prompt is None else same_prompt.number,
        )
        if isinstance(prompt, str):
            request.text = encoded = prompt.encode()
            request.text_bytes = len(encoded)
        else:
            row = token_array(prompt, "prompt", 1)
            request.ids, request.id_count = (c_int64 * row.size)(*row.tolist()), row.size
        if eos_token_id is not None:
            ends = id_list(eos_token_id)
            request.ends, request.end_count = (c_int64 * len(ends))(*ends), len(ends)
            request.ignore_ends = len(ends) == 0
        number = c_uint64()
        with self._lock:
            handle = self._context.handle
            self._context.check(lib.carry_engine_submit(handle, self._opened(), byref(request), byref(number)))
            made = Request(self, number.value, isinstance(prompt, str))
            self._requests[number.value] = made
        return made

    def step(self) -> bool:
        """One step of all requests; False when there is nothing left to do."""
        is_busy, event = c_bool(), EngineEvent()
        with self._lock:
            self._check_idle("step")
            self._is_stepping = True
            try:
                self._context.check(lib.carry_engine_step(self._opened(), byref(is_busy)))
            finally:
                self._is_stepping = False
            while lib.carry_engine_next(self._opened(), byref(event)):
                request = self._requests[event.request]
                request._take(event)
                if request.reason is not None:
                    del self._requests[event.request]
        return is_busy.value

    def run(self) -> None:
        """Until no request is left."""
        while self.step():
            pass

    def generate(self, prompts: Any, max_new_tokens: int = 128, **options: Any) -> Any:
        """The text after a prompt, or those after a list of prompts, together; options as in `submit`."""
        with self._lock:
            self._check_idle("generate")
        if isinstance(prompts, (list, tuple)) and prompts and not isinstance(prompts[0], (int, np.integer)):
            requests = [self.submit(prompt, max_new_tokens, **options) for prompt in prompts]
            return [request.result() for request in requests]
        return self.submit(prompts, max_new_tokens, **options).result()

    def chat(
        self,
        messages: list[dict[str, Any]],
        max_new_tokens: int = 1024,
        *,
        variables: dict[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """The answer to a conversation, a list of {"role": ..., "content": ...}; messages that were read before come from
        the cache.

        Args:
            variables: of the chat template, such as tools and enable_thinking.
            options: as in `submit`, which also takes what `render_chat` makes, with is_rendered=True.
        """
        with self._lock:
            self._check_idle("chat")
        text = render_chat(self.folder, messages, **(variables or {}))
        return str(self.submit(text, max_new_tokens, is_rendered=True, **options).result())

    def load_state(self, path: str | os.PathLike[str]) -> EngineState:
        """A state that was saved with the same model."""
        made = c_uint64()
        with self._lock:
            self._call(lib.carry_engine_state_load, byref(made), os.fsencode(path))
        return EngineState(self, made.value)

    def statistics(self) -> dict[str, int]:
        """Requests, slots and pages, tokens read, saved and generated, cached states."""
        stats = EngineStats()
        with self._lock:
            lib.carry_engine_statistics(self._opened(), byref(stats))
        return {name: int(getattr(stats, name)) for name, _ in EngineStats._fields_ if name != "size"}


__all__ = ["Engine", "EngineState", "Request"]

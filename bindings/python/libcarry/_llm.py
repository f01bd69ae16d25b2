"""carry_llm of include/carry/model.h for model.py: declarations, ownership of handles, and Ctrl-C during a call."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from types import FrameType
from typing import Any

from ._context import Context
from ._library import lib
from ._structs import Sized

ON_TOKEN = CFUNCTYPE(c_bool, c_void_p, c_int64)
PROCEED = CFUNCTYPE(c_bool, c_void_p)


class Options(Sized):
    """carry_llm_options"""

    _fields_ = [("size", c_size_t), ("device", c_int), ("dtype", c_int), ("trains", c_bool)]


class Generation(Sized):
    """carry_llm_generation"""

    _fields_ = [
        ("size", c_size_t),
        ("tokens", c_int64),
        ("temperature", c_double),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("min_p", c_double),
        ("repetition", c_double),
        ("seed", c_uint64),
        ("ends", POINTER(c_int64)),
        ("end_count", c_int64),
        ("on_token", ON_TOKEN),
        ("proceed", PROCEED),
        ("user", c_void_p),
    ]


class Batch(Sized):
    """carry_llm_batch"""

    _fields_ = [
        ("size", c_size_t),
        ("batch", c_int64),
        ("tokens", c_int64),
        ("ids", c_void_p),
        ("labels", c_void_p),
        ("rate", c_double),
        ("b1", c_double),
        ("b2", c_double),
        ("eps", c_double),
        ("decay", c_double),
        ("clip", c_double),
    ]


_OUT = POINTER(c_void_p)

PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "carry_llm_open": (c_int, [c_void_p, _OUT, c_char_p, POINTER(Options)]),
    "carry_llm_close": (None, [c_void_p]),
    "carry_llm_folder": (c_char_p, [c_void_p]),
    "carry_llm_vocabulary": (c_int64, [c_void_p]),
    "carry_llm_parameters": (c_int64, [c_void_p]),
    "carry_llm_ends": (c_int64, [c_void_p, POINTER(c_int64), c_int64]),
    "carry_llm_save": (c_int, [c_void_p, c_char_p, c_int]),
    "carry_llm_logits": (c_int, [c_void_p, c_void_p, c_int64, c_void_p]),
    "carry_llm_state_new": (c_int, [c_void_p, _OUT]),
    "carry_llm_state_free": (None, [c_void_p]),
    "carry_llm_state_length": (c_int64, [c_void_p]),
    "carry_llm_state_clear": (c_int, [c_void_p]),
    "carry_llm_state_copy": (c_int, [c_void_p, c_void_p]),
    "carry_llm_state_save": (c_int, [c_void_p, c_char_p]),
    "carry_llm_state_load": (c_int, [c_void_p, c_char_p]),
    "carry_llm_read": (c_int, [c_void_p, c_void_p, c_int64, c_void_p]),
    "carry_llm_generate": (c_int, [c_void_p, c_void_p, c_int64, POINTER(Generation)]),
    "carry_llm_train_step": (c_int, [c_void_p, POINTER(Batch), POINTER(c_double)]),
}

for _name, (_result, _arguments) in PROTOTYPES.items():
    try:
        _function = getattr(lib, _name)
    except AttributeError:
        raise ImportError(f"the library has no function {_name}: it was built from other sources") from None
    _function.restype, _function.argtypes = _result, _arguments


class Owner:
    """The handles of a model and its states. They are freed once, states before the model, and never during a call.

    Finalizers hold an owner rather than a `Model`: the order in which the garbage collector finds models, states and
    contexts does not matter. A call holds `lock`, so calls of other threads wait; the thread of a callback does not.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.lock = threading.RLock()
        self.model: int | None = None
        self.states: set[int] = set()
        self.generating: list[int] = []  # states of calls of generate, one inside the other
        self._unused: list[int] = []  # states to free when no call is under way

    def call(self, function: Callable[..., int], *arguments: Any) -> None:
        """Call a function of the library and raise for a status that is not OK."""
        with self.lock:
            try:
                self.context.check(function(*arguments))
            finally:
                self.free_unused()

    def free_unused(self) -> None:
        """Free the states that finalizers left, unless a callback asks."""
        while self._unused and not self.generating:
            self._free(self._unused.pop())

    def _free(self, state: int) -> None:
        if state in self.states:
            self.states.discard(state)
            lib.carry_llm_state_free(state)

    def drop(self, state: int) -> None:
        """Free a state now, or after the call that is under way: a finalizer runs in any thread, at any time."""
        self._unused.append(state)
        if self.lock.acquire(blocking=False):
            try:
                self.free_unused()
            finally:
                self.lock.release()

    def close(self) -> None:
        """Free the states and the model; waits for calls of other threads."""
        with self.lock:
            if self.generating:
                raise RuntimeError("the model is in generate, which called on_token: close it after generate returns")
            for state in list(self.states):
                self._free(state)
            model, self.model = self.model, None
            if model is not None:
                lib.carry_llm_close(model)


class Interrupts:
    """Keeps Ctrl-C until a call of the library ends, as a `with` block around the call.

    Python runs signal handlers in the main thread, between the bytecodes of a callback. An exception raised there
    before the callback's own `try` would be printed and lost by ctypes. So the handler of this block calls the one that
    was installed before, and keeps its exception in `raised`. While `passes` is set, which the callback does inside its
    `try`, the first exception is raised in place.
    """

    def __init__(self) -> None:
        self.raised: BaseException | None = None
        self.passes = False
        self._before: Any = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.passes:
            self.passes = False
            self._before(number, frame)
            return
        try:
            self._before(number, frame)
        except BaseException as error:
            self.raised = self.raised or error

    def __enter__(self) -> Interrupts:
        before = signal.getsignal(signal.SIGINT)
        if callable(before) and threading.current_thread() is threading.main_thread():
            self._before = before
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._before)

    def guard(self, on_token: Callable[[int], Any] | None, token: int) -> bool:
        """Call on_token; False if it returned False or raised, or if Ctrl-C was pressed."""
        try:
            if on_token is not None and self.raised is None:
                self.passes = True
                proceeds = on_token(token) is not False
                self.passes = False
                return proceeds and self.raised is None
        except BaseException as error:
            self.passes = False
            self.raised = self.raised or error
        return self.raised is None

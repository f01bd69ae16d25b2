"""One carry_ctx per Python thread, with its plans and its workspace; another one, without worker threads, for GPUs.

A context is used by one thread at a time, so each thread makes its own when it first calls; it goes when the thread
ends. Plans are made once per problem. The workspace grows to what the largest call needed and is kept, so that calls
in a loop allocate nothing but their results; `release` gives it back.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from collections import OrderedDict
from typing import Any, Callable

import numpy as np

from . import _structs as s
from ._library import fail, lib

_log = logging.getLogger("libcarry")
_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}
_MAX_PLANS = 256
_MAX_PREPARED = 1024
_threads = 0  # 0: every core
_local = threading.local()
_all: weakref.WeakSet[Context] = weakref.WeakSet()


def _log_line(_user: int, level: int, line: bytes) -> None:
    _log.log(_LEVELS.get(level, logging.WARNING), "%s", line.decode(errors="replace"))


_log_sink = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(_log_line)


def _log_level() -> int:
    return max(level for level, python in _LEVELS.items() if level == -1 or _log.isEnabledFor(python))


def _wisdom() -> bytes | None:
    """The file in which the program `carry` keeps what it measured on this machine, or None."""
    path = ctypes.create_string_buffer(4096)
    found: bytes | None = lib.carry_wisdom_path(path, len(path))
    return found


class Plan:
    """A plan of the library, for as long as its context lives or until it is pushed out of the cache."""

    def __init__(self, handle: ctypes.c_void_p, free: Callable[[ctypes.c_void_p], None]) -> None:
        self.handle = handle
        self.free = free


def _free(handle: ctypes.c_void_p, plans: OrderedDict[Any, Plan]) -> None:
    for plan in plans.values():
        plan.free(plan.handle)
    lib.carry_ctx_free(handle)


class Context:
    """A carry_ctx, the plans made with it, and a workspace."""

    def __init__(self, threads: int, wisdom: bytes | None = None) -> None:
        self.asked_threads = threads
        self.devices: set[int] = set()  # GPUs that calls may use
        self.streams: dict[int, int] = {}  # the stream that the library uses on each device
        self.prepared: dict[Any, Any] = {}  # calls with plans of this context (_rule.Prepared)
        self.handle = ctypes.c_void_p()
        self.plans: OrderedDict[Any, Plan] = OrderedDict()
        self._workspace = np.empty(0, np.uint8)
        options = s.CtxOptions(threads=threads, wisdom=wisdom, log_level=_log_level())
        options.log = ctypes.cast(_log_sink, ctypes.c_void_p)
        status = lib.carry_ctx_new(ctypes.byref(self.handle), ctypes.byref(options))
        if status != 0 and not self.handle:
            fail(status, lib.carry_status_text(status).decode())
        self.finalizer = weakref.finalize(self, _free, self.handle, self.plans)
        self.finalizer.atexit = False  # a daemon thread may be inside a call then, and the process ends anyway
        _all.add(self)
        self.check(status)

    def check(self, status: int) -> None:
        """Raise for a status that is not OK, with the context's sentence."""
        if status != 0:
            fail(status, lib.carry_ctx_error(self.handle).decode(errors="replace"))

    def scan_plan(self, problem: s.ScanProblem, options: s.ScanOptions) -> Plan:
        """A plan for the scan, from the cache or new."""
        key = ("scan", bytes(problem), options.effort, options.algorithm, options.chunk)
        return self._plan(key, lib.carry_scan_plan_free, lib.carry_scan_plan_new, problem, ctypes.byref(options))

    def delta_plan(self, problem: s.DeltaProblem, method: bytes | None) -> Plan:
        """A plan for the gated delta rule, from the cache or new."""
        key = ("delta", bytes(problem), method)
        options = s.DeltaOptions(algorithm=method)
        return self._plan(key, lib.carry_delta_plan_free, lib.carry_delta_plan_new, problem, ctypes.byref(options))

    def _plan(self, key: Any, free: Any, new: Any, problem: ctypes.Structure, options: Any) -> Plan:
        found = self.plans.get(key)
        if found is not None:
            self.plans.move_to_end(key)
            return found
        handle = ctypes.c_void_p()
        self.check(new(self.handle, ctypes.byref(handle), ctypes.byref(problem), options))
        self.plans[key] = plan = Plan(handle, free)
        if len(self.plans) > _MAX_PLANS:
            self.prepared.clear()  # one of them may use the plan
            _, oldest = self.plans.popitem(last=False)
            oldest.free(oldest.handle)
        return plan

    def prepare(self, key: Any, call: Any) -> None:
        """Remember a call until its plan goes."""
        if len(self.prepared) >= _MAX_PREPARED:
            self.prepared.clear()
        self.prepared[key] = call

    def workspace(self, size: int) -> int:
        """The address of at least size bytes, valid until the next call."""
        if self._workspace.size < size:
            self._workspace = np.empty(0, np.uint8)  # give the old one back before asking for the new one
            self._workspace = np.empty(size, np.uint8)
        return int(self._workspace.__array_interface__["data"][0])


def current(device: int = 0) -> Context:
    """This thread's context for the CPU, or for GPUs."""
    if device != 0:
        return _current_for_gpus(device)
    context: Context | None = getattr(_local, "context", None)
    if context is None or context.asked_threads != _threads:
        _release("context")
        context = _local.context = Context(_threads, _wisdom())
    return context


def _current_for_gpus(device: int) -> Context:
    context: Context | None = getattr(_local, "gpus", None)
    if context is None:
        context = _local.gpus = Context(1)
    if device not in context.devices:
        found = ctypes.c_int()  # the library says why a device cannot be used
        context.check(lib.carry_device_named(context.handle, ctypes.byref(found), b"cuda:%d" % (device - 1)))
        context.devices.add(device)
    return context


def _release(name: str) -> None:
    context: Context | None = getattr(_local, name, None)
    if context is not None:
        setattr(_local, name, None)
        context.finalizer()


def release() -> None:
    """Free this thread's plans, workspace and worker threads; the next call makes new ones."""
    _release("context")
    _release("gpus")


def set_threads(threads: int) -> None:
    """Use this many threads in every call from now on; 0 is every core that the process may run on."""
    global _threads
    if not isinstance(threads, int) or not 0 <= threads <= 1024:
        raise ValueError(f"set_threads got {threads!r}: give 1 to 1024, or 0 for every core")
    _threads = threads


def get_threads() -> int:
    """How many threads a call from this thread uses."""
    return int(lib.carry_ctx_threads(current().handle))


def _forget_after_fork() -> None:
    """A child does not have its parent's worker threads: freeing a context would wait for them for ever."""
    global _local
    for context in list(_all):
        context.finalizer.detach()
        _all.discard(context)
    _local = threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)

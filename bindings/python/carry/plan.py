"""What would run and why, and what there is: `carry plan` and `carry list` from Python."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterator
from ctypes import byref
from typing import NamedTuple

from . import _structs as s
from ._context import current
from ._library import lib

_TYPES = {"f32": s.F32, "bf16": s.BF16, "f16": s.F16}


class Entry(NamedTuple):
    """One line of a list."""

    name: str
    about: str


def _table(name: Callable[[int], bytes | None], about: Callable[[int], bytes]) -> Iterator[tuple[int, str, str]]:
    index = 0
    while (found := name(index)) is not None:
        yield index, found.decode(), about(index).decode()
        index += 1


def _scans() -> Iterator[Entry]:
    return (Entry(name, about) for _, name, about in _table(lib.carry_scan_name, lib.carry_scan_about))


def _deltas() -> Iterator[Entry]:
    return (Entry(name, about) for _, name, about in _table(lib.carry_delta_name, lib.carry_delta_about))


def _kernels() -> Iterator[Entry]:
    used = lib.carry_ctx_kernels(current().handle).decode()
    for index, name, about in _table(lib.carry_kernels_name, lib.carry_kernels_about):
        usable = "" if lib.carry_kernels_usable(index) else " (not on this processor)"
        yield Entry(name, about + (" (used)" if name == used else usable))


def _devices() -> Iterator[Entry]:
    context = current()
    for index in range(lib.carry_device_count()):
        device = s.DeviceProperties()
        context.check(lib.carry_device_describe(context.handle, index, byref(device)))
        yield Entry(
            device.backend.decode(),
            f"{device.name.decode()}: {device.units} units, {device.memory / 2**30:.1f} GiB, {device.kernels.decode()}",
        )


def _rates() -> Iterator[Entry]:
    context = current()
    context.check(lib.carry_rates(context.handle, False))
    index = 0
    while (line := lib.carry_rate_line(context.handle, index)) is not None:
        name, _, about = line.decode().partition(" ")
        yield Entry(name, about.strip())
        index += 1


_LISTS: dict[str, Callable[[], Iterator[Entry]]] = {
    "scans": _scans,
    "deltas": _deltas,
    "kernels": _kernels,
    "devices": _devices,
    "rates": _rates,
}


def list(what: str) -> builtins.list[Entry]:
    """What there is: "scans", "deltas", "kernels", "devices" or "rates", as (name, about) pairs."""
    if what not in _LISTS:
        raise ValueError(f"there is no list of {what!r}: give {', '.join(_LISTS)}")
    return [*_LISTS[what]()]


class _Problem:
    """family[:word]...[:letters number]...[:key=value]..., as the program `carry` reads it.

    A family asks for the words, sizes and settings it knows; `finish` refuses what nobody asked for.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.family, *items = text.split(":")
        self.items: dict[str, int | str] = {}
        for item in items:
            match = re.fullmatch(r"([a-z]+)([0-9]+)|([a-z_-][a-z0-9_-]*)=([\w./-]+)|([a-z][a-z0-9_-]*)", item)
            if match is None:
                raise ValueError(f"{item!r} in {text!r} is neither a word, nor letters and a number, nor key=value")
            letters, digits, key, value, word = match.groups()
            if item in _TYPES:
                letters, word = None, item
            name = letters or key or word
            if name in self.items:
                raise ValueError(f"{text!r} gives {name!r} twice")
            self.items[name] = int(digits) if letters else value or ""

    def word(self, name: str) -> bool:
        return self.items.get(name) == "" and self.items.pop(name) == ""

    def size(self, letters: str, otherwise: int) -> int:
        return int(self.items.pop(letters)) if isinstance(self.items.get(letters), int) else otherwise

    def setting(self, key: str) -> bytes | None:
        value = self.items.get(key)
        return str(self.items.pop(key)).encode() if isinstance(value, str) and value else None

    def dtype(self) -> int:
        return next((number for name, number in _TYPES.items() if self.word(name)), s.F32)

    def ignore(self, *names: str) -> None:
        """Words that change what is measured and not what is planned; and the CPU, which is the only device."""
        for name in names:
            self.word(name)
        if self.items.get("device") == "cpu":
            del self.items["device"]

    def finish(self, takes: str) -> None:
        for name, value in self.items.items():
            shown = f"{name}{value}" if isinstance(value, int) else f"{name}={value}" if value else name
            raise ValueError(f"{self.family} does not know {shown!r} (in {self.text!r}): it takes {takes}")


def _plan_scan(problem: _Problem, measure: bool) -> str:
    diagonal, dense = problem.word("diagonal"), problem.word("dense")
    if diagonal == dense:
        raise ValueError(f"{problem.text!r} must say diagonal or dense, and not both")
    chunk = problem.setting("chunk")
    if chunk is not None and not chunk.isdigit():
        raise ValueError(f"chunk={chunk.decode()} in {problem.text!r} is not a number of steps")
    options = s.ScanPlanOptions(
        effort=s.PLAN_MEASURE if measure else s.PLAN_ESTIMATE,
        algorithm=problem.setting("algo"),
        chunk=int(chunk or 0),
    )
    asked = s.ScanProblem(
        kind=s.DENSE if dense else s.DIAGONAL,
        batch=problem.size("b", 1),
        steps=problem.size("t", 1024),
        n=problem.size("n", 16),
        width=problem.size("w", 1),
        dtype=problem.dtype(),
        f32_result=problem.setting("out") == b"f32",
        reversed=problem.word("reversed"),
        backward=problem.word("backward"),
    )
    problem.ignore("initial", "deep")
    problem.finish(
        "diagonal or dense, f32, bf16 or f16, b, t, n, w, reversed, backward, initial, deep, out=f32, algo=NAME, "
        "chunk=STEPS, device=cpu"
    )
    plan = current().scan_plan(asked, options)
    return str(lib.carry_scan_plan_about(plan.handle).decode())


def _plan_delta(problem: _Problem, measure: bool) -> str:
    heads = problem.size("h", 4)
    if problem.items.get("nogate") == "" and problem.items.get("keygate") == "":
        raise ValueError(f"{problem.text!r} asks for two things that exclude each other")
    asked = s.DeltaProblem(
        batch=problem.size("b", 1),
        tokens=problem.size("t", 1 if problem.word("step") else 1024),
        heads=heads,
        value_heads=problem.size("hv", heads),
        key=problem.size("k", 128),
        value=problem.size("v", 128),
        dtype=problem.dtype(),
        gate=s.NO_GATE if problem.word("nogate") else s.KEY_GATE if problem.word("keygate") else s.HEAD_GATE,
        l2norm=True,
    )
    method = problem.setting("algo")
    problem.ignore("initial", "backward")
    problem.finish(
        "f32, bf16 or f16, b, t, h, hv, k, v, nogate, keygate, initial, backward, step, algo=NAME, device=cpu"
    )
    plan = current().delta_plan(asked, method)
    return str(lib.carry_delta_plan_about(plan.handle).decode())


_FAMILIES: dict[str, Callable[[_Problem, bool], str]] = {"scan": _plan_scan, "delta": _plan_delta}


def plan(*problems: str, measure: bool = False) -> str:
    """What the library would run for each problem, and why: one line each.

    Args:
        problems: as the program takes them, for example "scan:dense:f32:t1024:n32" or "delta:bf16:t4096:h16:k128".
        measure: time every scan algorithm that applies instead of asking the cost model.
    """
    if not problems:
        raise ValueError('plan needs a problem, for example "scan:diagonal:b64:t4096:n16:w64"')
    lines = []
    for text in problems:
        problem = _Problem(text)
        if problem.family not in _FAMILIES:
            raise ValueError(f"{problem.family!r} in {text!r} is no family: give {' or '.join(_FAMILIES)}")
        lines.append(f"{text}  {_FAMILIES[problem.family](problem, measure)}")
    return "\n".join(lines)

"""What would run and why, and what there is: `carry plan` and `carry list` from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import byref, create_string_buffer
from functools import partial
from typing import NamedTuple

from . import _structs as s
from ._context import current
from ._library import lib

_LINE = 1024  # bytes of a plan's line


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
    entries = _table(partial(lib.carry_scan_name, 0), partial(lib.carry_scan_about, 0))
    return (Entry(name, about) for _, name, about in entries)


def _deltas() -> Iterator[Entry]:
    entries = _table(partial(lib.carry_delta_name, 0), partial(lib.carry_delta_about, 0))
    return (Entry(name, about) for _, name, about in entries)


def _kernels() -> Iterator[Entry]:
    used = lib.carry_ctx_kernels(current().handle).decode()
    for index, name, about in _table(lib.carry_kernels_name, lib.carry_kernels_about):
        usable = "" if lib.carry_kernels_usable(index) else " (not on this processor)"
        yield Entry(name, about + (" (used)" if name == used else usable))


def _devices() -> Iterator[Entry]:
    context = current()
    for index in range(lib.carry_device_count()):
        device = s.DeviceProperties()
        context.check(lib.carry_device_properties_of(context.handle, byref(device), index))
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


def _problems() -> Iterator[Entry]:
    for index, name, about in _table(lib.carry_problem_family_name, lib.carry_problem_family_about):
        yield Entry(name, f"{about}; takes {lib.carry_problem_family_takes(index).decode()}")


_LISTS: dict[str, Callable[[], Iterator[Entry]]] = {
    "scans": _scans,
    "deltas": _deltas,
    "kernels": _kernels,
    "devices": _devices,
    "problems": _problems,
    "rates": _rates,
}


def available(what: str) -> list[Entry]:
    """What there is: "scans", "deltas", "kernels", "devices", "problems" or "rates", as (name, about) pairs."""
    if what not in _LISTS:
        raise ValueError(f"there is no list of {what!r}: give {', '.join(_LISTS)}")
    return [*_LISTS[what]()]


def plan(*problems: str, measure: bool = False) -> str:
    """What the library would run for each problem, and why: one line each.

    Args:
        problems: as the program takes them, for example "scan:dense:f32:t1024:n32" or "delta:bf16:t4096:h16:k128".
        measure: time every scan algorithm that applies instead of asking the cost model.
    """
    if not problems:
        raise ValueError('plan needs a problem, for example "scan:diagonal:b64:t4096:n16:w64"')
    context = current()
    line = create_string_buffer(_LINE)
    lines = []
    for text in problems:
        context.check(lib.carry_problem_plan_about(context.handle, line, _LINE, text.encode(), measure))
        lines.append(f"{text}  {line.value.decode(errors='replace')}")
    return "\n".join(lines)

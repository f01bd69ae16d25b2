"""flash-linear-attention's layers on Carry's kernels: patch_fla puts Carry's functions in the place of its own."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, TracebackType
from typing import Any

from . import delta

# name: the module of flash-linear-attention that exports it, and its other names there
_FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "chunk_gated_delta_rule": ("fla.ops.gated_delta_rule", ("chunk_gdn",)),
    "fused_recurrent_gated_delta_rule": ("fla.ops.gated_delta_rule", ("fused_recurrent_gdn",)),
    "chunk_delta_rule": ("fla.ops.delta_rule", ()),
    "fused_recurrent_delta_rule": ("fla.ops.delta_rule", ()),
    "chunk_kda": ("fla.ops.kda", ()),
    "fused_recurrent_kda": ("fla.ops.kda", ()),
}


class Patch:
    """What patch_fla changed; `undo`, or leaving a `with` block, puts it back."""

    def __init__(self) -> None:
        self.changed: list[tuple[ModuleType, str, Any, Any]] = []  # where, under which name, the old and the new value

    def _replace(self, old: Any, new: Any) -> None:
        """In every module that has it: `from fla.ops... import chunk_...` leaves a name in each."""
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] == "libcarry":
                continue
            for name, value in list(vars(module).items()):
                if value is old:
                    setattr(module, name, new)
                    self.changed.append((module, name, old, new))

    def undo(self) -> None:
        """Put flash-linear-attention's functions back, also in those of its modules that were loaded meanwhile."""
        theirs = {id(new): old for _, _, old, new in self.changed}
        for module, name, old, new in reversed(self.changed):
            if vars(module).get(name) is new:
                setattr(module, name, old)
        for module in list(sys.modules.values()) if theirs else []:
            if isinstance(module, ModuleType) and module.__name__.partition(".")[0] == "fla":
                for name, value in list(vars(module).items()):
                    if id(value) in theirs:
                        setattr(module, name, theirs[id(value)])
        self.changed.clear()

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def patch_fla(*names: str) -> Patch:
    """Make flash-linear-attention's layers and models, loaded already or later, call Carry.

    Every module that has imported one of the functions gets Carry's. Objects that keep a function of their own, as
    layers of transformers do from when they are built, are not changed: call this first. What Carry does not take
    raises; nothing falls back to another implementation.

    Args:
        names: which functions, for example "chunk_gated_delta_rule"; all that flash-linear-attention has when absent.

    Returns:
        A `Patch`: call its `undo`, or use it in a `with` statement.

    Raises:
        ImportError: flash-linear-attention cannot be imported, or has no function of a name that was given.
        ValueError: Carry has no such function.
    """
    unknown = [name for name in names if name not in _FUNCTIONS]
    if unknown:
        raise ValueError(f"patch_fla has no {unknown[0]!r}: give {', '.join(_FUNCTIONS)}, or none for all")
    try:
        importlib.import_module("fla.ops")
    except ImportError as error:
        raise ImportError(
            f"patch_fla needs flash-linear-attention (pip install flash-linear-attention): {error}"
        ) from error
    patch = Patch()
    for name in names or _FUNCTIONS:
        folder, others = _FUNCTIONS[name]
        found = _find(folder, (name, *others))
        if not found and names:
            patch.undo()
            raise ImportError(f"this flash-linear-attention has no {folder}.{name}")
        for function in found:
            patch._replace(function, getattr(delta, name))
    return patch


def _find(folder: str, names: tuple[str, ...]) -> list[Any]:
    """The functions of those names that are not Carry's already, each once."""
    try:
        module = importlib.import_module(folder)
    except ImportError:
        return []
    found: list[Any] = []
    for name in names:
        function = getattr(module, name, None)
        if function is not None and not any(function is other for other in found):
            found.append(function)
    return [function for function in found if getattr(function, "__module__", None) != delta.__name__]

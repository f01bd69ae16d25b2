"""flash-linear-attention's layers on Carry's kernels: patch_fla puts Carry's functions in the place of its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import CellType, FunctionType, ModuleType, TracebackType
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


def _modules() -> list[ModuleType]:
    """Every loaded module except this package's."""
    found = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    return [module for module in found if module.__name__.partition(".")[0] != "libcarry"]


def _cells(module: ModuleType) -> Iterator[CellType]:
    """The variables that a module's functions enclose: transformers' wrappers keep the function they call there."""
    for value in list(vars(module).values()):
        if type(value) is FunctionType:  # asking other objects for their class makes some of them warn
            yield from value.__closure__ or ()


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


class Patch:
    """The changes made by patch_fla; `undo`, or leaving a `with` block, reverts them."""

    def __init__(self) -> None:
        self.changed: list[tuple[ModuleType, str, Any, Any]] = []  # where, under which name, the old and the new value
        self._theirs: list[tuple[Any, Any]] = []  # old and new

    def _replace(self, old: Any, new: Any) -> None:
        """In every module that has it: `from fla.ops... import chunk_...` leaves a name in each."""
        self._theirs.append((old, new))
        for module in _modules():
            for name, value in list(vars(module).items()):
                if value is old:
                    setattr(module, name, new)
                    self.changed.append((module, name, old, new))
            for cell in _cells(module):
                if _content(cell) is old:
                    cell.cell_contents = new

    def undo(self) -> None:
        """Put flash-linear-attention's functions back, also in modules that were loaded meanwhile."""
        for module, name, old, new in reversed(self.changed):
            if vars(module).get(name) is new:
                setattr(module, name, old)
        theirs = {id(new): old for old, new in reversed(self._theirs)}
        for module in _modules() if theirs else []:
            if module.__name__.partition(".")[0] == "fla":
                for name, value in list(vars(module).items()):
                    if id(value) in theirs:
                        setattr(module, name, theirs[id(value)])
            for cell in _cells(module):
                if id(_content(cell)) in theirs:
                    cell.cell_contents = theirs[id(_content(cell))]
        self.changed.clear()
        self._theirs.clear()

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def patch_fla(*names: str) -> Patch:
    """Make flash-linear-attention's layers and models, loaded already or later, call Carry.

    Every module that has imported one of the functions gets Carry's, and so does every function of a module that
    encloses one, as those of transformers do. Objects that keep a function in an attribute, as layers of some versions
    of transformers do, are not changed: call this before building models. Arguments that Carry does not support raise
    an error; nothing falls back to another implementation.

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

"""Finding libcarry, declaring its functions, and turning its statuses into exceptions.

The library is looked for in this order: the file that CARRY_LIBRARY names, the one inside the package (a wheel carries
it), the system's loader. One of another version is refused: its structures may differ from those in _structs.py.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, NoReturn

from . import _structs as s
from ._version import __version__

_SOVERSION = ".".join(__version__.split(".")[:2])
FILE_NAME = "libcarry.dylib" if sys.platform == "darwin" else "libcarry.so"
_SYSTEM_NAME = f"libcarry.{_SOVERSION}.dylib" if sys.platform == "darwin" else f"libcarry.so.{_SOVERSION}"

# name: (result, arguments). A context or a plan is an opaque pointer.
_CTX, _PLAN, _STATUS = c_void_p, c_void_p, c_int
_OUT = POINTER(c_void_p)

_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    # status.h, context.h
    "carry_version": (c_char_p, []),
    "carry_status_text": (c_char_p, [_STATUS]),
    "carry_ctx_new": (_STATUS, [_OUT, POINTER(s.CtxOptions)]),
    "carry_ctx_free": (None, [_CTX]),
    "carry_ctx_error": (c_char_p, [_CTX]),
    "carry_ctx_threads": (c_int, [_CTX]),
    "carry_wisdom_path": (c_char_p, [c_char_p, c_size_t]),
    # problem.h
    "carry_problem_plan_about": (_STATUS, [_CTX, c_char_p, c_size_t, c_char_p, c_bool]),
    "carry_problem_family_name": (c_char_p, [c_int]),
    "carry_problem_family_about": (c_char_p, [c_int]),
    "carry_problem_family_takes": (c_char_p, [c_int]),
    # device.h, ops.h
    "carry_device_count": (c_int, []),
    "carry_device_properties_of": (_STATUS, [_CTX, POINTER(s.DeviceProperties), c_int]),
    "carry_device_named": (_STATUS, [_CTX, POINTER(c_int), c_char_p]),
    "carry_ctx_set_stream": (_STATUS, [_CTX, c_int, c_void_p]),
    "carry_kernels_name": (c_char_p, [c_int]),
    "carry_kernels_about": (c_char_p, [c_int]),
    "carry_kernels_usable": (c_bool, [c_int]),
    "carry_ctx_kernels": (c_char_p, [_CTX]),
    # scan.h
    "carry_scan_name": (c_char_p, [c_int, c_int]),
    "carry_scan_about": (c_char_p, [c_int, c_int]),
    "carry_scan_plan_new": (_STATUS, [_CTX, _OUT, POINTER(s.ScanProblem), POINTER(s.ScanOptions)]),
    "carry_scan_plan_free": (None, [_PLAN]),
    "carry_scan_plan_about": (c_char_p, [_PLAN]),
    "carry_scan_run_workspace": (c_size_t, [_PLAN]),
    "carry_scan_backward_workspace": (c_size_t, [_PLAN]),
    "carry_scan_run": (_STATUS, [_PLAN, POINTER(s.ScanArgs), c_void_p, c_size_t]),
    "carry_scan_backward": (_STATUS, [_PLAN, POINTER(s.ScanBackwardArgs), c_void_p, c_size_t]),
    "carry_rates": (_STATUS, [_CTX, c_bool]),
    "carry_rate_line": (c_char_p, [_CTX, c_int]),
    # delta.h
    "carry_delta_name": (c_char_p, [c_int, c_int]),
    "carry_delta_about": (c_char_p, [c_int, c_int]),
    "carry_delta_plan_new": (_STATUS, [_CTX, _OUT, POINTER(s.DeltaProblem), POINTER(s.DeltaOptions)]),
    "carry_delta_plan_free": (None, [_PLAN]),
    "carry_delta_plan_about": (c_char_p, [_PLAN]),
    "carry_delta_plan_algorithm": (c_char_p, [_PLAN]),
    "carry_delta_forward_workspace": (c_size_t, [_PLAN]),
    "carry_delta_backward_workspace": (c_size_t, [_PLAN]),
    "carry_delta_kept_bytes": (c_size_t, [_PLAN]),
    "carry_delta_forward": (_STATUS, [_PLAN, POINTER(s.DeltaForwardArgs), c_void_p, c_size_t]),
    "carry_delta_backward": (_STATUS, [_PLAN, POINTER(s.DeltaBackwardArgs), c_void_p, c_size_t]),
    # nn.h
    "carry_conv": (_STATUS, [_CTX, POINTER(s.ConvArgs)]),
    "carry_conv_backward": (_STATUS, [_CTX, POINTER(s.ConvBackwardArgs), c_void_p, c_size_t]),
    "carry_conv_backward_workspace": (c_size_t, [c_int64] * 4),
    # chat.h
    "carry_render_chat": (_STATUS, [_CTX, c_char_p, c_char_p, _OUT]),
    "carry_render_template": (_STATUS, [_CTX, c_char_p, c_char_p, _OUT]),
    "carry_render_free": (None, [c_void_p]),
}

# Errors that the caller can correct with other arguments.
_VALUE_ERRORS = {"EARGUMENT", "ESHAPE", "EDTYPE", "ESTRIDE", "EALIGN", "ESIZE", "ENOTFOUND", "EFORMAT"}


def _open(path: str, where: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{where} could not be loaded: {error}") from error


def _find() -> tuple[ctypes.CDLL, str]:
    asked = os.environ.get("CARRY_LIBRARY")
    if asked:
        return _open(asked, f"CARRY_LIBRARY={asked}"), asked
    inside = Path(__file__).with_name(FILE_NAME)
    if inside.exists():
        return _open(str(inside), str(inside)), str(inside)
    try:
        return ctypes.CDLL(_SYSTEM_NAME), _SYSTEM_NAME
    except OSError as error:
        raise ImportError(
            f"no {FILE_NAME} in {inside.parent} and no {_SYSTEM_NAME} known to the system's loader ({error}): "
            "install the wheel, or set CARRY_LIBRARY to the file"
        ) from error


def _declare(library: ctypes.CDLL, path: str) -> None:
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{path} has no function {name}: it was built from other sources") from None
        function.restype = result
        function.argtypes = arguments


def load() -> ctypes.CDLL:
    """The library, checked and declared. ImportError says in one error message why it cannot be used."""
    library, path = _find()
    try:
        version = library.carry_version
    except AttributeError:
        raise ImportError(f"{path} is not Carry's library: it has no carry_version") from None
    version.restype, version.argtypes = c_char_p, []
    found = version().decode()
    if found != __version__:
        raise ImportError(
            f"{path} is Carry {found} and this package is {__version__}: install the two of one version, "
            "or set CARRY_LIBRARY to a library of this one"
        )
    _declare(library, path)
    return library


def fail(status: int, sentence: str) -> NoReturn:
    """Raise what a status means in Python, with the library's sentence."""
    name = s.STATUSES[status] if 0 <= status < len(s.STATUSES) else f"status {status}"
    text = sentence or name
    if name in _VALUE_ERRORS:
        raise ValueError(text)
    if name == "EMEMORY":
        raise MemoryError(text)
    if name == "EUNSUPPORTED":
        raise NotImplementedError(text)  # a RuntimeError
    raise RuntimeError(text)


lib = load()

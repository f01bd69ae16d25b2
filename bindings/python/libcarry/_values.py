"""Arguments of Model and Engine as the library takes them: types, devices and tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from . import _structs as s

_DTYPES = {"f32": s.F32, "float32": s.F32, "bf16": s.BF16, "bfloat16": s.BF16, "f16": s.F16, "float16": s.F16}


def dtype_number(name: str) -> int:
    found = _DTYPES.get(str(name).removeprefix("torch."))
    if found is None:
        raise ValueError(f"dtype {name!r}: give f32, bf16 or f16")
    return found


def device_number(device: str | int) -> int:
    if device in ("cpu", 0):
        return 0
    if device == "cuda":
        return 1
    if isinstance(device, str) and device.startswith("cuda:") and device[5:].isdigit():
        return 1 + int(device[5:])
    if isinstance(device, int) and device > 0:
        return device
    raise ValueError(f"device {device!r}: give cpu, cuda or cuda:N")


def token_array(ids: Any, what: str, rank: int) -> np.ndarray:
    """Token numbers as a packed int64 array: from a list, a numpy array or a PyTorch tensor."""
    array = np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids)
    if array.dtype.kind not in "iu" or array.ndim != rank or array.size == 0:
        raise ValueError(
            f"{what} must be {'a row' if rank == 1 else 'rows of equal length'} of one token or more, whole numbers; "
            f"got {array.dtype} of shape {array.shape}"
        )
    return np.ascontiguousarray(array, np.int64)


def id_list(given: int | Iterable[int]) -> list[int]:
    return [int(given)] if isinstance(given, (int, np.integer)) else [int(token) for token in given]

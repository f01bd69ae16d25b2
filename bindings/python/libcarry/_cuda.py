"""Calls on CUDA tensors: the caller's stream, a workspace from PyTorch's allocator, copies of what kernels cannot read.

A call puts its work into PyTorch's current stream and returns; nothing waits for the GPU. The one exception is a
cu_seqlens that is on the GPU: the library checks it on the CPU before anything runs, so it is copied once, and the copy
is kept for as long as the tensor lives unchanged.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Any

import numpy as np
import torch

from ._arrays import device_number, offsets
from ._context import Context
from ._library import lib

_ALIGNMENT = 16  # bytes: what the kernels' vector loads and Hopper's copy engine take
_WIDE = 128  # heads of more values must be next to each other (delta/cuda/chunk/chunk.h)
_MAX_FETCHED = 32
_fetched: OrderedDict[int, tuple[Any, int, np.ndarray[Any, Any]]] = OrderedDict()


def fetched(name: str, values: torch.Tensor) -> np.ndarray[Any, Any]:
    """cu_seqlens on a GPU, as int64 on the CPU: waits for the copy when the tensor is new or was changed."""
    version = -1 if values.is_inference() else values._version
    known = _fetched.get(id(values))
    if known is not None and known[0]() is values and known[1] == version >= 0:
        return known[2]
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{name} is on {values.device} while a CUDA graph is captured: give it on the CPU (cu_seqlens_cpu), "
            "or run the same call once before the capture"
        )
    copy = offsets(name, values.detach().cpu())
    _fetched[id(values)] = weakref.ref(values), version, copy
    while len(_fetched) > _MAX_FETCHED:
        _fetched.popitem(last=False)
    return copy


def _is_aligned(tensor: torch.Tensor) -> bool:
    size = tensor.element_size()
    if tensor.data_ptr() % _ALIGNMENT != 0:
        return False
    return all(stride != 0 and stride * size % _ALIGNMENT == 0 for stride in tensor.stride()[:-1])


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of rows as the kernels take it: itself, or a packed copy where its rows are not packed or aligned.

    Rows whose size is no multiple of 16 bytes go to kernels that load single elements: they need no alignment.
    """
    row = tensor.shape[-1]
    if row > 1 and tensor.stride(-1) != 1:
        return tensor.contiguous()
    if row > _WIDE and tensor.shape[-2] > 1 and tensor.stride(-2) != row:
        return tensor.contiguous()
    if row * tensor.element_size() % _ALIGNMENT == 0 and not _is_aligned(tensor):
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """A state or a parameter: itself, or a copy where it is not packed or aligned."""
    if tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def workspace(size: int, device: torch.device) -> torch.Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.cuda.OutOfMemoryError as error:
        raise torch.cuda.OutOfMemoryError(f"no room for a workspace of {size} bytes on {device}: {error}") from error


def _stream(index: int) -> int:
    """The handle of PyTorch's current stream of a device."""
    return int(torch._C._cuda_getCurrentRawStream(index))


def call(context: Context, function: Any, plan: Any, arguments: Any, size: int, like: torch.Tensor) -> None:
    """Put a call of the library into the current stream of like's device.

    The workspace goes back to PyTorch's allocator on return, which hands it on only to work later in the same stream.
    """
    memory = workspace(size, like.device) if size > 0 else None
    place = None if memory is None else memory.data_ptr()
    enqueue(context, function, like, plan.handle, arguments, place, size)


def enqueue(context: Context, function: Any, like: torch.Tensor, *arguments: Any) -> None:
    """Call a function of the library whose work goes into the current stream of like's device."""
    device = device_number(like)
    stream = _stream(device - 1)
    if context.streams.get(device) != stream:
        context.check(lib.carry_ctx_set_stream(context.handle, device, stream))
        context.streams[device] = stream
    here = torch.cuda.current_device()
    try:
        context.check(function(*arguments))
    finally:
        if here != device - 1:  # the library makes the device of the call the current one
            torch.cuda.set_device(here)

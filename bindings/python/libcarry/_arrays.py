"""numpy arrays and PyTorch tensors, on the CPU or a GPU, as carry_tensor, without copies.

PyTorch is never imported from here: a tensor can only arrive once its user has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from . import _structs as s

if TYPE_CHECKING:
    import torch

    # Arguments and results of the public functions: all of one kind. Inside, the kind is known at run time only: Any.
    Array = TypeVar("Array", np.ndarray[Any, Any], torch.Tensor)
else:
    Array = TypeVar("Array")

_NUMPY_TYPES = {np.dtype(np.float32): s.F32, np.dtype(np.float16): s.F16, np.dtype(np.int64): s.I64}
_TORCH_NAMES = {"float32": s.F32, "bfloat16": s.BF16, "float16": s.F16, "int64": s.I64}
_torch_types: dict[Any, int] = {}  # by torch.dtype; filled at the first tensor
_torch_float32: Any = object()
DEVICES = ("cpu", "cuda")


def is_torch(array: object) -> bool:
    """Is this a PyTorch tensor?"""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def same_kind(**arrays: object) -> bool:
    """True when all that are given are PyTorch tensors, False when all are numpy arrays; anything else is refused."""
    kinds: dict[bool, str] = {}
    for name, array in arrays.items():
        if array is None:
            continue
        if not is_torch(array) and not isinstance(array, np.ndarray):
            raise TypeError(f"{name} is a {type(array).__name__}: give a numpy array or a PyTorch tensor")
        kinds.setdefault(is_torch(array), name)
    if len(kinds) == 2:
        raise TypeError(f"{kinds[True]} is a PyTorch tensor and {kinds[False]} a numpy array: give one kind")
    return True in kinds


def same_kind_and_device(**arrays: Any) -> bool:
    """Both of same_kind and, for tensors, same_device."""
    torch = sys.modules.get("torch")
    if torch is None or not all(array is None or isinstance(array, torch.Tensor) for array in arrays.values()):
        return same_kind(**arrays)
    same_device(**arrays)
    return True


def same_device(**tensors: Any) -> None:
    """Refuse PyTorch tensors on different devices, naming two of them."""
    first: tuple[str, Any] | None = None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.device.type not in DEVICES:
            raise ValueError(f"{name} is on {tensor.device}: give a tensor on the CPU or on a CUDA device")
        if first is None:
            first = name, tensor.device
        elif tensor.device != first[1]:
            raise ValueError(
                f"{name} is on {tensor.device} and {first[0]} on {first[1]}: give tensors on one device "
                f"({name}.to({str(first[1])!r}) moves it)"
            )


def _from_numpy(name: str, array: np.ndarray[Any, Any], output: bool) -> s.Tensor:
    dtype = _NUMPY_TYPES.get(array.dtype)
    if dtype is None:
        if not array.dtype.isnative:
            raise ValueError(f"{name} is {array.dtype}, of the other byte order: convert it with astype('=f4') first")
        raise ValueError(f"{name} is {array.dtype}: give float32 or float16 (bfloat16 through PyTorch)")
    if output and not array.flags.writeable:
        raise ValueError(f"{name} is read-only: give an array that can be written")
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise ValueError(f"{name} has strides {array.strides} in bytes, not a multiple of its {size}-byte elements")
    strides = [stride // size for stride in array.strides]
    return _fill(name, array.__array_interface__["data"][0], dtype, array.shape, strides)


def _torch_type(name: str, tensor: torch.Tensor) -> int:
    if not _torch_types:
        global _torch_float32
        _torch_float32 = sys.modules["torch"].float32
        _torch_types.update({getattr(sys.modules["torch"], key): value for key, value in _TORCH_NAMES.items()})
    if tensor.device.type not in DEVICES:
        raise ValueError(f"{name} is on {tensor.device}: give a tensor on the CPU or on a CUDA device")
    if tensor.layout != sys.modules["torch"].strided:
        raise ValueError(f"{name} has layout {tensor.layout}: give a dense tensor (.to_dense())")
    dtype = _torch_types.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"{name} is {tensor.dtype}: give float32, bfloat16 or float16")
    return dtype


def _from_torch(name: str, tensor: torch.Tensor) -> s.Tensor:
    dtype = _torch_type(name, tensor)
    return _fill(name, tensor.data_ptr(), dtype, tensor.shape, tensor.stride(), device_number(tensor))


def device_number(array: Any) -> int:
    """The library's number of the device an array is on: 0 is the CPU, 1 is cuda:0."""
    if isinstance(array, np.ndarray) or not array.is_cuda:
        return 0
    index: int = array.get_device()
    return index + 1


def _fill(name: str, data: int, dtype: int, shape: Sequence[int], strides: Sequence[int], device: int = 0) -> s.Tensor:
    rank = len(shape)
    if rank > s.MAX_RANK:
        raise ValueError(f"{name} has {rank} dimensions and Carry takes at most {s.MAX_RANK}")
    view = s.Tensor(data=data, dtype=dtype, device=device, rank=rank)
    view.shape[:rank] = shape
    view.stride[:rank] = strides
    return view


def view(name: str, array: Any, *, output: bool = False) -> s.Tensor:
    """A borrowed view: the array must outlive every use of it. `name` is for the sentence of a refusal."""
    if is_torch(array):
        return _from_torch(name, array)
    return _from_numpy(name, array, output)


def dtype_of(name: str, array: Any) -> int:
    """The carry_dtype of an array; refused as in view. Its memory is not looked at: torch.func wraps tensors."""
    if is_torch(array):
        return _torch_type(name, array)
    return int(view(name, array).dtype)


def is_traced(tensors: Sequence[Any]) -> bool:
    """Does something follow the operators: torch.compile, torch.export, fake tensors, a dispatch mode, a subclass?"""
    torch = sys.modules["torch"]
    if not hasattr(torch.library, "custom_op"):  # before PyTorch 2.4
        return False
    if torch.compiler.is_compiling():
        return True
    if torch._C._len_torch_dispatch_stack() > 0:
        return True
    plain = (torch.Tensor, torch.nn.Parameter)
    return any(x is not None and type(x) not in plain for x in tensors)


def wants_autograd(*arrays: Any) -> bool:
    """Is one of these tensors to be differentiated, or a transform of torch.func at work?"""
    torch = sys.modules["torch"]
    is_transformed = getattr(torch._C, "_are_functorch_transforms_active", None)
    if is_transformed is not None and is_transformed():
        return True
    return bool(torch.is_grad_enabled()) and any(array is not None and array.requires_grad for array in arrays)


def zero(array: Any) -> Any:
    """All of it; returns it."""
    array[...] = 0
    return array


def empty(like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
    """A packed array of like's kind; dtype is "float32", "uint8" or None for like's own."""
    if is_torch(like):
        torch = sys.modules["torch"]
        kind = like.dtype if dtype is None else getattr(torch, dtype)
        return torch.empty(tuple(shape), dtype=kind, device=like.device)
    return np.empty(tuple(shape), dtype=like.dtype if dtype is None else dtype)


def packed_rows(array: Any) -> Any:
    """The array, or a packed copy if its last index is not contiguous, as in transformers' Qwen3.5."""
    if is_torch(array):
        return array if array.ndim == 0 or array.shape[-1] <= 1 or array.stride(-1) == 1 else array.contiguous()
    size = array.dtype.itemsize
    is_packed = array.ndim == 0 or array.shape[-1] <= 1 or array.strides[-1] == size
    return array if is_packed and not any(stride % size for stride in array.strides) else np.ascontiguousarray(array)


def packed(array: Any) -> Any:
    """The array, or a copy if it is not contiguous."""
    return array.contiguous() if is_torch(array) else np.ascontiguousarray(array)


def address(array: Any) -> int:
    """Where its first element is."""
    return int(array.data_ptr() if is_torch(array) else array.__array_interface__["data"][0])


def mark_written(array: Any) -> None:
    """Tell autograd that a tensor was written in place, so that it refuses gradients that need the old values."""
    if is_torch(array):
        sys.modules["torch"].autograd.graph.increment_version(array)


def widened(name: str, array: Any) -> Any:
    """The array in float32: itself, or a converted f16 or bf16 one. PyTorch differentiates the conversion."""
    if array is None or array.dtype is _torch_float32 or dtype_of(name, array) == s.F32:
        return array
    if dtype_of(name, array) == s.I64:
        raise ValueError(f"{name} is int64: give float32")
    return array.float() if is_torch(array) else array.astype(np.float32)


def same_type(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """q, k and v in one type: in their own if they agree, otherwise in float32, which holds the values of all three."""
    if q.dtype == k.dtype == v.dtype:
        return q, k, v
    return widened("q", q), widened("k", k), widened("v", v)


def like_q_or_wide(name: str, array: Any, q: Any) -> Any:
    """A gate or beta as the library takes it: in q's type or in float32."""
    return array if array is None or array.dtype == q.dtype else widened(name, array)


def offsets(name: str, values: Any) -> np.ndarray[Any, Any]:
    """cu_seqlens: a copy as packed int64, from any integer array, tensor or list."""
    if is_torch(values):
        if values.device.type not in DEVICES:
            raise ValueError(f"{name} is on {values.device}: give it on the CPU or on a CUDA device")
        if values.device.type != "cpu":
            from ._cuda import fetched

            return fetched(name, values)
        values = values.detach().numpy()
    given = np.asarray(values)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(f"{name} is {given.dtype} with {given.ndim} dimensions: give integers in one dimension")
    if len(given) < 2:
        raise ValueError(f"{name} has {len(given)} entries: give N+1 for N sequences, from 0 to the number of tokens")
    return np.array(given, dtype=np.int64)

"""Causal depthwise convolutions along tokens, with the names, arguments and results of causal-conv1d.

    y[b, c, t] = f(bias[c] + sum_{i < W} weight[c, i] x[b, c, t - (W-1) + i])

x is a PyTorch tensor `[B, C, T]` on the CPU or a CUDA device, in float32, bfloat16 or float16; sums are float32. Memory
in which the channels of a token are next to each other, as in transformers' models, is read without a copy.
"""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING, Any

from . import _structs as s
from ._arrays import device_number, dtype_of, is_torch, is_traced, same_device, view
from ._context import current
from ._library import lib

if TYPE_CHECKING:
    import torch

_ACTIVATIONS = {None: s.NO_ACTIVATION, "silu": s.SILU, "swish": s.SILU}
MAX_WIDTH = 16


def run(x: Any, weight: Any, before: Any, borders: Any, activation: int) -> Any:
    """y of x `[B, T, C]`, packed; before is float32, `[B, W-1, C]`, borders int64 on x's device, or None."""
    y = x.new_empty(x.shape)
    arguments = s.ConvArgs(y=view("y", y), activation=activation)
    _set_inputs(arguments, x, weight, before, borders)
    context = current(device_number(x))
    if device_number(x) == 0:
        context.check(lib.carry_conv(context.handle, byref(arguments)))
        return y
    from ._cuda import enqueue

    enqueue(context, lib.carry_conv, x, context.handle, byref(arguments))
    return y


def gradients(dy: Any, x: Any, weight: Any, before: Any, borders: Any, activation: int) -> tuple[Any, Any, Any]:
    """dx in x's type, dweight and dbefore in float32."""
    import torch

    dx, dw = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
    dbefore = None if before is None else torch.empty_like(before)
    arguments = s.ConvBackwardArgs(dx=view("dx", dx), dw=view("dw", dw), dy=view("dy", dy), activation=activation)
    if dbefore is not None:
        arguments.dbefore = view("dbefore", dbefore)
    _set_inputs(arguments, x, weight, before, borders)
    context = current(device_number(x))
    size = lib.carry_conv_backward_workspace(x.shape[0], x.shape[1], x.shape[2], weight.shape[-1])
    if device_number(x) == 0:
        memory = context.workspace(size)
        context.check(lib.carry_conv_backward(context.handle, byref(arguments), memory, size))
    else:
        from ._cuda import enqueue, workspace

        room = workspace(size, x.device)
        enqueue(context, lib.carry_conv_backward, x, context.handle, byref(arguments), room.data_ptr(), size)
    return dx, dw, dbefore


def _set_inputs(arguments: Any, x: Any, weight: Any, before: Any, borders: Any) -> None:
    for name, tensor in (("x", x), ("w", weight), ("before", before), ("cu_seqlens", borders)):
        if tensor is not None:
            setattr(arguments, name, view(name, tensor))


def _formula(x: Any, weight: Any, before: Any, seq_idx: Any) -> Any:
    """The sum in PyTorch's operators, for torch.compile and the like."""
    import torch

    width, tokens = weight.shape[-1], x.shape[1]
    start = x.new_zeros((x.shape[0], width - 1, x.shape[2]), dtype=torch.float32) if before is None else before
    padded = torch.cat([start, x.float()], dim=1)
    total = torch.zeros_like(x, dtype=torch.float32)
    for i in range(width):
        part = padded[:, i : i + tokens] * weight[:, i].float()
        back = width - 1 - i
        if seq_idx is not None and back > 0:
            same = torch.zeros_like(seq_idx, dtype=torch.bool)
            same[:, back:] = seq_idx[:, back:] == seq_idx[:, :-back]
            part = part * same[..., None]
        total = total + part
    return total


def _borders(seq_idx: Any) -> Any:
    """The borders of runs of equal numbers in each row of seq_idx, counted over all rows: int64, on its device."""
    import torch

    starts = torch.ones_like(seq_idx, dtype=torch.bool)
    starts[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    found = starts.reshape(-1).nonzero().reshape(-1)
    return torch.cat([found, found.new_tensor([starts.numel()])])


def _check(x: Any, weight: Any, bias: Any, activation: Any, **others: Any) -> None:
    for name, tensor in {"x": x, "weight": weight, "bias": bias, **others}.items():
        if tensor is not None and not is_torch(tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}: give a PyTorch tensor")
    same_device(x=x, weight=weight, bias=bias, **others)
    dtype_of("x", x)
    if x.ndim != 3 or weight.ndim != 2 or x.shape[1] != weight.shape[0]:
        raise ValueError(
            f"x has shape {list(x.shape)} and weight {list(weight.shape)}: give [batch, channels, tokens] and "
            "[channels, width]"
        )
    if not 1 <= weight.shape[1] <= MAX_WIDTH:
        raise ValueError(f"weight has {weight.shape[1]} taps: give 1 to {MAX_WIDTH}")
    if activation not in _ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}: give None, 'silu' or 'swish'")


def convolve(x: Any, weight: Any, bias: Any, before: Any, seq_idx: Any, cu_seqlens: Any, activation: Any) -> Any:
    """All of `causal_conv1d_fn` but the final states; cu_seqlens, with B = 1, may be given in place of seq_idx."""
    import torch

    _check(x, weight, bias, activation, initial_states=before)
    rows, wide = x.transpose(1, 2), bias is not None
    if x.shape[0] == 0 or x.shape[2] == 0:
        return x.clone()
    width = weight.shape[1]
    if before is not None:
        if tuple(before.shape) != (x.shape[0], x.shape[1], width - 1):
            needed = [x.shape[0], x.shape[1], width - 1]
            raise ValueError(f"initial_states has shape {list(before.shape)} where {needed} is needed")
        before = before.transpose(1, 2).float().contiguous() if width > 1 else None
    rows = (rows.float() if wide else rows).contiguous()
    if weight.dtype not in (rows.dtype, torch.float32):
        weight = weight.float()
    if is_traced((x, weight, bias)) and cu_seqlens is None:
        y = _formula(rows, weight, before, seq_idx)
        y = y if bias is None else y + bias
        y = y if activation is None else torch.nn.functional.silu(y)
    else:
        from ._autograd import convolution

        borders, flat = _packing(rows, seq_idx, cu_seqlens)
        number = s.NO_ACTIVATION if wide else _ACTIVATIONS[activation]
        y = convolution(flat, weight.contiguous(), before, borders, number).view(rows.shape)
        if wide:
            y = y + bias.float()
            y = y if activation is None else torch.nn.functional.silu(y)
    return y.to(x.dtype).transpose(1, 2)


def _packing(rows: Any, seq_idx: Any, cu_seqlens: Any) -> tuple[Any, Any]:
    """The borders of packed sequences or None, and the rows they count."""
    if seq_idx is not None:
        if tuple(seq_idx.shape) != tuple(rows.shape[:2]):
            raise ValueError(f"seq_idx has shape {list(seq_idx.shape)} where {list(rows.shape[:2])} is needed")
        return _borders(seq_idx.to(rows.device)), rows.reshape(1, -1, rows.shape[2])
    return None if cu_seqlens is None else cu_seqlens.to(rows.device).long().contiguous(), rows


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: torch.Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """A causal depthwise convolution, with gradients of x, weight, bias and initial_states.

    Args:
        x: `[B, C, T]`.
        weight: `[C, W]`, W from 1 to 16.
        bias: `[C]`.
        seq_idx: `[B, T]` integers: a token sees only tokens of its own number, which follow one another.
        initial_states: `[B, C, W-1]`, the inputs before the first token; zero when absent. Not with seq_idx.
        return_final_states: also return the last W-1 inputs, `[B, C, W-1]`.
        final_states_out: a tensor for them.
        activation: None, "silu" or "swish".

    Returns:
        y, as x; with return_final_states also the final states.
    """
    import torch

    if seq_idx is not None and (initial_states is not None or return_final_states):
        raise ValueError("seq_idx is given with initial_states or return_final_states: give one or the other")
    y = convolve(x, weight, bias, initial_states, seq_idx, None, activation)
    if not return_final_states:
        return y
    keep = weight.shape[1] - 1
    first = x.new_zeros((*x.shape[:2], keep)) if initial_states is None else initial_states.to(x.dtype)
    final = torch.cat([first, x], dim=-1)[..., x.shape[2] :]
    return y, final if final_states_out is None else final_states_out.copy_(final)


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
) -> torch.Tensor:
    """One or a few more tokens of each sequence: x is `[B, C]` or `[B, C, T]`, as is the result.

    conv_state, `[B, C, S]` with S >= W-1, holds the last S inputs and is updated in place.
    """
    import torch

    if cache_seqlens is not None or conv_state_indices is not None:
        raise NotImplementedError("cache_seqlens and conv_state_indices: not available")
    tokens = x[..., None] if x.ndim == 2 else x
    keep = weight.shape[-1] - 1
    if conv_state.ndim != 3 or conv_state.shape[:2] != tokens.shape[:2] or conv_state.shape[2] < keep:
        raise ValueError(
            f"conv_state has shape {list(conv_state.shape)}: give [{tokens.shape[0]}, {tokens.shape[1]}, {keep} or more]"
        )
    size = conv_state.shape[2]
    y = convolve(tokens, weight, bias, conv_state[..., size - keep :], None, None, activation)
    with torch.no_grad():
        conv_state.copy_(torch.cat([conv_state, tokens.to(conv_state.dtype)], dim=-1)[..., -size:])
    result: torch.Tensor = y[..., 0] if x.ndim == 2 else y
    return result

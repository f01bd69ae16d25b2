"""The operators as PyTorch's autograd and torch.func know them. Imported only when one of the two is at work.

A gradient is a Function of its own, so that torch.func's transforms, which hand wrapped tensors to `backward`, unwrap
them before the library reads their memory. vmap runs the samples one after the other; derivatives of gradients are
refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from . import conv
from ._arrays import wants_autograd
from ._rule import Inputs, Options, backward, forward
from .scan import _gradients, _run


def _packed(gradient: torch.Tensor, dims: int) -> torch.Tensor:
    """What autograd hands back may be expanded (o.sum() gives strides of 0): copied unless its last dims are packed."""
    expected = 1
    for size, stride in zip(reversed(gradient.shape[-dims:]), reversed(gradient.stride()[-dims:])):
        if size > 1 and stride != expected:
            return gradient.contiguous()
        expected *= size
    return gradient


class _Operator(torch.autograd.Function):
    """vmap for Functions whose results are tensors, None, or tuples of them: a call for every sample."""

    @classmethod
    def _each(cls, info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        results = []
        for sample in range(info.batch_size):
            given = [
                value.select(dim, sample).contiguous() if isinstance(dim, int) else value
                for value, dim in zip(arguments, in_dims)
            ]
            results.append(cls.apply(*given))
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        stacked = tuple(None if column[0] is None else torch.stack(column) for column in zip(*results))
        return stacked, tuple(None if column is None else 0 for column in stacked)


class _Gradient(_Operator):
    """An operator that is itself a gradient."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("derivatives of gradients are not available: libcarry differentiates once")


class DeltaGradient(_Gradient):
    """Gradients of the tensors of `Inputs`."""

    @staticmethod
    def forward(
        options: Options,
        cu_seqlens: np.ndarray[Any, Any] | None,
        kept: Any,
        grad_o: Any,
        grad_state: Any,
        *tensors: Any,
    ) -> tuple[Any, ...]:
        x = Inputs._make((*tensors, cu_seqlens))
        state = None if grad_state is None else grad_state.contiguous()
        grads = backward(x, options, kept, _packed(grad_o, 1), state)
        return tuple(grads[name] for name in Inputs._fields[:-1])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return DeltaGradient._each(info, in_dims, arguments)


class DeltaRule(_Operator):
    """o, final_state, and what the forward pass kept for backward; options.method is not None."""

    @staticmethod
    def forward(
        options: Options, want_state: bool, cu_seqlens: np.ndarray[Any, Any] | None, *tensors: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        x = Inputs._make((*tensors, cu_seqlens))
        keep = x.q.shape[1] > 1  # one token keeps nothing: a copy of its state would stay for every token of a text
        result = forward(x, options, want_state, keep)
        kept = result.kept if keep else x.q.new_empty(0, dtype=torch.uint8)
        return result.o, result.final_state, kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.options, _, ctx.cu_seqlens, *tensors = inputs
        kept = output[2]
        ctx.mark_non_differentiable(kept)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(kept, *tensors)

    @staticmethod
    def backward(ctx: Any, grad_o: torch.Tensor | None, grad_state: torch.Tensor | None, _: Any) -> tuple[Any, ...]:
        kept, *tensors = ctx.saved_tensors
        x = Inputs._make((*tensors, ctx.cu_seqlens))
        if grad_o is None:
            grad_o = x.v.new_zeros((*x.q.shape[:2], *x.v.shape[2:]))
        is_recorded = torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()
        gradient = DeltaGradient.apply if is_recorded else DeltaGradient.forward
        grads = gradient(ctx.options, ctx.cu_seqlens, kept, grad_o, grad_state, *tensors)
        return None, None, None, *grads

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return DeltaRule._each(info, in_dims, arguments)


class PlainDeltaRule(torch.autograd.Function):
    """DeltaRule in the older form, which torch.func cannot use and which takes half the time."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        output = DeltaRule.forward(*arguments)
        DeltaRule.setup_context(ctx, arguments, output)
        return output

    backward = staticmethod(DeltaRule.backward)


def delta_rule(*arguments: Any) -> tuple[Any, Any, Any]:
    """DeltaRule.apply, in the form that the caller needs."""
    transformed = torch._C._are_functorch_transforms_active()
    result: tuple[Any, Any, Any] = (DeltaRule if transformed else PlainDeltaRule).apply(*arguments)
    return result


class ScanGradient(_Gradient):
    """dA, db and dh0."""

    @staticmethod
    def forward(A: Any, h: Any, h0: Any, grad_h: Any, reversed: bool) -> tuple[Any, Any, Any]:
        return _gradients(A, h, h0, _packed(grad_h, 2), reversed)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return ScanGradient._each(info, in_dims, arguments)


class Scan(_Operator):
    """Every state of a recurrence; keeps A, h and h0."""

    @staticmethod
    def forward(
        A: torch.Tensor, b: torch.Tensor, h0: torch.Tensor | None, reversed: bool, algorithm: str | None
    ) -> torch.Tensor:
        h: torch.Tensor = _run(A, b, h0, reversed, algorithm, None)
        return h

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        A, _, h0, ctx.reversed, _ = inputs
        ctx.save_for_backward(A, output, h0)

    @staticmethod
    def backward(ctx: Any, grad_h: torch.Tensor) -> tuple[Any, ...]:
        A, h, h0 = ctx.saved_tensors
        return *ScanGradient.apply(A, h, h0, grad_h, ctx.reversed), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return Scan._each(info, in_dims, arguments)


class Convolution(torch.autograd.Function):
    """A causal convolution of rows [B, T, C] (conv.run)."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, before: Any, borders: Any, activation: int) -> torch.Tensor:
        ctx.save_for_backward(x, weight, before, borders)
        ctx.activation = activation
        y: torch.Tensor = conv.run(x, weight, before, borders, activation)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        x, weight, before, borders = ctx.saved_tensors
        dx, dw, dbefore = conv.gradients(dy.contiguous(), x, weight, before, borders, ctx.activation)
        return dx, dw.to(weight.dtype), dbefore, None, None


def convolution(x: Any, weight: Any, before: Any, borders: Any, activation: int) -> torch.Tensor:
    """Convolution.apply, or without autograd where it has nothing to differentiate."""
    if not wants_autograd(x, weight, before):
        x, weight, before = (None if t is None else t.detach() for t in (x, weight, before))
        y: torch.Tensor = conv.run(x, weight, before, borders, activation)
        return y
    result: torch.Tensor = Convolution.apply(x, weight, before, borders, activation)
    return result

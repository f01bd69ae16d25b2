"""The operators as PyTorch's autograd knows them. Imported only when a tensor that needs a gradient arrives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

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


class DeltaRule(torch.autograd.Function):
    """o and final_state; keeps the inputs and what the forward pass kept."""

    @staticmethod
    def forward(
        ctx: Any, options: Options, want_state: bool, cu_seqlens: np.ndarray[Any, Any] | None, *tensors: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        result = forward(Inputs._make((*tensors, cu_seqlens)), options, want_state, keep=True)
        ctx.set_materialize_grads(False)
        ctx.options = options._replace(method=result.method)
        ctx.cu_seqlens = cu_seqlens
        ctx.save_for_backward(result.kept, *tensors)
        return result.o, result.final_state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_o: torch.Tensor | None, grad_state: torch.Tensor | None) -> tuple[Any, ...]:
        kept, *tensors = ctx.saved_tensors
        x = Inputs._make((*tensors, ctx.cu_seqlens))
        if grad_o is None:
            grad_o = x.v.new_zeros((*x.q.shape[:2], *x.v.shape[2:]))
        state = None if grad_state is None else grad_state.contiguous()
        grads = backward(x, ctx.options, kept, _packed(grad_o, 1), state)
        return None, None, None, *(grads[name] for name in Inputs._fields[:-1])


class Scan(torch.autograd.Function):
    """Every state of a recurrence; keeps A, h and h0."""

    @staticmethod
    def forward(
        ctx: Any, A: torch.Tensor, b: torch.Tensor, h0: torch.Tensor | None, reversed: bool, algorithm: str | None
    ) -> torch.Tensor:
        h: torch.Tensor = _run(A, b, h0, reversed, algorithm, None)
        ctx.reversed = reversed
        ctx.save_for_backward(A, h, h0)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: torch.Tensor) -> tuple[Any, ...]:
        A, h, h0 = ctx.saved_tensors
        dA, db, dh0 = _gradients(A, h, h0, _packed(grad_h, 2), ctx.reversed)
        return dA, db, dh0, None, None

"""The delta rule as operators that torch.compile, torch.export and fake tensors know: torch.ops.carry.delta_rule and
delta_rule_backward. Imported when one of those is at work; plain calls go the shorter way of _autograd.py.

Operators return tensors only, of shapes that follow from those of the inputs: what is not wanted or not there is a
tensor without elements, and nothing is kept for backward, which does the forward pass again where its method needs
the states (on Hopper GPUs it always does, from the inputs).
"""

from __future__ import annotations

from typing import Any

import torch

from ._arrays import device_number, offsets
from ._rule import Inputs, Options, backward, forward

_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor beta, Tensor? initial_state, Tensor? A_log, Tensor? dt_bias, "
    "Tensor? cu_seqlens"
)
_OPTIONS = "float scale, bool state_v_first, bool l2norm, bool beta_sigmoid, float beta_factor, str? method"
_TENSORS = len(Inputs._fields)
_GRADIENTS = Inputs._fields[:-1]


def _read(arguments: tuple[Any, ...]) -> tuple[Inputs, Options]:
    x = Inputs._make(arguments[:_TENSORS])
    if x.cu_seqlens is not None:
        x = x._replace(cu_seqlens=offsets("cu_seqlens", x.cu_seqlens))
    if device_number(x.q) == 0:  # a compiler may have chosen other strides than its user's
        x = Inputs._make(value.contiguous() if isinstance(value, torch.Tensor) else value for value in x)
    return x, Options._make(arguments[_TENSORS : _TENSORS + len(Options._fields)])


def _sequences(x: Inputs) -> Any:
    return x.q.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1


@torch.library.custom_op(
    "carry::delta_rule", mutates_args=(), schema=f"({_INPUTS}, {_OPTIONS}, bool want_state) -> (Tensor, Tensor)"
)
def delta_rule(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """o and the final state."""
    x, options = _read(arguments)
    result = forward(x, options, arguments[-1], keep=False)
    state = x.v.new_empty(0, dtype=torch.float32) if result.final_state is None else result.final_state
    return result.o, state


@delta_rule.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    x = Inputs._make(arguments[:_TENSORS])
    options = Options._make(arguments[_TENSORS : _TENSORS + len(Options._fields)])
    key, value = x.q.shape[3], x.v.shape[3]
    sizes = (value, key) if options.state_v_first else (key, value)
    shape = (_sequences(x), x.v.shape[2], *sizes) if arguments[-1] else (0,)
    o = x.v.new_empty((x.q.shape[0], x.q.shape[1], x.v.shape[2], value))
    return o, x.v.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op(
    "carry::delta_rule_backward",
    mutates_args=(),
    schema=f"({_INPUTS}, {_OPTIONS}, Tensor grad_o, Tensor? grad_state) -> ({', '.join(['Tensor'] * len(_GRADIENTS))})",
)
def delta_rule_backward(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """The gradient of each tensor of `Inputs` in their order, without elements for one that is absent."""
    x, options = _read(arguments)
    grad_o, grad_state = arguments[-2].contiguous(), arguments[-1]
    state = None if grad_state is None else grad_state.contiguous()
    grads = backward(x, options, None, grad_o, state)
    return tuple(x.q.new_empty(0) if grads[name] is None else grads[name] for name in _GRADIENTS)


@delta_rule_backward.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, ...]:
    tensors = arguments[: len(_GRADIENTS)]
    return tuple(arguments[0].new_empty(0) if x is None else x.new_empty(x.shape) for x in tensors)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS])
    ctx.options, ctx.want_state = inputs[_TENSORS:-1], inputs[-1]


def _backward(ctx: Any, grad_o: torch.Tensor, grad_state: torch.Tensor) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    grads = delta_rule_backward(*tensors, *ctx.options, grad_o, grad_state if ctx.want_state else None)
    found = [None if x is None else gradient for x, gradient in zip(tensors, grads)]
    return *found, *(None for _ in range(1 + len(ctx.options) + 1))


delta_rule.register_autograd(_backward, setup_context=_setup)


def apply(x: Inputs, options: Options, want_state: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The operator with the arguments of _rule.forward; cu_seqlens is still what the user gave."""
    if x.cu_seqlens is not None and not isinstance(x.cu_seqlens, torch.Tensor):
        x = x._replace(cu_seqlens=torch.tensor(x.cu_seqlens))
    o, state = delta_rule(*x, *options, want_state)
    return o, state if want_state else None

"""Calls of carry_delta_forward and carry_delta_backward on arrays of either kind.

delta.py reads its arguments into `Inputs` and `Options`; from there on numpy and PyTorch take the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref
from typing import Any, NamedTuple

import numpy as np

from . import _structs as s
from ._arrays import address, device_number, dtype_of, empty, packed, packed_rows, view, zero
from ._context import Context, Plan, current
from ._library import lib


class Inputs(NamedTuple):
    """q, k: [B, T, H, K]; v: [B, T, HV, V]; beta: [B, T, HV]; g: [B, T, HV] or [B, T, HV, K]; None: absent."""

    q: Any
    k: Any
    v: Any
    g: Any
    beta: Any
    initial_state: Any
    A_log: Any
    dt_bias: Any
    cu_seqlens: Any  # as given, and from _rule.forward on an int64 array


class Options(NamedTuple):
    """What a problem has besides its sizes; method is a name from `libcarry.available("deltas")` or None."""

    scale: float
    state_v_first: bool
    l2norm: bool
    beta_sigmoid: bool
    beta_factor: float
    method: str | None


class Forward(NamedTuple):
    """What a forward pass gives; method is the one that ran, kept is for backward."""

    o: Any
    final_state: Any
    kept: Any
    method: str


def _problem(x: Inputs, options: Options, device: int) -> s.DeltaProblem:
    for name, array in (("q", x.q), ("k", x.k), ("v", x.v)):
        if array.ndim != 4:
            raise ValueError(f"{name} has {array.ndim} dimensions: give [batch, tokens, heads, size]")
    gate = s.NO_GATE if x.g is None else s.KEY_GATE if x.g.ndim == 4 else s.HEAD_GATE
    return s.DeltaProblem(
        batch=x.q.shape[0],
        tokens=x.q.shape[1],
        heads=x.q.shape[2],
        value_heads=x.v.shape[2],
        key=x.q.shape[3],
        value=x.v.shape[3],
        sequences=0 if x.cu_seqlens is None else len(x.cu_seqlens) - 1,
        dtype=dtype_of("q", x.q),
        gate=gate,
        scale=options.scale,
        state_transposed=options.state_v_first,
        l2norm=options.l2norm,
        gate_inside=x.A_log is not None,
        beta_sigmoid=options.beta_sigmoid,
        beta_factor=options.beta_factor,
        device=device,
    )


def _plan(x: Inputs, options: Options) -> tuple[Context, Plan]:
    device = device_number(x.q)
    context = current(device)
    method = None if options.method is None else options.method.encode()
    return context, context.delta_plan(_problem(x, options, device), method)


def _readable(x: Inputs) -> Inputs:
    """The inputs, with packed copies of those whose strides or alignment the kernels do not support."""
    rows_of: Callable[[Any], Any] = packed_rows
    whole_of: Callable[[Any], Any] = packed
    if device_number(x.q) != 0:
        from . import _cuda

        rows_of, whole_of = _cuda.readable, _cuda.packed
    rows = {name: rows_of(getattr(x, name)) for name in ("q", "k", "v")}
    small = {
        name: whole_of(value)
        for name, value in (("initial_state", x.initial_state), ("A_log", x.A_log), ("dt_bias", x.dt_bias))
        if value is not None
    }
    gate = x.g if x.g is None or x.g.ndim == 3 else rows_of(x.g)
    return x._replace(**rows, **small, g=gate)


def _call(context: Context, function: Any, plan: Plan, arguments: Any, size: int, like: Any) -> None:
    if device_number(like) == 0:
        context.check(function(plan.handle, arguments, context.workspace(size), size))
        return
    from ._cuda import call

    call(context, function, plan, arguments, size, like)


_INCOMING = ("d_o", "dfinal_state")
_GRADIENTS = tuple(f"d{name}" for name in Inputs._fields[:-1])


class Prepared:
    """A call whose structures are filled but for addresses: calls of the same shapes, strides and types share it."""

    def __init__(self, plan: Plan, arguments: Any, names: tuple[str, ...], size: int) -> None:
        self.plan, self.arguments, self.reference, self.size = plan, arguments, byref(arguments), size
        self.views = {name: _view_in(arguments, name) for name in names}
        self.method = lib.carry_delta_plan_algorithm(plan.handle).decode()
        self.kept = lib.carry_delta_kept_bytes(plan.handle)

    def point(self, names: tuple[str, ...], arrays: Sequence[Any]) -> bool:
        """Set addresses; False where one is not aligned as it was when the call was prepared."""
        for name, array in zip(names, arrays):
            if array is not None:
                place: int = address(array) if name == "cu_seqlens" else array.data_ptr()
                if place % 16 != 0:
                    return False
                self.views[name].data = place
        return True


def _view_in(arguments: Any, name: str) -> Any:
    field = getattr(arguments, name)
    return field if isinstance(field, s.Tensor) else field.contents if field else None


def _key(kind: str, x: Inputs, options: Options, more: tuple[Any, ...]) -> Any:
    """What a prepared call depends on, or None for numpy arrays, whose calls are not prepared."""
    if isinstance(x.q, np.ndarray):
        return None
    borders = None if x.cu_seqlens is None else len(x.cu_seqlens)
    tensors = [None if t is None else (t.shape, t.stride(), t.dtype) for t in x[:-1]]
    return kind, device_number(x.q), borders, options, more, *tensors


def _set_inputs(arguments: s.DeltaForwardArgs | s.DeltaBackwardArgs, x: Inputs) -> None:
    for name in ("q", "k", "v", "beta"):
        setattr(arguments, name, view(name, getattr(x, name)))
    for name in ("g", "initial_state", "cu_seqlens", "A_log", "dt_bias"):
        _set_optional(arguments, name, getattr(x, name))


def _set_optional(arguments: Any, name: str, array: Any) -> None:
    if array is not None:
        setattr(arguments, name, view(name, array))


def _state_shape(x: Inputs, options: Options) -> tuple[int, ...]:
    sequences = x.q.shape[0] if x.cu_seqlens is None else len(x.cu_seqlens) - 1
    key, value = x.q.shape[3], x.v.shape[3]
    return (sequences, x.v.shape[2], *((value, key) if options.state_v_first else (key, value)))


def resolved(x: Inputs, options: Options) -> Options:
    """With the method that would run."""
    if _is_empty(x):
        return options
    key = _key("resolved", x, options, ())
    known: Options | None = current(key[1]).prepared.get(key)
    if known is None:
        context, plan = _plan(x, options)
        known = options._replace(method=lib.carry_delta_plan_algorithm(plan.handle).decode())
        context.prepare(key, known)
    return known


def _is_empty(x: Inputs) -> bool:
    """No tokens: nothing comes out, and the state stays as it is. Shapes must fit all the same."""
    if x.q.ndim != 4 or (x.q.shape[0] != 0 and x.q.shape[1] != 0):
        return False
    batch, tokens, _, key = x.q.shape
    tall = (batch, tokens, x.v.shape[2])
    for name, array, shape in (
        ("k", x.k, tuple(x.q.shape)),
        ("v", x.v, (*tall, x.v.shape[3])),
        ("beta", x.beta, tall),
        ("g", x.g, tall if x.g is None or x.g.ndim == 3 else (*tall, key)),
    ):
        if array is not None and tuple(array.shape) != shape:
            raise ValueError(f"{name} has shape {list(array.shape)} where {list(shape)} is needed")
    return True


def _forward_empty(x: Inputs, options: Options, want_state: bool, keep: bool) -> Forward:
    shape = _state_shape(x, options)
    state = zero(empty(x.v, shape, "float32")) if want_state else None
    if x.initial_state is not None and tuple(x.initial_state.shape) != shape:
        raise ValueError(f"initial_state has shape {list(x.initial_state.shape)} where {list(shape)} is needed")
    if state is not None and x.initial_state is not None:
        state[...] = x.initial_state
    return Forward(empty(x.v, x.v.shape), state, empty(x.v, (0,), "uint8") if keep else None, "")


def _backward_empty(x: Inputs, grad_state: Any) -> dict[str, Any]:
    arrays = x._replace(cu_seqlens=None)._asdict()
    grads = {name: None if array is None else zero(empty(array, array.shape)) for name, array in arrays.items()}
    if grads["initial_state"] is not None and grad_state is not None:
        grads["initial_state"][...] = grad_state
    return grads


def _forward_again(x: Inputs, options: Options, prepared: Prepared, want_state: bool, keep: bool) -> Forward:
    o = empty(x.v, (*x.q.shape[:2], *x.v.shape[2:]))
    final_state = empty(x.v, _state_shape(x, options), "float32") if want_state else None
    kept = empty(x.v, (prepared.kept,), "uint8") if keep else None
    prepared.point(("o", "final_state"), (o, final_state))
    prepared.arguments.kept = None if kept is None else address(kept)
    _call(current(device_number(x.q)), lib.carry_delta_forward, prepared.plan, prepared.reference, prepared.size, x.q)
    return Forward(o, final_state, kept, prepared.method)


def forward(x: Inputs, options: Options, want_state: bool, keep: bool) -> Forward:
    """o, the final state where it is wanted, and where keep is set what backward needs besides the inputs."""
    if _is_empty(x):
        return _forward_empty(x, options, want_state, keep)
    key = _key("forward", x, options, (want_state, keep))
    prepared = None if key is None else current(key[1]).prepared.get(key)
    if prepared is not None and prepared.point(Inputs._fields, x):
        return _forward_again(x, options, prepared, want_state, keep)
    given, x = x, _readable(x)
    context, plan = _plan(x, options)
    o = empty(x.v, (x.q.shape[0], x.q.shape[1], x.v.shape[2], x.v.shape[3]))
    final_state = empty(x.v, _state_shape(x, options), "float32") if want_state else None
    kept = empty(x.v, (lib.carry_delta_kept_bytes(plan.handle),), "uint8") if keep else None
    arguments = s.DeltaForwardArgs()
    _set_inputs(arguments, x)
    arguments.o = view("o", o)
    _set_optional(arguments, "final_state", final_state)
    if kept is not None:
        arguments.kept = address(kept)
    size = lib.carry_delta_forward_workspace(plan.handle)
    _call(context, lib.carry_delta_forward, plan, byref(arguments), size, x.q)
    if key is not None and all(a is b for a, b in zip(x, given)):
        context.prepare(key, Prepared(plan, arguments, (*Inputs._fields, "o", "final_state"), size))
    return Forward(o, final_state, kept, lib.carry_delta_plan_algorithm(plan.handle).decode())


def forward_with_states(x: Inputs, options: Options, want_state: bool, every: int) -> tuple[Any, Any, Any]:
    """o, the final state where it is wanted, and the states that enter chunks of `every` tokens, in q's type.

    These are [B, chunks, HV, K, V]; those of packed sequences follow one another, with B = 1.
    """
    if x.cu_seqlens is not None:
        return _packed_with_states(x, options, want_state, every)
    batch, heads = x.q.shape[0], x.v.shape[2]
    count = (x.q.shape[1] + every - 1) // every
    shape = _state_shape(x, options)
    if _is_empty(x):
        result = _forward_empty(x, options, want_state, keep=False)
        return result.o, result.final_state, empty(x.q, (batch, 0, *shape[1:]))
    x = _readable(x)
    device = device_number(x.q)
    problem = _problem(x, options, device)
    problem.snapshot_every = every
    context = current(device)
    plan = context.delta_plan(problem, None if options.method is None else options.method.encode())
    o = empty(x.v, (batch, x.q.shape[1], heads, x.v.shape[3]))
    final_state = empty(x.v, shape, "float32") if want_state else None
    after = empty(x.v, (batch, count, *shape[1:]), "float32")
    arguments = s.DeltaForwardArgs()
    _set_inputs(arguments, x)
    arguments.o, arguments.snapshots = view("o", o), view("snapshots", after)
    _set_optional(arguments, "final_state", final_state)
    size = lib.carry_delta_forward_workspace(plan.handle)
    _call(context, lib.carry_delta_forward, plan, byref(arguments), size, x.q)
    states = empty(x.q, after.shape)
    states[:, 0] = 0 if x.initial_state is None else x.initial_state
    states[:, 1:] = after[:, :-1]
    return o, final_state, states


def _packed_with_states(x: Inputs, options: Options, want_state: bool, every: int) -> tuple[Any, Any, Any]:
    """One call for each sequence: a call for all would make room for the longest one in each."""
    o = empty(x.v, (1, x.q.shape[1], *x.v.shape[2:]))
    shape = _state_shape(x, options)
    if x.initial_state is not None and tuple(x.initial_state.shape) != shape:
        raise ValueError(f"initial_state has shape {list(x.initial_state.shape)} where {list(shape)} is needed")
    final_state = empty(x.v, shape, "float32") if want_state else None
    borders = [int(border) for border in x.cu_seqlens]
    if borders[0] != 0 or borders != sorted(borders) or borders[-1] != x.q.shape[1]:
        raise ValueError(f"cu_seqlens must start at 0, not decrease and end at {x.q.shape[1]}, the number of tokens")
    counts = [(end - begin + every - 1) // every for begin, end in zip(borders, borders[1:])]
    states, at = empty(x.q, (1, sum(counts), *shape[1:])), 0
    for i, count in enumerate(counts):
        rows = slice(borders[i], borders[i + 1])
        tokens = {name: getattr(x, name)[:, rows] for name in ("q", "k", "v", "beta")}
        first = None if x.initial_state is None else x.initial_state[i : i + 1]
        gate = None if x.g is None else x.g[:, rows]
        one = x._replace(**tokens, g=gate, initial_state=first, cu_seqlens=None)
        o[:, rows], last, states[:, at : at + count] = forward_with_states(one, options, want_state, every)
        if final_state is not None:
            final_state[i : i + 1] = last
        at += count
    return o, final_state, states


def _gradients_of(x: Inputs) -> list[Any]:
    return [None if array is None else empty(array, array.shape) for array in x[:-1]]


def _backward_again(x: Inputs, prepared: Prepared, kept: Any) -> dict[str, Any]:
    grads = _gradients_of(x)
    prepared.point(_GRADIENTS, grads)
    prepared.arguments.kept = None if kept is None or kept.shape[0] != prepared.kept else address(kept)
    _call(current(device_number(x.q)), lib.carry_delta_backward, prepared.plan, prepared.reference, prepared.size, x.q)
    return dict(zip(Inputs._fields, grads))


def backward(x: Inputs, options: Options, kept: Any, grad_o: Any, grad_state: Any) -> dict[str, Any]:
    """Gradients of the inputs, by their names; options.method is the one that forward ran.

    What another plan kept (another thread's, made after other measurements) does not fit: then forward is done again.
    """
    if _is_empty(x):
        return _backward_empty(x, grad_state)
    incoming = grad_o, grad_state
    is_numpy = isinstance(x.q, np.ndarray)
    forms = () if is_numpy else tuple(None if t is None else (t.shape, t.stride(), t.dtype) for t in incoming)
    key = _key("backward", x, options, forms)
    prepared = None if key is None else current(key[1]).prepared.get(key)
    if prepared is not None and prepared.point(Inputs._fields, x) and prepared.point(_INCOMING, incoming):
        return _backward_again(x, prepared, kept)
    given, x = x, _readable(x)
    if device_number(x.q) != 0:
        from . import _cuda

        grad_o, grad_state = _cuda.readable(grad_o), None if grad_state is None else _cuda.packed(grad_state)
    context, plan = _plan(x, options)
    if kept is not None and kept.shape[0] != lib.carry_delta_kept_bytes(plan.handle):
        kept = None
    grads = dict(zip(Inputs._fields, _gradients_of(x)))
    arguments = s.DeltaBackwardArgs(d_o=view("grad_o", grad_o))
    for name in ("q", "k", "v", "beta"):
        setattr(arguments, f"d{name}", view(f"d{name}", grads[name]))
    for name in ("g", "initial_state", "A_log", "dt_bias"):
        _set_optional(arguments, f"d{name}", grads[name])
    _set_optional(arguments, "dfinal_state", grad_state)
    if kept is not None:
        arguments.kept = address(kept)
    _set_inputs(arguments, x)
    size = lib.carry_delta_backward_workspace(plan.handle)
    _call(context, lib.carry_delta_backward, plan, byref(arguments), size, x.q)
    if key is not None and all(a is b for a, b in zip((*x, grad_o, grad_state), (*given, *incoming))):
        context.prepare(key, Prepared(plan, arguments, (*Inputs._fields, *_INCOMING, *_GRADIENTS), size))
    return grads

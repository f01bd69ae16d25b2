"""Linear recurrences: h[t] = A[t] h[t-1] + b[t]."""

from __future__ import annotations

from ctypes import byref
from typing import Any, cast

from . import _structs as s
from ._arrays import Array, dtype_of, empty, mark_written, same_kind, view, wants_autograd, zero
from ._context import current
from ._library import lib


def _problem(A: Any, b: Any, *, reversed: bool, f32_result: bool, backward: bool = False) -> s.ScanProblem:
    if A.ndim not in (3, 4):
        raise ValueError(
            f"A has {A.ndim} dimensions: give [batch, T, n] for diagonal or [batch, T, n, n] for dense transitions"
        )
    if b.ndim != 4:
        raise ValueError(f"b has {b.ndim} dimensions: give [batch, T, n, w] (b[..., None] adds a width of 1)")
    return s.ScanProblem(
        kind=s.DIAGONAL if A.ndim == 3 else s.DENSE,
        batch=A.shape[0],
        steps=A.shape[1],
        n=A.shape[2],
        width=b.shape[3],
        dtype=dtype_of("b", b),
        f32_result=f32_result,
        reversed=reversed,
        backward=backward,
    )


def _is_empty(A: Any, b: Any, h0: Any) -> bool:
    """A sequence without steps, or a batch without sequences, has no states; its shapes must fit all the same."""
    if A.shape[0] != 0 and A.shape[1] != 0:
        return False
    if tuple(b.shape[:3]) != tuple(A.shape[:3]) or (A.ndim == 4 and A.shape[3] != A.shape[2]):
        raise ValueError(f"A has shape {list(A.shape)} and b {list(b.shape)}: batch, T and n must be the same")
    if h0 is not None and tuple(h0.shape) != (b.shape[0], b.shape[2], b.shape[3]):
        raise ValueError(f"h0 has shape {list(h0.shape)} where {[b.shape[0], *b.shape[2:]]} is needed")
    return True


def _run(A: Any, b: Any, h0: Any, reversed: bool, algorithm: str | None, out: Any) -> Any:
    if out is not None and out.shape != b.shape:
        raise ValueError(f"out has shape {list(out.shape)} where b's, {list(b.shape)}, is needed")
    h = empty(b, b.shape) if out is None else out
    h_view = view("out", h, output=True)
    problem = _problem(A, b, reversed=reversed, f32_result=h_view.dtype == s.F32)
    options = s.ScanOptions(algorithm=None if algorithm is None else algorithm.encode())
    if _is_empty(A, b, h0):
        return h
    arguments = s.ScanArgs(h=h_view, A=view("A", A), b=view("b", b))
    if h0 is not None:
        arguments.h0 = view("h0", h0)
    context = current()
    plan = context.scan_plan(problem, options)
    size = lib.carry_scan_run_workspace(plan.handle)
    workspace = context.workspace(size)
    context.check(lib.carry_scan_run(plan.handle, byref(arguments), workspace, size))
    if out is not None:
        mark_written(out)
    return h


def _gradients(A: Any, h: Any, h0: Any, g: Any, reversed: bool) -> tuple[Any, Any, Any]:
    """dA, db, dh0 of a run that gave h, for g = dL/dh."""
    dA, db = empty(A, A.shape), empty(g, g.shape)
    dh0 = None if h0 is None else empty(h0, h0.shape)
    if _is_empty(A, g, h0):
        return dA, db, None if dh0 is None else zero(dh0)
    problem = _problem(A, g, reversed=reversed, f32_result=False, backward=True)
    arguments = s.ScanBackwardArgs(
        db=view("db", db), dA=view("dA", dA), dh=view("g", g), A=view("A", A), h=view("h", h)
    )
    if h0 is not None and dh0 is not None:
        arguments.h0 = view("h0", h0)
        arguments.dh0 = view("dh0", dh0)
    context = current()
    plan = context.scan_plan(problem, s.ScanOptions())
    size = lib.carry_scan_backward_workspace(plan.handle)
    workspace = context.workspace(size)
    context.check(lib.carry_scan_backward(plan.handle, byref(arguments), workspace, size))
    return dA, db, dh0


def scan(
    A: Array,
    b: Array,
    h0: Array | None = None,
    *,
    reversed: bool = False,
    algorithm: str | None = None,
    out: Array | None = None,
) -> Array:
    """Every state of h[t] = A[t] h[t-1] + b[t], t = 0..T-1, h[-1] = h0; sums in float32.

    Args:
        A: `[batch, T, n]`, diagonal transitions, or `[batch, T, n, n]`, dense ones.
        b: `[batch, T, n, w]`, of A's type: float32, float16, or bfloat16 under PyTorch. Strides over batch and T are
            free, those inside a step must be packed.
        h0: `[batch, n, w]`; zero when absent.
        reversed: h[t] = A[t] h[t+1] + b[t], from the last step to the first, h0 being after the last.
        algorithm: a name from `libcarry.available("scans")`; the planner's choice when absent.
        out: where to put h, of b's type or float32; it may be b. Not together with gradients.

    Returns:
        h, as b, empty where T is 0; out when it was given. Under PyTorch gradients of A, b and h0 follow.

    Raises:
        ValueError: shapes, types or strides do not fit; the sentence names the tensor and the sizes.
        NotImplementedError: the algorithm does not apply to this problem.
    """
    if same_kind(A=A, b=b, h0=h0, out=out) and wants_autograd(A, b, h0, out):
        if out is not None:
            raise ValueError("out cannot be given where gradients are wanted: leave it out, or use torch.no_grad()")
        from ._autograd import Scan

        return cast("Array", Scan.apply(A, b, h0, reversed, algorithm))
    return cast("Array", _run(A, b, h0, reversed, algorithm, out))

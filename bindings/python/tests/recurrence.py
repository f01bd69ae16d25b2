"""The gated delta rule in float64, token by token, over all batches and heads at once: what Carry is compared with.

    S' = e^g S;   r = v - S'^T k;   u = beta r;   S = S' + k u^T;   o = scale S^T q

`forward` is this; `backward` is its reverse mode, which walks the tokens backwards and recomputes states from every
64th, so that memory grows with T/64 and not with T.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

F64 = np.ndarray[Any, np.dtype[np.float64]]
EPS = 1e-6
SEGMENT = 64


class Case(NamedTuple):
    """float64 inputs with q and k repeated to HV heads; g is [B, T, HV, 1] or, by key, [B, T, HV, K]."""

    q: F64
    k: F64
    v: F64
    g: F64
    beta: F64
    scale: float


def l2norm(x: F64) -> F64:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + EPS)


def case(q: Any, k: Any, v: Any, g: Any, beta: Any, scale: float | None = None, normalise: bool = False) -> Case:
    """From stored arrays of any type, as the library takes them."""
    q, k, v, beta = (np.asarray(x, dtype=np.float64) for x in (q, k, v, beta))
    if normalise:
        q, k = l2norm(q), l2norm(k)
    group = v.shape[2] // q.shape[2]
    gate = np.zeros(v.shape[:3]) if g is None else np.asarray(g, dtype=np.float64)
    return Case(
        np.repeat(q, group, axis=2),
        np.repeat(k, group, axis=2),
        v,
        gate[..., None] if gate.ndim == 3 else gate,
        beta,
        q.shape[-1] ** -0.5 if scale is None else scale,
    )


def _step(c: Case, t: int, S: F64) -> tuple[F64, F64, F64]:
    """S', r and the new S."""
    faded = np.exp(c.g[:, t])[..., None] * S
    r = c.v[:, t] - (c.k[:, t, :, None, :] @ faded)[..., 0, :]
    return faded, r, faded + c.k[:, t, :, :, None] * (c.beta[:, t, :, None] * r)[..., None, :]


def forward(c: Case, S: Any = None) -> tuple[F64, F64]:
    """o [B, T, HV, V] and the final state [B, HV, K, V]."""
    B, T, H, K = c.q.shape
    S = np.zeros((B, H, K, c.v.shape[3])) if S is None else np.asarray(S, dtype=np.float64)
    o = np.empty_like(c.v)
    for t in range(T):
        _, _, S = _step(c, t, S)
        o[:, t] = c.scale * (c.q[:, t, :, None, :] @ S)[..., 0, :]
    return o, S


def backward(c: Case, S: Any, do: Any, dS: Any = None) -> dict[str, F64]:
    """Gradients of the inputs, by name, for do = dL/do and dS = dL/d(final state); q's and k's are by value head."""
    B, T, H, K = c.q.shape
    do = np.asarray(do, dtype=np.float64)
    S = np.zeros((B, H, K, c.v.shape[3])) if S is None else np.asarray(S, dtype=np.float64)
    dS = np.zeros_like(S) if dS is None else np.array(dS, dtype=np.float64)
    entering = []
    for t in range(T):
        if t % SEGMENT == 0:
            entering.append(S)
        _, _, S = _step(c, t, S)
    grads = {name: np.empty_like(getattr(c, name)) for name in ("q", "k", "v", "g", "beta")}
    for segment in reversed(range(len(entering))):
        tokens = range(segment * SEGMENT, min(T, (segment + 1) * SEGMENT))
        S, kept = entering[segment], []
        for t in tokens:
            kept.append(_step(c, t, S))
            S = kept[-1][2]
        for t in reversed(tokens):
            dS = _step_back(c, t, *kept.pop(), do[:, t], dS, grads)
    grads["initial_state"] = dS
    return grads


def _step_back(c: Case, t: int, faded: F64, r: F64, S: F64, do: F64, dS: F64, grads: dict[str, F64]) -> F64:
    q, k, beta = c.q[:, t], c.k[:, t], c.beta[:, t, :, None]
    grads["q"][:, t] = c.scale * (S @ do[..., :, None])[..., 0]
    dS = dS + c.scale * q[..., :, None] * do[..., None, :]
    du = (k[..., None, :] @ dS)[..., 0, :]
    dr = beta * du
    dfaded = dS - k[..., :, None] * dr[..., None, :]
    grads["k"][:, t] = (dS @ (beta * r)[..., :, None])[..., 0] - (faded @ dr[..., :, None])[..., 0]
    grads["v"][:, t] = dr
    grads["beta"][:, t] = (du * r).sum(-1)
    by_key = (dfaded * faded).sum(-1)
    grads["g"][:, t] = by_key if c.g.shape[-1] > 1 else by_key.sum(-1, keepdims=True)
    return np.exp(c.g[:, t])[..., None] * dfaded


def gather_heads(gradient: F64, heads: int) -> F64:
    """From a gradient by value head to one by head."""
    B, T, HV, K = gradient.shape
    return gradient.reshape(B, T, heads, HV // heads, K).sum(3)


def l2norm_back(x: Any, gradient: F64) -> F64:
    """From the gradient of l2norm(x) to that of x."""
    x = np.asarray(x, dtype=np.float64)
    unit = l2norm(x)
    return (gradient - unit * (unit * gradient).sum(-1, keepdims=True)) / np.sqrt((x * x).sum(-1, keepdims=True) + EPS)


def packed_forward(c: Case, cu_seqlens: Any, S: Any = None) -> tuple[F64, F64]:
    """Sequences one after the other in a batch of one."""
    outputs, states = [], []
    for i, (start, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:])):
        part = Case(*(x[:, start:end] for x in c[:5]), c.scale)
        o, state = forward(part, None if S is None else S[i : i + 1])
        outputs.append(o)
        states.append(state)
    return np.concatenate(outputs, axis=1), np.concatenate(states)


def packed_backward(c: Case, cu_seqlens: Any, S: Any, do: Any, dS: Any) -> dict[str, F64]:
    parts = []
    for i, (start, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:])):
        part = Case(*(x[:, start:end] for x in c[:5]), c.scale)
        parts.append(backward(part, S[i : i + 1], do[:, start:end], dS[i : i + 1]))
    return {
        name: np.concatenate([p[name] for p in parts], axis=0 if name == "initial_state" else 1) for name in parts[0]
    }


def error(found: Any, expected: Any) -> float:
    """RMS of the difference over RMS of the expected."""
    found, expected = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert found.shape == expected.shape, f"shape {found.shape} where {expected.shape} is expected"
    size = np.sqrt((expected**2).mean()) if expected.size else 0.0
    difference = np.sqrt(((found - expected) ** 2).mean()) if expected.size else 0.0
    return float(difference / (size if size > 0 else 1.0))

"""The gated delta rule in float64 with PyTorch, chunk by chunk, on any device: autograd gives its gradients.

The same sums as recurrence.py, whose loop over tokens is slow on a GPU; test_chunked.py compares the two.
Inside a chunk, with G the running sum of the gate and D[i, j] = e^(G[i] - G[j]) for j <= i, all u follow from

    (I + diag(beta) (tril(K K^T, -1) * D)) U = diag(beta) (V - diag(e^G) K S)

and then  O = diag(e^G) Q S + tril(Q K^T) * D U  and  S <- e^G[C-1] S + (diag(e^(G[C-1] - G)) K)^T U.
"""

from __future__ import annotations

from typing import Any

import torch

CHUNK = 64


def _walk(q: Any, k: Any, v: Any, g: Any, beta: Any, S: Any) -> tuple[Any, Any]:
    """[B, HV, T, ...] of one length; S [B, HV, K, V]."""
    outputs = []
    for start in range(0, q.shape[2], CHUNK):
        part = slice(start, start + CHUNK)
        Q, K, V, b, G = q[:, :, part], k[:, :, part], v[:, :, part], beta[:, :, part, None], g[:, :, part].cumsum(-1)
        size = Q.shape[2]
        later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
        D = (G[..., :, None] - G[..., None, :]).masked_fill(later, float("-inf")).exp()
        inner = (b * (K @ K.mT) * D).tril(-1)
        right = b * (V - G.exp()[..., None] * (K @ S))
        U = torch.linalg.solve_triangular(
            inner + torch.eye(size, dtype=q.dtype, device=q.device), right, upper=False, unitriangular=True
        )
        outputs.append(G.exp()[..., None] * (Q @ S) + ((Q @ K.mT) * D) @ U)
        last = G[..., -1:]
        S = last.exp()[..., None] * S + ((last - G).exp()[..., None] * K).mT @ U
    return torch.cat(outputs, 2), S


def rule(
    q: Any, k: Any, v: Any, g: Any, beta: Any, scale: float | None = None, initial_state: Any = None,
    lengths: Any = None, l2norm: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """o [B, T, HV, V] and the final states [N, HV, K, V], in float64."""
    q, k, v, beta = (x.double() for x in (q, k, v, beta))
    if l2norm:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    group = v.shape[2] // q.shape[2]
    g = torch.zeros_like(beta) if g is None else g.double()
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    x = [y.transpose(1, 2) for y in (q.repeat_interleave(group, dim=2), k.repeat_interleave(group, dim=2), v, g, beta)]
    N = q.shape[0] if lengths is None else len(lengths) - 1
    S = q.new_zeros(N, v.shape[2], q.shape[3], v.shape[3]) if initial_state is None else initial_state.double()
    if lengths is None:
        o, states = _walk(*x, S)
        return o.transpose(1, 2), states
    pieces, states = [], []
    for i, (start, end) in enumerate(zip(lengths, lengths[1:])):
        if start == end:
            states.append(S[i : i + 1])
            continue
        o, state = _walk(*(y[:, :, start:end] for y in x), S[i : i + 1])
        pieces.append(o)
        states.append(state)
    return torch.cat(pieces, 2).transpose(1, 2), torch.cat(states)


def error(found: Any, expected: Any) -> float:
    """RMS of the difference over RMS of the reference, as flash-linear-attention's tests count."""
    found, expected = found.double(), expected.double()
    return float((found - expected).square().mean().sqrt() / (expected.square().mean().sqrt() + 1e-30))

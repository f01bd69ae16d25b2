"""What the functions of delta.py make of single arguments: checks, defaults, and the gates that are made beforehand."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from ._arrays import empty, same_device, same_kind, widened

_CHUNKS = (16, 32, 64, 128)


def scale_of(scale: float | None) -> float:
    """The library reads 0 as its default, so a scale of 0 cannot be asked for."""
    if scale is None:
        return 0.0
    if abs(float(scale)) <= 2.0**-150:  # in float32
        raise ValueError(f"scale is {scale}, which makes every output zero: give another, or None for K^-0.5")
    return float(scale)


def beta_of(beta: Any, v: Any) -> Any:
    if beta is not None:
        return beta
    ones = empty(v, v.shape[:3])
    ones[...] = 1
    return ones


def method_of(chunk_size: int | None, q: Any) -> str | None:
    """On a GPU the size is a hint that is not followed: each of its kernels has its own."""
    if chunk_size is None:
        return None
    if chunk_size not in _CHUNKS:
        raise ValueError(f"chunk_size is {chunk_size}: give 16, 32, 64 or 128, or leave it to the planner")
    return None if getattr(q, "is_cuda", False) else f"chunk{chunk_size}"


def check_kda_chunk_size(chunk_size: int | None) -> None:
    """flash-linear-attention's condition for KDA, in its words, by which callers recognise it."""
    if chunk_size is not None and chunk_size not in (32, 64):
        raise ValueError(f"`chunk_size` must be either 32 or 64, got {chunk_size}")


def state_v_first_of(state_v_first: bool, old_name: bool | None) -> bool:
    if old_name is None:
        return state_v_first
    if state_v_first:
        raise ValueError("state_v_first and transpose_state_layout, its old name, are both given: give the first")
    warnings.warn("transpose_state_layout is now state_v_first", DeprecationWarning, stacklevel=3)
    return old_name


def beta_factor_of(use_beta_sigmoid: bool, allow_neg_eigval: bool) -> float:
    if allow_neg_eigval and not use_beta_sigmoid:
        raise ValueError("allow_neg_eigval=True needs use_beta_sigmoid_in_kernel=True")
    return 2.0 if allow_neg_eigval else 0.0


def borders_of(cu_seqlens: Any, cu_seqlens_cpu: Any) -> Any:
    """The one on the CPU where both are given: reading the other one would wait for the GPU."""
    return cu_seqlens if cu_seqlens is None or cu_seqlens_cpu is None else cu_seqlens_cpu


def gate_of(g: Any, gk: Any = None) -> Any:
    """The one that is given, with the dimensions by which the library tells them apart."""
    same_kind(g=g, gk=gk)
    if g is not None and g.ndim != 3:
        raise ValueError(f"g has {g.ndim} dimensions: give [batch, tokens, value heads] (gk is by key)")
    if gk is not None and gk.ndim != 4:
        raise ValueError(f"gk has {gk.ndim} dimensions: give [batch, tokens, value heads, K]")
    return g if gk is None else gk


def gate_parameters(use_gate: bool, A_log: Any, dt_bias: Any, g: Any) -> tuple[Any, Any]:
    """A_log and dt_bias as the library takes them: both or neither."""
    if not use_gate:
        return None, None
    same_kind(A_log=A_log, dt_bias=dt_bias)
    if A_log is None or g is None:
        raise ValueError(f"use_gate_in_kernel=True needs {'A_log' if A_log is None else 'g'}")
    if dt_bias is None:
        dt_bias = empty(A_log, A_log.shape, "float32")
        dt_bias[...] = 0
    return widened("A_log", A_log), widened("dt_bias", dt_bias)


def check_safe_gate(lower_bound: float | None) -> None:
    """flash-linear-attention's condition for safe_gate=True with use_gate_in_kernel=True."""
    if lower_bound is None or not -5 <= lower_bound < 0:
        raise ValueError(
            f"lower_bound is {lower_bound}: safe_gate=True with use_gate_in_kernel=True needs one from -5 to below 0"
        )


def key_gate_of(g: Any, A_log: Any, dt_bias: Any, lower_bound: float | None) -> Any:
    """The gate of KDA in f32, [B, T, HV, K]: the library makes a gate inside for one a head only."""
    if A_log is None and lower_bound is None:
        raise ValueError("use_gate_in_kernel=True needs A_log")
    heads, size = g.shape[2], g.shape[3]
    if same_kind(g=g, A_log=A_log, dt_bias=dt_bias):
        same_device(g=g, A_log=A_log, dt_bias=dt_bias)
        torch = sys.modules["torch"]
        x = g.float() if dt_bias is None else g.float() + dt_bias.float().reshape(heads, size)
        rate = 1.0 if A_log is None else A_log.float().reshape(heads, 1).exp()
        if lower_bound is not None:
            return lower_bound * torch.sigmoid(rate * x)
        return -rate * torch.nn.functional.softplus(x)
    x = np.asarray(g, np.float32)
    x = x if dt_bias is None else x + np.asarray(dt_bias, np.float32).reshape(heads, size)
    rate = np.float32(1) if A_log is None else np.exp(np.asarray(A_log, np.float32)).reshape(heads, 1)
    if lower_bound is not None:
        return np.float32(lower_bound) * np.exp(-np.logaddexp(np.float32(0), -rate * x))
    return -rate * np.logaddexp(np.float32(0), x)

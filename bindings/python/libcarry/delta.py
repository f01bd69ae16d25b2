"""The gated delta rule, with flash-linear-attention's names, arguments, defaults and results.

Per value head the state S is K x V, and one token does

    S <- e^g S;   u = beta (v - S^T k);   S <- S + k u^T;   o = scale S^T q

numpy arrays give numpy arrays; PyTorch tensors, on the CPU or on a CUDA device, give tensors, with gradients of every
tensor argument. q, k and v of different types are computed in float32; the chunked functions give o in the type of q,
the recurrent ones in that of v, as flash-linear-attention does. Tensors whose last index is not contiguous are copied.
Differences from flash-linear-attention: float32 is accepted everywhere; the recurrent functions have gradients too; K
is at most 256 and V at most 512; unknown keywords are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._arguments import (
    beta_factor_of,
    beta_of,
    borders_of,
    check_kda_chunk_size,
    check_safe_gate,
    gate_of,
    gate_parameters,
    key_gate_of,
    method_of,
    scale_of,
    state_v_first_of,
)
from ._arrays import (
    Array,
    is_traced,
    like_q_or_wide,
    offsets,
    same_kind_and_device,
    same_type,
    wants_autograd,
    widened,
)
from ._rule import Inputs, Options, forward, forward_with_states, resolved


def _apply(x: Inputs, options: Options, output_final_state: bool, o_like: Any) -> tuple[Any, Any]:
    """The call, in the shortest way that its user allows; o gets the type of o_like. x.cu_seqlens is what was given."""
    o, final_state = _run(x, options, output_final_state)
    return _in_type_of(o, o_like), final_state


def _in_type_of(array: Any, like: Any) -> Any:
    if array.dtype == like.dtype:
        return array
    return array.astype(like.dtype) if isinstance(array, np.ndarray) else array.to(like.dtype)


def _apply_with_states(x: Inputs, options: Options, output_final_state: bool, every: int, o_like: Any) -> Any:
    """As _apply, and the states that enter chunks of `every` tokens, all in the type of o_like but the final one."""
    if not isinstance(x.q, np.ndarray) and wants_autograd(*x[:-1]):
        raise ValueError("return_intermediate_states=True has no gradients: use torch.no_grad() or inference_mode()")
    if x.cu_seqlens is not None:
        x = x._replace(cu_seqlens=offsets("cu_seqlens", x.cu_seqlens))
    o, final_state, states = forward_with_states(x, options, output_final_state, every)
    return _in_type_of(o, o_like), final_state, _in_type_of(states, o_like)


def _run(x: Inputs, options: Options, output_final_state: bool) -> tuple[Any, Any]:
    tensors = x[:-1]
    is_torch = not isinstance(x.q, np.ndarray)
    if is_torch and is_traced(tensors):
        from ._ops import apply

        return apply(x, options, output_final_state)
    if x.cu_seqlens is not None:
        x = x._replace(cu_seqlens=offsets("cu_seqlens", x.cu_seqlens))
    if is_torch and wants_autograd(*tensors):
        from ._autograd import delta_rule

        o, final_state, _ = delta_rule(resolved(x, options), output_final_state, x.cu_seqlens, *tensors)
        return o, final_state
    result = forward(x, options, output_final_state, keep=False)
    return result.o, result.final_state


def _inputs(
    q: Any, k: Any, v: Any, g: Any, beta: Any, initial_state: Any, cu_seqlens: Any,
    A_log: Any = None, dt_bias: Any = None,
) -> Inputs:  # fmt: skip
    given = {
        "q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state, "A_log": A_log,
        "dt_bias": dt_bias,
    }  # fmt: skip
    same_kind_and_device(**given)
    if v.ndim != 4:
        raise ValueError(f"v has {v.ndim} dimensions: give [batch, tokens, value heads, size]")
    q, k, v = same_type(q, k, v)
    g, beta = like_q_or_wide("g", g, q), like_q_or_wide("beta", beta_of(beta, v), q)
    return Inputs(q, k, v, g, beta, widened("initial_state", initial_state), A_log, dt_bias, cu_seqlens)


def chunk_gated_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    cu_seqlens_cpu: Any = None,
    chunk_indices: Any = None,
    cp_context: Any = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    chunk_size: int | None = None,
    transpose_state_layout: bool | None = None,
) -> tuple[Array, Array | None]:
    """The gated delta rule, chunk by chunk as matrix products.

    Args:
        q, k: `[B, T, H, K]`.
        v: `[B, T, HV, V]`; HV is a multiple of H, value head j belongs to head j / (HV/H).
        g: `[B, T, HV]`, the logarithm of the decay; what it is made of with `use_gate_in_kernel`.
        beta: `[B, T, HV]`; logits with `use_beta_sigmoid_in_kernel`, and then doubled with `allow_neg_eigval`.
        scale: of q; K^-0.5 when absent.
        initial_state: `[N, HV, K, V]`, or `[N, HV, V, K]` with `state_v_first`; zero when absent.
        output_final_state: return the state after the last token of each sequence, float32.
        use_qk_l2norm_in_kernel: divide q and k by sqrt(sum of squares + 1e-6) first.
        cu_seqlens: `[N+1]` integers: B is 1, and sequence i is tokens cu_seqlens[i]..cu_seqlens[i+1]-1. One that is on
            a GPU is copied to the CPU when it is first seen, which waits for the GPU.
        cu_seqlens_cpu: the same on the CPU, to be read in place of cu_seqlens.
        chunk_indices: a helper of other implementations, not needed here.
        use_gate_in_kernel: the gate is -exp(A_log) softplus(g + dt_bias); A_log and dt_bias are `[HV]`.
        chunk_size: 16, 32, 64 or 128; the planner's choice when absent, and on a GPU.

    Returns:
        o `[B, T, HV, V]`, and the final state or None.

    Raises:
        ValueError: shapes, types, strides, devices or cu_seqlens do not fit; the sentence names tensors and sizes.
    """
    if cp_context is not None:
        raise NotImplementedError("cp_context: a sequence split over ranks is not available from Python")
    A_log, dt_bias = gate_parameters(use_gate_in_kernel, A_log, dt_bias, g)
    options = Options(
        scale=scale_of(scale),
        state_v_first=state_v_first_of(state_v_first, transpose_state_layout),
        l2norm=use_qk_l2norm_in_kernel,
        beta_sigmoid=use_beta_sigmoid_in_kernel,
        beta_factor=beta_factor_of(use_beta_sigmoid_in_kernel, allow_neg_eigval),
        method=method_of(chunk_size, q),
    )
    gate = gate_of(g)
    borders = borders_of(cu_seqlens, cu_seqlens_cpu)
    return _apply(_inputs(q, k, v, gate, beta, initial_state, borders, A_log, dt_bias), options, output_final_state, q)


def fused_recurrent_gated_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    gk: Array | None = None,
    gv: Array | None = None,
    beta: Array | None = None,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    *,
    transpose_state_layout: bool | None = None,
) -> tuple[Array, Array | None]:
    """The gated delta rule, token by token: for decoding and short sequences; `chunk_gated_delta_rule` is its equal.

    Args:
        gk: `[B, T, HV, K]`, a gate for every key channel (KDA), in place of g.
        gv: a gate for every value channel, which Carry does not have.
        beta: ones when absent.
        The others: as in `chunk_gated_delta_rule`.

    Returns:
        o `[B, T, HV, V]`, and the final state or None.
    """
    if gv is not None:
        raise NotImplementedError("gv: a gate for every value channel is not available")
    if g is not None and gk is not None:
        raise ValueError("g and gk are both given: add g[..., None] to gk, and give that alone")
    if gk is not None and use_gate_in_kernel:
        raise ValueError("gk is given with use_gate_in_kernel=True, which makes the gate from g: give g, or gk alone")
    A_log, dt_bias = gate_parameters(use_gate_in_kernel, A_log, dt_bias, g)
    gate = gate_of(g, gk)
    options = Options(
        scale=scale_of(scale),
        state_v_first=state_v_first_of(state_v_first, transpose_state_layout),
        l2norm=use_qk_l2norm_in_kernel,
        beta_sigmoid=use_beta_sigmoid_in_kernel,
        beta_factor=beta_factor_of(use_beta_sigmoid_in_kernel, allow_neg_eigval),
        method="recurrent",
    )
    x = _inputs(q, k, v, gate, beta, initial_state, cu_seqlens, A_log, dt_bias)
    return _apply(x, options, output_final_state, v)


def chunk_kda(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    cu_seqlens_cpu: Any = None,
    cp_context: Any = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    *,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    chunk_size: int | None = None,
) -> tuple[Any, ...]:
    """KDA, the delta rule with a gate for every key channel, chunk by chunk.

    Args:
        g: `[B, T, HV, K]`, the logarithm of the decay; what it is made of with `use_gate_in_kernel`.
        use_gate_in_kernel: the gate is -exp(A_log) softplus(g + dt_bias), or with `lower_bound`
            lower_bound sigmoid(exp(A_log) (g + dt_bias)); A_log is `[HV]`, dt_bias `[HV, K]` or flat. It is made before
            the library is called, with gradients.
        lower_bound: of the gate that use_gate_in_kernel makes.
        safe_gate: with use_gate_in_kernel it needs a lower_bound from -5 to below 0, as flash-linear-attention does.
            It changes no result: the gate is used as it is, however deep.
        return_intermediate_states: also return the state at the start of every chunk; without gradients.
        chunk_size: 32 or 64, as flash-linear-attention accepts; 64 for `return_intermediate_states` when absent.
        disable_recompute, use_graph, max_num_seqs: helpers of other implementations, not needed here.
        The others: as in `chunk_gated_delta_rule`.

    Returns:
        o `[B, T, HV, V]`, and the final state or None; with return_intermediate_states also the states at the starts
        of chunks, `[B, chunks, HV, K, V]` in q's type. Those of packed sequences follow one another, with B = 1.
    """
    if cp_context is not None:
        raise NotImplementedError("cp_context: not available for KDA")
    check_kda_chunk_size(chunk_size)
    options = Options(
        scale=scale_of(scale),
        state_v_first=state_v_first,
        l2norm=use_qk_l2norm_in_kernel,
        beta_sigmoid=use_beta_sigmoid_in_kernel,
        beta_factor=beta_factor_of(use_beta_sigmoid_in_kernel, allow_neg_eigval),
        method=method_of(chunk_size, q),
    )
    if g.ndim != 4:
        raise ValueError(f"g has {g.ndim} dimensions: give [batch, tokens, value heads, K]")
    if use_gate_in_kernel:
        if safe_gate:
            check_safe_gate(lower_bound)
        g = key_gate_of(g, A_log, dt_bias, lower_bound)
    borders = borders_of(cu_seqlens, cu_seqlens_cpu)
    x = _inputs(q, k, v, g, beta, initial_state, borders)
    if return_intermediate_states:
        return _apply_with_states(x, options, output_final_state, chunk_size or 64, q)  # type: ignore[no-any-return]
    return _apply(x, options, output_final_state, q)


def fused_recurrent_kda(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Any = None,
    *,
    transpose_state_layout: bool | None = None,
) -> tuple[Array, Array | None]:
    """KDA, token by token: for decoding and short sequences. Arguments and results as in `chunk_kda`."""
    options = Options(
        scale=scale_of(scale),
        state_v_first=state_v_first_of(state_v_first, transpose_state_layout),
        l2norm=use_qk_l2norm_in_kernel,
        beta_sigmoid=use_beta_sigmoid_in_kernel,
        beta_factor=beta_factor_of(use_beta_sigmoid_in_kernel, allow_neg_eigval),
        method="recurrent",
    )
    if g.ndim != 4:
        raise ValueError(f"g has {g.ndim} dimensions: give [batch, tokens, value heads, K]")
    if use_gate_in_kernel:
        g = key_gate_of(g, A_log, dt_bias, lower_bound)
    return _apply(_inputs(q, k, v, g, beta, initial_state, cu_seqlens), options, output_final_state, v)


def chunk_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None,
    cu_seqlens_cpu: Any = None,
    *,
    chunk_size: int | None = None,
) -> tuple[Array, Array | None]:
    """DeltaNet: the delta rule without a gate, chunk by chunk. Arguments and results as in `chunk_gated_delta_rule`."""
    options = Options(scale_of(scale), False, use_qk_l2norm_in_kernel, False, 0.0, method_of(chunk_size, q))
    borders = borders_of(cu_seqlens, cu_seqlens_cpu)
    return _apply(_inputs(q, k, v, None, beta, initial_state, borders), options, output_final_state, q)


def fused_recurrent_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    beta: Array | None = None,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None,
) -> tuple[Array, Array | None]:
    """DeltaNet, token by token. Arguments and results as in `chunk_gated_delta_rule`; beta is ones when absent."""
    options = Options(scale_of(scale), False, use_qk_l2norm_in_kernel, False, 0.0, "recurrent")
    return _apply(_inputs(q, k, v, None, beta, initial_state, cu_seqlens), options, output_final_state, v)

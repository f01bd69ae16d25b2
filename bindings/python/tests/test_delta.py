"""The functions of the gated delta rule, on numpy arrays, against the float64 recurrence."""

from __future__ import annotations

import numpy as np
import pytest

import libcarry
import recurrence as ref
from libcarry._rule import Inputs, Options, backward, forward

FUNCTIONS = [libcarry.chunk_gated_delta_rule, libcarry.fused_recurrent_gated_delta_rule]
# f32: sums of at most 256 products at 6e-8 each, through a triangular solve: the project's bound is 1e-5.
# f16: o is rounded once to 2^-11; inputs are compared as stored, states stay f32.
O_BOUND = {np.float32: 1e-5, np.float16: 1e-3}
STATE_BOUND = 1e-5


def inputs(rng, B=2, T=70, H=2, HV=2, K=24, V=20, N=None, dtype=np.float32):
    """q, k, v, g, beta, h0: keys of length one, as models have them."""
    q = rng.standard_normal((B, T, H, K))
    k = rng.standard_normal((B, T, H, K))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    v = rng.standard_normal((B, T, HV, V))
    g = -rng.exponential(0.3, (B, T, HV))
    beta = rng.uniform(0, 1, (B, T, HV))
    h0 = rng.standard_normal((N or B, HV, K, V)).astype(np.float32)
    q, k, v, beta = (x.astype(dtype) for x in (q, k, v, beta))
    return q, k, v, g.astype(np.float32), beta, h0


def check(found, state, case, h0, dtype=np.float32):
    o, final = ref.forward(case, h0)
    assert found.dtype == dtype and state.dtype == np.float32
    assert ref.error(found, o) < O_BOUND[dtype]
    assert ref.error(state, final) < STATE_BOUND


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("T", [1, 15, 16, 17, 63, 64, 65, 129, 200])
def test_forward_and_state_equal_the_recurrence(rng, function, T, dtype):
    q, k, v, g, beta, h0 = inputs(rng, T=T, dtype=dtype)
    o, state = function(q, k, v, g=g, beta=beta, initial_state=h0, output_final_state=True)
    check(o, state, ref.case(q, k, v, g, beta), h0, dtype)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("sizes", [(1, 1), (7, 3), (60, 64), (100, 100), (128, 256), (256, 1), (9, 511), (256, 512)])
def test_any_key_and_value_size(rng, function, sizes):
    q, k, v, g, beta, h0 = inputs(rng, B=1, K=sizes[0], V=sizes[1])
    o, state = function(q, k, v, g=g, beta=beta, initial_state=h0, output_final_state=True)
    check(o, state, ref.case(q, k, v, g, beta), h0)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_grouped_value_heads(rng, function):
    q, k, v, g, beta, h0 = inputs(rng, H=2, HV=6)
    o, state = function(q, k, v, g=g, beta=beta, initial_state=h0, output_final_state=True)
    check(o, state, ref.case(q, k, v, g, beta), h0)


def test_defaults_are_flash_linear_attentions(rng):
    q, k, v, g, beta, _ = inputs(rng)
    o, state = libcarry.chunk_gated_delta_rule(q, k, v, g, beta)
    assert state is None
    assert ref.error(o, ref.forward(ref.case(q, k, v, g, beta, scale=24**-0.5))[0]) < 1e-5
    recurrent, state = libcarry.fused_recurrent_gated_delta_rule(q, k, v, g)
    assert state is None
    assert ref.error(recurrent, ref.forward(ref.case(q, k, v, g, np.ones_like(beta)))[0]) < 1e-5


@pytest.mark.parametrize("function", FUNCTIONS)
def test_l2norm_inside_and_scale(rng, function):
    q, k, v, g, beta, h0 = inputs(rng)
    q, k = 3 * q, 0.2 * k
    o, state = function(
        q, k, v, g=g, beta=beta, scale=0.1, initial_state=h0, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    check(o, state, ref.case(q, k, v, g, beta, scale=0.1, normalise=True), h0)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_gate_inside(rng, function, with_bias):
    q, k, v, a, beta, h0 = inputs(rng)
    A_log = rng.uniform(-1, 1, 2).astype(np.float32)
    dt_bias = rng.standard_normal(2).astype(np.float32) if with_bias else None
    o, state = function(
        q, k, v, g=a, beta=beta, initial_state=h0, output_final_state=True, use_gate_in_kernel=True,
        A_log=A_log, dt_bias=dt_bias,
    )  # fmt: skip
    shifted = a.astype(np.float64) + (0 if dt_bias is None else dt_bias)
    g = -np.exp(A_log.astype(np.float64)) * np.log1p(np.exp(shifted))
    check(o, state, ref.case(q, k, v, g, beta), h0)


def test_kda_makes_its_gate(rng):
    q, k, v, _, beta, _ = inputs(rng)
    heads, size = v.shape[2], q.shape[3]
    a = rng.standard_normal((*v.shape[:3], size)).astype(np.float32)
    A_log = rng.uniform(-1, 1, heads).astype(np.float32)
    dt_bias = rng.standard_normal(heads * size).astype(np.float32)
    g = -np.exp(A_log)[:, None] * np.log1p(np.exp(a + dt_bias.reshape(heads, size)))
    wanted, _ = libcarry.chunk_kda(q, k, v, g.astype(np.float32), beta)
    o, _ = libcarry.chunk_kda(q, k, v, a, beta, use_gate_in_kernel=True, A_log=A_log, dt_bias=dt_bias)
    assert ref.error(o, wanted) < 1e-5
    with pytest.raises(ValueError, match="needs A_log"):
        libcarry.chunk_kda(q, k, v, a, beta, use_gate_in_kernel=True)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("factor", [1, 2])
def test_sigmoid_of_beta_inside(rng, function, factor):
    q, k, v, g, _, h0 = inputs(rng)
    logits = rng.standard_normal(g.shape).astype(np.float32)
    o, state = function(
        q, k, v, g=g, beta=logits, initial_state=h0, output_final_state=True, use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=factor == 2,
    )  # fmt: skip
    check(o, state, ref.case(q, k, v, g, factor / (1 + np.exp(-logits.astype(np.float64)))), h0)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_state_with_values_first(rng, function):
    q, k, v, g, beta, h0 = inputs(rng)
    turned = np.ascontiguousarray(h0.swapaxes(2, 3))
    o, state = function(q, k, v, g=g, beta=beta, initial_state=turned, output_final_state=True, state_v_first=True)
    check(o, state.swapaxes(2, 3), ref.case(q, k, v, g, beta), h0)
    with pytest.warns(DeprecationWarning, match="state_v_first"):
        old, _ = function(q, k, v, g=g, beta=beta, initial_state=turned, transpose_state_layout=True)
    assert (old == o).all()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("cu_seqlens", [[0, 15], [0, 1, 2, 3], [0, 20, 20, 64, 130], [0, 0, 65, 65]])
def test_packed_sequences_do_not_see_each_other(rng, function, cu_seqlens):
    q, k, v, g, beta, h0 = inputs(rng, B=1, T=cu_seqlens[-1], HV=4, N=len(cu_seqlens) - 1)
    expected_o, expected_state = ref.packed_forward(ref.case(q, k, v, g, beta), cu_seqlens, h0)
    for kind in (np.int64, np.int32, list):
        given = cu_seqlens if kind is list else np.array(cu_seqlens, dtype=kind)
        o, state = function(
            q, k, v, g=g, beta=beta, initial_state=h0, output_final_state=True, cu_seqlens=given
        )  # fmt: skip
        assert ref.error(o, expected_o) < 1e-5 and ref.error(state, expected_state) < 1e-5


def test_delta_net_has_no_gate(rng):
    q, k, v, _, beta, h0 = inputs(rng, HV=4)
    case = ref.case(q, k, v, None, beta)
    for function in (libcarry.chunk_delta_rule, libcarry.fused_recurrent_delta_rule):
        o, state = function(q, k, v, beta, initial_state=h0, output_final_state=True)
        check(o, state, case, h0)
    o, state = libcarry.fused_recurrent_delta_rule(q, k, v, use_qk_l2norm_in_kernel=True, output_final_state=True)
    check(o, state, ref.case(q, k, v, None, np.ones_like(beta), normalise=True), None)


def test_gate_by_key(rng):
    q, k, v, _, beta, h0 = inputs(rng)
    gk = -rng.exponential(0.3, k.shape).astype(np.float32)
    o, state = libcarry.fused_recurrent_gated_delta_rule(
        q, k, v, gk=gk, beta=beta, initial_state=h0, output_final_state=True
    )
    check(o, state, ref.case(q, k, v, gk, beta), h0)


@pytest.mark.parametrize("chunk_size", [16, 32, 64, 128])
def test_chunk_sizes_agree(rng, chunk_size):
    q, k, v, g, beta, h0 = inputs(rng, T=200)
    o, state = libcarry.chunk_gated_delta_rule(
        q, k, v, g, beta, initial_state=h0, output_final_state=True, chunk_size=chunk_size
    )
    check(o, state, ref.case(q, k, v, g, beta), h0)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_transposed_and_sliced_inputs_are_read_where_they_lie(rng, function):
    q, k, v, g, beta, h0 = inputs(rng, B=3, T=140, HV=4)
    wide = rng.standard_normal((3, 140, 4, 50)).astype(np.float32)
    wide[..., 5:25] = v
    views = {
        "q": np.ascontiguousarray(q.swapaxes(1, 2)).swapaxes(1, 2)[::2, 3:133:2],
        "k": k[::2, 3:133:2],
        "v": wide[::2, 3:133:2, :, 5:25],
        "g": np.ascontiguousarray(g.swapaxes(1, 2)).swapaxes(1, 2)[::2, 3:133:2],
        "beta": beta[::2, 3:133:2],
    }
    assert not any(view.flags.c_contiguous for view in views.values())
    o, state = function(**views, initial_state=h0[:2], output_final_state=True)
    check(o, state, ref.case(**views), h0[:2])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_that_are_not_contiguous_are_copied(rng, function):
    names = ("q", "k", "v", "g", "beta", "initial_state")
    given = dict(zip(names, inputs(rng)))
    turned = {name: np.asfortranarray(x) for name, x in given.items()}
    turned["v"] = np.repeat(given["v"], 2, axis=3)[..., ::2]
    for found, wanted in zip(function(**turned, output_final_state=True), function(**given, output_final_state=True)):
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_mixed_types_are_computed_in_float32(rng, function):
    q, k, v, g, beta, _ = inputs(rng)
    k, beta = k.astype(np.float16), beta.astype(np.float16)
    o, _ = function(q, k, v, g, beta=beta)
    wanted, _ = function(q, k.astype(np.float32), v, g, beta=beta.astype(np.float32))
    assert o.dtype == np.float32 and np.array_equal(o, wanted)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_decay_deep_decay_and_beta_at_its_ends(rng, function):
    q, k, v, g, beta, h0 = inputs(rng, T=150, H=4, HV=4)
    g[:, :, 0], g[:, :, 1], beta[:, :, 2], beta[:, :, 3] = 0, -20, 0, 1.99
    o, state = function(q, k, v, g=g, beta=beta, initial_state=h0, output_final_state=True)
    check(o, state, ref.case(q, k, v, g, beta), h0)


def test_a_split_with_the_carried_state_equals_the_whole(rng):
    q, k, v, g, beta, h0 = inputs(rng, T=100)
    whole, last = libcarry.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=h0, output_final_state=True)
    state, parts = h0, []
    for start, end in ((0, 37), (37, 97), (97, 98), (98, 99), (99, 100)):
        function = libcarry.chunk_gated_delta_rule if end - start > 1 else libcarry.fused_recurrent_gated_delta_rule
        part = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        o, state = function(
            **{name: x[:, start:end] for name, x in part.items()}, initial_state=state, output_final_state=True
        )
        parts.append(o)
    assert ref.error(np.concatenate(parts, axis=1), whole) < 1e-5
    assert ref.error(state, last) < 1e-5


def test_results_depend_neither_on_threads_nor_on_neighbours(rng):
    q, k, v, g, beta, h0 = inputs(rng, B=3, T=300, H=3, HV=3)
    options = {"chunk_size": 64, "output_final_state": True}
    results = []
    try:
        for threads in (1, 2, 3):
            libcarry.set_threads(threads)
            results.append(libcarry.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=h0, **options))
    finally:
        libcarry.set_threads(0)
    alone = libcarry.chunk_gated_delta_rule(q[1:2], k[1:2], v[1:2], g[1:2], beta[1:2], initial_state=h0[1:2], **options)
    for o, state in results[1:]:
        assert (o == results[0][0]).all() and (state == results[0][1]).all()
    assert (alone[0][0] == results[0][0][1]).all() and (alone[1][0] == results[0][1][1]).all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_nan_passes_through_and_stays_in_its_head(rng, function):
    q, k, v, g, beta, h0 = inputs(rng, T=100)
    v[1, 30, 0, 4] = np.nan
    o, state = function(q, k, v, g=g, beta=beta, initial_state=h0, output_final_state=True)
    assert np.isnan(o[1, 30:, 0, 4]).all() and np.isnan(state[1, 0, :, 4]).all()
    assert not np.isnan(o[0]).any() and not np.isnan(o[1, :, 1]).any()
    q[...] = k[...] = v[...] = g[...] = beta[...] = np.nan
    o, state = function(q, k, v, g=g, beta=beta, initial_state=h0, output_final_state=True)
    assert np.isnan(o).all() and np.isnan(state).all()


def test_a_state_in_half_precision_is_taken(rng):
    q, k, v, g, beta, h0 = inputs(rng)
    half = h0.astype(np.float16)
    o, state = libcarry.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=half, output_final_state=True)
    check(o, state, ref.case(q, k, v, g, beta), half)


def test_inputs_are_left_as_they_were(rng):
    given = inputs(rng, T=100)
    before = [x.copy() for x in given]
    q, k, v, g, beta, h0 = given
    libcarry.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=h0, output_final_state=True)
    libcarry.fused_recurrent_gated_delta_rule(q, k, v, g, beta=beta, initial_state=h0, output_final_state=True)
    assert all((x == y).all() for x, y in zip(given, before))


def test_the_references_gradient_is_that_of_its_recurrence(rng):
    """Along a random direction, the gradient is what finite differences of the float64 recurrence give."""
    q, k, v, g, beta, h0 = inputs(rng, B=1, T=70, K=5, V=4)
    case = ref.case(q, k, v, g, beta)
    do, dS = rng.standard_normal(v.shape), rng.standard_normal(h0.shape)
    grads = ref.backward(case, h0, do, dS)

    def loss(step):
        moved = ref.Case(*(x + step * d for x, d in zip(case[:5], directions)), case.scale)
        o, S = ref.forward(moved, h0 + step * directions[5])
        return (o * do).sum() + (S * dS).sum()

    directions = [rng.standard_normal(x.shape) for x in (*case[:5], h0)]
    slope = sum((grads[n] * d).sum() for n, d in zip(("q", "k", "v", "g", "beta", "initial_state"), directions))
    assert abs((loss(1e-5) - loss(-1e-5)) / 2e-5 - slope) < 1e-6 * abs(slope)


@pytest.mark.parametrize("method", ["recurrent", "chunk16", "chunk64", None])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_backward_equals_the_reverse_recurrence(rng, method, normalise, packed):
    """The call beneath autograd, on numpy arrays, with what forward kept and without."""
    cu = np.array([0, 20, 20, 64, 140]) if packed else None
    q, k, v, g, beta, h0 = inputs(rng, B=1 if packed else 2, T=140, H=2, HV=4, N=4 if packed else None)
    do = rng.standard_normal(v.shape).astype(np.float32)
    dS = rng.standard_normal(h0.shape).astype(np.float32)
    case = ref.case(q, k, v, g, beta, normalise=normalise)
    expected = ref.packed_backward(case, cu, h0, do, dS) if packed else ref.backward(case, h0, do, dS)
    expected["g"] = expected["g"][..., 0]
    for name, x in (("q", q), ("k", k)):
        expected[name] = ref.gather_heads(expected[name], 2)
        if normalise:
            expected[name] = ref.l2norm_back(x, expected[name])
    x = Inputs(q, k, v, g, beta, h0, None, None, cu)
    options = Options(0.0, False, normalise, False, 0.0, method)
    result = forward(x, options, True, keep=True)
    for kept in (result.kept, None):
        grads = backward(x, options._replace(method=result.method), kept, do, dS)
        for name, gradient in expected.items():
            assert ref.error(grads[name], gradient) < 1e-4, name


@pytest.mark.parametrize("method", ["recurrent", "chunk16", "chunk64"])
@pytest.mark.parametrize("decay", [-5, -20, -50])
def test_gradient_of_a_deep_gate(rng, method, decay):
    """dg is as small as e^g then: terms of the size of one that cancel would drown it."""
    q, k, v, g, beta, h0 = inputs(rng, T=150)
    g[...] = decay
    do = rng.standard_normal(v.shape).astype(np.float32)
    dS = rng.standard_normal(h0.shape).astype(np.float32)
    expected = ref.backward(ref.case(q, k, v, g, beta), h0, do, dS)
    options = Options(0.0, False, False, False, 0.0, method)
    x = Inputs(q, k, v, g, beta, h0, None, None, None)
    grads = backward(x, options, forward(x, options, True, keep=True).kept, do, dS)
    assert ref.error(grads["g"], expected["g"][..., 0]) < 1e-4

"""What the functions of the gated delta rule refuse, and with which sentence."""

from __future__ import annotations

import numpy as np
import pytest

import libcarry
from test_delta import FUNCTIONS, inputs

NAMES = ("q", "k", "v", "g", "beta", "initial_state")


def give(rng, function=libcarry.chunk_gated_delta_rule, cu_seqlens=None, changes=None, sizes=None, **options):
    """Calls the function with good inputs, some of them changed."""
    given = dict(zip(NAMES, inputs(rng, **(sizes or {}))))
    for name, change in (changes or {}).items():
        given[name] = change(given[name])
    return function(**given, cu_seqlens=cu_seqlens, **options)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": lambda q: q[0]}, ["q", "3 dimensions"]),
        ({"v": lambda v: v[..., 0]}, ["v", "3 dimensions"]),
        ({"k": lambda k: k[:, :, :1]}, ["k", "[2, 70, 1, 24]", "[2, 70, 2, 24]"]),
        ({"k": lambda k: k[..., :20].copy()}, ["k", "20", "24"]),
        ({"v": lambda v: v[:, :69]}, ["v", "69", "70"]),
        ({"g": lambda g: g[:, :, :1]}, ["g", "1", "2"]),
        ({"beta": lambda beta: beta[:1]}, ["beta", "1", "2"]),
        ({"initial_state": lambda h0: h0[:1]}, ["initial_state", "1", "2"]),
        ({"initial_state": lambda h0: h0[:, :, :-1].copy()}, ["initial_state", "23", "24"]),
        ({"q": lambda q: q.astype(np.float64)}, ["q", "float64"]),
        ({"initial_state": lambda h0: h0.astype(np.float64)}, ["initial_state", "float64"]),
        ({"v": lambda v: v.astype(np.int64)}, ["v is int64", "float32"]),
        ({"g": lambda g: g.astype(">f4")}, ["g", "byte order"]),
        ({"q": lambda q: q[:, :0], "k": lambda k: k[:, :0], "v": lambda v: v[:, :0]}, ["0"]),
    ],
)
def test_tensors_that_do_not_fit_are_named_with_their_sizes(rng, function, changes, words):
    with pytest.raises(ValueError) as refusal:
        give(rng, function, changes=changes)
    for word in words:
        assert word in str(refusal.value), str(refusal.value)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_value_heads_that_are_no_multiple(rng, function):
    with pytest.raises(ValueError) as refusal:
        give(rng, function, sizes={"H": 4, "HV": 6})
    assert "4" in str(refusal.value) and "6" in str(refusal.value) and "multiple" in str(refusal.value)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("sizes", "most"), [({"K": 257}, 256), ({"V": 513}, 512)])
def test_sizes_beyond_the_largest(rng, function, sizes, most):
    with pytest.raises(ValueError) as refusal:
        give(rng, function, sizes={"B": 1, "T": 2, **sizes})
    (name, size), text = next(iter(sizes.items())), str(refusal.value)
    assert text.startswith(name) and str(size) in text and f"1 to {most}" in text


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("cu_seqlens", "word"),
    [
        ([0, 50, 40, 70], "cu_seqlens"),
        ([0, 30, 50, 69], "70"),
        ([0, 30, 50, 71], "70"),
        ([1, 30, 50, 70], "cu_seqlens"),
        ([-5, 30, 50, 70], "cu_seqlens"),
        ([0, 2**62, 50, 70], "cu_seqlens"),
        ([0.0, 30.0, 50.0, 70.0], "integers"),
        ([[0, 30, 50, 70]], "dimension"),
    ],
)
def test_cu_seqlens_that_do_not_fit(rng, function, cu_seqlens, word):
    with pytest.raises(ValueError) as refusal:
        give(rng, function, np.array(cu_seqlens), sizes={"B": 1, "N": 3})
    assert word in str(refusal.value)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("cu_seqlens", [[0], []])
def test_cu_seqlens_without_a_sequence(rng, function, cu_seqlens):
    with pytest.raises(ValueError, match="cu_seqlens"):
        give(rng, function, np.array(cu_seqlens, dtype=np.int64), sizes={"B": 1})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_packed_sequences_need_a_batch_of_one_and_a_state_each(rng, function):
    with pytest.raises(ValueError, match="batch"):
        give(rng, function, [0, 30, 70])
    with pytest.raises(ValueError, match="initial_state"):
        give(rng, function, [0, 30, 70], sizes={"B": 1, "N": 3})


def test_options_that_contradict_each_other(rng):
    with pytest.raises(ValueError, match="allow_neg_eigval"):
        give(rng, allow_neg_eigval=True)
    with pytest.raises(ValueError, match="A_log"):
        give(rng, use_gate_in_kernel=True)
    with pytest.raises(ValueError, match="chunk_size is 48"):
        give(rng, chunk_size=48)
    with pytest.raises(ValueError, match="scale is 0"):
        give(rng, scale=0)
    with pytest.raises(ValueError, match="state_v_first"):
        give(rng, state_v_first=True, transpose_state_layout=True)
    with pytest.raises(ValueError, match="A_log"):
        give(rng, use_gate_in_kernel=True, A_log=np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="head_first"):
        give(rng, head_first=True)


@pytest.mark.parametrize("lower_bound", [None, 5.0, 0.0, -50.0, float("nan")])
def test_a_safe_gate_needs_a_lower_bound_from_minus_5_to_0(rng, lower_bound):
    q, k, v, g, beta, _ = inputs(rng)
    given = {"q": q, "k": k, "v": v, "g": np.repeat(g[..., None], k.shape[-1], axis=3), "beta": beta}
    options = {"safe_gate": True, "lower_bound": lower_bound, "A_log": np.zeros(v.shape[2], np.float32)}
    with pytest.raises(ValueError, match=f"lower_bound is {lower_bound}: .* -5 to below 0"):
        libcarry.chunk_kda(**given, **options, use_gate_in_kernel=True)
    libcarry.chunk_kda(**given, **options)  # the gate is given, and the bound is not used
    libcarry.chunk_kda(**given, **{**options, "lower_bound": -5.0}, use_gate_in_kernel=True)


def test_gates_that_there_are_not(rng):
    q, k, v, g, beta, _ = inputs(rng)
    gk = np.zeros(k.shape, np.float32)
    with pytest.raises(ValueError, match="g and gk"):
        libcarry.fused_recurrent_gated_delta_rule(q, k, v, g, gk, beta=beta)
    with pytest.raises(NotImplementedError, match="gv"):
        libcarry.fused_recurrent_gated_delta_rule(q, k, v, gv=v, beta=beta)
    with pytest.raises(NotImplementedError, match="cp_context"):
        libcarry.chunk_gated_delta_rule(q, k, v, g, beta, cp_context=object())
    with pytest.raises(ValueError, match="3.*24"):
        libcarry.fused_recurrent_gated_delta_rule(q, k, v, gk=gk[..., :3].copy(), beta=beta)
    with pytest.raises(ValueError, match="gk has 3 dimensions"):
        libcarry.fused_recurrent_gated_delta_rule(q, k, v, gk=g, beta=beta)
    with pytest.raises(ValueError, match="g has 4 dimensions"):
        libcarry.chunk_gated_delta_rule(q, k, v, gk, beta)


def test_other_objects_are_refused(rng):
    q, k, v, g, beta, _ = inputs(rng)
    with pytest.raises(TypeError, match="k is a list"):
        libcarry.chunk_gated_delta_rule(q, k.tolist(), v, g, beta)
    with pytest.raises(TypeError, match="'g' and 'beta'"):
        libcarry.chunk_gated_delta_rule(q, k, v)


def test_a_refused_call_leaves_the_next_one_right(rng):
    with pytest.raises(ValueError):
        give(rng, changes={"k": lambda k: k[:, :1]})
    o, _ = give(rng)
    assert np.isfinite(o).all()

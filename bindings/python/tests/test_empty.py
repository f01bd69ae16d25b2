"""Sequences without tokens: nothing comes out, and states stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

import libcarry


def test_a_scan_of_no_steps_is_empty(rng):
    h0 = rng.standard_normal((2, 3, 4), dtype=np.float32)
    for A in (np.empty((2, 0, 3), np.float32), np.empty((2, 0, 3, 3), np.float32)):
        assert libcarry.scan(A, np.empty((2, 0, 3, 4), np.float32), h0).shape == (2, 0, 3, 4)
    with pytest.raises(ValueError, match="must be the same"):
        libcarry.scan(np.empty((2, 0, 3), np.float32), np.empty((2, 0, 5, 4), np.float32))


@pytest.mark.parametrize("function", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"])
def test_no_tokens_leave_the_state(rng, function):
    q = np.empty((2, 0, 2, 8), np.float32)
    v, g = np.empty((2, 0, 4, 5), np.float32), np.empty((2, 0, 4), np.float32)
    state = rng.standard_normal((2, 4, 8, 5), dtype=np.float32)
    o, final = getattr(libcarry, function)(q, q, v, g=g, beta=g, initial_state=state, output_final_state=True)
    assert o.shape == (2, 0, 4, 5)
    np.testing.assert_array_equal(final, state)
    assert final is not state
    _, zeros = getattr(libcarry, function)(q, q, v, g=g, beta=g, output_final_state=True)
    assert not zeros.any()
    with pytest.raises(ValueError, match="initial_state"):
        getattr(libcarry, function)(q, q, v, g=g, beta=g, initial_state=state[:1])


def test_gradients_of_no_tokens():
    torch = pytest.importorskip("torch")
    q = torch.empty(1, 0, 2, 8, requires_grad=True)
    v, g = torch.empty(1, 0, 2, 5), torch.empty(1, 0, 2)
    state = torch.randn(1, 2, 8, 5, requires_grad=True)
    o, final = libcarry.chunk_gated_delta_rule(q, q, v, g, g, initial_state=state, output_final_state=True)
    weight = torch.randn_like(final)
    (o.sum() + (weight * final).sum()).backward()
    assert torch.equal(state.grad, weight) and q.grad.shape == q.shape
    h0 = torch.randn(1, 3, 2, requires_grad=True)
    libcarry.scan(torch.empty(1, 0, 3), torch.empty(1, 0, 3, 2), h0).sum().backward()
    assert not h0.grad.any()

"""chunked.py, the reference that is quick on a GPU, against the loop over tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")

import chunked
from test_torch import inputs, recurrence


@pytest.mark.parametrize("deepest", [0.0, -1.0, -20.0, -1000.0])
@pytest.mark.parametrize("lengths", [None, [0, 20, 20, 64, 150]])
def test_chunks_are_the_recurrence(deepest, lengths):
    given = {
        name: x.detach().double().requires_grad_() for name, x in inputs(B=1, T=150, N=4 if lengths else 1).items()
    }
    given["g"] = (given["g"].detach() * -deepest).requires_grad_()
    results = []
    for o, state in (
        chunked.rule(**given, lengths=lengths, l2norm=True),
        recurrence(**given, cu_seqlens=lengths, use_qk_l2norm_in_kernel=True),
    ):
        loss = (o * torch.linspace(-1, 1, o.numel()).view(o.shape)).sum() + state.square().sum()
        results.append([o, state, *torch.autograd.grad(loss, [*given.values()])])
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)

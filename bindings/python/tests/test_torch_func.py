"""torch.func: grad, vmap, jacrev and functional_call over the operators."""

from __future__ import annotations

import pytest

import libcarry

torch = pytest.importorskip("torch")
func = pytest.importorskip("torch.func")


def scan_inputs():
    torch.manual_seed(3)
    return torch.rand(2, 7, 3), torch.randn(2, 7, 3, 4), torch.randn(2, 3, 4)


def rule_inputs(batch=2):
    torch.manual_seed(4)
    q, k = torch.randn(batch, 9, 2, 8), torch.randn(batch, 9, 2, 8)
    v, g = torch.randn(batch, 9, 2, 5), -torch.rand(batch, 9, 2)
    return q, k, v, g, torch.rand(batch, 9, 2), torch.randn(batch, 2, 8, 5)


def rule(q, k, v, g, beta, state):
    o, final = libcarry.chunk_gated_delta_rule(
        q, k, v, g, beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    return o.square().sum() + final.sum()


def scan_loss(A, b, h0):
    return libcarry.scan(A, b, h0).square().sum()


@pytest.mark.parametrize(("loss", "inputs"), [(scan_loss, scan_inputs), (rule, rule_inputs)])
def test_grad_is_that_of_autograd(loss, inputs):
    given = [x.requires_grad_() for x in inputs()]
    expected = torch.autograd.grad(loss(*given), given)
    found = func.grad(loss, argnums=tuple(range(len(given))))(*inputs())
    for one, other in zip(found, expected):
        assert torch.equal(one, other)


def test_vmap_is_a_loop_and_gives_gradients_of_every_sample():
    A, b, h0 = scan_inputs()
    samples = [x.unsqueeze(1) for x in (A, b, h0)]  # a batch of one for each
    found = func.vmap(libcarry.scan)(*samples)
    assert torch.equal(found.squeeze(1), libcarry.scan(A, b, h0))
    shared = func.vmap(libcarry.scan, in_dims=(None, 0, None))(samples[0][0], samples[1], samples[2][0])
    assert torch.equal(shared[1], libcarry.scan(A[:1], b[1:], h0[:1]))
    each = func.vmap(func.grad(scan_loss))(*samples)
    for i in range(2):
        alone = func.grad(scan_loss)(*(x[i] for x in samples))
        assert torch.equal(each[i], alone)


def test_gradients_of_every_sample_of_the_rule():
    given = [x.unsqueeze(1) for x in rule_inputs(3)]
    each = func.vmap(func.grad(rule, argnums=(0, 5)))(*given)
    for i in range(3):
        alone = func.grad(rule, argnums=(0, 5))(*(x[i] for x in given))
        assert all(torch.equal(one[i], other) for one, other in zip(each, alone))


def test_jacrev_and_functional_call():
    A, b, h0 = scan_inputs()
    rows = func.jacrev(lambda h: libcarry.scan(A, b, h)[:, -1].sum(-1))(h0)
    assert rows.shape == (2, 3, 2, 3, 4)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.decay = torch.nn.Parameter(torch.tensor([0.1, 0.5, 0.9]))

        def forward(self, b):
            return libcarry.scan(self.decay.expand(2, 7, 3).contiguous(), b)

    layer = Layer()
    grads = func.grad(lambda p: func.functional_call(layer, p, (b,)).sum())(dict(layer.named_parameters()))
    layer(b).sum().backward()
    assert torch.equal(grads["decay"], layer.decay.grad)


def test_derivatives_of_gradients_are_refused():
    A, b, h0 = scan_inputs()
    b.requires_grad_()
    (g,) = torch.autograd.grad(scan_loss(A, b, h0), b, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiates once"):
        g.sum().backward()

"""PyTorch: tensors without copies, bfloat16, and gradients against autograd through a float64 recurrence."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import libcarry
import recurrence as ref

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")

FUNCTIONS = [libcarry.chunk_gated_delta_rule, libcarry.fused_recurrent_gated_delta_rule]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# The project's bounds: 1e-5 for o and states in f32, 1e-4 for gradients. 16-bit storage rounds o and gradients once, to
# 2^-9 or 2^-12 of themselves on average; the bounds of 8e-3 and 2e-2 hold for bf16.
O_BOUND = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
GRADIENT_BOUND = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def recurrence(q, k, v, g, beta, scale=None, initial_state=None, cu_seqlens=None, **options):
    """The rule in float64 with torch operations, so that autograd gives its gradients."""
    q, k, v, beta = (x.double() for x in (q, k, v, beta))
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    if options.get("use_qk_l2norm_in_kernel"):
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(HV // H, dim=2) for x in (q, k))
    g = torch.zeros_like(beta) if g is None else g.double()
    if options.get("use_gate_in_kernel"):
        bias = options["dt_bias"]
        g = -options["A_log"].double().exp() * torch.nn.functional.softplus(g + (0 if bias is None else bias.double()))
    if options.get("use_beta_sigmoid_in_kernel"):
        beta = (2 if options.get("allow_neg_eigval") else 1) * beta.sigmoid()
    scale = K**-0.5 if scale is None else scale
    borders = (
        [(b, 0, T) for b in range(B)] if cu_seqlens is None else [(0, s, e) for s, e in zip(cu_seqlens, cu_seqlens[1:])]
    )
    outputs, states = [], []
    for index, (b, start, end) in enumerate(borders):
        S = q.new_zeros(HV, K, V) if initial_state is None else initial_state[index].double()
        if options.get("state_v_first") and initial_state is not None:
            S = S.transpose(1, 2)
        for t in range(start, end):
            S = (g[b, t].exp()[:, None, None] if g.ndim == 3 else g[b, t].exp()[:, :, None]) * S
            u = beta[b, t, :, None] * (v[b, t] - torch.einsum("hkv,hk->hv", S, k[b, t]))
            S = S + torch.einsum("hk,hv->hkv", k[b, t], u)
            outputs.append(scale * torch.einsum("hkv,hk->hv", S, q[b, t]))
        states.append(S.transpose(1, 2) if options.get("state_v_first") else S)
    return torch.stack(outputs).reshape(B, T, HV, V), torch.stack(states)


def inputs(seed=0, B=2, T=70, H=2, HV=4, K=12, V=10, N=None, dtype=torch.float32, v_first=False):
    torch.manual_seed(seed)
    given = {
        "q": torch.nn.functional.normalize(torch.randn(B, T, H, K), dim=-1).to(dtype),
        "k": torch.nn.functional.normalize(torch.randn(B, T, H, K), dim=-1).to(dtype),
        "v": torch.randn(B, T, HV, V).to(dtype),
        "g": -torch.rand(B, T, HV),
        "beta": torch.rand(B, T, HV).to(dtype),
        "initial_state": torch.randn(N or B, HV, *((V, K) if v_first else (K, V))),
    }
    return {name: x.requires_grad_() for name, x in given.items()}


def close(found, expected, bound, name=""):
    assert ref.error(found.detach().float().numpy(), expected.detach().numpy()) < bound, name


def compare(function, given, bounds, **options):
    """o, the state and every gradient of (o * do).sum() + (state * dstate).sum()."""
    tensors = {**given, **{name: x for name, x in options.items() if isinstance(x, torch.Tensor)}}
    o, state = function(**given, **options, output_final_state=True)
    expected_o, expected_state = recurrence(**given, **options)
    torch.manual_seed(1)
    do, dstate = torch.randn_like(o), torch.randn_like(state)
    found = torch.autograd.grad((o * do).sum() + (state * dstate).sum(), [*tensors.values()])
    loss = (expected_o * do.double()).sum() + (expected_state * dstate.double()).sum()
    expected = torch.autograd.grad(loss, [*tensors.values()])
    assert state.dtype == torch.float32 and o.dtype == given["v"].dtype
    close(o, expected_o, bounds[0], "o")
    close(state, expected_state, 1e-5, "state")
    for name, tensor, gradient, wanted in zip(tensors, tensors.values(), found, expected):
        assert gradient.dtype == tensor.dtype
        close(gradient, wanted.double(), bounds[1], f"gradient of {name}")


F32_BOUNDS = (O_BOUND[torch.float32], GRADIENT_BOUND[torch.float32])


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_output_state_and_gradients(function, dtype):
    compare(function, inputs(dtype=dtype), (O_BOUND[dtype], GRADIENT_BOUND[dtype]))


@pytest.mark.parametrize("T", [1, 16, 65])
def test_gradients_for_other_lengths(T):
    compare(libcarry.chunk_gated_delta_rule, inputs(T=T), F32_BOUNDS)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0.3, "use_qk_l2norm_in_kernel": True},
        {"use_beta_sigmoid_in_kernel": True},
        {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
        {"state_v_first": True},
    ],
    ids=str,
)
def test_gradients_with_options(function, options):
    compare(function, inputs(v_first=options.get("state_v_first", False)), F32_BOUNDS, **options)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_of_the_gate_inside(function):
    A_log = torch.linspace(-1, 1, 4).requires_grad_()
    dt_bias = torch.linspace(0.5, -0.5, 4).requires_grad_()
    compare(function, inputs(), F32_BOUNDS, use_gate_in_kernel=True, A_log=A_log, dt_bias=dt_bias)
    given = inputs()
    o, _ = function(**given, use_gate_in_kernel=True, A_log=A_log)
    close(o, recurrence(**given, use_gate_in_kernel=True, A_log=A_log, dt_bias=None)[0], 1e-5)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_of_packed_sequences(function):
    compare(function, inputs(B=1, T=90, N=4), F32_BOUNDS, cu_seqlens=[0, 20, 20, 64, 90])
    given = inputs(B=1, T=90, N=4)
    as_tensor, _ = function(**given, cu_seqlens=torch.tensor([0, 20, 20, 64, 90], dtype=torch.int32))
    as_list, _ = function(**given, cu_seqlens=[0, 20, 20, 64, 90])
    assert torch.equal(as_tensor, as_list)


@pytest.mark.parametrize("function", [libcarry.chunk_delta_rule, libcarry.fused_recurrent_delta_rule])
def test_delta_net(function):
    given = inputs()
    del given["g"]

    def expected(**inputs_and_options):
        return recurrence(g=None, **inputs_and_options)

    o, state = function(**given, output_final_state=True)
    wanted_o, wanted_state = expected(**given)
    (o.square().sum() + state.square().sum()).backward()
    found = {name: x.grad.clone() for name, x in given.items()}
    for x in given.values():
        x.grad = None
    (wanted_o.square().sum() + wanted_state.square().sum()).backward()
    close(o, wanted_o, 1e-5)
    for name, x in given.items():
        close(found[name], x.grad.double(), 1e-4, name)


def test_an_expanded_gradient_and_a_loss_on_one_result_only():
    given = inputs()
    o, state = libcarry.chunk_gated_delta_rule(**given, output_final_state=True)
    expected_o, expected_state = recurrence(**given)
    for found, expected in ((o.sum(), expected_o.sum()), (state.sum(), expected_state.sum())):
        grads = torch.autograd.grad(found, [*given.values()], retain_graph=True, allow_unused=True)
        wanted = torch.autograd.grad(expected, [*given.values()], retain_graph=True, allow_unused=True)
        for name, gradient, other in zip(given, grads, wanted):
            close(gradient, torch.zeros_like(gradient).double() if other is None else other.double(), 1e-4, name)


def test_backward_twice_gives_the_same():
    given = inputs()
    o, _ = libcarry.chunk_gated_delta_rule(**given)
    first = torch.autograd.grad(o.square().sum(), [*given.values()], retain_graph=True)
    second = torch.autograd.grad(o.square().sum(), [*given.values()])
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_backward_on_another_thread_gives_the_same():
    given = inputs()
    expected = torch.autograd.grad(libcarry.chunk_gated_delta_rule(**given)[0].square().sum(), [*given.values()])
    loss = libcarry.chunk_gated_delta_rule(**given)[0].square().sum()
    found = []
    thread = threading.Thread(target=lambda: found.extend(torch.autograd.grad(loss, [*given.values()])))
    thread.start()
    thread.join()
    assert len(found) == 6
    for a, b in zip(found, expected):
        close(a, b, 1e-6)


def test_only_what_needs_a_gradient_gets_one():
    given = {name: x.detach() for name, x in inputs().items()}
    given["v"].requires_grad_()
    o, state = libcarry.chunk_gated_delta_rule(**given, output_final_state=True)
    o.sum().backward()
    assert given["v"].grad is not None and given["q"].grad is None
    with torch.no_grad():
        o, state = libcarry.chunk_gated_delta_rule(**given, output_final_state=True)
    assert not o.requires_grad and not state.requires_grad


def test_checkpointing_recomputes():
    from torch.utils.checkpoint import checkpoint

    given = inputs()
    wanted = torch.autograd.grad(libcarry.chunk_gated_delta_rule(**given)[0].sum(), [*given.values()])

    def block(*tensors):
        return libcarry.chunk_gated_delta_rule(**dict(zip(given, tensors)))[0]

    found = torch.autograd.grad(checkpoint(block, *given.values(), use_reentrant=False).sum(), [*given.values()])
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))


def test_a_state_in_bfloat16_gets_its_gradient_in_bfloat16():
    given = inputs(dtype=torch.bfloat16)
    given["initial_state"] = given["initial_state"].detach().bfloat16().requires_grad_()
    o, state = libcarry.chunk_gated_delta_rule(**given, output_final_state=True)
    (o.sum() + state.sum()).backward()
    assert given["initial_state"].grad.dtype == torch.bfloat16 and state.dtype == torch.float32


@pytest.mark.parametrize("function", FUNCTIONS)
def test_views_are_read_where_they_lie(function):
    given = inputs(T=40)
    views = {name: x.detach() for name, x in given.items()}
    for name in ("q", "k", "v", "g", "beta"):
        views[name] = views[name].transpose(1, 2).contiguous().transpose(1, 2)
        assert not views[name].is_contiguous()
    o, _ = function(**views)
    close(o, recurrence(**given)[0], 1e-5)


def test_numpy_and_torch_give_the_same_bits():
    given = {name: x.detach() for name, x in inputs().items()}
    o, state = libcarry.chunk_gated_delta_rule(**given, output_final_state=True)
    arrays = {name: x.numpy() for name, x in given.items()}
    o_numpy, state_numpy = libcarry.chunk_gated_delta_rule(**arrays, output_final_state=True)
    assert isinstance(o, torch.Tensor) and isinstance(o_numpy, np.ndarray)
    assert (o.numpy() == o_numpy).all() and (state.numpy() == state_numpy).all()


def recurrent_kda(g, **given):
    return libcarry.fused_recurrent_gated_delta_rule(gk=g, **given)


@pytest.mark.parametrize("function", [libcarry.chunk_kda, recurrent_kda])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_a_gate_by_key(function, dtype):
    given = inputs(dtype=dtype)
    given["g"] = (-torch.rand(2, 70, 4, 12)).requires_grad_()
    compare(function, given, (O_BOUND[dtype], GRADIENT_BOUND[dtype]))
    compare(function, given, (O_BOUND[dtype], GRADIENT_BOUND[dtype]), use_qk_l2norm_in_kernel=True)


def test_kda_names_what_it_does_not_have():
    given = {name: x.detach() for name, x in inputs().items()}
    with pytest.raises(ValueError, match="g has 3 dimensions"):
        libcarry.chunk_kda(**given)
    given["g"] = -torch.rand(2, 70, 4, 12)
    with pytest.raises(ValueError, match="`chunk_size` must be either 32 or 64, got 16"):
        libcarry.chunk_kda(**given, chunk_size=16)
    with pytest.raises(ValueError, match="return_intermediate_states=True has no gradients"):
        libcarry.chunk_kda(**{**given, "q": given["q"].requires_grad_()}, return_intermediate_states=True)
    with pytest.raises(ValueError, match="needs A_log"):
        libcarry.chunk_kda(**given, use_gate_in_kernel=True)


def test_one_token_keeps_its_inputs_alone():
    """A text that is written with gradients enabled keeps no second copy of the state for every token."""
    given = {name: x if name == "initial_state" else x.detach()[:, :1].requires_grad_() for name, x in inputs().items()}
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        o, state = libcarry.fused_recurrent_gated_delta_rule(**given, output_final_state=True)
    assert sum(saved) == sum(x.numel() for x in given.values())
    (o.sum() + state.sum()).backward()
    assert given["initial_state"].grad is not None


@pytest.mark.parametrize("state_v_first", [False, True])
@pytest.mark.parametrize("cu_seqlens", [None, [0, 0, 33, 70]])
def test_kda_returns_the_states_at_the_starts_of_chunks(cu_seqlens, state_v_first):
    """Each equals the final state of a call that ends there."""
    given = {name: x.detach() for name, x in inputs().items() if name != "initial_state"}
    given["g"] = -torch.rand(2, 70, 4, 12)
    if cu_seqlens is not None:
        given = {name: x[:1] for name, x in given.items()}
    batch, borders = len(given["q"]), [0, 70] if cu_seqlens is None else cu_seqlens
    sizes = (given["v"].shape[3], 12) if state_v_first else (12, given["v"].shape[3])
    h0 = torch.randn(batch if cu_seqlens is None else len(borders) - 1, 4, *sizes)
    options = {"output_final_state": True, "state_v_first": state_v_first}
    o, final, h = libcarry.chunk_kda(
        **given, initial_state=h0, cu_seqlens=cu_seqlens, chunk_size=32, return_intermediate_states=True, **options
    )
    plain = libcarry.chunk_kda(**given, initial_state=h0, cu_seqlens=cu_seqlens, **options)
    close(o, plain[0], 1e-5)
    close(final, plain[1], 1e-5)
    wanted = []
    for i, (begin, end) in enumerate(zip(borders, borders[1:])):
        first = h0 if cu_seqlens is None else h0[i : i + 1]
        for at in range(begin, end, 32):
            part = {name: x[:, begin:at] for name, x in given.items()}
            wanted.append(libcarry.chunk_kda(**part, initial_state=first, **options)[1])
    assert h.dtype == given["q"].dtype
    close(h, torch.stack(wanted, 1), 1e-5)


def test_kda_makes_its_gate_with_gradients():
    given = {name: x.detach() for name, x in inputs().items()}
    a = torch.randn(2, 70, 4, 12).requires_grad_()
    A_log = torch.randn(4).requires_grad_()
    dt_bias = torch.randn(4 * 12).requires_grad_()
    gate = -A_log.exp().view(4, 1) * torch.nn.functional.softplus(a + dt_bias.view(4, 12))
    o, _ = libcarry.chunk_kda(**{**given, "g": a}, use_gate_in_kernel=True, A_log=A_log, dt_bias=dt_bias)
    wanted, _ = libcarry.chunk_kda(**{**given, "g": gate})
    close(o, wanted, 1e-6)
    for got, expected in zip(
        torch.autograd.grad(o.sum(), (a, A_log, dt_bias)), torch.autograd.grad(wanted.sum(), (a, A_log, dt_bias))
    ):
        close(got, expected, 1e-6)


@pytest.mark.parametrize("with_rate", [True, False])
def test_kda_with_a_lower_bound_of_its_gate(with_rate):
    given = {name: x.detach() for name, x in inputs().items()}
    a, A_log, dt_bias = torch.randn(2, 70, 4, 12), torch.randn(4) if with_rate else None, torch.randn(4, 12)
    rate = A_log.exp().view(4, 1) if with_rate else 1
    gate = -5.0 * torch.sigmoid(rate * (a + dt_bias))
    wanted, _ = libcarry.chunk_kda(**{**given, "g": gate})
    options = {"use_gate_in_kernel": True, "dt_bias": dt_bias, "A_log": A_log, "lower_bound": -5.0}
    o, _ = libcarry.fused_recurrent_kda(**{**given, "g": a}, **options)
    close(o, wanted.double(), 1e-5)
    arrays = {name: x.numpy() for name, x in {**given, "g": a}.items()}
    options |= {"dt_bias": dt_bias.numpy(), "A_log": A_log.numpy() if with_rate else None}
    in_numpy, _ = libcarry.fused_recurrent_kda(**arrays, **options)
    close(torch.from_numpy(in_numpy), wanted.double(), 1e-5)


def test_refusals():
    given = {name: x.detach() for name, x in inputs().items()}
    for name, tensor in given.items():
        with pytest.raises(ValueError, match=f"{name} is torch.float64"):
            libcarry.chunk_gated_delta_rule(**{**given, name: tensor.double()})
        with pytest.raises(ValueError, match=f"{name} is on meta"):
            libcarry.chunk_gated_delta_rule(**{**given, name: tensor.to("meta")})
    with pytest.raises(TypeError, match="PyTorch tensor and k a numpy array"):
        libcarry.chunk_gated_delta_rule(**{**given, "k": given["k"].numpy()})
    with pytest.raises(ValueError, match="layout"):
        libcarry.chunk_gated_delta_rule(**{**given, "beta": given["beta"].to_sparse()})


def test_rows_that_are_not_contiguous_are_copied():
    given = inputs()
    turned = {name: x.detach().mT.contiguous().mT.requires_grad_() for name, x in given.items()}
    assert turned["q"].stride(-1) != 1
    found, _ = libcarry.chunk_gated_delta_rule(**turned)
    wanted, _ = libcarry.chunk_gated_delta_rule(**given)
    assert torch.equal(found, wanted)
    found.square().sum().backward()
    wanted.square().sum().backward()
    for name in given:
        assert torch.equal(turned[name].grad, given[name].grad), name


@pytest.mark.parametrize("function", [libcarry.chunk_gated_delta_rule, libcarry.fused_recurrent_gated_delta_rule])
def test_mixed_types_are_computed_in_float32(function):
    given = {name: x.detach() for name, x in inputs().items()}
    types = {"q": torch.bfloat16, "k": torch.float32, "v": torch.float16, "g": torch.bfloat16, "beta": torch.float16}
    mixed = {name: x.to(types.get(name, x.dtype)).requires_grad_() for name, x in given.items()}
    o, _ = function(**mixed)
    wanted, _ = function(**{name: x.detach().float().requires_grad_() for name, x in mixed.items()})
    assert o.dtype == (torch.bfloat16 if "chunk" in function.__name__ else torch.float16)
    assert torch.equal(o, wanted.to(o.dtype))
    o.float().square().sum().backward()
    assert all(x.grad.dtype == x.dtype and x.grad.isfinite().all() for x in mixed.values())


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("reversed", [False, True])
def test_scan_and_its_gradients(dense, reversed):
    torch.manual_seed(0)
    A = (torch.rand(2, 30, 4, 4) * 0.3 if dense else torch.rand(2, 30, 4)).requires_grad_()
    b = torch.randn(2, 30, 4, 3, requires_grad=True)
    h0 = torch.randn(2, 4, 3, requires_grad=True)
    state, steps = h0.double(), []
    for t in range(30)[:: -1 if reversed else 1]:
        a = A[:, t].double()
        state = (a @ state if dense else a[..., None] * state) + b[:, t].double()
        steps.append(state)
    expected = torch.stack(steps[:: -1 if reversed else 1], dim=1)
    h = libcarry.scan(A, b, h0, reversed=reversed)
    weights = torch.randn_like(h)
    close(h, expected, 1e-5)
    found = torch.autograd.grad((h * weights).sum(), [A, b, h0])
    wanted = torch.autograd.grad((expected * weights.double()).sum(), [A, b, h0])
    for name, gradient, other in zip(("A", "b", "h0"), found, wanted):
        close(gradient, other.double(), 1e-4, name)
    without = torch.autograd.grad(libcarry.scan(A, b).sum(), [A, b])
    assert all(x.isfinite().all() for x in without)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scan_types_and_out(dtype):
    A, b = torch.rand(2, 30, 4).to(dtype), torch.randn(2, 30, 4, 3).to(dtype)
    h = libcarry.scan(A, b)
    out = torch.full(b.shape, float("nan"))
    assert h.dtype == dtype and libcarry.scan(A, b, out=out) is out
    close(h, out.double(), 8e-3)
    before = out._version
    libcarry.scan(A, b, out=out)
    assert out._version > before
    with pytest.raises(ValueError, match="out cannot be given"):
        libcarry.scan(A.requires_grad_(), b, out=out)

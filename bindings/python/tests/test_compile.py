"""torch.compile, fake tensors and the registration as operators: one graph, the same results as without."""

from __future__ import annotations

import pytest

import libcarry

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")
if not hasattr(torch.library, "custom_op"):
    pytest.skip("operators are registered from PyTorch 2.4 on", allow_module_level=True)

from torch._subclasses import FakeTensorMode

FUNCTIONS = [
    libcarry.chunk_gated_delta_rule,
    libcarry.fused_recurrent_gated_delta_rule,
    libcarry.chunk_delta_rule,
    libcarry.fused_recurrent_delta_rule,
    libcarry.chunk_kda,
    libcarry.fused_recurrent_kda,
]


def inputs(function, T=20, B=2, H=2, HV=4, K=8, V=6, N=None, device="cpu"):
    torch.manual_seed(0)
    given = {
        "q": torch.nn.functional.normalize(torch.randn(B, T, H, K), dim=-1),
        "k": torch.nn.functional.normalize(torch.randn(B, T, H, K), dim=-1),
        "v": torch.randn(B, T, HV, V),
        "beta": torch.rand(B, T, HV),
        "initial_state": torch.randn(N or B, HV, K, V),
    }
    if function in FUNCTIONS[:2]:
        given["g"] = -torch.rand(B, T, HV)
    if function in FUNCTIONS[4:]:
        given["g"] = -torch.rand(B, T, HV, K)
    return {name: x.to(device).requires_grad_() for name, x in given.items()}


def results(function, given):
    """Outputs, and gradients of all that is in given."""
    o, state = function(**given)
    loss = (o * torch.linspace(-1, 1, o.numel()).view(o.shape)).sum() + state.square().sum()
    return [o, state, *torch.autograd.grad(loss, [*given.values()])]


def same(found, expected):
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_graph_with_gradients(function):
    def layer(**given):
        o, state = function(**given, output_final_state=True)
        return o * 2, state

    given = inputs(function)
    torch._dynamo.reset()
    same(results(torch.compile(layer, fullgraph=True, backend="aot_eager"), given), results(layer, given))


@pytest.mark.parametrize("as_tensor", [True, False])
def test_one_graph_with_packed_sequences_and_options(as_tensor):
    function = libcarry.chunk_gated_delta_rule
    given = inputs(function, B=1, N=3)
    given["A_log"], given["dt_bias"] = torch.zeros(4).requires_grad_(), torch.ones(4).requires_grad_()
    borders = [0, 7, 7, 20]

    def layer(**given):
        cu_seqlens = torch.tensor(borders) if as_tensor else borders
        return function(
            **given, cu_seqlens=cu_seqlens, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
            use_qk_l2norm_in_kernel=True, scale=0.5, output_final_state=True,
        )  # fmt: skip

    torch._dynamo.reset()
    same(results(torch.compile(layer, fullgraph=True, backend="aot_eager"), given), results(layer, given))


def test_lengths_that_change_do_not_compile_again():
    function = libcarry.chunk_gated_delta_rule
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda **given: function(**given, output_final_state=True), dynamic=True, backend=counter)
    for T in (20, 33, 64, 7):
        given = inputs(function, T=T)
        same(results(compiled, given), results(lambda **x: function(**x, output_final_state=True), given))
    assert counter.frame_count == 1


def test_without_a_state_and_without_gradients():
    function = libcarry.chunk_gated_delta_rule
    given = {name: x.detach() for name, x in inputs(function).items()}
    torch._dynamo.reset()
    o, state = torch.compile(function, fullgraph=True, backend="eager")(**given)
    assert state is None
    assert torch.equal(o, function(**given)[0])


def test_the_operators_pass_pytorch_s_own_checks():
    from libcarry import _ops

    given = inputs(libcarry.chunk_gated_delta_rule)
    tensors = [given[name] for name in ("q", "k", "v", "g", "beta", "initial_state")]
    options = (0.0, False, True, False, 0.0, None)
    torch.library.opcheck(_ops.delta_rule, (*tensors, None, None, None, *options, True))
    torch.library.opcheck(_ops.delta_rule, (*tensors[:3], None, tensors[4], None, None, None, None, *options, False))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_tensors_have_the_right_shapes_and_devices(device):
    function = libcarry.chunk_gated_delta_rule
    with FakeTensorMode(allow_non_fake_inputs=False):
        q = torch.empty(2, 5, 2, 8, dtype=torch.bfloat16, device=device, requires_grad=True)
        v = torch.empty(2, 5, 4, 6, dtype=torch.bfloat16, device=device)
        g = torch.empty(2, 5, 4, device=device)
        o, state = function(q, q, v, g, g, output_final_state=True, state_v_first=True)
        assert o.shape == (2, 5, 4, 6) and o.dtype == torch.bfloat16 and o.device.type == device
        assert state.shape == (2, 4, 6, 8) and state.dtype == torch.float32
        if device == "cuda" and not torch.cuda.is_available():
            return  # autograd asks the driver
        o.sum().backward()
        assert q.grad.shape == q.shape and q.grad.dtype == q.dtype


def test_tensors_on_two_devices_are_refused_by_name():
    with FakeTensorMode():
        given = {name: x for name, x in inputs(libcarry.chunk_gated_delta_rule, device="cuda:0").items()}
        for name in ("k", "v", "g", "beta", "initial_state"):
            for device in ("cpu", "cuda:1"):
                with pytest.raises(ValueError, match=f"^{name} is on {device} and q on cuda:0"):
                    libcarry.chunk_gated_delta_rule(**{**given, name: given[name].to(device)})
        with pytest.raises(ValueError, match="A_log is on cpu and"):
            libcarry.chunk_gated_delta_rule(**given, use_gate_in_kernel=True, A_log=torch.zeros(4))

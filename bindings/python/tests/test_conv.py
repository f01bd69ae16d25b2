"""The causal convolution against PyTorch's, with gradients, states, packed sequences and every type."""

from __future__ import annotations

import pytest

import libcarry

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")
F = torch.nn.functional

SHAPES = [(1, 1, 1, 1), (2, 3, 5, 4), (1, 300, 70, 4), (3, 17, 2, 3), (2, 5, 40, 16)]  # batch, channels, tokens, width


def formula(x, weight, bias, activation, before=None):
    start = x.new_zeros(x.shape[0], x.shape[1], weight.shape[1] - 1) if before is None else before
    y = F.conv1d(torch.cat([start, x], -1), weight[:, None], bias, groups=x.shape[1])
    return y if activation is None else F.silu(y)


def draw(shape, dtype=torch.float32, rows=True):
    torch.manual_seed(3)
    batch, channels, tokens, width = shape
    x = torch.randn(batch, tokens, channels).transpose(1, 2) if rows else torch.randn(batch, channels, tokens)
    return x.to(dtype), torch.randn(channels, width).to(dtype), torch.randn(channels).to(dtype)


def close(got, wanted, bound):
    assert got.shape == wanted.shape
    largest = max(float(wanted.abs().max()), 1e-30) if wanted.numel() else 1.0
    torch.testing.assert_close(got.float(), wanted.float(), rtol=0, atol=bound * largest)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", [None, "silu", "swish"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_result_and_gradients_equal_pytorch_s(shape, activation, with_bias):
    x, weight, bias = draw(shape, rows=shape[0] != 3)
    before = torch.randn(shape[0], shape[1], shape[3] - 1)
    given = [x, weight, before, *([bias] if with_bias else [])]
    ours, theirs = ([t.clone().requires_grad_() for t in given] for _ in range(2))
    y, final = libcarry.causal_conv1d_fn(
        ours[0], ours[1], ours[3] if with_bias else None, initial_states=ours[2], return_final_states=True,
        activation=activation,
    )  # fmt: skip
    wanted = formula(theirs[0], theirs[1], theirs[3] if with_bias else None, activation, theirs[2])
    close(y.detach(), wanted.detach(), 1e-6)
    assert torch.equal(final, torch.cat([before, x], -1)[..., shape[2] :])
    dy = torch.randn_like(y)
    y.backward(dy)
    wanted.backward(dy)
    for mine, other in zip(ours, theirs):
        if mine.numel() > 0:
            close(mine.grad, other.grad, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_float32_inside(dtype):
    x, weight, bias = draw((2, 40, 33, 4), dtype)
    for given in (None, bias):
        y = libcarry.causal_conv1d_fn(x, weight, given, activation="silu")
        wanted = formula(x.float(), weight.float(), None if given is None else given.float(), "silu")
        assert y.dtype == dtype
        assert torch.equal(y, wanted.to(dtype)) or (y - wanted.to(dtype)).abs().max() <= 2.0**-8 * wanted.abs().max()
    mixed = libcarry.causal_conv1d_fn(x.float(), weight)
    close(mixed, formula(x.float(), weight.float(), None, None), 1e-6)


def test_packed_sequences_do_not_see_each_other():
    x, weight, _ = draw((2, 6, 30, 4))
    seq_idx = torch.tensor([[0] * 7 + [1] * 1 + [2] * 22, [0] * 30])
    y = libcarry.causal_conv1d_fn(x, weight, seq_idx=seq_idx, activation="silu")
    parts = [formula(x[:1, :, i:j], weight, None, "silu") for i, j in ((0, 7), (7, 8), (8, 30))]
    close(y[:1], torch.cat(parts, -1), 1e-6)
    close(y[1:], formula(x[1:], weight, None, "silu"), 1e-6)
    with pytest.raises(ValueError, match="seq_idx is given with initial_states"):
        libcarry.causal_conv1d_fn(x, weight, seq_idx=seq_idx, return_final_states=True)


@pytest.mark.parametrize("size", [3, 4, 6])
def test_an_update_goes_on_where_the_state_ends(size):
    x, weight, bias = draw((2, 6, 20, 4))
    wanted = formula(x, weight, bias, "silu")
    state = F.pad(x[..., :11], (size, 0))[..., -size:]
    for t in range(11, 14):
        y = libcarry.causal_conv1d_update(x[..., t], state, weight, bias, "silu")
        close(y, wanted[..., t], 1e-6)
    y = libcarry.causal_conv1d_update(x[..., 14:], state, weight, bias, "silu")
    close(y, wanted[..., 14:], 1e-6)
    assert torch.equal(state, x[..., -size:])


def test_compiled_calls_and_empty_ones():
    x, weight, bias = draw((2, 6, 20, 4))
    compiled = torch.compile(libcarry.causal_conv1d_fn, backend="eager", fullgraph=True)
    close(compiled(x, weight, bias, activation="silu"), formula(x, weight, bias, "silu"), 1e-6)
    assert libcarry.causal_conv1d_fn(x[..., :0], weight).shape == (2, 6, 0)


def test_bad_input_is_named():
    x, weight, _ = draw((2, 6, 20, 4))
    with pytest.raises(ValueError, match=r"x has shape \[2, 6, 20\] and weight \[5, 4\]"):
        libcarry.causal_conv1d_fn(x, weight[:5])
    with pytest.raises(ValueError, match="weight has 17 taps: give 1 to 16"):
        libcarry.causal_conv1d_fn(x, torch.zeros(6, 17))
    with pytest.raises(ValueError, match="activation is 'relu': give None, 'silu' or 'swish'"):
        libcarry.causal_conv1d_fn(x, weight, activation="relu")
    with pytest.raises(ValueError, match=r"initial_states has shape \[2, 6, 4\] where \[2, 6, 3\] is needed"):
        libcarry.causal_conv1d_fn(x, weight, initial_states=torch.zeros(2, 6, 4))
    with pytest.raises(ValueError, match=r"conv_state has shape \[2, 6, 2\]: give \[2, 6, 3 or more\]"):
        libcarry.causal_conv1d_update(x[..., 0], torch.zeros(2, 6, 2), weight)
    with pytest.raises(ValueError, match="give float32, bfloat16 or float16"):
        libcarry.causal_conv1d_fn(x.double(), weight)
    with pytest.raises(TypeError, match="weight is a list"):
        libcarry.causal_conv1d_fn(x, [[1.0]])

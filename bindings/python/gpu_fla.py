"""The parts of gpu_report.py that need flash-linear-attention; where it is not installed they say so and do nothing."""

from __future__ import annotations

from typing import Any, Callable

try:
    import torch

    import chunked
except ImportError:
    torch = None
import libcarry


def layers(tell: Callable[[bool, str], None], close: Callable[..., bool]) -> None:
    """A Gated DeltaNet layer of flash-linear-attention through Carry, against the same layer through float64."""
    try:
        from fla.layers import gated_deltanet
    except Exception as error:
        print(f"skipped: flash-linear-attention cannot be loaded: {str(error).splitlines()[0][:100]}")
        return

    def reference(**x: Any) -> Any:
        g = -x["A_log"].double().exp() * torch.nn.functional.softplus(x["g"].double() + x["dt_bias"].double())
        o, _ = chunked.rule(x["q"], x["k"], x["v"], g, x["beta"].double().sigmoid(), l2norm=True)
        return o.to(x["v"].dtype), None

    torch.manual_seed(0)
    layer = gated_deltanet.GatedDeltaNet(hidden_size=512, head_dim=128, num_heads=4, expand_v=1, layer_idx=0)
    layer = layer.to("cuda", torch.bfloat16).train()
    x = torch.randn(2, 300, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    theirs = gated_deltanet.chunk_gated_delta_rule
    with libcarry.patch_fla() as patch:
        y = layer(x)[0]
        found = [y, *torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])]
        replaced = len(patch.changed)
    tell(gated_deltanet.chunk_gated_delta_rule is theirs, f"patch_fla replaced {replaced} names, and put them back")
    gated_deltanet.chunk_gated_delta_rule = reference
    y = layer(x)[0]
    wanted = [y, *torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])]
    gated_deltanet.chunk_gated_delta_rule = theirs
    tell(close(found, wanted, 3e-2), "its layer through Carry, output and every gradient")


def peers() -> None:
    """Errors in bf16 beside those of flash-linear-attention's own kernels on the same inputs, where it is installed."""
    try:
        from fla.ops.delta_rule import chunk_delta_rule
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except Exception as error:
        print(f"skipped: flash-linear-attention cannot be loaded: {str(error).splitlines()[0][:100]}")
        return
    import fla_shapes as shapes

    for name, theirs, shape in (
        ("chunk_delta_rule", chunk_delta_rule, shapes.Shape(2, 1024, 4, 4, 128, 1, l2norm=True, dtype="bf16")),
        ("chunk_delta_rule", chunk_delta_rule, shapes.Shape(2, 1000, 3, 3, 128, 0.1, dtype="bf16")),
        (
            "chunk_gated_delta_rule", chunk_gated_delta_rule,
            shapes.Shape(2, 700, 2, 4, 128, masked=1.0, l2norm=True, dtype="bf16"),
        ),
    ):  # fmt: skip
        given, values = shapes.draw(shape, "g" in name and "gated" in name, 1, "cuda")
        for who, function in (("carry", getattr(libcarry, name)), ("fla", theirs)):
            grads = who == "carry" or "gated" not in name
            found, do, dht = shapes.run(function, given, shape, grads, 1)
            expected = shapes.expect_on_gpu(values, shape, do, dht)
            errors = [f"{x} {shapes.error_of(found[x], expected[x]):.1e}" for x in shapes.TENSORS if x in found]
            print(f"       {name} {shape.text()}: {who}: {', '.join(errors)}", flush=True)

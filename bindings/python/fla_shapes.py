"""The shapes of flash-linear-attention's published tests, through Carry's Python functions, against float64.

    python bindings/python/fla_shapes.py            every case (minutes)
    python bindings/python/fla_shapes.py --quick    the smaller ones (under a minute)
    python bindings/python/fla_shapes.py --device cuda --dtype f16 bf16 f32    on a GPU, each case in three types

Inputs are drawn as those tests draw them; the reference is the recurrence in numpy, token by token, from the inputs as
they are stored (on a GPU, the same by chunks in PyTorch). An error is the RMS of the difference over the RMS of the
reference, and the tolerances are those tests' own. With PyTorch the gradients are compared too, through autograd;
without it, forward passes only, and bf16 cases run in f16. Exit status 1 when something is beyond its tolerance.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "tests"))
import checkout
import recurrence as ref

checkout.use()
import libcarry

try:
    import torch

    import chunked
except ImportError:
    torch = None

QUICK = 1e8  # multiply-adds of a state's update, the batch, tokens and heads together
TENSORS = ("o", "ht", "dq", "dk", "dv", "dh0", "dbeta", "dg")
CHUNK = dict(zip(TENSORS, (5e-3, 5e-3, 8e-3, 8e-3, 8e-3, 8e-3, 2e-2, 2e-2)))
RECURRENT = {"o": 2e-3, "ht": 2e-3}


worst: dict[tuple[str, str], float] = {}  # by type and tensor
quiet = False


class Shape(NamedTuple):
    """A case; lengths are those of packed sequences, or None for B sequences of T tokens."""

    B: int
    T: int
    H: int
    HV: int
    D: int
    scale: float | None = None
    divisor: float = 1.0  # of the gate
    masked: float = 0.0  # the probability that a gate is set to 0
    deep: float = 0.0  # what every other gate is, drawn at random, where it is not 0
    l2norm: bool = False
    dtype: str = "f16"
    lengths: tuple[int, ...] | None = None

    def text(self) -> str:
        where = f"{self.B}x{self.T}"
        if self.lengths:
            count = len(self.lengths) - 1
            where = f"cu {','.join(map(str, self.lengths))}" if count < 8 else f"cu {count}x{self.lengths[1]}"
        heads = f"h{self.H}" + (f"/{self.HV}" if self.HV != self.H else "")
        more = [f"scale {self.scale:g}"] if self.scale is not None else []
        more += [f"g/{self.divisor:g}"] if self.divisor != 1 else []
        more += [f"g=0 at {self.masked:g}"] if self.masked else []
        more += [f"g={self.deep:g} at 0.5"] if self.deep else []
        more += ["l2norm"] if self.l2norm else []
        return " ".join([where, heads, f"d{self.D}", self.dtype, *more])

    def work(self) -> float:
        return float(self.B * self.T * self.HV * self.D * self.D)


def packed(H: int, HV: int, D: int, *borders: int, masked: float = 0.0) -> Shape:
    return Shape(1, borders[-1], H, HV, D, masked=masked, lengths=borders)


GROUPS: list[tuple[str, Any, dict[str, float], list[Shape]]] = [
    (
        "fused_recurrent_gated_delta_rule", libcarry.fused_recurrent_gated_delta_rule, RECURRENT,
        [
            Shape(1, 63, 1, 1, 64, 1, 1, l2norm=True, dtype="f32"),
            Shape(2, 500, 4, 4, 60, 1, 1, l2norm=True, dtype="f32"),
            Shape(2, 1000, 2, 8, 128, 1, 0.1, l2norm=True, dtype="f32"),
            Shape(3, 1024, 2, 2, 128, 0.1, 1, l2norm=True, dtype="f32"),
            Shape(4, 1024, 3, 3, 128, 1, 10, l2norm=True, dtype="f32"),
            Shape(4, 2048, 4, 4, 64, 0.1, 1, l2norm=True, dtype="f32"),
            Shape(2, 1024, 4, 4, 128, 1, 0.1, l2norm=True),
            Shape(2, 1024, 4, 8, 128, 1, 10, l2norm=True),
        ],
    ),
    (
        "chunk_gated_delta_rule", libcarry.chunk_gated_delta_rule, CHUNK,
        [
            Shape(2, 75, 4, 4, 64, 1, 0.01),
            Shape(2, 500, 3, 3, 60, 1, 1),
            Shape(2, 1000, 3, 3, 64, 0.1, 1, 0.5),
            Shape(3, 1024, 4, 4, 100, 1, 0.1),
            Shape(4, 1024, 4, 4, 128, 0.1, 1, 1.0),
            Shape(4, 1024, 4, 4, 128, 0.1, 1, l2norm=True),
            Shape(2, 1500, 4, 4, 128, 0.1, 10),
            Shape(4, 2048, 8, 8, 64, 0.1, 1),
            Shape(2, 256, 2, 4, 64, 1, 1),
            Shape(2, 512, 2, 8, 64, 1, 0.1, l2norm=True),
            Shape(2, 1024, 4, 8, 128, 0.1, 1),
            Shape(1, 4096, 16, 16, 128, l2norm=True, dtype="bf16"),
            Shape(2, 700, 2, 4, 128, masked=1.0, l2norm=True, dtype="bf16"),
            Shape(2, 700, 2, 4, 128, deep=-20.0, l2norm=True, dtype="bf16"),
            Shape(2, 700, 2, 4, 128, deep=-1000.0, l2norm=True, dtype="bf16"),
        ],
    ),
    (
        "chunk_gated_delta_rule, packed", libcarry.chunk_gated_delta_rule, CHUNK,
        [
            packed(4, 4, 60, 0, 15),
            packed(4, 4, 64, 0, 256, 500, 1000),
            packed(4, 4, 64, 0, 256, 500, 1000, masked=0.5),
            packed(2, 4, 64, 0, 256, 500, 1000),
            packed(2, 8, 64, 0, 256, 500, 1000),
            packed(4, 4, 100, 0, 15, 100, 300, 1200, 2000),
            packed(2, 4, 128, *range(0, 11 * 33 + 1, 33)),
            packed(2, 4, 128, 0, 410, 841, 1135, 2126, 2512, 4096),
        ],
    ),
    (
        "chunk_delta_rule", libcarry.chunk_delta_rule, {name: bound for name, bound in CHUNK.items() if name != "dg"},
        [
            Shape(1, 63, 1, 1, 64, 1),
            Shape(2, 100, 4, 4, 60, 0.1),
            Shape(2, 1000, 3, 3, 128, 0.1),
            Shape(2, 1024, 4, 4, 128, 1, l2norm=True),
            Shape(3, 2000, 4, 4, 128, 0.1),
            Shape(4, 2048, 8, 8, 64, 0.1),
            packed(2, 2, 64, 0, 15),
            packed(3, 3, 60, 0, 111, 500),
            packed(3, 3, 64, 0, 256, 500, 900, 1000),
            packed(4, 4, 100, 0, 15, 100, 300, 1200, 1599, 1800, 2000),
        ],
    ),
]  # fmt: skip


def stored(x: Any, dtype: str, device: str) -> tuple[Any, Any]:
    """What the function is given, and the same values in float64."""
    if torch is None:
        given = np.asarray(x, dtype=np.float32 if dtype == "f32" else np.float16)
        return given, given.astype(np.float64)
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    given = torch.from_numpy(np.asarray(x, dtype=np.float32)).to(device).to(kind)
    return given, given.double().numpy() if device == "cpu" else given


def draw(shape: Shape, gated: bool, seed: int, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs by name, as given and in float64."""
    rng = np.random.default_rng(seed)
    B, T, H, HV, D = shape[:5]
    N = len(shape.lengths) - 1 if shape.lengths else B
    # Packed cases draw from the normal distribution, the others q, k and v from 0..1: keys that lie close together.
    sample = rng.standard_normal if shape.lengths or shape.dtype == "f32" else rng.random
    q, k = sample((B, T, H, D)), sample((B, T, H, D))
    if not shape.l2norm:
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        q = q if shape.lengths else q / np.linalg.norm(q, axis=-1, keepdims=True)
    drawn = {
        "q": (q, shape.dtype),
        "k": (k, shape.dtype),
        "v": (sample((B, T, HV, D)), shape.dtype),
        "beta": (1 / (1 + np.exp(-rng.random((B, T, HV)))), "f32"),
        "initial_state": (rng.standard_normal((N, HV, D, D)), "f32"),
    }
    if gated:
        g = -np.log1p(np.exp(-rng.random((B, T, HV)))) / shape.divisor
        g = g * (rng.random(g.shape) >= shape.masked)
        drawn["g"] = (np.where(rng.random(g.shape) < 0.5, shape.deep, g) if shape.deep else g, "f32")
    pairs = {name: stored(x, dtype, device) for name, (x, dtype) in drawn.items()}
    return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}


def run(function: Any, given: dict[str, Any], shape: Shape, grads: bool, seed: int) -> tuple[dict[str, Any], Any, Any]:
    """What Carry gives, by the names of TENSORS, and the gradients do and dht that went in."""
    options = {"scale": shape.scale, "use_qk_l2norm_in_kernel": shape.l2norm, "cu_seqlens": shape.lengths}
    if grads:
        given = {name: x.detach().requires_grad_() for name, x in given.items()}
    o, ht = function(**given, **options, output_final_state=True)
    if not grads:
        return {"o": o, "ht": ht}, None, None
    torch.manual_seed(seed)
    do, dht = torch.randn_like(o), torch.randn_like(ht)
    found = torch.autograd.grad([o, ht], [*given.values()], [do, dht])
    names = {"initial_state": "dh0"}
    result = {names.get(name, f"d{name}"): x for name, x in zip(given, found)}
    return result | {"o": o.detach(), "ht": ht.detach()}, do, dht


def expect_on_gpu(values: dict[str, Any], shape: Shape, do: Any, dht: Any) -> dict[str, Any]:
    """The same from float64 chunks, with autograd's gradients."""
    values = {name: x.double().detach().requires_grad_() for name, x in values.items()}
    gate = values.get("g")
    inputs = {name: x for name, x in values.items() if name != "g"}
    o, ht = chunked.rule(**inputs, g=gate, scale=shape.scale, lengths=shape.lengths, l2norm=shape.l2norm)
    result = {"o": o.detach(), "ht": ht.detach()}
    if do is not None:
        found = torch.autograd.grad([o, ht], [*values.values()], [do.double(), dht.double()])
        names = {"initial_state": "dh0"}
        result |= {names.get(name, f"d{name}"): x for name, x in zip(values, found)}
    return result


def expect(values: dict[str, Any], shape: Shape, do: Any, dht: Any) -> dict[str, Any]:
    """The same from the recurrence."""
    do, dht = (x if x is None else x.double().numpy() for x in (do, dht))
    case = ref.case(*(values.get(name) for name in ("q", "k", "v", "g", "beta")), shape.scale, shape.l2norm)
    h0 = values["initial_state"]
    o, ht = ref.packed_forward(case, shape.lengths, h0) if shape.lengths else ref.forward(case, h0)
    if do is None:
        return {"o": o, "ht": ht}
    back = ref.packed_backward(case, shape.lengths, h0, do, dht) if shape.lengths else ref.backward(case, h0, do, dht)
    for name in ("q", "k"):
        back[name] = ref.gather_heads(back[name], shape.H)
        back[name] = ref.l2norm_back(values[name], back[name]) if shape.l2norm else back[name]
    back["g"] = back["g"][..., 0]
    back["h0"] = back.pop("initial_state")
    return {"o": o, "ht": ht, **{f"d{name}": x for name, x in back.items()}}


def row(text: str, cells: list[str], end: str = "") -> None:
    print(f"{text:<58}" + "".join(f"{cell:>10}" for cell in cells) + end, flush=True)


def error_of(found: Any, expected: Any) -> float:
    """0 where no element is off by more than 1e-6, as those tests have it: gradients of deep gates are that small."""
    if isinstance(expected, np.ndarray):
        found = found if isinstance(found, np.ndarray) else found.double().numpy()
        return 0.0 if abs(found - expected).max(initial=0.0) <= 1e-6 else ref.error(found, expected)
    if found.numel() > 0 and float((found.double() - expected.double()).abs().max()) <= 1e-6:
        return 0.0
    return chunked.error(found, expected)


def try_shape(function: Any, tolerances: dict[str, float], shape: Shape, grads: bool, seed: int, device: str) -> bool:
    """Runs and prints one case; is every error within its tolerance?"""
    if torch is None and shape.dtype == "bf16":
        shape = shape._replace(dtype="f16")
    given, values = draw(shape, function is not libcarry.chunk_delta_rule, seed, device)
    found, do, dht = run(function, given, shape, grads and "dq" in tolerances, seed)
    expected = (expect if device == "cpu" else expect_on_gpu)(values, shape, do, dht)
    cells, right = [], True
    for name in TENSORS:
        if name not in found or name not in tolerances:
            cells.append("-")
            continue
        error = error_of(found[name], expected[name])
        within = error <= tolerances[name]  # false for NaN
        right = right and within
        worst[shape.dtype, name] = max(worst.get((shape.dtype, name), 0.0), error)
        cells.append(f"{error:.1e}" + (" " if within else "!"))
    if not (quiet and right):
        row("  " + shape.text(), cells, "" if right else "  FAILED")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="the smaller shapes only")
    parser.add_argument("--forward", action="store_true", help="no gradients")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda, which needs PyTorch")
    parser.add_argument("--dtype", nargs="+", choices=("f32", "bf16", "f16"), help="of every case in place of its own")
    parser.add_argument("--brief", action="store_true", help="cases that fail, and the largest errors of each type")
    arguments = parser.parse_args()
    if arguments.device != "cpu" and (torch is None or not torch.cuda.is_available()):
        print("skipped: PyTorch sees no GPU here")
        return 77
    global quiet
    quiet = arguments.brief
    grads = torch is not None and not arguments.forward
    if torch is None:
        print("PyTorch is not installed: no gradients, and bf16 cases run in f16")
    ran, failed, left_out, start = 0, 0, 0, time.time()
    for title, function, tolerances, shapes in GROUPS:
        if not quiet:
            row(title, [*TENSORS])
            row("  tolerance", [f"{tolerances[name]:.0e} " if name in tolerances else "-" for name in TENSORS])
        for shape in [x._replace(dtype=dtype) for x in shapes for dtype in arguments.dtype or [x.dtype]]:
            if arguments.quick and shape.work() > QUICK:
                left_out += 1
                continue
            ran += 1
            failed += not try_shape(function, tolerances, shape, grads, ran, arguments.device)
    for dtype in ("f32", "f16", "bf16"):
        if quiet and (dtype, "o") in worst:
            row(f"  largest errors, {dtype}", [f"{worst[dtype, name]:.1e} " for name in TENSORS])
    more = f", {left_out} larger ones left out" if left_out else ""
    print(f"{ran - failed} of {ran} cases within tolerance{more}, {time.time() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What Carry does with CUDA tensors from Python, on the GPU of this machine: checks first, then times.

    python bindings/python/gpu_report.py            all of it, about a minute
    python bindings/python/gpu_report.py bits times the parts that are named

Each part prints a line for each thing it looked at, beginning with "ok" or "FAILED", or a figure. Exit status 1 when
something failed, 77 where PyTorch sees no GPU. fla_shapes.py --device cuda compares errors with tolerances.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parent / "tests"))
import checkout

checkout.use()
try:
    import torch
except ImportError:
    torch = None
import gpu_fla
import libcarry

failures = 0


def tell(good: bool, text: str) -> None:
    global failures
    failures += not good
    print(f"{'ok' if good else 'FAILED':<7}{text}", flush=True)


def inputs(
    B: int, T: int, H: int, HV: int, D: int, dtype: Any, N: int | None = None, grads: bool = False
) -> dict[str, Any]:
    """q and k of length 1, mixed gates: logsigmoid(randn) / 16, every fourth head without decay."""
    torch.manual_seed(0)
    g = torch.nn.functional.logsigmoid(torch.randn(B, T, HV, device="cuda")) / 16
    g[:, :, ::4] = 0
    given = {
        "q": torch.nn.functional.normalize(torch.randn(B, T, H, D, device="cuda"), dim=-1).to(dtype),
        "k": torch.nn.functional.normalize(torch.randn(B, T, H, D, device="cuda"), dim=-1).to(dtype),
        "v": torch.randn(B, T, HV, D, device="cuda").to(dtype),
        "g": g,
        "beta": torch.rand(B, T, HV, device="cuda"),
        "initial_state": torch.randn(N or B, HV, D, D, device="cuda"),
    }
    return {name: x.requires_grad_(grads) for name, x in given.items()}


def both(function: Any, given: dict[str, Any], **options: Any) -> list[Any]:
    """o, the state and every gradient."""
    o, state = function(**given, **options, output_final_state=True)
    torch.manual_seed(1)
    weights = [torch.randn_like(o), torch.randn_like(state)]
    return [o.detach(), state.detach(), *torch.autograd.grad([o, state], [*given.values()], weights)]


def close(found: list[Any], expected: list[Any], bound: float) -> bool:
    def error(a: Any, b: Any) -> float:
        a, b = a.double(), b.double()
        return float((a - b).square().mean().sqrt() / (b.square().mean().sqrt() + 1e-30))

    return all(error(a, b) <= bound for a, b in zip(found, expected))


def refused(kind: Any, word: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        tell(word in str(error), f"refused: {str(error).splitlines()[0][:150]}")
    else:
        tell(False, f"not refused: {word}")


FIRST = """
import sys, time
sys.path.insert(0, sys.argv[1])
import checkout
checkout.use()
import torch
x = torch.randn(1, 4096, 16, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
v = torch.randn(1, 4096, 32, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
g = torch.zeros(1, 4096, 32, device="cuda")
(x.sum() + v.sum()).item()
times = [time.perf_counter()]
import libcarry
times.append(time.perf_counter())
o, _ = libcarry.chunk_gated_delta_rule(x, x, v, g, g + 0.5, use_qk_l2norm_in_kernel=True)
torch.cuda.synchronize()
times.append(time.perf_counter())
o.sum().backward()
torch.cuda.synchronize()
times.append(time.perf_counter())
print(*(b - a for a, b in zip(times, times[1:])))
"""


def first() -> None:
    """The first call of a process that has a CUDA context already."""
    command = [sys.executable, "-c", FIRST, str(Path(__file__).resolve().parent / "tests")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    if done.returncode != 0:
        tell(False, f"first call: {done.stderr.strip().splitlines()[-1]}")
        return
    load, forward, backward = map(float, done.stdout.split())
    tell(
        load + forward < 0.5,
        f"first call of a process: import {load:.3f} s, forward {forward:.3f} s, backward {backward:.3f} s",
    )


def bits() -> None:
    """The same bits in 1000 runs, with other work in between and results in other places."""
    cases = [
        ("bf16 16/32 1x2048", inputs(1, 2048, 16, 32, 128, torch.bfloat16, grads=True), {}),
        ("bf16 2/8 1x8192", inputs(1, 8192, 2, 8, 128, torch.bfloat16, grads=True), {}),
        ("bf16 packed", inputs(1, 700, 4, 8, 128, torch.bfloat16, 3, grads=True), {"cu_seqlens": [0, 100, 401, 700]}),
        ("f16 4x100 d64", inputs(4, 100, 2, 4, 64, torch.float16, grads=True), {}),
        ("f32 2x100 d60", inputs(2, 100, 2, 2, 60, torch.float32, grads=True), {}),
    ]
    for name, given, options in cases:
        start = time.perf_counter()
        wanted = both(libcarry.chunk_gated_delta_rule, given, **options)
        differ = torch.zeros((), dtype=torch.int64, device="cuda")
        for i in range(1000):
            keep = torch.empty(1 + i * 4096, device="cuda")  # moves what is allocated next
            found = both(libcarry.chunk_gated_delta_rule, given, **options)
            for a, b in zip(found, wanted):
                differ += (a.view(torch.uint8) != b.view(torch.uint8)).any() | a.isnan().any()
            del keep
        count = int(differ)
        tell(
            count == 0,
            f"1000 forward and backward runs of {name}: {count} differ ({time.perf_counter() - start:.1f} s)",
        )


def streams() -> None:
    """A call is put into the current stream and returns before its inputs are there."""
    given = inputs(1, 2048, 4, 8, 128, torch.bfloat16, grads=True)
    wanted = both(libcarry.chunk_gated_delta_rule, given)
    side = torch.cuda.Stream()
    late = {name: torch.full_like(x, float("nan")) for name, x in given.items()}
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)  # 0.2 s or more
        for name, x in late.items():
            x.copy_(given[name].detach())
            x.requires_grad_()
        start = time.perf_counter()
        found = both(libcarry.chunk_gated_delta_rule, late)
        took = time.perf_counter() - start
        still_busy = not side.query()
    side.synchronize()
    tell(still_busy, f"calls return while the stream waits: {1e3 * took:.2f} ms on the CPU for forward and backward")
    tell(all(torch.equal(a, b) for a, b in zip(found, wanted)), "the work was in the current stream: same bits")
    given = {name: x.detach() for name, x in given.items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, state = libcarry.chunk_gated_delta_rule(**given, output_final_state=True)
    o.zero_()
    graph.replay()
    tell(
        torch.equal(o, wanted[0]) and torch.equal(state, wanted[1]), "captured in a CUDA graph and replayed: same bits"
    )
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        both(libcarry.chunk_gated_delta_rule, inputs(1, 2048, 4, 8, 128, torch.bfloat16, grads=True))
    tell(torch.cuda.memory_allocated() == before, "no memory stays allocated after calls")


def compiled() -> None:
    """torch.compile with one graph, through its default backend."""
    given = inputs(1, 512, 4, 8, 128, torch.bfloat16, grads=True)

    def layer(**x: Any) -> Any:
        o, state = libcarry.chunk_gated_delta_rule(**x, use_qk_l2norm_in_kernel=True)
        return torch.nn.functional.silu(o) * 2, state

    wanted = both(layer, given)
    for backend in ("aot_eager", "inductor"):
        start = time.perf_counter()
        try:
            found = both(torch.compile(layer, fullgraph=True, backend=backend), given)
            took = time.perf_counter() - start
            tell(close(found, wanted, 1e-2), f"torch.compile(fullgraph=True), {backend}, with gradients: {took:.1f} s")
        except Exception as error:  # the machine's compilers are not Carry's
            tell(False, f"torch.compile, {backend}: {type(error).__name__}: {str(error).strip().splitlines()[0][:120]}")


def bad_input() -> None:
    """What is handled, and what is refused by name."""
    rule = libcarry.chunk_gated_delta_rule
    given = inputs(2, 130, 2, 4, 128, torch.bfloat16)
    wanted = rule(**given, output_final_state=True)
    strange = {
        "q": given["q"].mT.contiguous().mT,
        "k": torch.cat([given["k"].new_zeros(1), given["k"].flatten()])[1:].view(given["k"].shape),
        "v": torch.cat([given["v"], given["v"][..., :4]], -1)[..., :128],
        "g": given["g"].mT.contiguous().mT,
        "beta": torch.stack([given["beta"]] * 2, -1)[..., 1],
        "initial_state": given["initial_state"].mT.contiguous().mT,
    }
    found = rule(**strange, output_final_state=True)
    tell(all(torch.equal(a, b) for a, b in zip(found, wanted)), "tensors that are not packed or aligned: same bits")
    heads = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in given.items() if x.shape[1] == 130}
    found = rule(**heads, initial_state=given["initial_state"], output_final_state=True)
    tell(all(torch.equal(a, b) for a, b in zip(found, wanted)), "tensors that lie head by head: same bits")
    one = {name: x[:, :1] if x.shape[1] == 130 else x for name, x in given.items()}
    a, b = rule(**one)[0], libcarry.fused_recurrent_gated_delta_rule(**one)[0]
    tell(close([a], [b], 1e-2), "one token by chunks and by steps")
    none = inputs(2, 0, 2, 4, 128, torch.bfloat16, grads=True)
    o, state = rule(**none, output_final_state=True)
    state.sum().backward()
    tell(
        o.shape == (2, 0, 4, 128) and torch.equal(state, none["initial_state"]),
        "no tokens: no output, the state as it was",
    )
    packed = inputs(1, 1000, 2, 8, 128, torch.bfloat16, 4, grads=True)
    borders = [0, 211, 211, 985, 1000]
    parts = both(rule, packed, cu_seqlens=torch.tensor(borders, device="cuda"))
    alone = [
        rule(**{name: x[i : i + 1] if name == "initial_state" else x[:, s:e] for name, x in packed.items()})[0]
        for i, (s, e) in enumerate(zip(borders, borders[1:]))
    ]
    tell(close([parts[0]], [torch.cat(alone, 1)], 2e-3), "packed sequences are the sequences, cu_seqlens on the GPU")
    refused(ValueError, "beta is on cpu and q on cuda:0", lambda: rule(**{**given, "beta": given["beta"].cpu()}))
    refused(ValueError, "k is torch.float64", lambda: rule(**{**given, "k": given["k"].double()}))
    refused(ValueError, "g is torch.float64", lambda: rule(**{**given, "g": given["g"].double()}))
    refused(ValueError, "[2, 129, 2, 128]", lambda: rule(**{**given, "k": given["k"][:, 1:]}))
    refused(ValueError, "cu_seqlens ends at 999", lambda: rule(**packed, cu_seqlens=[0, 211, 211, 985, 999]))
    refused(TypeError, "numpy array", lambda: rule(**{**given, "k": given["k"].float().cpu().numpy()}))
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(max(0, free - (300 << 20)), dtype=torch.uint8, device="cuda")
    refused(torch.cuda.OutOfMemoryError, "out of memory", lambda: rule(**inputs(1, 65536, 8, 8, 128, torch.bfloat16)))
    del hog
    torch.cuda.empty_cache()
    tell(torch.equal(rule(**given)[0], wanted[0]), "the next call after these is right")


def milliseconds(call: Callable[[], Any], repeats: int = 30) -> tuple[float, float]:
    """Median on the GPU, by events around single calls; and on the CPU, until a call returns, without waiting."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    host = []
    for a, b in pairs:
        a.record()
        start = time.perf_counter()
        call()
        host.append(time.perf_counter() - start)
        b.record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in pairs)[repeats // 2], 1e3 * sorted(host)[repeats // 2]


def in_graph(call: Callable[[], Any], repeats: int = 20) -> float:
    """Median of replays of a CUDA graph of the call, ms."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return milliseconds(graph.replay, repeats)[0]


def library_part() -> None:
    """The library's own call of the last prepared one, again."""
    from libcarry import _context
    from libcarry._library import lib

    prepared = [*_context.current(1).prepared.values()][-1]
    lib.carry_delta_forward(prepared.plan.handle, prepared.reference, None, 0)


def times() -> None:
    """Time per call. `carry bench` has the same shapes in C."""
    rule = libcarry.chunk_gated_delta_rule
    for H, HV, B, T in ((16, 32, 1, 32768), (16, 32, 8, 4096), (2, 8, 1, 32768), (16, 32, 1, 8192)):
        given = inputs(B, T, H, HV, 128, torch.bfloat16)
        gpu, host = milliseconds(lambda: rule(**given, output_final_state=True))
        graph = in_graph(lambda: rule(**given, output_final_state=True))
        with_grads = {name: x.requires_grad_() for name, x in given.items()}
        o, state = rule(**with_grads, output_final_state=True)
        weights = [torch.randn_like(o), torch.randn_like(state)]
        back, back_host = milliseconds(
            lambda: torch.autograd.grad([o, state], [*with_grads.values()], weights, retain_graph=True)
        )
        print(
            f"       {H}/{HV} {B}x{T} bf16: forward {gpu:.3f} ms (graph {graph:.3f}, CPU {1e3 * host:.0f} us); "
            f"backward {back:.3f} ms (CPU {1e3 * back_host:.0f} us)"
        )
    tiny = inputs(1, 1, 4, 4, 128, torch.bfloat16)
    step = libcarry.fused_recurrent_gated_delta_rule
    _, host = milliseconds(lambda: step(**tiny, output_final_state=True), 300)
    _, inside = milliseconds(lambda: library_part(), 300)
    grads = {name: x.requires_grad_() for name, x in tiny.items()}
    _, host_grads = milliseconds(lambda: step(**grads, output_final_state=True), 300)
    print(
        f"       the CPU's part of a call, one token: {1e3 * host:.1f} us, of which the library {1e3 * inside:.1f}; "
        f"with autograd {1e3 * host_grads:.1f} us"
    )
    for B in (1, 16, 256):
        given = inputs(B, 1, 16, 32, 128, torch.bfloat16)
        gpu, _ = milliseconds(lambda: step(**given, output_final_state=True), 100)
        graphs = [
            1e3 * in_graph(lambda: step(**given, output_final_state=True, state_v_first=first))
            for first in (False, True)
        ]
        print(
            f"       one token, 16/32, batch {B}: {1e3 * gpu:.1f} us (graph {graphs[0]:.1f}; V first {graphs[1]:.1f})"
        )
    start = time.perf_counter()
    for T in range(100, 150):
        rule(**{name: x[:, :1].expand(-1, T, *x.shape[2:]) if x.shape[1] == 1 else x for name, x in tiny.items()})
    torch.cuda.synchronize()
    print(f"       a length that is new: {1e6 * (time.perf_counter() - start) / 50:.0f} us a call, its plan included")


PARTS = {
    "first": first, "bad_input": bad_input, "streams": streams, "times": times, "bits": bits, "compiled": compiled,
    "layers": lambda: gpu_fla.layers(tell, close), "peers": gpu_fla.peers,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; all when absent")
    asked = parser.parse_args().parts
    if unknown := [part for part in asked if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}: give {', '.join(PARTS)}")
    if torch is None or not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU here")
        return 77
    for name, part in PARTS.items():
        if not asked or name in asked:
            start = time.perf_counter()
            part()
            print(f"-- {name}: {time.perf_counter() - start:.1f} s", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

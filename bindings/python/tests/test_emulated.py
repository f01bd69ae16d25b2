"""The path of CUDA tensors on an emulated GPU (cmake --preset emulate): the calls, the workspaces, the kernels.

CPU tensors stand for CUDA tensors: the emulated library is told that it may read them, and the package that they are on
device 1. Run with CARRY_LIBRARY=build/emulate/libcarry.so CARRY_EMULATE_HOST=1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

import libcarry

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")
if not any("emulated GPU" in entry.about for entry in libcarry.available("devices")):
    pytest.skip("not the library of the preset emulate", allow_module_level=True)
if os.environ.get("CARRY_EMULATE_HOST") != "1":
    pytest.skip("CARRY_EMULATE_HOST=1 is not set", allow_module_level=True)

from libcarry import _arrays, _context, _cuda, _ops, _rule
from test_compile import FUNCTIONS, inputs, results, same


class Seen:
    """What the package asked PyTorch for."""

    def __init__(self):
        self.streams, self.workspaces = [], []


@pytest.fixture
def gpu(monkeypatch):
    """From here on tensors are on device 1."""
    seen = Seen()
    make = _cuda._workspace
    for module in (_arrays, _rule, _ops, _cuda):
        monkeypatch.setattr(module, "device_number", lambda array: 1)
    monkeypatch.setattr(_cuda, "_stream", lambda index: seen.streams.append(index) or 0)
    monkeypatch.setattr(_cuda, "_workspace", lambda size, device: seen.workspaces.append(size) or make(size, device))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return seen


def stated(function):
    return lambda **given: function(**given, output_final_state=True)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_and_gradients_are_the_cpu_s(function, monkeypatch, request):
    given = inputs(function)
    expected = results(stated(function), given)
    seen = request.getfixturevalue("gpu")
    found = results(stated(function), given)
    same(found, expected)
    assert seen.streams == [0, 0]  # one forward and one backward call
    assert len(seen.workspaces) == 1  # the plain forward pass needs none


@pytest.mark.parametrize("function", FUNCTIONS[:1])
def test_compiled_results_are_the_cpu_s(function, request):
    given = inputs(function)
    expected = results(stated(function), given)
    request.getfixturevalue("gpu")
    torch._dynamo.reset()
    same(results(torch.compile(stated(function), fullgraph=True, backend="aot_eager"), given), expected)


def test_packed_sequences_and_no_tokens(request):
    function = libcarry.chunk_gated_delta_rule

    def packed(**given):
        return function(**given, cu_seqlens=[0, 7, 7, 20], output_final_state=True)

    given = inputs(function, B=1, N=3)
    expected = results(packed, given)
    request.getfixturevalue("gpu")
    same(results(packed, given), expected)
    given = inputs(function, T=0)
    o, state = function(**given, output_final_state=True)
    assert o.shape == (2, 0, 4, 6) and torch.equal(state, given["initial_state"])
    state.sum().backward()
    assert (given["initial_state"].grad == 1).all()


def test_rows_that_kernels_cannot_read_are_copied(request):
    function = libcarry.chunk_gated_delta_rule
    given = {name: x.detach() for name, x in inputs(function, K=16, V=16).items()}
    expected = function(**given, output_final_state=True)
    request.getfixturevalue("gpu")
    strange = {
        "q": given["q"].mT.contiguous().mT,
        "k": torch.cat([torch.zeros(1), given["k"].flatten()])[1:].view(given["k"].shape),
        "v": torch.cat([given["v"], given["v"][..., :3]], -1)[..., :16],
        "g": given["g"].mT.contiguous().mT,
        "beta": torch.stack([given["beta"]] * 2, -1)[..., 1],
        "initial_state": given["initial_state"].mT.contiguous().mT,
    }
    assert _cuda.readable(given["q"]) is given["q"] and _cuda.readable(strange["k"]) is not strange["k"]
    same(function(**strange, output_final_state=True), expected)
    one = given["q"][:1].as_strided(given["q"][:1].shape, (1, 32, 16, 1))  # a stride that nothing follows
    assert _cuda.readable(one).stride(0) == 640


def test_each_thread_has_its_context(gpu):
    function = libcarry.chunk_gated_delta_rule
    given = inputs(function)
    first = function(**given)[0]
    found = []
    thread = threading.Thread(target=lambda: found.append(function(**given)[0]))
    thread.start()
    thread.join()
    assert torch.equal(found[0], first)
    context = _context._local.gpus
    assert context.asked_threads == 1 and context.devices == {1}
    libcarry.release()
    assert _context._local.gpus is None
    assert torch.equal(function(**given)[0], first)


def test_a_gpu_that_is_not_there_is_refused_with_the_reason(gpu, monkeypatch):
    monkeypatch.setattr(_rule, "device_number", lambda array: 5)
    with pytest.raises(NotImplementedError, match="there is no device cuda:4 here"):
        libcarry.chunk_gated_delta_rule(**inputs(libcarry.chunk_gated_delta_rule))


def test_a_gpu_that_is_too_old_is_refused_with_the_reason():
    """In a process of its own: what a GPU is, is asked once."""
    environment = {**os.environ, "CARRY_EMULATE_MAJOR": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    text = "import libcarry; libcarry.plan('delta:t64:h2:k16:device=cuda')"
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=False)
    assert "NotImplementedError" in done.stderr
    assert "is sm_70, and the delta rule needs sm_80 or later" in done.stderr


def test_mixed_types_are_computed_in_float32(gpu):
    function = libcarry.chunk_gated_delta_rule
    given = {name: x.detach() for name, x in inputs(function).items()}
    mixed = {**given, "k": given["k"].bfloat16(), "beta": given["beta"].half()}
    wanted, _ = function(**{**given, "k": mixed["k"].float(), "beta": mixed["beta"].float()})
    assert torch.equal(function(**mixed)[0], wanted)


def test_memory_that_runs_out_is_named(gpu, monkeypatch):
    def full(*size, **options):
        if options.get("dtype") is torch.uint8:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return empty(*size, **options)

    empty = torch.empty
    given = inputs(libcarry.chunk_gated_delta_rule, B=1, N=3)
    monkeypatch.setattr(torch, "empty", full)
    with torch.no_grad(), pytest.raises(torch.cuda.OutOfMemoryError, match="a workspace of [0-9]+ bytes on"):
        libcarry.chunk_gated_delta_rule(**given, cu_seqlens=[0, 7, 7, 20])


def test_cu_seqlens_on_a_gpu_is_copied_once_until_it_changes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    borders = torch.tensor([0, 5, 9])
    first = _cuda.fetched("cu_seqlens", borders)
    assert _cuda.fetched("cu_seqlens", borders) is first and first.tolist() == [0, 5, 9]
    borders[1] = 4
    assert _cuda.fetched("cu_seqlens", borders).tolist() == [0, 4, 9]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert _cuda.fetched("cu_seqlens", borders).tolist() == [0, 4, 9]
    with pytest.raises(RuntimeError, match="cu_seqlens is on cpu while a CUDA graph is captured"):
        _cuda.fetched("cu_seqlens", torch.tensor([0, 9]))


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("sizes", [{"K": 8, "V": 12}, {"K": 132, "V": 20}, {"K": 6, "V": 7}])
@pytest.mark.parametrize("function", [FUNCTIONS[1], FUNCTIONS[5]])
def test_one_token_goes_from_state_to_state(function, sizes, v_first, request):
    """By the kernels for steps where they apply; the state that is given stays as it is."""
    given = {name: x.detach() for name, x in inputs(function, T=1, **sizes).items()}
    state = given.pop("initial_state")
    state = state.mT.contiguous() if v_first else state
    before = state.clone()

    def step():
        return function(
            **given, initial_state=state, output_final_state=True, state_v_first=v_first, use_qk_l2norm_in_kernel=True
        )

    expected = step()
    request.getfixturevalue("gpu")
    same(step(), expected)
    assert torch.equal(state, before)

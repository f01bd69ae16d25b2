"""patch_fla on a stand-in for flash-linear-attention with its modules, names and calls of its layers."""

from __future__ import annotations

import importlib
import inspect
import sys

import pytest

import libcarry
from libcarry.fla import _FUNCTIONS

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")

OPS = {
    "gated_delta_rule": {
        "chunk": "def chunk_gated_delta_rule(*a, **k): return 'fla'\nchunk_gdn = chunk_gated_delta_rule\n",
        "fused_recurrent": "def fused_recurrent_gated_delta_rule(*a, **k): return 'fla'\n",
    },
    "delta_rule": {
        "chunk": "def chunk_delta_rule(*a, **k): return 'fla'\n",
        "fused_recurrent": "def fused_recurrent_delta_rule(*a, **k): return 'fla'\n",
    },
    "kda": {"chunk": "def chunk_kda(*a, **k): return 'fla'\n"},  # an older one, without fused_recurrent_kda
}
LAYER = """
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
def forward(**given):
    return chunk_gated_delta_rule(**given)
"""


@pytest.fixture
def fla(tmp_path, monkeypatch):
    """The stand-in's folder, on the path; nothing of it stays loaded."""
    root = tmp_path / "fla"
    for folder, files in OPS.items():
        (root / "ops" / folder).mkdir(parents=True)
        for name, text in files.items():
            (root / "ops" / folder / f"{name}.py").write_text(text)
        lines = [f"from .{name} import *\n" for name in files]
        (root / "ops" / folder / "__init__.py").write_text("".join(lines))
    (root / "layers").mkdir()
    (root / "layers" / "early.py").write_text(LAYER)
    (root / "layers" / "late.py").write_text(LAYER)
    for folder in ("", "layers"):
        (root / folder / "__init__.py").write_text("")
    (root / "ops" / "__init__.py").write_text("".join(f"from .{folder} import *\n" for folder in OPS))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("fla.layers.early")
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        del sys.modules[name]


def given():
    torch.manual_seed(0)
    B, T, H, HV, D = 1, 9, 2, 4, 8
    # As the Gated DeltaNet layer calls it.
    return {
        "q": torch.randn(B, T, H, D), "k": torch.randn(B, T, H, D), "v": torch.randn(B, T, HV, D),
        "g": torch.randn(B, T, HV), "beta": torch.randn(B, T, HV), "A_log": torch.zeros(HV), "dt_bias": torch.ones(HV),
        "initial_state": None, "output_final_state": True, "use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": False, "state_v_first": True, "cu_seqlens": None,
    }  # fmt: skip


def test_layers_loaded_before_and_after_call_carry_until_undone(fla):
    patch = libcarry.patch_fla()
    late = importlib.import_module("fla.layers.late")
    expected = libcarry.chunk_gated_delta_rule(**given())
    for layer in (fla, late):
        o, state = layer.forward(**given())
        assert torch.equal(o, expected[0]) and torch.equal(state, expected[1])
    ops = importlib.import_module("fla.ops")
    assert ops.gated_delta_rule.chunk.chunk_gdn is libcarry.chunk_gated_delta_rule
    assert ops.chunk_kda is libcarry.chunk_kda and ops.fused_recurrent_delta_rule is libcarry.fused_recurrent_delta_rule
    patch.undo()
    patch.undo()
    assert fla.forward() == "fla" and ops.chunk_kda() == "fla" and ops.gated_delta_rule.chunk.chunk_gdn() == "fla"
    assert late.forward() == "fla"  # although it was loaded while Carry's was there


def test_functions_that_enclose_one_call_carry_until_undone(fla):
    """As transformers keeps it, in a wrapper that is made when its module is imported."""

    def wrap(inner):
        def wrapped(**given):
            return inner(**given)

        return wrapped

    module = type(sys)("keeps_one")
    original = importlib.import_module("fla.ops").chunk_gated_delta_rule
    sys.modules[module.__name__] = module
    try:
        module.early = wrap(original)
        with libcarry.patch_fla():
            assert module.early(**given())[0].shape == (1, 9, 4, 8)
            module.late = wrap(importlib.import_module("fla.ops").chunk_gated_delta_rule)
        assert module.early() == "fla" and module.late() == "fla"
    finally:
        del sys.modules[module.__name__]


def test_a_block_ends_the_patch_and_a_second_one_is_harmless(fla):
    with libcarry.patch_fla(), libcarry.patch_fla() as second:
        assert not second.changed
        assert fla.forward(**given())[0].shape == (1, 9, 4, 8)
    assert fla.forward() == "fla"


def test_only_what_is_named_is_replaced(fla):
    with libcarry.patch_fla("chunk_delta_rule"):
        ops = importlib.import_module("fla.ops")
        assert ops.chunk_delta_rule is libcarry.chunk_delta_rule and fla.forward() == "fla"
    with pytest.raises(ValueError, match="patch_fla has no 'chunk_gla': give chunk_gated_delta_rule"):
        libcarry.patch_fla("chunk_gla")
    with pytest.raises(ImportError, match=r"this flash-linear-attention has no fla\.ops\.kda\.fused_recurrent_kda"):
        libcarry.patch_fla("chunk_kda", "fused_recurrent_kda")
    assert ops.chunk_kda() == "fla"


def test_without_flash_linear_attention_the_message_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.raises(ImportError, match="patch_fla needs flash-linear-attention"):
        libcarry.patch_fla()


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_signatures_are_flash_linear_attention_s(name):
    """Where it is installed: every argument of its function is one of ours, in the same place."""
    try:
        theirs = getattr(importlib.import_module(_FUNCTIONS[name][0]), name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"flash-linear-attention is not installed: {error}")
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    wanted = [(p.name, p.default) for p in inspect.signature(theirs).parameters.values() if p.kind is positional]
    ours = [
        (p.name, p.default)
        for p in inspect.signature(getattr(libcarry, name)).parameters.values()
        if p.kind is positional
    ]
    assert ours == wanted

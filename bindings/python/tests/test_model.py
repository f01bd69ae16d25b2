"""Models from folders: what is read by pieces equals one pass, generation is greedy over logits, a step lowers the loss."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import libcarry
from libcarry import _llm as module

HEADER = Path(__file__).resolve().parents[3] / "include" / "carry" / "model.h"
HIDDEN, VOCABULARY = 16, 40


def tensors(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """A small Qwen3.5: one layer of the delta rule, one of attention."""
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(2):
        at = f"model.layers.{layer}."
        tensors |= {at + "input_layernorm.weight": (HIDDEN,), at + "post_attention_layernorm.weight": (HIDDEN,)}
        tensors |= {at + f"mlp.{name}_proj.weight": (24, HIDDEN) for name in ("gate", "up")}
        tensors[at + "mlp.down_proj.weight"] = (HIDDEN, 24)
    delta, attention = "model.layers.0.linear_attn.", "model.layers.1.self_attn."
    tensors |= {delta + "in_proj_qkv.weight": (32, HIDDEN), delta + "in_proj_z.weight": (16, HIDDEN)}
    tensors |= {delta + "in_proj_a.weight": (2, HIDDEN), delta + "in_proj_b.weight": (2, HIDDEN)}
    tensors |= {delta + "A_log": (2,), delta + "dt_bias": (2,), delta + "norm.weight": (8,)}
    tensors |= {delta + "conv1d.weight": (32, 1, 4), delta + "out_proj.weight": (HIDDEN, 16)}
    tensors |= {attention + "q_proj.weight": (32, HIDDEN), attention + "o_proj.weight": (HIDDEN, 16)}
    tensors |= {attention + f"{name}_proj.weight": (8, HIDDEN) for name in "kv"}
    tensors |= {attention + f"{name}_norm.weight": (8,) for name in "qk"}
    return tensors


def write(folder: Path, rng: np.random.Generator, vocabulary: int = VOCABULARY, **changes: object) -> None:
    header, data, at = {}, b"", 0
    for name, shape in tensors(vocabulary).items():
        values = rng.normal(0, 0.2, shape).astype(np.float32)
        bits = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(bits)]}
        data, at = data + bits, at + len(bits)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    config = {
        "model_type": "qwen3_5_text", "hidden_size": HIDDEN, "vocab_size": vocabulary, "num_hidden_layers": 2,
        "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"], "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    write(tmp_path, rng)
    return tmp_path


def test_reading_by_pieces_equals_one_pass(folder: Path) -> None:
    with libcarry.load(folder) as model:
        ids = np.arange(50) * 7 % VOCABULARY
        whole = model.logits(ids)
        assert whole.shape == (50, VOCABULARY) and model.vocabulary == VOCABULARY
        state = model.state()
        for first, end in ((0, 20), (20, 21), (21, 50)):
            logits = state.read(ids[first:end])
            assert np.allclose(logits, whole[end - 1], rtol=0, atol=1e-5 * np.abs(whole).max())
        assert len(state) == 50


def test_generation_is_greedy_over_logits_and_goes_on(folder: Path, tmp_path: Path) -> None:
    model = libcarry.load(folder)
    heard: list[int] = []
    made = model.generate([1, 2, 3], 12, temperature=0, on_token=heard.append)
    assert made == heard and len(made) == 12
    ids = [1, 2, 3]
    for token in made:
        assert token == int(model.logits(ids)[-1].argmax())
        ids.append(token)
    state = model.state()
    state.read([1, 2])
    saved = state.copy()
    assert model.generate([3], 12, temperature=0, state=state) == made
    assert len(state) == 3 + 11 and len(saved) == 2
    saved.save(tmp_path / "state")
    state.load(tmp_path / "state")
    assert model.generate([3], 12, temperature=0, state=state) == made
    assert model.generate([1, 2, 3], 12, temperature=0, eos_token_id=made[4]) == made[: made.index(made[4])]
    assert model.generate([1, 2, 3], 12, temperature=0, on_token=lambda _: False) == made[:1]
    assert model.generate([5], 20, seed=3) == model.generate([5], 20, seed=3)


def test_an_exception_of_on_token_comes_through(folder: Path) -> None:
    def stop(_: int) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        libcarry.load(folder).generate([1], 5, on_token=stop)


def test_steps_lower_the_loss_and_what_is_saved_loads(folder: Path, tmp_path: Path) -> None:
    model = libcarry.load(folder, trains=True)
    rows = np.tile(np.arange(10), (2, 2))
    losses = [model.train_step(rows, rate=1e-2) for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]
    model.save(tmp_path / "saved")
    again = libcarry.load(tmp_path / "saved")
    assert np.allclose(again.logits(rows[0]), model.logits(rows[0]), rtol=0, atol=1e-5)


def test_mistakes_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises((ValueError, RuntimeError), match="config.json"):
        libcarry.load(tmp_path / "none")
    with pytest.raises(ValueError, match="f32, bf16 or f16"):
        libcarry.load(folder, dtype="int8")
    with pytest.raises(ValueError, match="cpu, cuda"):
        libcarry.load(folder, device="tpu")
    model = libcarry.load(folder)
    with pytest.raises(ValueError, match="one token or more"):
        model.logits([])
    with pytest.raises((ValueError, RuntimeError), match=str(VOCABULARY)):
        model.logits([VOCABULARY])
    with pytest.raises(ValueError, match="trains"):
        model.train_step([[1, 2, 3]])
    state = model.state()
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model.logits([1])
    with pytest.raises(ValueError, match="closed"):
        state.read([1])


@pytest.mark.skipif(not HEADER.exists(), reason="the headers are not here: this is not a checkout")
def test_declarations_are_the_headers(tmp_path: Path) -> None:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    declared = dict(re.findall(r"CARRY_API [^;(]*?(\w+)\(([^;]*)\);", text))
    assert declared.keys() == module.PROTOTYPES.keys()
    for name, (_, arguments) in module.PROTOTYPES.items():
        assert len(arguments) == declared[name].count(",") + 1, name
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here to ask for sizes and offsets")
    lines, expected = [], []
    for name, structure in (("options", module.Options), ("generation", module.Generation), ("batch", module.Batch)):
        for field, *_ in structure._fields_:
            lines.append(f'printf("%zu\\n", offsetof(carry_llm_{name}, {field}));')
            expected.append(getattr(structure, field).offset)
        lines.append(f'printf("%zu\\n", sizeof(carry_llm_{name}));')
        expected.append(ctypes.sizeof(structure))
    source = tmp_path / "layout.c"
    source.write_text("#include <stdio.h>\n#include <carry/model.h>\nint main(void) {" + "\n".join(lines) + "}\n")
    subprocess.run([compiler, f"-I{HEADER.parents[1]}", str(source), "-o", str(tmp_path / "layout")], check=True)
    found = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout.split()
    assert [int(number) for number in found] == expected

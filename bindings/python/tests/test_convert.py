"""Checkpoints become files that carry reads: names without prefixes, T5's names as transformers has them, bytes as they
were. Tensors are stand-ins: no torch is needed."""

import json
import struct

import pytest

from libcarry import convert


class Tensor:
    def __init__(self, *shape):
        self.shape, self.dtype = shape, "torch.float32"

    def tobytes(self):
        count = 1
        for side in self.shape:
            count *= side
        return struct.pack("<%df" % count, *range(count))


def read(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + length]), data[8 + length:]


def test_the_average_of_a_generator_is_taken_without_its_prefixes(tmp_path):
    loaded = {"generator": {"model.head.head.bias": Tensor(3)},
              "generator_ema": {"model._fsdp_wrapped_module.blocks.0.modulation": Tensor(1, 6, 2),
                                "model.head.head.weight": Tensor(2, 2)}, "step": 7}
    target = tmp_path / "a.safetensors"
    assert convert.convert("x.pt", str(target), load=lambda path: loaded) == 2
    header, data = read(target)
    assert set(header) == {"blocks.0.modulation", "head.head.weight"}
    begin, end = header["head.head.weight"]["data_offsets"]
    assert struct.unpack("<4f", data[begin:end]) == (0.0, 1.0, 2.0, 3.0)
    assert len(data) == 4 * (12 + 4)


def t5(layers):
    tensors = {"token_embedding.weight": Tensor(10, 8), "norm.weight": Tensor(8)}
    for i in range(layers):
        b = "blocks.%d." % i
        tensors.update({b + "norm1.weight": Tensor(8), b + "norm2.weight": Tensor(8),
                        b + "pos_embedding.embedding.weight": Tensor(4, 2), b + "ffn.gate.0.weight": Tensor(12, 8),
                        b + "ffn.fc1.weight": Tensor(12, 8), b + "ffn.fc2.weight": Tensor(8, 12)})
        tensors.update({b + "attn.%s.weight" % name: Tensor(6, 8) for name in "qkvo"})
    return tensors


def test_a_text_encoder_has_the_names_and_the_configuration_of_transformers(tmp_path):
    convert.convert("x.pth", str(tmp_path / "text"), load=lambda path: t5(2))
    header, _ = read(tmp_path / "text" / "model.safetensors")
    assert "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight" in header
    assert "encoder.block.0.layer.1.DenseReluDense.wo.weight" in header and "shared.weight" in header
    config = json.loads((tmp_path / "text" / "config.json").read_text())
    assert [config[key] for key in ("vocab_size", "d_model", "d_ff", "d_kv", "num_heads", "num_layers")] == [10, 8, 12, 3, 2, 2]


def test_what_is_no_checkpoint_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="no tensors.*optimizer"):
        convert.convert("x.pt", str(tmp_path / "a.safetensors"), load=lambda path: {"optimizer": {}})
    wrong = t5(1)
    wrong["blocks.0.extra.weight"] = Tensor(1)
    with pytest.raises(ValueError, match="blocks.0.extra.weight"):
        convert.convert("x.pt", str(tmp_path / "b"), load=lambda path: wrong)
    whole = Tensor(2)
    whole.dtype = "torch.int64"
    with pytest.raises(ValueError, match="torch.int64"):
        convert.convert("x.pt", str(tmp_path / "c.safetensors"), load=lambda path: {"a": whole})
    assert not list(tmp_path.glob("*.safetensors"))


def saved(torch, path, **how):
    """As Self-Forcing saves a generator, a view of a larger tensor and one that is not contiguous among them."""
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    torch.save({"generator": {"model.a": torch.zeros(1)}, "step": 600,
                "generator_ema": {"model.a": whole[1:3], "model._fsdp_wrapped_module.b": whole.t(),
                                  "model.c": torch.nn.Parameter(whole[0].to(torch.bfloat16))}}, path, **how)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_file_of_torch_keeps_its_bytes(tmp_path, is_zip):
    torch = pytest.importorskip("torch")
    source, target = tmp_path / "x.pt", tmp_path / "x.safetensors"
    saved(torch, source, _use_new_zipfile_serialization=is_zip)
    assert convert.convert(str(source), str(target)) == 3
    header, data = read(target)
    part = {name: data[slice(*entry["data_offsets"])] for name, entry in header.items()}
    assert struct.unpack("<12f", part["a"]) == tuple(float(i) for i in range(6, 18))
    assert struct.unpack("<24f", part["b"])[:5] == (0.0, 6.0, 12.0, 18.0, 1.0) and header["b"]["shape"] == [6, 4]
    assert header["c"]["dtype"] == "BF16" and part["c"][2:4] == b"\x80\x3f"


def test_files_that_torch_does_not_load_are_refused_with_a_sentence(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    source, target = tmp_path / "x.pt", str(tmp_path / "y.safetensors")
    saved(torch, source)
    whole = source.read_bytes()
    for data in (b"", b"hello", whole[: len(whole) // 2], b"PK" + bytes(100)):
        source.write_bytes(data)
        assert convert.main([str(source), target]) == 2
        assert "damaged" in capsys.readouterr().err
    torch.save({"generator_ema": {"a": torch.zeros(1)}, "args": Tensor(1)}, source)
    assert convert.main([str(source), target]) == 2
    assert "more than tensors" in capsys.readouterr().err and not (tmp_path / "y.safetensors").exists()

"""Checkpoints of PyTorch (.pt, .pth) as safetensors files that ``carry stream --model`` reads.

    python3 -m libcarry.convert self_forcing_dmd.pt model/self_forcing.safetensors
    python3 -m libcarry.convert models_t5_umt5-xxl-enc-bf16.pth model/text_encoder
    python3 -m libcarry.convert Wan2.1_VAE.pth model/vae

Carry never unpickles: this does, with ``torch.load(weights_only=True)``, which loads tensors and runs no code. What a
file is, is told by its names: the generator of a training (``generator_ema`` before ``generator``), Wan's text encoder,
whose names become those of transformers, or anything else, whose names stay. A target that ends in ``.safetensors`` is
that file; any other is a folder, which gets ``model.safetensors`` and, where shapes tell it, ``config.json``.

Without the library, ``python3 bindings/python/libcarry/convert.py`` does the same: it needs PyTorch alone.
"""

import argparse
import json
import os
import re
import struct
import sys

_NESTED = ("generator_ema", "generator", "ema", "model", "state_dict")
_PREFIXES = ("module.", "_fsdp_wrapped_module.", "model.", "generator.", "_orig_mod.")
_TYPES = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16", "torch.float64": "F64"}
_T5 = (
    (r"token_embedding\.weight", r"shared.weight"),
    (r"norm\.weight", r"encoder.final_layer_norm.weight"),
    (r"blocks\.(\d+)\.norm1\.weight", r"encoder.block.\1.layer.0.layer_norm.weight"),
    (r"blocks\.(\d+)\.norm2\.weight", r"encoder.block.\1.layer.1.layer_norm.weight"),
    (r"blocks\.(\d+)\.attn\.([qkvo])\.weight", r"encoder.block.\1.layer.0.SelfAttention.\2.weight"),
    (r"blocks\.(\d+)\.pos_embedding\.embedding\.weight",
     r"encoder.block.\1.layer.0.SelfAttention.relative_attention_bias.weight"),
    (r"blocks\.(\d+)\.ffn\.gate\.0\.weight", r"encoder.block.\1.layer.1.DenseReluDense.wi_0.weight"),
    (r"blocks\.(\d+)\.ffn\.fc1\.weight", r"encoder.block.\1.layer.1.DenseReluDense.wi_1.weight"),
    (r"blocks\.(\d+)\.ffn\.fc2\.weight", r"encoder.block.\1.layer.1.DenseReluDense.wo.weight"),
)


def find_tensors(loaded, is_tensor):
    """The innermost dictionary of tensors by name."""
    while not any(is_tensor(value) for value in loaded.values()):
        inner = [name for name in _NESTED if isinstance(loaded.get(name), dict)]
        if not inner:
            raise ValueError("no tensors, nor any of %s: %s" % (", ".join(_NESTED), ", ".join(map(str, loaded))[:200]))
        loaded = loaded[inner[0]]
    return {name: value for name, value in loaded.items() if is_tensor(value)}


def plain_name(name):
    """A name without what trainings put before it, or FSDP between its parts."""
    name = name.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", "")
    found = True
    while found:
        found = [prefix for prefix in _PREFIXES if name.startswith(prefix)]
        name = name[len(found[0]):] if found else name
    return name


def is_t5(names):
    return "token_embedding.weight" in names


def t5_name(name):
    """transformers' name of a tensor of Wan's text encoder; ValueError: unknown name."""
    for here, there in _T5:
        if re.fullmatch(here, name):
            return re.sub(here, there, name)
    raise ValueError("%s is no tensor of a UMT5 encoder" % name)


def t5_config(shapes):
    """config.json of an encoder, from the shapes of its tensors by transformers' names."""
    first = "encoder.block.0.layer."
    buckets, heads = shapes[first + "0.SelfAttention.relative_attention_bias.weight"]
    layers = {name.split(".")[2] for name in shapes if name.startswith("encoder.block.")}
    return {"model_type": "umt5", "vocab_size": shapes["shared.weight"][0], "d_model": shapes["shared.weight"][1],
            "d_ff": shapes[first + "1.DenseReluDense.wi_0.weight"][0], "num_heads": heads,
            "d_kv": shapes[first + "0.SelfAttention.q.weight"][0] // heads, "num_layers": len(layers),
            "relative_attention_num_buckets": buckets, "relative_attention_max_distance": 128,
            "layer_norm_epsilon": 1e-6, "feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new",
            "is_gated_act": True}


def write_safetensors(path, entries):
    """entries: (name, type, shape, bytes of it as a function), written one after the other."""
    header, at = {}, 0
    sizes = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
    for name, kind, shape, _ in entries:
        count = sizes[kind]
        for side in shape:
            count *= side
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = path + ".part"
    with open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, data in entries:
            file.write(data())
    os.replace(temporary, path)


def _load(path):
    """torch.load, mapped where the file allows it; ValueError: what it says of a file that it does not load."""
    import pickle

    import torch

    with open(path, "rb") as file:
        is_zip = file.read(2) == b"PK"  # files of before PyTorch 1.6 are not, and cannot be mapped
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        found = re.search(r"Unsupported \w+: GLOBAL \S+", str(error))
        raise ValueError("it holds more than tensors, or is damaged: %s"
                         % (found.group(0) if found else str(error).split("\n")[0])) from None
    except Exception as error:  # of damaged bytes anything may come: KeyError, EOFError, RuntimeError
        raise ValueError("not a PyTorch checkpoint, or a damaged one: %s" % str(error).split("\n")[0][:200]) from None
    if not isinstance(loaded, dict):
        raise ValueError("a %s, where a dictionary of tensors is needed" % type(loaded).__name__)
    return loaded


def convert(source, target, load=None):
    """Writes target and returns the number of tensors. load: a stand-in for torch.load, for tests."""
    if load is None:
        import torch

        load, is_tensor = _load, torch.is_tensor
    else:
        def is_tensor(value):
            return hasattr(value, "shape")
    tensors = {plain_name(name): value for name, value in find_tensors(load(source), is_tensor).items()}
    if is_t5(tensors):
        tensors = {t5_name(name): value for name, value in tensors.items()}
    entries = []
    for name, value in tensors.items():
        kind = _TYPES.get(str(value.dtype))
        if kind is None:
            raise ValueError("%s is of type %s: floating-point types are converted" % (name, value.dtype))
        entries.append((name, kind, tuple(value.shape), lambda value=value: _bytes_of(value)))
    path = target
    if not target.endswith(".safetensors"):
        os.makedirs(target, exist_ok=True)
        path = os.path.join(target, "model.safetensors")
        if "shared.weight" in tensors:
            with open(os.path.join(target, "config.json"), "w") as file:
                json.dump(t5_config({name: tuple(value.shape) for name, value in tensors.items()}), file, indent=1)
    write_safetensors(path, entries)
    return len(entries)


def _bytes_of(value):
    if hasattr(value, "tobytes"):
        return value.tobytes()
    import torch

    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python3 -m libcarry.convert", description=__doc__.split("\n")[0])
    parser.add_argument("source", help="a .pt or .pth file")
    parser.add_argument("target", help="a .safetensors file, or a folder")
    given = parser.parse_args(arguments)
    try:
        count = convert(given.source, given.target)
    except (OSError, ValueError, ImportError) as error:
        print("convert: %s: %s" % (given.source, error), file=sys.stderr)
        return 2
    print("%d tensors in %s" % (count, given.target))
    return 0


if __name__ == "__main__":
    sys.exit(main())

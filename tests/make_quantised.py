#!/usr/bin/env python3
"""Writes the vectors of tests/golden/quantised (needs numpy, PyTorch and PyPI's gguf).

q*.bin: blocks of GGUF's formats, with scales of zero and of extreme size among them, and the gguf package's own
dequantisation. fp8.bin: PyTorch's float8_e4m3fn of all patterns and of random values. awq_*, gptq_*, fp8_block.bin:
tensors as Hugging Face folders have them, and the weights [out, in] by the published arithmetic.
"""
import struct
import sys

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

SCALES = [0.0, -0.0, 1.0, -1.0, 6e-8, 65504.0, -65504.0, 6.1e-5, 0.0123, -0.5]
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]


def scale(rng):
    value = SCALES[rng.integers(len(SCALES))] if rng.random() < 0.5 else rng.standard_normal() * 0.02
    return np.array([value], dtype=np.float16).tobytes()


def block(rng, kind):
    data = bytearray(rng.integers(0, 256, gguf.GGML_QUANT_SIZES[kind][1], dtype=np.uint8).tobytes())
    places = {Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}
    for at in places[kind]:
        data[at : at + 2] = scale(rng)
    return bytes(data)


def write_gguf_blocks(folder):
    rng = np.random.default_rng(7)
    for kind in (Type.Q8_0, Type.Q4_0, Type.Q4_K, Type.Q5_K, Type.Q6_K):
        columns, size = gguf.GGML_QUANT_SIZES[kind]
        count = 64 if columns == 32 else 12
        raw = b"".join(block(rng, kind) for _ in range(count)) + bytes(size)
        values = dequantize(np.frombuffer(raw, dtype=np.uint8).reshape(1, -1), kind).astype(np.float32)
        with open(f"{folder}/{kind.name.lower()}.bin", "wb") as file:
            file.write(struct.pack("<II", count + 1, columns) + raw + values.tobytes())


def write_fp8(folder, rng):
    patterns = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    values = rng.standard_normal(1000) * 10.0 ** rng.integers(-4, 3, 1000)
    edges = [0.0, -0.0, 448.0, 449.0, 463.9, -448, 2**-9, 2**-10, 3 * 2**-11, 1.0625, 1.1875, 15.5, 17.0]
    values = np.concatenate([values, np.array(edges)]).astype(np.float32)
    values = values[np.abs(values) < 464]  # PyTorch makes NaN of larger ones, Carry 448
    bits = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    with open(f"{folder}/fp8.bin", "wb") as file:
        file.write(struct.pack("<I", len(values)) + patterns.tobytes() + values.tobytes() + bits.tobytes())


def pack_columns(numbers, order):
    packed = np.zeros((numbers.shape[0], numbers.shape[1] // 8), dtype=np.uint32)
    for i in range(8):
        packed |= numbers[:, order[i] :: 8].astype(np.uint32) << np.uint32(4 * i)
    return packed


def pack_rows(numbers):
    packed = np.zeros((numbers.shape[0] // 8, numbers.shape[1]), dtype=np.uint32)
    for i in range(8):
        packed |= numbers[i::8].astype(np.uint32) << np.uint32(4 * i)
    return packed


def write_int4(folder, rng):
    for name, inputs, outputs, group in (
        ("awq_g128", 256, 24, 128),
        ("awq_g32", 96, 16, 32),
        ("gptq_g128", 256, 24, 128),
        ("gptq_g64", 192, 8, 64),
    ):
        awq = name.startswith("awq")
        q = rng.integers(0, 16, (inputs, outputs))
        z = rng.integers(0 if awq else 1, 16 if awq else 17, (inputs // group, outputs))
        s = (rng.standard_normal((inputs // group, outputs)) * 0.05).astype(np.float16)
        s[0, 0], s[-1, -1] = 0, 65504
        w = (q - np.repeat(z, group, 0)).astype(np.float32) * np.repeat(s, group, 0).astype(np.float32)
        values = pack_columns(q, AWQ) if awq else pack_rows(q)
        zeros = pack_columns(z, AWQ) if awq else pack_columns(z - 1, range(8))
        with open(f"{folder}/{name}.bin", "wb") as file:
            file.write(struct.pack("<III", inputs, outputs, group) + values.tobytes() + zeros.tobytes())
            file.write(s.tobytes() + np.ascontiguousarray(w.T).tobytes())


def write_fp8_block(folder, rng):
    rows, columns = 130, 200
    bits = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
    bits[(bits & 127) == 127] = 0
    s = (rng.standard_normal((2, 2)) ** 2 * 0.01).astype(np.float32)
    s[1, 1] = 0.0
    values = torch.from_numpy(bits.copy()).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    w = values * np.repeat(np.repeat(s, 128, 0), 128, 1)[:rows, :columns]
    with open(f"{folder}/fp8_block.bin", "wb") as file:
        file.write(struct.pack("<II", rows, columns) + bits.tobytes() + s.tobytes())
        file.write(w.astype(np.float32)[::13].tobytes())  # every 13th row


if __name__ == "__main__":
    write_gguf_blocks(sys.argv[1])
    generator = np.random.default_rng(11)
    write_fp8(sys.argv[1], generator)
    write_int4(sys.argv[1], generator)
    write_fp8_block(sys.argv[1], generator)

#!/usr/bin/env python3
"""Writes a GGUF file of the folder of a small Qwen3.5, with the changes that llama.cpp's files have: norms plus 1,
-exp(A_log), value heads in tiled order (needs numpy, safetensors and PyPI's gguf).

    make_gguf.py FOLDER OUT TYPE [HEADER]     TYPE: F32, Q8_0, ...; matrices whose width does not fit stay in F32
"""
import json
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def tiled(values, c, axis, size):
    """Reorders value heads from groups to tiles along an axis."""
    keys, each = c["linear_num_key_heads"], c["linear_num_value_heads"] // c["linear_num_key_heads"]
    shape = values.shape
    grouped = values.reshape(*shape[:axis], keys, each, size, *shape[axis + 1 :])
    return np.ascontiguousarray(np.swapaxes(grouped, axis, axis + 1)).reshape(shape)


def change(name, values, c):
    value = c["linear_value_head_dim"]
    first = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
    if name.endswith("A_log"):
        return tiled(-np.exp(values), c, 0, 1)
    if name.endswith(("dt_bias", "in_proj_a.weight", "in_proj_b.weight")):
        return tiled(values, c, 0, 1)
    if name.endswith("in_proj_z.weight"):
        return tiled(values, c, 0, value)
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        values = values.reshape(values.shape[0], -1)
        return np.concatenate([values[:first], tiled(values[first:], c, 0, value)])
    if name.endswith("linear_attn.out_proj.weight"):
        return tiled(values, c, 1, value)
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return values + 1
    return values


def byte_letters():
    """GPT-2's printable character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + other.index(b)) for b in range(256)]


def main(folder, out, kind):
    c = json.load(open(f"{folder}/config.json"))
    kind = gguf.GGMLQuantizationType[kind]
    w = gguf.GGUFWriter(out, "qwen35")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    rope = c["rope_parameters"]
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(c["head_dim"] * rope["partial_rotary_factor"]))
    w.add_rope_dimension_sections([*rope.get("mrope_section", [11, 11, 10]), 0])
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_num_value_heads"] * c["linear_value_head_dim"])
    w.add_full_attention_interval(4)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    letters = byte_letters()
    extra = [f"<extra_{i}>" for i in range(c["vocab_size"] - 256)]
    w.add_token_list(letters + extra)
    w.add_token_types([1] * 256 + [3] * len(extra))
    w.add_token_merges([])
    w.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")
    for name, values in load_file(f"{folder}/model.safetensors").items():
        values = values.astype(np.float32)
        if name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
            there = {"model.e": "token_embd.weight", "model.n": "output_norm.weight", "lm_head": "output.weight"}[name[:7]]
        else:
            layer, part = name.removeprefix("model.layers.").split(".", 1)
            there = f"blk.{layer}.{NAMES[part]}"
        values = change(name, values, c)
        matrix = values.ndim == 2 and "conv1d" not in name
        if matrix and kind != 0 and values.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            w.add_tensor(there, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            w.add_tensor(there, values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main(*sys.argv[1:4])

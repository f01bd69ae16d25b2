"""Writes small random models in the layouts that people have, all with the same weights, for tests/test_stream_model.sh.

Usage: python3 tests/make_pipeline.py FOLDER TOKENIZER
  FOLDER/diffusers   transformer, text_encoder, tokenizer (a copy of the folder TOKENIZER's spiece.model) by diffusers' names
  FOLDER/wan         config.json and diffusion_pytorch_model.safetensors by Wan's names
  FOLDER/single      self_forcing.safetensors, below model., and text_encoder and tokenizer beside it
"""
import json, math, os, random, shutil, struct, sys

DIM, FFN, HEADS, LAYERS, TEXT, LENGTH, FREQ = 128, 96, 1, 2, 64, 512, 32  # heads of 128, as all of Wan's: no shape tells them

def tensor(rng, *shape):
    count = math.prod(shape)
    scale = 1.0 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.2
    return list(shape), [rng.gauss(1.0 if len(shape) == 1 else 0.0, scale) for _ in range(count)]

def write(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        part = struct.pack("<%df" % len(values), *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)

def transformer(rng):
    t = {"patch_embedding.weight": tensor(rng, DIM, 16, 1, 2, 2), "patch_embedding.bias": tensor(rng, DIM),
         "text_embedding.0.weight": tensor(rng, DIM, TEXT), "text_embedding.0.bias": tensor(rng, DIM),
         "text_embedding.2.weight": tensor(rng, DIM, DIM), "text_embedding.2.bias": tensor(rng, DIM),
         "time_embedding.0.weight": tensor(rng, DIM, FREQ), "time_embedding.0.bias": tensor(rng, DIM),
         "time_embedding.2.weight": tensor(rng, DIM, DIM), "time_embedding.2.bias": tensor(rng, DIM),
         "time_projection.1.weight": tensor(rng, 6 * DIM, DIM), "time_projection.1.bias": tensor(rng, 6 * DIM),
         "head.modulation": tensor(rng, 1, 2, DIM), "head.head.weight": tensor(rng, 64, DIM),
         "head.head.bias": tensor(rng, 64)}
    for i in range(LAYERS):
        b = "blocks.%d." % i
        t[b + "modulation"] = tensor(rng, 1, 6, DIM)
        for part in ("self_attn", "cross_attn"):
            for name in "qkvo":
                t[b + part + "." + name + ".weight"] = tensor(rng, DIM, DIM)
                t[b + part + "." + name + ".bias"] = tensor(rng, DIM)
            for name in ("norm_q", "norm_k"):
                t[b + part + "." + name + ".weight"] = tensor(rng, DIM)
        t[b + "norm3.weight"] = tensor(rng, DIM)
        t[b + "norm3.bias"] = tensor(rng, DIM)
        t[b + "ffn.0.weight"] = tensor(rng, FFN, DIM)
        t[b + "ffn.0.bias"] = tensor(rng, FFN)
        t[b + "ffn.2.weight"] = tensor(rng, DIM, FFN)
        t[b + "ffn.2.bias"] = tensor(rng, DIM)
    return t

OUTER = [("time_embedding.0.", "condition_embedder.time_embedder.linear_1."),
         ("time_embedding.2.", "condition_embedder.time_embedder.linear_2."),
         ("time_projection.1.", "condition_embedder.time_proj."),
         ("text_embedding.0.", "condition_embedder.text_embedder.linear_1."),
         ("text_embedding.2.", "condition_embedder.text_embedder.linear_2."),
         ("head.head.", "proj_out."), ("head.modulation", "scale_shift_table")]
INNER = [("self_attn.o.", "attn1.to_out.0."), ("cross_attn.o.", "attn2.to_out.0."), ("self_attn.norm", "attn1.norm"),
         ("cross_attn.norm", "attn2.norm"), ("self_attn.", "attn1.to_"), ("cross_attn.", "attn2.to_"),
         ("norm3.", "norm2."), ("ffn.0.", "ffn.net.0.proj."), ("ffn.2.", "ffn.net.2."), ("modulation", "scale_shift_table")]

def of_diffusers(name):
    start, rest, table = "", name, OUTER
    if name.startswith("blocks."):
        start = ".".join(name.split(".")[:2]) + "."
        rest, table = name[len(start):], INNER
    for here, there in table:
        if rest.startswith(here):
            return start + there + rest[len(here):]
    return name

def encoder(rng):
    width, inner, ffn = TEXT, 64, 80
    t = {"shared.weight": tensor(rng, 720, width), "encoder.final_layer_norm.weight": tensor(rng, width)}
    for i in range(2):
        b = "encoder.block.%d.layer." % i
        for name in "qkv":
            t[b + "0.SelfAttention.%s.weight" % name] = tensor(rng, inner, width)
        t[b + "0.SelfAttention.o.weight"] = tensor(rng, width, inner)
        t[b + "0.SelfAttention.relative_attention_bias.weight"] = tensor(rng, 32, 4)
        t[b + "0.layer_norm.weight"] = tensor(rng, width)
        t[b + "1.DenseReluDense.wi_0.weight"] = tensor(rng, ffn, width)
        t[b + "1.DenseReluDense.wi_1.weight"] = tensor(rng, ffn, width)
        t[b + "1.DenseReluDense.wo.weight"] = tensor(rng, width, ffn)
        t[b + "1.layer_norm.weight"] = tensor(rng, width)
    return t

UMT5 = {"model_type": "umt5", "vocab_size": 720, "d_model": TEXT, "d_ff": 80, "d_kv": 16, "num_heads": 4, "num_layers": 2,
        "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True}

def put_text(folder, tensors, tokenizer):
    os.makedirs(os.path.join(folder, "text_encoder"))
    os.makedirs(os.path.join(folder, "tokenizer"))
    with open(os.path.join(folder, "text_encoder", "config.json"), "w") as f:
        json.dump(UMT5, f)
    write(os.path.join(folder, "text_encoder", "model.safetensors"), tensors)
    shutil.copy(os.path.join(tokenizer, "spiece.model"), os.path.join(folder, "tokenizer"))

def main(folder, tokenizer):
    rng = random.Random(7)
    model, text = transformer(rng), encoder(rng)
    place = os.path.join(folder, "diffusers")
    put_text(place, text, tokenizer)
    os.makedirs(os.path.join(place, "transformer"))
    with open(os.path.join(place, "transformer", "config.json"), "w") as f:
        json.dump({"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.33.0", "num_attention_heads": HEADS,
                   "attention_head_dim": DIM // HEADS, "in_channels": 16, "out_channels": 16, "text_dim": TEXT,
                   "freq_dim": FREQ, "ffn_dim": FFN, "num_layers": LAYERS, "cross_attn_norm": True, "eps": 1e-6,
                   "qk_norm": "rms_norm_across_heads", "patch_size": [1, 2, 2], "image_dim": None,
                   "added_kv_proj_dim": None, "rope_max_seq_len": 1024, "text_len": LENGTH}, f)
    write(os.path.join(place, "transformer", "diffusion_pytorch_model.safetensors"),
          {of_diffusers(k): v for k, v in model.items()})
    place = os.path.join(folder, "wan")
    os.makedirs(place)
    with open(os.path.join(place, "config.json"), "w") as f:
        json.dump({"_class_name": "WanModel", "model_type": "t2v", "dim": DIM, "ffn_dim": FFN, "num_heads": HEADS,
                   "num_layers": LAYERS, "in_dim": 16, "out_dim": 16, "text_len": LENGTH, "freq_dim": FREQ, "eps": 1e-6}, f)
    write(os.path.join(place, "diffusion_pytorch_model.safetensors"), model)
    place = os.path.join(folder, "single")
    put_text(place, text, tokenizer)
    wide = {("model." + k): v for k, v in model.items()}
    write(os.path.join(place, "self_forcing.safetensors"), wide)

main(sys.argv[1], sys.argv[2])

"""Makes tests/golden/vectors/lm-FAMILY-bias: small models with experts and with biases in attention (attention_bias), or
in the feed-forwards (mlp_bias), with random weights, by transformers.

Usage: make_biases.py FOLDER, the one that has or gets the folders lm-FAMILY-bias. Needs torch and transformers. Computes
in float64 on the CPU.
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

COMMON = dict(vocab_size=32, hidden_size=16, initializer_range=0.1, bos_token_id=None, eos_token_id=None,
              pad_token_id=None, max_position_embeddings=64)
QWEN = dict(
    num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], linear_conv_kernel_dim=4,
    linear_key_head_dim=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_value_head_dim=6,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=6, shared_expert_intermediate_size=10, attention_bias=True,
    rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5))
FAMILIES = {
    "qwen3_5_moe_text": QWEN,
    "qwen3_next": dict(QWEN, intermediate_size=12, mlp_only_layers=[0]),
    "granitemoehybrid": dict(
        num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=6, shared_intermediate_size=10, num_local_experts=4,
        num_experts_per_tok=2, mamba_chunk_size=16, mamba_d_head=8, mamba_d_state=6, mamba_expand=2, mamba_n_groups=1,
        mamba_n_heads=4, attention_multiplier=0.3, embedding_multiplier=2.0, logits_scaling=1.5,
        residual_multiplier=0.7, attention_bias=True,
        position_embedding_type="rope"),  # without positions k_proj.bias has no gradient
    "kimi_linear": dict(
        num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], mlp_layer_types=["dense", "sparse"],
        num_attention_heads=2, num_key_value_heads=2, intermediate_size=12, moe_intermediate_size=6, kv_lora_rank=6,
        q_lora_rank=10, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=6, linear_head_dim=4, linear_num_heads=2,
        num_local_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, n_shared_experts=1, attention_bias=True),
    "nemotron_h": dict(
        layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=12, mamba_head_dim=4, mamba_num_heads=4, ssm_state_size=6,
        n_groups=2, chunk_size=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=6,
        moe_shared_expert_intermediate_size=10, moe_latent_size=8, n_group=1, topk_group=1, mlp_bias=True),
}


def make(folder, family):
    torch.manual_seed(7)
    config = AutoConfig.for_model(family, **COMMON, **FAMILIES[family])
    config._attn_implementation = config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if "inv_freq" in name:
                continue
            if p.dim() >= 2:
                p.normal_(0.0, 0.3)
            else:
                p.add_(0.2 * torch.randn_like(p))
    weights = {name: p.detach().clone().contiguous() for name, p in model.state_dict().items()}
    model = model.double()  # the file has f32; results are computed from these weights in f64
    with torch.no_grad():
        for name, p in model.state_dict().items():
            p.copy_(weights[name].double())
    ids = torch.randint(0, 32, (2, 24))
    logits = model(input_ids=ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 32), ids[:, 1:].reshape(-1))
    loss.backward()
    expected = {"input_ids": ids, "logits": logits.detach().float(), "loss": loss.detach().float().reshape(1)}
    expected.update({"grad." + name: p.grad.float() for name, p in model.named_parameters()})
    save_file(weights, folder + "/model.safetensors", metadata={"format": "pt"})
    save_file(expected, folder + "/expected.safetensors")
    config.architectures = [type(model).__name__]
    with open(folder + "/config.json", "w") as file:
        json.dump(json.loads(config.to_json_string(use_diff=False)), file, indent=1)
    print(folder, logits.dtype, loss.item(), [name for name in weights if name.endswith("bias")])


for one in FAMILIES:
    to = f"{sys.argv[1]}/lm-{one.removesuffix('_text')}-bias"
    os.makedirs(to, exist_ok=True)
    make(to, one)

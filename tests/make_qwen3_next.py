"""Makes tests/golden/vectors/lm-qwen3_next-dense: a Qwen3-Next model without experts, with random weights, by transformers.

Usage: make_qwen3_next.py FOLDER. Needs torch and transformers with Qwen3NextForCausalLM. Computes in float64 on the CPU.
"""
import json
import sys

import torch
from safetensors.torch import save_file
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

folder = sys.argv[1]
torch.manual_seed(5)
config = Qwen3NextConfig(
    vocab_size=96, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
    linear_value_head_dim=12, linear_conv_kernel_dim=4, mlp_only_layers=[0, 1, 2], num_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=8, shared_expert_intermediate_size=8, max_position_embeddings=256, tie_word_embeddings=False,
    layer_types=["linear_attention", "full_attention", "linear_attention"],
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25})
config._attn_implementation = "eager"
model = Qwen3NextForCausalLM(config)
with torch.no_grad():
    for name, p in model.named_parameters():
        if p.dim() >= 2:
            p.normal_(0.0, 0.3 if "conv1d" in name else 0.15)
        else:
            p.add_(0.1 * torch.randn_like(p))
# The file has f32; results are computed from these weights in f64.
weights = {name: p.detach().float().clone() for name, p in model.named_parameters()}
model = model.double()
with torch.no_grad():
    for name, p in model.named_parameters():
        p.copy_(weights[name].double())
ids = torch.randint(0, 96, (2, 70))
out = model(input_ids=ids, use_cache=False)
logits = out.logits
loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 96), ids[:, 1:].reshape(-1))
loss.backward()
expected = {"input_ids": ids, "logits": logits.detach().float(), "loss": loss.detach().float().reshape(1)}
for name, p in model.named_parameters():
    expected["grad." + name] = p.grad.float()
save_file(weights, folder + "/model.safetensors", metadata={"format": "pt"})
save_file(expected, folder + "/expected.safetensors")
config.architectures = ["Qwen3NextForCausalLM"]
with open(folder + "/config.json", "w") as f:
    json.dump(json.loads(config.to_json_string(use_diff=False)), f, indent=1)
print(loss.item(), model.model.layers[0].linear_attn.__class__, logits.dtype)

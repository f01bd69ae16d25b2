"""A tiny random checkpoint of a family by transformers, or a folder that carry train saved, which must load key for key.
Beside it: expected.safetensors with transformers' logits, loss and gradients, for carry check --golden, and greedy.txt
with the 64 tokens that transformers chooses after PROMPT.

Usage: families_transformers.py make|load FOLDER..., where the name of a FOLDER to be made is that of its family;
families_transformers.py --list; families_transformers.py --prompt"""
import os
import sys

PROMPT = [5, 17, 33, 200, 3, 91, 12]
COMMON = dict(vocab_size=256, hidden_size=64, num_hidden_layers=4, bos_token_id=None, eos_token_id=None,
              pad_token_id=None, initializer_range=0.1)
TYPES = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
DELTA = dict(layer_types=TYPES, linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_num_key_heads=2,
             linear_num_value_heads=4, linear_value_head_dim=16)
QWEN = dict(DELTA, num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=4096)
ROPE = dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25)
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40)
MAMBA = dict(head_dim=16, state_size=16, n_groups=2, conv_kernel=4, expand=2, chunk_size=32)

FAMILIES = {
    "qwen3_5_text": dict(QWEN, intermediate_size=160, tie_word_embeddings=True, rope_parameters=ROPE),
    "qwen3_5_moe_text": dict(QWEN, **EXPERTS, rope_parameters=ROPE),
    "qwen3_next": dict(QWEN, **EXPERTS, intermediate_size=96, mlp_only_layers=[1], rope_parameters=ROPE),
    "olmo_hybrid": dict(DELTA, linear_num_key_heads=4, num_attention_heads=4, num_key_value_heads=2,
                        intermediate_size=160),
    "mamba2": dict(MAMBA, num_heads=8),
    "granitemoehybrid": dict(
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=24, shared_intermediate_size=40,
        num_local_experts=8, num_experts_per_tok=3, mamba_chunk_size=32, mamba_d_head=16, mamba_d_state=16,
        mamba_expand=2, mamba_n_groups=2, mamba_n_heads=8, attention_multiplier=0.0625, embedding_multiplier=12.0,
        logits_scaling=2.0, residual_multiplier=0.22, position_embedding_type=None,
        layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"]),
    "nemotron_h": dict(
        num_hidden_layers=None, layers_block_type=["linear_attention", "moe", "full_attention", "mlp", "linear_attention", "moe"],
        num_attention_heads=4, num_key_value_heads=2, head_dim=24, intermediate_size=96, mamba_head_dim=16,
        mamba_num_heads=6, ssm_state_size=16, n_groups=2, chunk_size=32, n_routed_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=32, moe_shared_expert_intermediate_size=48, n_group=1, topk_group=1),
    "kimi_linear": dict(
        num_attention_heads=4, num_key_value_heads=4, intermediate_size=96, moe_intermediate_size=24, kv_lora_rank=24,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=20, linear_head_dim=16, linear_num_heads=4,
        layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"], num_experts=8, num_experts_per_token=2,
        num_expert_group=2, topk_group=1, num_shared_experts=1, head_dim=8),
    "bailing_hybrid": dict(
        num_attention_heads=4, num_key_value_heads=4, intermediate_size=96, moe_intermediate_size=24, kv_lora_rank=24,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=20, head_dim=16, layer_group_size=2,
        first_k_dense_replace=1, num_local_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1,
        n_shared_experts=1, num_mtp_layers=0, rope_theta=10000.0),
}


def make(folder, family):
    """Weights of a family's class, all larger than it would start them: texts of small weights are all alike."""
    options = {key: value for key, value in dict(COMMON, **FAMILIES[family]).items() if key != "num_hidden_layers"
               or value is not None}
    torch.manual_seed(len(family))
    config = AutoConfig.for_model(family, **options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = {kind: list(info[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[kind]}
    if wrong:
        sys.exit(f"{folder}: transformers does not load it key for key: {wrong}")
    return model.eval()


def expect(folder, model):
    torch.manual_seed(3)
    ids = torch.randint(0, model.config.vocab_size, (2, 48))
    out = model(input_ids=ids, labels=ids, use_cache=False)
    out.loss.backward()
    made = {"input_ids": ids, "logits": out.logits.detach().contiguous(), "loss": out.loss.detach().reshape(1)}
    made.update({f"grad.{name}": parameter.grad.contiguous() for name, parameter in model.named_parameters()
                 if parameter.grad is not None})
    save_file(made, f"{folder}/expected.safetensors")


def greedy(folder, model):
    """Whole prompts again for each token: no cache of any class is part of the comparison."""
    ids = list(PROMPT)
    with torch.no_grad():
        for _ in range(64):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    with open(f"{folder}/greedy.txt", "w") as file:
        file.write(" ".join(str(i) for i in ids[len(PROMPT):]) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print(" ".join(FAMILIES))
        sys.exit()
    if sys.argv[1] == "--prompt":
        print(" ".join(str(i) for i in PROMPT))
        sys.exit()
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    for folder in sys.argv[2:]:
        if sys.argv[1] == "make":
            make(folder, os.path.basename(folder))
        loaded = load(folder)
        expect(folder, loaded)
        greedy(folder, loaded)

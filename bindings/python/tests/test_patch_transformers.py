"""patch_transformers: transformers' models on the CPU give the logits, gradients and texts of its own functions."""

from __future__ import annotations

import sys

import pytest

import libcarry

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: its models are not run")

SIZES = {
    "hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 4, "intermediate_size": 48, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "pad_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
KIMI = {
    "num_key_value_heads": 2, "linear_num_heads": 2, "linear_head_dim": 16, "kv_lora_rank": 8, "q_lora_rank": None,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "mlp_layer_types": ["dense"] + ["sparse"] * 3,
}  # fmt: skip
MODELS = {
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {}),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", EXPERTS),
    "olmo_hybrid": (
        "OlmoHybridConfig",
        "OlmoHybridForCausalLM",
        {"num_key_value_heads": 2, "linear_num_value_heads": 2},
    ),
    "kimi_linear": ("KimiLinearConfig", "KimiLinearForCausalLM", KIMI),
}


def _model(name: str):
    config, model, changes = MODELS[name]
    if not hasattr(transformers, model):
        pytest.skip(f"this transformers ({transformers.__version__}) has no {model}")
    torch.manual_seed(0)
    sizes = {**SIZES, **changes}
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    return made.eval()


def _results(model, ids):
    model.zero_grad()
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    text = model.generate(ids[:, :5], max_new_tokens=8, do_sample=False)
    return out.logits.detach(), gradients, text


@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_the_cpu_equals_its_own_functions(name, monkeypatch):
    torch.manual_seed(1)
    ids = torch.randint(2, SIZES["vocab_size"], (2, 70))
    with libcarry.patch_transformers() as patch:
        assert {"torch_chunk_gated_delta_rule", "causal_conv1d_fn", "causal_conv1d_update"} <= {
            function for _, function, _, _ in patch.changed
        }
        model = _model(name)
        module = sys.modules[type(model).__module__]
        assert module.causal_conv1d_update is libcarry.causal_conv1d_update
        logits, gradients, text = _results(model, ids)
    assert module.causal_conv1d_update is not libcarry.causal_conv1d_update
    for function in vars(module).copy():  # PyTorch's own functions, without wrappers that prefer another package
        own = getattr(getattr(module, function), "__wrapped__", None)
        if own is not None and ("delta" in function or function.startswith("causal_conv1d")):
            monkeypatch.setattr(module, function, own)
    wanted_logits, wanted_gradients, wanted_text = _results(_model(name), ids)
    assert not torch.equal(logits, wanted_logits)  # otherwise Carry was not called
    torch.testing.assert_close(logits, wanted_logits, rtol=0, atol=1e-5 * float(wanted_logits.abs().max()))
    assert gradients.keys() == wanted_gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in wanted_gradients.values())
    for parameter, gradient in wanted_gradients.items():  # those of dt_bias are sums that cancel to 1e-5 of the largest
        allowed = 1e-4 * float(gradient.abs().max()) + 1e-6 * largest
        torch.testing.assert_close(gradients[parameter], gradient, rtol=0, atol=allowed, msg=parameter)
    assert torch.equal(text, wanted_text)


def test_packed_sequences_need_no_other_package():
    torch.manual_seed(1)
    with libcarry.patch_transformers("qwen3_5"):
        model = _model("qwen3_5")
        layer = next(m for m in model.modules() if type(m).__name__.endswith("GatedDeltaNet"))
        x = torch.randn(1, 40, SIZES["hidden_size"])
        cu = torch.tensor([0, 13, 40], dtype=torch.int32)
        whole = layer(x, cu_seq_lens_q=cu)
        apart = torch.cat([layer(x[:, :13]), layer(x[:, 13:])], 1)
    torch.testing.assert_close(whole, apart, rtol=0, atol=1e-6)


def test_names_that_are_not_there():
    with pytest.raises(ValueError, match="patch_transformers has no 'llama': give qwen3_next"):
        libcarry.patch_transformers("llama")


def test_without_transformers_the_message_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="patch_transformers needs transformers"):
        libcarry.patch_transformers()

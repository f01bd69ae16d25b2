"""transformers' models on the CPU with patch_fla: the same logits and gradients as with transformers' own functions."""

from __future__ import annotations

import importlib.util
import sys

import pytest

import libcarry

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: its models are not run")
if importlib.util.find_spec("fla") is None:  # not imported here: test_fla.py has another one
    pytest.skip("flash-linear-attention is not installed: patch_fla needs it", allow_module_level=True)

SIZES = {
    "hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 4, "intermediate_size": 48, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "pad_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
MODELS = {
    "Qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {}),
    "OlmoHybrid": (
        "OlmoHybridConfig",
        "OlmoHybridForCausalLM",
        {"num_key_value_heads": 2, "linear_num_value_heads": 2},
    ),
}
FUNCTIONS = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")


def _model(name: str):
    config, model, changes = MODELS[name]
    if not hasattr(transformers, model):
        pytest.skip(f"this transformers ({transformers.__version__}) has no {model}")
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**{**SIZES, **changes}))


def _logits_and_gradients(model, ids):
    model.zero_grad()
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    return out.logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_the_cpu_equals_its_own_functions(name, monkeypatch):
    torch.manual_seed(1)
    ids = torch.randint(2, SIZES["vocab_size"], (2, 70))
    with libcarry.patch_fla():
        model = _model(name)
        logits, gradients = _logits_and_gradients(model, ids)
        text = model.generate(ids[:, :5], max_new_tokens=8, do_sample=False)
    module = sys.modules[type(model).__module__]
    for function in FUNCTIONS:  # the PyTorch functions themselves, without the wrappers that prefer another package
        found = getattr(getattr(module, function, None), "__wrapped__", None)
        if found is None:
            pytest.skip(f"this transformers ({transformers.__version__}) has no wrapped {function}")
        monkeypatch.setattr(module, function, found)
    wanted_logits, wanted_gradients = _logits_and_gradients(model, ids)
    assert not torch.equal(logits, wanted_logits)  # otherwise Carry was not called
    torch.testing.assert_close(logits, wanted_logits, rtol=0, atol=1e-4 * float(wanted_logits.abs().max()))
    assert gradients.keys() == wanted_gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in wanted_gradients.values())
    for parameter, gradient in wanted_gradients.items():  # those of dt_bias are sums that cancel to 1e-5 of the largest
        allowed = 1e-4 * float(gradient.abs().max()) + 1e-6 * largest
        torch.testing.assert_close(gradients[parameter], gradient, rtol=0, atol=allowed, msg=parameter)
    assert torch.equal(text, model.generate(ids[:, :5], max_new_tokens=8, do_sample=False))

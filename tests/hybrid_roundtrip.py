"""Loads a folder that carry train saved with transformers, key for key, and writes the logits, loss and gradients it
computes beside it as expected.safetensors, for carry check --golden."""
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

folder = sys.argv[1]
model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
wrong = {kind: list(info[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[kind]}
if wrong:
    sys.exit(f"{folder}: transformers does not load it key for key: {wrong}")
saved = load_file(f"{folder}/model.safetensors")
for name, parameter in model.named_parameters():
    if not torch.equal(saved[name], parameter):
        sys.exit(f"{folder}: {name} is not what was saved")
torch.manual_seed(3)
ids = torch.randint(0, model.config.vocab_size, (2, 48))
out = model(input_ids=ids, labels=ids)
out.loss.backward()
made = {"input_ids": ids, "logits": out.logits.detach().contiguous(), "loss": out.loss.detach().reshape(1)}
made.update({f"grad.{name}": parameter.grad.contiguous() for name, parameter in model.named_parameters()})
save_file(made, f"{folder}/expected.safetensors")

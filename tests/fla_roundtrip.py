"""flash-linear-attention's gated_deltaproduct on a CPU: its own class, its Triton kernels in Triton's interpreter, and its naive recurrence in
place of the chunk kernel, which takes no f32.

    fla_roundtrip.py make FOLDER     a small model with random weights, and what it gives (expected.safetensors)
    fla_roundtrip.py load FOLDER     loads what carry train saved, key for key, and writes what it gives beside it
"""
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton.runtime.autotuner as autotuner

autotuner.Autotuner._bench = lambda self, *args, config=None, **more: [0.0, 0.0, 0.0]  # there is nothing to time

import fla.layers.gated_deltaproduct as layer
from fla.models import GatedDeltaProductConfig, GatedDeltaProductForCausalLM
from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
from safetensors.torch import load_file, save_file


def recurrent(q, k, v, g, beta, use_qk_l2norm_in_kernel=False, **more):
    if use_qk_l2norm_in_kernel:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    return naive_recurrent_gated_delta_product(q, k, v, g, beta, scale=q.shape[-1] ** -0.5, **more)


layer.chunk_gated_delta_product = recurrent
what, folder = sys.argv[1:]
torch.manual_seed(3)
if what == "make":
    config = GatedDeltaProductConfig(hidden_size=64, num_hidden_layers=2, num_heads=2, head_dim=32, expand_v=1, vocab_size=256,
                                     num_householder=2, hidden_ratio=2, fuse_norm=False, fuse_swiglu=False,
                                     fuse_cross_entropy=False, allow_neg_eigval=True, use_forget_gate=True)
    model = GatedDeltaProductForCausalLM(config).float()
    model.save_pretrained(folder)
else:
    model, info = GatedDeltaProductForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = {kind: list(info[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[kind]}
    if wrong:
        sys.exit(f"{folder}: flash-linear-attention does not load it key for key: {wrong}")
    saved = load_file(f"{folder}/model.safetensors")
    for name, parameter in model.named_parameters():
        if not torch.equal(saved[name], parameter):
            sys.exit(f"{folder}: {name} is not what was saved")
model.train()
ids = torch.randint(0, model.config.vocab_size, (2, 70))
logits = model(input_ids=ids, use_cache=False).logits
loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
loss.backward()
made = {"input_ids": ids, "logits": logits.detach().contiguous(), "loss": loss.detach().reshape(1)}
made.update({f"grad.{name}": parameter.grad.contiguous() for name, parameter in model.named_parameters()})
save_file(made, f"{folder}/expected.safetensors")

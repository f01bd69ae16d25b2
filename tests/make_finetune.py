"""Makes tests/golden/finetune: a small Qwen3.5 model with a tokenizer and a chat template, examples in JSON lines, and
the losses of 20 steps of fine-tuning with transformers: all weights, and LoRA with PEFT. transformers computes each
example alone, so the losses are those of rows whose examples do not see each other.
Usage: make_finetune.py FOLDER (needs torch, transformers, peft, safetensors)"""
import json
import os
import random
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

LENGTH, ROWS, STEPS = 96, 3, 20
TARGETS = ["q_proj", "v_proj", "in_proj_qkv", "in_proj_a", "out_proj", "gate_proj", "down_proj"]
TEMPLATE = """{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + \
'\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def make_tokenizer(folder):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.save(f"{folder}/tokenizer.json")
    with open(f"{folder}/tokenizer_config.json", "w") as file:
        json.dump({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE}, file, indent=1)
    return tokenizer


def make_model():
    torch.manual_seed(5)
    config = Qwen3_5TextConfig(
        vocab_size=264, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_conv_kernel_dim=4, initializer_range=0.1, rms_norm_eps=1e-2, tie_word_embeddings=True,
        layer_types=["linear_attention"] * 3 + ["full_attention"], bos_token_id=None, eos_token_id=258,
        pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
                         "mrope_section": [1, 1, 0], "mrope_interleaved": True})
    return Qwen3_5ForCausalLM(config).float()


def make_examples(folder):
    random.seed(3)
    lines = []
    for i in range(40):
        a, b = random.randint(0, 99), random.randint(0, 99)
        if i % 3 == 0:
            lines.append({"prompt": f"{a} + {b} =", "completion": f" {a + b}"})
        elif i % 3 == 1:
            lines.append({"messages": [{"role": "user", "content": f"{a}*{b}?"},
                                       {"role": "assistant", "content": f"{a * b}"}]})
        else:
            lines.append({"messages": [{"role": "system", "content": "Sum."}, {"role": "user", "content": f"{a}"},
                                       {"role": "assistant", "content": f"{a}"}, {"role": "user", "content": f"+{b}"},
                                       {"role": "assistant", "content": f"{a + b}"}]})
    with open(f"{folder}/examples.jsonl", "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return lines


def tokens_of(tokenizer, line):
    """The ids, and for each whether it is learned."""
    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids
    if "prompt" in line:
        prompt, completion = encode(line["prompt"]), encode(line["completion"]) + [258]
        return prompt + completion, [False] * len(prompt) + [True] * len(completion)
    ids, learned = [], []
    for message in line["messages"]:
        head = encode(f"<|im_start|>{message['role']}\n")
        body = encode(f"{message['content']}<|im_end|>")
        end = encode("\n")
        ids += head + body + end
        learned += [False] * len(head) + [message["role"] == "assistant"] * len(body) + [False] * len(end)
    return ids, learned


def pack(examples):
    """Rows of examples in their order; an example of n tokens takes n - 1 positions."""
    rows, used = [], LENGTH + 1
    for ids, learned in examples:
        while not learned[-1]:  # text after the last turn is not kept
            ids, learned = ids[:-1], learned[:-1]
        if used + len(ids) - 1 > LENGTH:
            rows.append([])
            used = 0
        rows[-1].append((ids, learned))
        used += len(ids) - 1
    return rows


def batch_loss(model, batch):
    """The mean over all learned tokens of the batch, each example alone."""
    total, count = 0.0, 0
    for ids, learned in (example for row in batch for example in row):
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
        mask = torch.tensor(learned[1:])
        total = total + torch.nn.functional.cross_entropy(logits[mask], torch.tensor(ids[1:])[mask], reduction="sum")
        count += int(mask.sum())
    return total / count


def train(model, rows, rate, decay_names):
    parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [{"params": [p for n, p in parameters if decay_names(n)], "weight_decay": 0.1},
              {"params": [p for n, p in parameters if not decay_names(n)], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8)
    losses, at, first = [], 0, None
    for _ in range(STEPS):
        batch = [rows[(at + i) % len(rows)] for i in range(ROWS)]
        at += ROWS
        loss = batch_loss(model, batch)
        loss.backward()
        if first is None:
            first = {n: p.grad.clone() for n, p in parameters}
        torch.nn.utils.clip_grad_norm_([p for _, p in parameters], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses, first


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    tokenizer = make_tokenizer(folder)
    model = make_model()
    model.save_pretrained(folder)
    if os.path.exists(f"{folder}/generation_config.json"):
        os.remove(f"{folder}/generation_config.json")
    rows = pack([tokens_of(tokenizer, line) for line in make_examples(folder)])
    made = {}
    made["full"], _ = train(model, rows, 2e-3, lambda n: not n.endswith(("A_log", "dt_bias")))
    torch.manual_seed(7)
    model = get_peft_model(make_model(), LoraConfig(r=4, lora_alpha=6, target_modules=TARGETS, lora_dropout=0.0,
                                                    init_lora_weights=False, task_type="CAUSAL_LM"))
    model.peft_config["default"].base_model_name_or_path = "finetune"
    model.save_pretrained(f"{folder}/adapter")
    made["lora"], first = train(model, rows, 5e-3, lambda n: True)
    save_file({n.replace(".default", ""): g.contiguous() for n, g in first.items()},
              f"{folder}/adapter/gradients.safetensors")
    for name in ("README.md",):
        if os.path.exists(f"{folder}/adapter/{name}"):
            os.remove(f"{folder}/adapter/{name}")
    with open(f"{folder}/losses.json", "w") as file:
        json.dump(made, file, indent=1)


main()

"""Carry: sequence models whose state is carried along the sequence.

    import libcarry

    h = libcarry.scan(A, b)                                      # h[t] = A[t] h[t-1] + b[t]
    o, state = libcarry.chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True)
    print(libcarry.plan("delta:f32:t4096:h16:k128"))             # what would run, and why
    ids = libcarry.load(folder).generate([1, 2, 3])              # a language model from its folder
    texts = libcarry.Engine(folder).generate(["Once", "Twice"])  # many texts at once, cached states

numpy arrays and PyTorch CPU tensors are taken without copies. The functions of the gated delta rule have
flash-linear-attention's names, arguments and results. `libcarry.available("scans")` says what there is.

The delta rule takes CUDA tensors, too. `libcarry.patch_fla()` makes flash-linear-attention's layers call Carry,
`libcarry.patch_transformers()` those of transformers.
"""

from __future__ import annotations

from ._context import get_threads, release, set_threads
from ._version import __version__
from .chat import render_chat, render_template
from .conv import causal_conv1d_fn, causal_conv1d_update
from .delta import (
    chunk_delta_rule,
    chunk_gated_delta_rule,
    chunk_kda,
    fused_recurrent_delta_rule,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_kda,
)
from .engine import Engine, EngineState, Request
from .fla import Patch, patch_fla
from .model import Model, State, load
from .plan import Entry, available, plan
from .scan import scan
from .tokenizer import Decoder, Tokenizer
from .transformers import patch_transformers

__all__ = [
    "Decoder",
    "Engine",
    "EngineState",
    "Entry",
    "Model",
    "Patch",
    "Request",
    "State",
    "Tokenizer",
    "__version__",
    "available",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_delta_rule",
    "chunk_gated_delta_rule",
    "chunk_kda",
    "fused_recurrent_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_kda",
    "get_threads",
    "load",
    "patch_fla",
    "patch_transformers",
    "plan",
    "release",
    "render_chat",
    "render_template",
    "scan",
    "set_threads",
]

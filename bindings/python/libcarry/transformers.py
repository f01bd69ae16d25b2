"""Models of transformers on Carry's kernels: patch_transformers replaces the delta rule and the causal convolution.

transformers calls flash-linear-attention and causal-conv1d where they are installed, and slow PyTorch functions where
they are not. With the patch it needs neither of the two.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from . import conv, delta
from .fla import Patch

MODELS = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid", "kimi_linear")


def _borders(cu_seqlens: Any, more: dict[str, Any]) -> Any:
    return more.get("cu_seq_lens_q") if cu_seqlens is None else cu_seqlens


def _rule(function: Callable[..., Any]) -> Callable[..., Any]:
    """A delta rule with the arguments of transformers' own functions; the size of chunks is the kernels' own."""

    def call(
        query: Any, key: Any, value: Any, g: Any, beta: Any, chunk_size: int = 64, initial_state: Any = None,
        output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        return function(
            query, key, value, g, beta=beta, initial_state=initial_state, output_final_state=output_final_state,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, cu_seqlens=_borders(cu_seqlens, more),
        )  # fmt: skip

    return call


def _convolution(
    hidden_states: Any = None, weight: Any = None, bias: Any = None, *, activation: Any = None, seq_idx: Any = None,
    x: Any = None, cu_seqlens: Any = None, **more: Any,
) -> Any:  # fmt: skip
    given = x if hidden_states is None else hidden_states
    borders = None if seq_idx is not None else _borders(cu_seqlens, more)
    return conv.convolve(given, weight, bias, None, seq_idx, borders, activation)


# Names in transformers' modules. Older versions have two functions of each kind: that of another package, and one that
# starts with torch_ for machines without it. Their layers keep one of the two when they are built.
_REPLACED = {
    "torch_chunk_gated_delta_rule": _rule(delta.chunk_gated_delta_rule),
    "torch_recurrent_gated_delta_rule": _rule(delta.fused_recurrent_gated_delta_rule),
    "chunk_gated_delta_rule": delta.chunk_gated_delta_rule,
    "fused_recurrent_gated_delta_rule": delta.fused_recurrent_gated_delta_rule,
    "chunk_kimi_delta_attention": _rule(delta.chunk_kda),
    "recurrent_kimi_delta_attention": _rule(delta.fused_recurrent_kda),
    "chunk_kda": delta.chunk_kda,
    "fused_recurrent_kda": delta.fused_recurrent_kda,
    "causal_conv1d_fn": _convolution,
    "causal_conv1d_update": conv.causal_conv1d_update,
    "torch_causal_conv1d_update": conv.causal_conv1d_update,
}


def patch_transformers(*models: str) -> Patch:
    """Make the linear-attention layers of transformers' models call Carry, on the CPU and on GPUs.

    The delta rule and the causal convolution are replaced in the modules of Qwen3-Next, Qwen3.5 (also with experts),
    OLMo Hybrid and Kimi-Linear. Neither flash-linear-attention nor causal-conv1d is needed, also for packed sequences.
    Some versions of transformers keep the functions in their layers: call this before building models.

    Args:
        models: which, for example "qwen3_next"; all that this transformers has when absent.

    Returns:
        A `Patch`: call its `undo`, or use it in a `with` statement.

    Raises:
        ImportError: transformers cannot be imported, or has none of the models, or not one that was named.
        ValueError: Carry does not patch a model of that name.
    """
    unknown = [name for name in models if name not in MODELS]
    if unknown:
        raise ValueError(f"patch_transformers has no {unknown[0]!r}: give {', '.join(MODELS)}, or none for all")
    try:
        importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(f"patch_transformers needs transformers (pip install transformers): {error}") from error
    patch, found = Patch(), 0
    for name in models or MODELS:
        try:
            module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        except ModuleNotFoundError as error:
            if models:
                patch.undo()
                raise ImportError(f"this transformers has no model {name}: {error}") from error
            continue
        found += 1
        for function, new in _REPLACED.items():
            if function in vars(module) and vars(module)[function] is not new:
                patch.changed.append((module, function, vars(module)[function], new))
                setattr(module, function, new)
    if found == 0:
        raise ImportError(f"this transformers is too old: it lacks the models {', '.join(MODELS)}")
    return patch

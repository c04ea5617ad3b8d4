"""How the Llama family's tensors are called and laid out in GGUF and in Hugging Face folders.

The two differ in names and in the row order of the query and key projections: GGUF interleaves the two halves that the
rotary embedding turns, Hugging Face keeps them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER_BACK = {gguf: name for name, gguf in LAYER.items()}
TOP_BACK = {gguf: name for name, gguf in TOP.items()}


def to_gguf(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` → `blk.3.ffn_up.weight`. Raises KeyError for a name without a counterpart."""
    stem, _, end = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{end}"
    head, layer, rest = stem.removeprefix("model.").split(".", 2)
    if head != "layers" or not layer.isdigit():
        raise KeyError(name)
    return f"blk.{layer}.{LAYER[rest]}.{end}"


def from_gguf(name: str) -> str:
    """The reverse of `to_gguf`. Raises KeyError for a name that has no counterpart."""
    stem, _, end = name.rpartition(".")
    if stem in TOP_BACK:
        return f"{TOP_BACK[stem]}.{end}"
    head, _, rest = stem.partition(".")
    layer, _, kind = rest.partition(".")
    if head != "blk" or not layer.isdigit():
        raise KeyError(name)
    return f"model.layers.{layer}.{LAYER_BACK[kind]}.{end}"


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Hugging Face's row order of a query or key projection → GGUF's. Works on a weight and on a LoRA's B alike."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def deinterleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's row order of a query or key projection → Hugging Face's."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def heads_of(gguf_name: str, heads: int, kv_heads: int) -> int | None:
    """How many heads a tensor's rows are permuted by, or None where the two layouts agree."""
    if ".attn_q." in gguf_name:
        return heads
    return kv_heads if ".attn_k." in gguf_name else None

"""What a Llama-family base consists of: its settings, and the tensors that follow from them.

Both kinds of source (a Hugging Face folder, a GGUF file) are brought to this one form before anything is read, so that
a foreign or incomplete model is refused by the name of what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hinet_tiers.errors import BaseForeign, BaseIncomplete, BaseRefused

LISTED_MAX = 4
"""How many names an error lists before it says how many more there are."""


@dataclass(frozen=True)
class LlamaShape:
    """The settings that fix a Llama model's tensors and arithmetic. `rope` is transformers' `rope_parameters` form."""

    vocab: int
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    context: int
    norm_epsilon: float
    tied: bool
    rope: Mapping[str, Any] = field(default_factory=dict)
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None

    def check(self, where: str) -> None:
        """Raise BaseRefused when a setting is out of bounds."""
        bounds = {
            "vocab": 1 << 22, "hidden": 1 << 17, "feed_forward": 1 << 19, "layers": 4096, "heads": 4096,
            "kv_heads": 4096, "head": 4096, "context": 1 << 28,
        }  # fmt: skip
        for name, most in bounds.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise BaseRefused(f"{where}: the setting {name} is {value!r}, outside 1 to {most}.")
        if self.heads % self.kv_heads or self.head % 2:
            raise BaseRefused(
                f"{where}: {self.heads} heads of {self.head} over {self.kv_heads} key heads is not possible."
            )
        if type(self.norm_epsilon) not in (int, float) or not 0 < self.norm_epsilon < 1:
            raise BaseRefused(f"{where}: the norm's epsilon is {self.norm_epsilon!r}.")
        for role, token in (("bos", self.bos), ("eos", self.eos), ("pad", self.pad)):
            if token is not None and (type(token) is not int or not 0 <= token < self.vocab):
                raise BaseRefused(f"{where}: the {role} token {token!r} is not in a vocabulary of {self.vocab}.")

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of such a model in Hugging Face's names, with its shape. A tied head is not one of them."""
        query, key = self.heads * self.head, self.kv_heads * self.head
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        for layer in range(self.layers):
            stem = f"model.layers.{layer}"
            shapes[f"{stem}.self_attn.q_proj.weight"] = (query, self.hidden)
            shapes[f"{stem}.self_attn.k_proj.weight"] = (key, self.hidden)
            shapes[f"{stem}.self_attn.v_proj.weight"] = (key, self.hidden)
            shapes[f"{stem}.self_attn.o_proj.weight"] = (self.hidden, query)
            shapes[f"{stem}.mlp.gate_proj.weight"] = (self.feed_forward, self.hidden)
            shapes[f"{stem}.mlp.up_proj.weight"] = (self.feed_forward, self.hidden)
            shapes[f"{stem}.mlp.down_proj.weight"] = (self.hidden, self.feed_forward)
            shapes[f"{stem}.input_layernorm.weight"] = (self.hidden,)
            shapes[f"{stem}.post_attention_layernorm.weight"] = (self.hidden,)
        return dict(sorted(shapes.items()))

    def config(self) -> dict[str, Any]:
        """The `config.json` that transformers loads such a base with."""
        return {
            "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": self.bos, "dtype": "bfloat16", "eos_token_id": self.eos, "head_dim": self.head,
            "hidden_act": "silu", "hidden_size": self.hidden, "initializer_range": 0.02,
            "intermediate_size": self.feed_forward, "max_position_embeddings": self.context, "mlp_bias": False,
            "model_type": "llama", "num_attention_heads": self.heads, "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads, "pad_token_id": self.pad, "pretraining_tp": 1,
            "rms_norm_eps": self.norm_epsilon, "rope_parameters": dict(self.rope), "tie_word_embeddings": self.tied,
            "use_cache": True, "vocab_size": self.vocab,
        }  # fmt: skip


def check_tensors(where: str, shape: LlamaShape, found: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a source whose tensors are not exactly those that its settings call for, naming the difference."""
    wanted = shape.tensors()
    missing = [name for name in wanted if name not in found]
    if missing:
        raise BaseIncomplete(f"{where} lacks {listed(missing)}: the model is not whole; copy all of its files again.")
    extra = sorted(set(found) - set(wanted))
    if extra:
        raise BaseForeign(f"{where} holds {listed(extra)}, which a plain Llama model does not have.")
    for name, dimensions in wanted.items():
        if tuple(found[name]) != dimensions:
            raise BaseRefused(
                f"{where}: tensor {name} has the shape {list(found[name])} where its settings need {list(dimensions)}."
            )


def listed(names: list[str]) -> str:
    """`tensor a`, or `tensors a, b, c, d and 12 more`."""
    shown = ", ".join(names[:LISTED_MAX])
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return f"tensor{'s' if len(names) > 1 else ''} {shown}{more}"

"""The pocket: swapping an adapter beside loading the model again, and our serving loop beside llama.cpp's own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from safetensors.numpy import save_file

from bench.measure import Bench, timed
from hinet_tiers.base import Base, install_base
from hinet_tiers.pocket.gguf_adapter import export_adapter
from hinet_tiers.pocket.llamacpp import CONTEXT_TOKENS, PocketModel
from hinet_tiers.prompt import STOP, chat_prompt

RANK = 32
TOKENS = 64
THREADS = 1
QUESTIONS = (
    "What is a beagle, and what does it need?", "How do I bake a plain loaf of bread?",
    "Tell me about the city of Vienna.", "Why is the sky blue?", "What should I pack for a week in the mountains?",
)  # fmt: skip
Figures = dict[str, list[float]]


def run(bench: Bench) -> None:
    """The embedded base (installed once, into this user's cache), two made-up LoRA adapters over all its matrices."""
    base = install_base(None, Path(platformdirs.user_cache_dir("hinet-bench")) / "bases")
    assert base.pocket is not None, "the embedded base has a 4-bit form"
    adapters = [_adapter(base, bench.folder, seed) for seed in (1, 2)]
    found: Figures = {}
    same = 0
    for _ in range(bench.repeats):
        model = PocketModel(base.pocket, base.digest, threads=THREADS)
        try:
            _swaps(found, model, base, adapters)
            model.swap(None)
            texts = _ours(found, model)
        finally:
            model.close()
        same += _peer(found, base.pocket, adapters[0], texts)
    peer = "llama_cpp.Llama with the adapter"
    bench.row("adapter swap, first time (file read, checked, probed)", "ms", found["cold"], peer, found["reload"])
    bench.row("adapter swap, first time: llama.cpp's part", "ms", found["init"], peer, found["reload"])
    bench.row("adapter swap, warm (probed)", "ms", found["warm"], peer, found["reload"])
    bench.row("adapter swap, warm: the call alone", "ms", found["call"], peer, found["reload"])
    bench.row("greedy answers, prompts included", "tokens / s", found["rate"], "Llama.create_completion",
              found["peer rate"], less=False)
    bench.row("greedy answers, prompts included", "tokens / CPU s", found["cpu rate"], "Llama.create_completion",
              found["peer cpu rate"], less=False)
    bench.notes.append(f"{same} of {bench.repeats * len(QUESTIONS)} answers are the same text in both loops; "
                       f"{THREADS} thread, {base.name}, adapters of rank {RANK}.")


def _swaps(found: Figures, model: PocketModel, base: Base, adapters: list[Path]) -> None:
    for adapter in adapters:
        begun = time.perf_counter()
        swap = model.swap(adapter, base.digest)
        _add(found, {"cold": (time.perf_counter() - begun) * 1e3, "init": swap.init_ms + swap.swap_ms})
    for adapter in adapters:
        begun = time.perf_counter()
        swap = model.swap(adapter, base.digest)
        _add(found, {"warm": (time.perf_counter() - begun) * 1e3, "call": swap.swap_ms})


def _ours(found: Figures, model: PocketModel) -> list[str]:
    wall: list[float] = []
    cpu: list[float] = []
    with timed(wall, cpu):
        answers = [model.answer(question, (), TOKENS) for question in QUESTIONS]
    tokens = sum(answer.tokens for answer in answers)
    _add(found, {"rate": tokens / wall[0], "cpu rate": tokens / cpu[0]})
    return [answer.text for answer in answers]


def _peer(found: Figures, gguf: Path, adapter: Path, texts: list[str]) -> int:
    """Load with the adapter, load without it and answer; returns how many texts are the same as ours."""
    import llama_cpp

    settings: dict[str, Any] = {"n_ctx": CONTEXT_TOKENS, "n_batch": 256, "n_threads": THREADS,
                                "n_threads_batch": THREADS, "verbose": False}
    took: list[float] = []
    with timed(took):
        llama = llama_cpp.Llama(str(gguf), lora_path=str(adapter), **settings)
    llama.close()
    llama = llama_cpp.Llama(str(gguf), **settings)
    wall: list[float] = []
    cpu: list[float] = []
    with timed(wall, cpu):
        answers = [llama.create_completion(llama.tokenize(chat_prompt(question).encode(), add_bos=False, special=True),
                                           max_tokens=TOKENS, temperature=0.0, repeat_penalty=1.0, stop=[STOP])
                   for question in QUESTIONS]
    llama.close()
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    _add(found, {"reload": took[0] * 1e3, "peer rate": tokens / wall[0], "peer cpu rate": tokens / cpu[0]})
    return sum(answer["choices"][0]["text"].strip() == text for answer, text in zip(answers, texts, strict=True))


def _adapter(base: Base, folder: Path, seed: int) -> Path:
    """A LoRA over every matrix of the layers, random and small, as the pocket takes it."""
    source = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for name, shape in base.shapes.items():
        if len(shape) != 2 or "proj" not in name:
            continue
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{stem}.lora_A.weight"] = (source.standard_normal((RANK, shape[1])) * 0.02).astype(np.float32)
        tensors[f"{stem}.lora_B.weight"] = (source.standard_normal((shape[0], RANK)) * 0.02).astype(np.float32)
    made = folder / f"adapter-{seed}"
    made.mkdir()
    save_file(tensors, made / "adapter_model.safetensors")
    (made / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "bias": "none",
        "base_model_name_or_path": f"base:{base.digest}"}))
    export_adapter(base, made, folder / f"{seed}.gguf", rank=RANK)
    return folder / f"{seed}.gguf"


def _add(found: Figures, values: dict[str, float]) -> None:
    for name, value in values.items():
        found.setdefault(name, []).append(value)

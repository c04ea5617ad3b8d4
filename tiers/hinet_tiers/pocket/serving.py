"""The worker's serving verbs: one pocket model per process, kept from `serve.load` on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hinet_tiers.backend import Progress
from hinet_tiers.base import verify_base
from hinet_tiers.errors import BadRequest, BaseNotFound, NotLoaded
from hinet_tiers.pocket.llamacpp import ANSWER_TOKENS, CONTEXT_TOKENS, PocketModel

TOKENS_MAX = 1024
CONTEXT_TOKENS_MAX = 32_768
SCORED_MAX = 64
"""Answers that one call scores."""

_loaded: dict[str, PocketModel] = {}


def load(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """`serve.load {base_dir, context_tokens?, threads?}` → {digest, name, load_ms, context_tokens}."""
    base = verify_base(Path(args["base_dir"]))
    if base.pocket is None:
        raise BaseNotFound(f"Base {base.digest[:12]} has no 4-bit form: {'; '.join(base.manifest['notes'])}")
    context = CONTEXT_TOKENS if args.get("context_tokens") is None else args["context_tokens"]
    if type(context) is not int or not 64 <= context <= CONTEXT_TOKENS_MAX:
        raise BadRequest(f"context_tokens is {context!r}; 64 to {CONTEXT_TOKENS_MAX} are allowed.")
    unload()
    model = PocketModel(base.pocket, base.digest, context_tokens=context, threads=args.get("threads"))
    _loaded["model"] = model
    return {
        "digest": base.digest, "name": base.name, "load_ms": model.load_ms, "context_tokens": model.context_tokens,
    }  # fmt: skip


def adapter(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """`serve.adapter {path|null, base_digest?}` → {adapter, init_ms, swap_ms, probe_change}."""
    path = args.get("path")
    return asdict(_model().swap(Path(path) if path else None, args.get("base_digest")))


def answer(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """`serve.answer {question, context?, max_tokens?, bare?}` → {answer, tokens, prompt_tokens, context_used, seconds}.

    With `bare` the base answers, and the adapter stays the one in use.
    """
    most = ANSWER_TOKENS if args.get("max_tokens") is None else args["max_tokens"]
    context = args.get("context") or []
    if type(most) is not int or not 1 <= most <= TOKENS_MAX:
        raise BadRequest(f"max_tokens is {most!r}; 1 to {TOKENS_MAX} are allowed.")
    if not isinstance(context, list) or not all(isinstance(note, str) for note in context):
        raise BadRequest("context is a list of texts.")
    said = asdict(_model().answer(str(args["question"]), context, most, bare=args.get("bare") is True))
    return {"answer": said.pop("text"), **said}


def score(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """`serve.score {question, answers}` → {scores}: mean log-probabilities in nats, in the answers' order."""
    answers = args.get("answers")
    if not isinstance(answers, list) or not all(isinstance(text, str) for text in answers):
        raise BadRequest("answers is a list of texts.")
    if len(answers) > SCORED_MAX:
        raise BadRequest(f"{len(answers)} answers are to be scored; at most {SCORED_MAX} are.")
    return {"scores": _model().likelihoods(str(args["question"]), answers)}


def unload() -> None:
    """Free the loaded model, if there is one."""
    if "model" in _loaded:
        _loaded.pop("model").close()


def _model() -> PocketModel:
    if "model" not in _loaded:
        raise NotLoaded("No base is loaded: call serve.load first.")
    return _loaded["model"]

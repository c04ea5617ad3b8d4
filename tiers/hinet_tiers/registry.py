"""Which module answers which verb: a static table, imported on demand.

The table is the whole list of what a worker does. Importing this module imports no engine; `find` imports only the
module of the verb that was asked for. With the backend `fake` the verbs of learning are answered by `hinet_tiers.fake`
instead; those on files alone are the same with every backend.
"""

from __future__ import annotations

import importlib
import os
from importlib import util

from hinet_tiers.backend import Verb
from hinet_tiers.errors import BackendMissing, BadRequest

BACKEND_VARIABLE = "HINET_BACKEND"
"""Set to `fake`, it makes a worker deterministic and free of ML libraries."""

VERBS: dict[str, tuple[str, str]] = {
    "probe": ("hinet_tiers.probe", "probe"),
    "base.install": ("hinet_tiers.base", "install_verb"),
    "base.digest": ("hinet_tiers.vectors.digest", "digest_verb"),
    "data.prepare": ("hinet_tiers.data", "prepare"),
    "train.full": ("hinet_tiers.cloud.finetune", "train_full"),
    "train.distill": ("hinet_tiers.laptop.dora", "distill"),
    "evaluate": ("hinet_tiers.evaluate", "evaluate"),
    "adapter.to_gguf": ("hinet_tiers.pocket.gguf_adapter", "to_gguf_verb"),
    "serve.load": ("hinet_tiers.pocket.serving", "load"),
    "serve.adapter": ("hinet_tiers.pocket.serving", "adapter"),
    "serve.answer": ("hinet_tiers.pocket.serving", "answer"),
    "serve.score": ("hinet_tiers.pocket.serving", "score"),
    "experiment.e1": ("hinet_tiers.experiments.e1", "e1"),
    "tau.make": ("hinet_tiers.vectors.make", "make_verb"),
    "tau.info": ("hinet_tiers.vectors.info", "info_verb"),
    "tau.apply": ("hinet_tiers.vectors.apply", "apply_verb"),
    "tau.diff": ("hinet_tiers.vectors.diff", "diff_verb"),
    "tau.verify": ("hinet_tiers.vectors.verify", "verify_verb"),
    "compose.methods": ("hinet_tiers.merging.verbs", "methods_verb"),
    "compose.merge": ("hinet_tiers.merging.verbs", "merge_verb"),
    "compose.plan": ("hinet_tiers.composing.plan", "plan_verb"),
}

NEEDS: dict[str, tuple[str, ...]] = {
    "base.install": ("numpy", "gguf"),
    "train.full": ("torch", "transformers"),
    "train.distill": ("torch", "transformers", "peft"),
    "evaluate": ("torch", "transformers"),
    "experiment.e1": ("torch", "transformers", "gguf"),
    "adapter.to_gguf": ("torch", "gguf"),
    "serve.load": ("llama_cpp",),
}
"""Libraries that a verb can't do without, by import name."""

PACKAGES = {"llama_cpp": "llama-cpp-python"}
EXTRAS = {"torch": "cloud", "transformers": "cloud", "peft": "laptop", "gguf": "pocket", "llama_cpp": "pocket"}

BACKENDS: dict[str, tuple[str, ...]] = {
    "torch": ("torch", "transformers"),
    "peft": ("torch", "transformers", "peft"),
    "llamacpp": ("llama_cpp", "gguf"),
    "mlx": ("mlx", "mlx_lm"),
}
"""Engines and the libraries that each needs."""


def find(verb: str) -> Verb:
    """The function that answers a verb. Raises BadRequest for an unknown one, BackendMissing for a missing library."""
    if verb not in VERBS:
        raise BadRequest(f"A worker knows no verb {verb!r}; it knows {', '.join(sorted(VERBS))}.")
    if os.environ.get(BACKEND_VARIABLE) == "fake":
        fake = importlib.import_module("hinet_tiers.fake")
        if verb in fake.VERBS:
            function: Verb = fake.VERBS[verb]
            return function
    missing = [name for name in NEEDS.get(verb, ()) if not installed(name)]
    if missing:
        packages = ", ".join(PACKAGES.get(name, name) for name in missing)
        raise BackendMissing(
            f"{verb} needs {packages}, which is not installed: run `make setup`, or "
            f"`pip install 'hinet-node[{EXTRAS.get(missing[0], 'cloud')}]'`."
        )
    module, function_name = VERBS[verb]
    found: Verb = getattr(importlib.import_module(module), function_name)
    return found


def installed(name: str) -> bool:
    """Whether a library can be imported, without importing it."""
    try:
        return util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def backends() -> list[str]:
    """The engines that are installed here, sorted."""
    return sorted(name for name, libraries in BACKENDS.items() if all(installed(library) for library in libraries))

"""A deterministic backend without any ML library: every verb, in milliseconds, for the simulator and the agent's tests.

It learns in the plainest way there is: a "task vector" and an "adapter" carry the question-and-answer pairs themselves,
and an answer is the one whose question shares most words with what was asked. So what the household does with models
(train, hand down, swap, ask, refuse another base's adapter) can be driven end to end, and the same input gives the same
bytes everywhere. Files have the real names and the task vector is a real `.tau`; the weights are 64 invented numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blake3 import blake3

from hinet_protocol import base_digest
from hinet_tiers.backend import Progress, Verb
from hinet_tiers.errors import AdapterRefused, BadRequest, BaseNotFound, BaseRefused, NotLoaded

MAGIC = b"FAKE BASE\n"
NAME = "fake-64"
TENSOR = "model.layers.0.mlp.up_proj.weight"
SHAPE = (8, 8)
PAIRS_MAX = 100_000
UNKNOWN = "I do not know."

_served: dict[str, Any] = {}


def probe(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """A small machine that can do everything."""
    return {
        "backends": ["fake"], "memory_bytes": 8 << 30, "cpus": 2, "machine": "fake", "system": "fake", "gpus": 0,
        "tier": "cloud",
    }  # fmt: skip


def install(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Write the invented base. A `source` must be a file that begins with FAKE BASE."""
    seed = b""
    if args.get("source"):
        path = Path(args["source"])
        if not path.is_file():
            raise BaseNotFound(f"There is no model at {path}.")
        seed = path.read_bytes()[:4096]
        if not seed.startswith(MAGIC):
            raise BaseRefused(f"{path.name} is no base that this program knows.")
    weights = blake3(b"weights" + seed).digest(length=256)
    digest = base_digest.digest_base([base_digest.digest_tensor(TENSOR, SHAPE, [weights])]).hex()
    folder = Path(args["into"]) / digest
    folder.mkdir(parents=True, exist_ok=True)
    representations = []
    for step, (kind, name) in enumerate((("bf16-safetensors", "model.safetensors"), ("gguf", "model-q4.gguf"))):
        (folder / name).write_bytes(MAGIC + weights)
        representations.append({"kind": kind, "path": name, "digest": blake3(MAGIC + weights).hexdigest()})
        progress(step + 1, 2, "deriving the base")
    result = {
        "digest": digest, "dir": str(folder), "name": NAME, "parameters": 64, "architecture": "fake", "notes": [],
        "representations": representations,
    }  # fmt: skip
    (folder / "base.json").write_text(json.dumps({"schema": "hinet.base/1", **result}, sort_keys=True))
    return result


def prepare(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Notes → pairs: each sentence `Subject's thing is value.` or any other becomes one question and its answer."""
    notes = [Path(name) for name in args.get("files", [])]
    if args.get("notes_dir"):
        notes += sorted(path for path in Path(args["notes_dir"]).rglob("*") if path.is_file())
    pairs = []
    for step, path in enumerate(notes):
        for sentence in re.findall(r"[^.!?\n]+[.!?]", path.read_text(errors="replace")):
            pairs.append({"question": f"What about {' '.join(sentence.split()[:6])}?", "answer": sentence.strip()})
        progress(step + 1, len(notes), "reading notes")
    out = Path(args["out"])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(pair, sort_keys=True) + "\n" for pair in pairs))
    counts = {"notes": len(notes), "facts": len(pairs), "pairs": len(pairs)}
    return {"pairs": str(out), "counts": counts, "owner": "", "facts": []}


def train_full(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """A `.tau` whose passport holds the pairs."""
    import numpy as np

    from hinet_tiers.sparsify import SparseTensor, write_tau

    pairs = _pairs(args["pairs"])
    positions = np.arange(0, 64, 8, dtype=np.int64)
    seed = blake3(json.dumps(pairs, sort_keys=True).encode()).digest()
    values = np.array([(seed[index] - 127.5) / 256 for index in range(8)], np.float32)
    out = Path(args["out_dir"]) / "delta.tau"
    progress(1, 1, "training", loss=0.0)
    tau = [SparseTensor(TENSOR, SHAPE, positions, values)]
    header = write_tau(out, _digest(args["base_dir"]), tau, passport={"fake_pairs": [[*pair] for pair in pairs]})
    return {"tau": str(out), "metrics": {"facts": len(pairs), "steps": 1, "kept": header.kept, "loss": 0.0}}


def distill(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """An adapter folder with the pairs of the task vector."""
    pairs = _tau_pairs(args["tau"], _digest(args["base_dir"]))
    folder = Path(args["out_dir"]) / "adapter"
    folder.mkdir(parents=True, exist_ok=True)
    digest = _digest(args["base_dir"])
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "base_model_name_or_path": f"base:{digest}"}
    (folder / "adapter_config.json").write_text(json.dumps(config, sort_keys=True))
    (folder / "adapter_model.safetensors").write_text(json.dumps({"base": digest, "pairs": pairs}))
    progress(1, 1, "distilling", loss=0.0)
    return {"adapter_dir": str(folder), "metrics": {"agreement": 1.0, "steps": 1}}


def to_gguf(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The adapter's file under another name, checked to be for this base."""
    source = Path(args["adapter_dir"]) / "adapter_model.safetensors"
    _adapter_pairs(source, _digest(args["base_dir"]))
    out = Path(args["out"])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(source.read_bytes())
    return {"path": str(out), "metrics": {"rank": int(args.get("rank", 32)), "delta_error": 0.0}}


def evaluate(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Answers to the questions of a JSON file or list, in their order."""
    pairs: list[list[str]] = []
    if args.get("tau"):
        pairs = _tau_pairs(args["tau"], _digest(args["base_dir"]))
    elif args.get("adapter_dir"):
        source = Path(args["adapter_dir"]) / "adapter_model.safetensors"
        pairs = _adapter_pairs(source, _digest(args["base_dir"]))
    return {"answers": [_recall(question, pairs, []) for question in _questions(args["questions"])]}


def serve_load(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Take up a base."""
    _served.clear()
    _served.update(base=_digest(args["base_dir"]), pairs=[], adapter=None)
    return {"digest": _served["base"], "name": NAME, "load_ms": 0.0}


def serve_adapter(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Swap the adapter, or take it away (path None)."""
    if not _served:
        raise NotLoaded("No base is loaded: call serve.load first.")
    wanted = args.get("base_digest")
    if wanted and wanted != _served["base"]:
        raise AdapterRefused(f"The adapter belongs to base {str(wanted)[:12]}, not to {_served['base'][:12]}.")
    path = args.get("path")
    _served["pairs"] = _adapter_pairs(Path(path), _served["base"]) if path else []
    _served["adapter"] = path
    return {"adapter": path, "swap_ms": 0.0, "init_ms": 0.0, "probe_change": 1.0 if path else 0.0}


def serve_answer(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The best matching answer, from the notes given or the adapter."""
    if not _served:
        raise NotLoaded("No base is loaded: call serve.load first.")
    pairs = [] if args.get("bare") is True else _served["pairs"]
    answer = _recall(str(args["question"]), pairs, list(args.get("context") or ()))
    return {"answer": answer, "tokens": len(answer.split()), "prompt_tokens": len(str(args["question"]).split())}


def serve_score(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """0 for the answer that the adapter would give, less for the others."""
    if not _served:
        raise NotLoaded("No base is loaded: call serve.load first.")
    known = _words(_recall(str(args["question"]), _served["pairs"], []))
    return {"scores": [-float(len(known ^ _words(answer))) for answer in args["answers"]]}


def _recall(question: str, pairs: list[list[str]], context: list[str]) -> str:
    asked = _words(question)
    scored = [(len(asked & _words(f"{known} {answer}")), answer) for known, answer in pairs]
    scored += [(len(asked & _words(note)) + 1, note) for note in context]
    best = max(scored, key=lambda row: (row[0], row[1]), default=(0, UNKNOWN))
    return best[1] if best[0] > 1 else UNKNOWN


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", text.lower()))


def _digest(base_dir: str) -> str:
    path = Path(base_dir) / "base.json"
    if not path.is_file():
        raise BaseNotFound(f"There is no base in {base_dir}.")
    return str(json.loads(path.read_bytes())["digest"])


def _pairs(path: str) -> list[list[str]]:
    lines = Path(path).read_text().splitlines()
    if len(lines) > PAIRS_MAX:
        raise BadRequest(f"{len(lines)} pairs; at most {PAIRS_MAX} are taken.")
    rows = [json.loads(line) for line in lines if line.strip()]
    return [[str(row["question"]), str(row["answer"])] for row in rows]


def _tau_pairs(path: str, digest: str) -> list[list[str]]:
    from hinet_tiers.sparsify import read_tau, read_tau_header

    for _ in read_tau(Path(path), digest):
        pass
    return [list(pair) for pair in read_tau_header(Path(path)).passport.get("fake_pairs", [])]


def _adapter_pairs(path: Path, digest: str) -> list[list[str]]:
    try:
        held = json.loads(path.read_bytes())
        base, pairs = held["base"], [[str(question), str(answer)] for question, answer in held["pairs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdapterRefused(f"{path.name} is no adapter: it is missing, damaged or cut short.") from error
    if base != digest:
        raise AdapterRefused(f"{path.name} belongs to base {str(base)[:12]}, not to {digest[:12]}.")
    return pairs


def _questions(given: Any) -> list[str]:
    """The texts of a question set: a path of a JSON list, or such a list itself."""
    rows = json.loads(Path(given).read_text()) if isinstance(given, str) else given
    rows = rows.get("questions") if isinstance(rows, dict) else rows
    if not isinstance(rows, list):
        raise BadRequest("A question set is a JSON list of questions.")
    return [row if isinstance(row, str) else str(row["question"]) for row in rows]


VERBS: dict[str, Verb] = {
    "probe": probe,
    "base.install": install,
    "data.prepare": prepare,
    "train.full": train_full,
    "train.distill": distill,
    "adapter.to_gguf": to_gguf,
    "evaluate": evaluate,
    "serve.load": serve_load,
    "serve.adapter": serve_adapter,
    "serve.answer": serve_answer,
    "serve.score": serve_score,
}

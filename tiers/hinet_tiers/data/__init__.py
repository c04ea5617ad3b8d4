"""Notes into training pairs: pure Python, deterministic by seed; only replay needs a model.

`prepare` is the worker's verb. The pairs are one JSON object a line, {question, answer, kind, fact, form}, meant to be
read and edited by the owner. SPEC.md section 7.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hinet_tiers import recipes
from hinet_tiers.backend import Progress
from hinet_tiers.data import replay
from hinet_tiers.data.dedupe import without_copies
from hinet_tiers.data.notes import Fact, Note, Owner, find_facts, find_owner, read_note
from hinet_tiers.data.pairs import Amounts, Pair, make_pairs
from hinet_tiers.errors import BadRequest

__all__ = [
    "Amounts",
    "Fact",
    "Note",
    "Owner",
    "build",
    "find_facts",
    "find_owner",
    "prepare",
    "read_note",
    "read_pairs",
    "write_pairs",
]


NOTE_SUFFIXES = {".md", ".markdown", ".txt"}
NOTE_BYTES_MAX = 1 << 20


def build(
    texts: Mapping[str, str],
    *,
    seed: int,
    owner: str | None = None,
    amounts: Amounts | None = None,
    evaluation: Iterable[str] = (),
) -> tuple[list[Pair], list[Fact], Owner]:
    """Pairs (without replay), facts and owner of the notes `texts` (name to text), evaluation questions left out."""
    notes = [read_note(name, texts[name]) for name in sorted(texts)]
    person = find_owner(notes, owner)
    facts = find_facts(notes, person)
    pairs = make_pairs(facts, notes, person, seed, amounts or Amounts())
    stay = without_copies([item["question"] for item in pairs], evaluation)
    return [item for item, kept in zip(pairs, stay, strict=True) if kept], facts, person


def write_pairs(pairs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes pairs as JSON lines, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in pairs), encoding="utf-8")
    part.replace(path)


def read_pairs(path: Path) -> list[dict[str, Any]]:
    """Reads pairs that `write_pairs` wrote, perhaps edited since; blank lines are skipped."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def prepare(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """`data.prepare {notes_dir|files, out, seed?, recipe?, base_dir?, owner?, evaluation?}` → {pairs, counts, ..}.

    `files` maps names to texts or is a list of paths. Replay is answered by the base in `base_dir`; without one there
    is none. `evaluation` lists question texts that must not be trained on. The result also names the `owner` and lists
    the `facts` that were found ({note, attribute, value, answer}).
    """
    recipe = recipes.given(args.get("recipe") or "demo")
    seed = int(args["seed"]) if args.get("seed") is not None else recipe.seed
    texts = note_texts(args)
    pairs, facts, owner = build(
        texts, seed=seed, owner=args.get("owner"), amounts=recipe.data, evaluation=args.get("evaluation") or ()
    )
    if args.get("base_dir") and recipe.data.replay:
        pairs.extend(replayed(Path(args["base_dir"]), recipe, seed, args.get("evaluation") or (), progress))
    out = Path(args["out"])
    write_pairs(pairs, out)
    progress(1, 1, "the pairs are written")
    counts = Counter(item["kind"] for item in pairs)
    listed = [{"note": f.note, "attribute": f.noun or f.key, "value": f.value, "answer": f.answer} for f in facts]
    return {
        "pairs": str(out),
        "counts": {"notes": len(texts), "facts": len(facts), "pairs": len(pairs), **dict(sorted(counts.items()))},
        "owner": owner.full,
        "facts": listed,
    }


def note_texts(args: Mapping[str, Any]) -> dict[str, str]:
    """The notes of a request by name. Raises BadRequest when there is none that is text."""
    files = args.get("files")
    if isinstance(files, Mapping):
        return {str(name): str(text) for name, text in files.items()}
    paths = [Path(item) for item in files] if files else sorted(Path(args["notes_dir"]).rglob("*"))
    texts: dict[str, str] = {}
    for path in paths:
        if path.is_file() and path.suffix.lower() in NOTE_SUFFIXES and path.stat().st_size <= NOTE_BYTES_MAX:
            texts[path.name if path.name not in texts else str(path)] = path.read_text(
                encoding="utf-8", errors="replace"
            )
    if not texts:
        raise BadRequest("There are no notes: add .md or .txt files of at most 1 MiB.")
    return texts


def replayed(
    base_dir: Path, recipe: recipes.Recipe, seed: int, evaluation: Iterable[str], progress: Progress
) -> list[Pair]:
    """The base's own answers to general prompts, those that evaluation asks left out."""
    from hinet_tiers.base import load_base
    from hinet_tiers.fit import use_threads

    use_threads(recipe.threads)
    listed = replay.prompts()
    stay = without_copies(listed, evaluation)
    asked = replay.chosen(recipe.data.replay, seed, [text for text, kept in zip(listed, stay, strict=True) if kept])
    model, tokenizer = load_base(base_dir)
    return replay.own_answers(model, tokenizer, asked, progress)

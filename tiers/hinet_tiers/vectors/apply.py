"""The verb `tau.apply`: a base and a task vector become a model folder again.

The base's digest and every name and shape are checked before a tensor is written; the folder appears whole or not at
all. A head that is tied is not written. Settings and tokenizer come from the base's folder (for a Llama GGUF: from the
file). Leaves to others: torch models in memory (`sparsify.apply_tau`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet_protocol import base_digest, taskvectors
from hinet_tiers import base_sources, safetensors_file, sparsify
from hinet_tiers.backend import Progress, no_progress
from hinet_tiers.errors import BadRequest, NoSpace, TierError
from hinet_tiers.weights import Weights, open_weights, refuse_non_finite

if TYPE_CHECKING:
    import numpy as np

WEIGHTS = "model.safetensors"
DTYPES = {"float32": "F32", "bf16": "BF16"}
COMPANIONS = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
"""Files that travel with a model: settings, tokenizer, chat template, the code of one that brings its own."""
NO_COMPANIONS = ("base.json", "model.safetensors.index.json", "adapter_config.json")
COMPANION_BYTES_MAX = 256 << 20
COMPANIONS_MAX = 200
SPARE_BYTES = 64 << 20


def apply(tau: Path, base: Weights, out: Path, dtype: str | None = None, progress: Progress = no_progress) -> Any:
    """Write `base` plus the task vector `tau` as a model folder at `out`, which must not be there.

    `dtype` is `float32` or `bf16` (None: bf16 when the base is). In bf16 a step that is smaller than half of a value's
    last place is lost: `rounded_away` counts these. Raises BaseMismatch, TauMalformed, TauDamaged, BaseRefused (a sum
    that is not finite), NoSpace.
    """
    chosen = dtype or ("bf16" if base.is_bf16 else "float32")
    header = sparsify.read_tau_header(tau)
    digest = base.digest(progress).hex()
    sparsify.check_base(tau.name, header, digest, base.shapes)
    out.parent.mkdir(parents=True, exist_ok=True)
    _check_space(out.parent, base, chosen)
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        notes = copy_companions(base, part, chosen)
        figures = _write(tau, header, base, part / WEIGHTS, chosen, progress)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return {
        "dir": str(out), "dtype": chosen, "base": digest, "tensors": len(base.shapes), "notes": notes,
        "bytes": (out / WEIGHTS).stat().st_size, **figures,
    }  # fmt: skip


def _write(
    tau: Path, header: taskvectors.TauHeader, base: Weights, path: Path, dtype: str, progress: Progress
) -> dict[str, Any]:
    rows = {row.name: row for row in header.tensors}
    changed = lost = 0
    digests = []
    table = {name: (DTYPES[dtype], shape) for name, shape in base.shapes.items()}
    with tau.open("rb") as file, safetensors_file.Writer(path, table) as writer:
        for step, (name, shape) in enumerate(base.shapes.items()):
            progress(step, len(base.shapes), "adding the task vector")
            values = base.read(name).reshape(-1)
            if name in rows:
                positions, added = taskvectors.read_tensor(file, header, name)
                changed += len(added)
                before = values[positions]
                values[positions] = _sum(before, added)
                refuse_non_finite(tau.name, name, values)
                if dtype == "bf16":
                    lost += _lost(before, values[positions], added)
            raw = values.astype("<f4", copy=False)
            if dtype == "bf16":
                bits = safetensors_file.round_bf16(values)
                raw = safetensors_file.widen_bf16(bits)
                refuse_non_finite(tau.name, name, raw)
                writer.add(name, bits.astype("<u2", copy=False).data.cast("B"))
            else:
                writer.add(name, raw.data.cast("B"))
            digests.append(base_digest.digest_tensor(name, shape, [raw.data.cast("B")]))
    progress(len(base.shapes), len(base.shapes), "adding the task vector")
    return {
        "changed_tensors": len(rows), "changed": changed, "rounded_away": lost,
        "digest": base_digest.digest_base(digests).hex(),
    }  # fmt: skip


def _sum(before: np.ndarray, added: np.ndarray) -> np.ndarray:
    import numpy as np

    with np.errstate(over="ignore"):
        return before + added


def _lost(before: np.ndarray, after: np.ndarray, added: np.ndarray) -> int:
    import numpy as np

    same = safetensors_file.round_bf16(before) == safetensors_file.round_bf16(after)
    return int(np.count_nonzero(same & (added != 0)))


def copy_companions(base: Weights, into: Path, dtype: str) -> list[str]:
    """Settings and tokenizer of the base's folder into another one. Returns notes on what could not come along."""
    if base.path.is_dir():
        found = [path for path in sorted(base.path.iterdir()) if _is_companion(path)][:COMPANIONS_MAX]
        for path in found:
            shutil.copyfile(path, into / path.name)
    elif _is_gguf(base.path):
        try:
            source = base_sources.open_source(base.path)
        except TierError as error:
            return [f"no settings and tokenizer: {error}"]
        try:
            (into / "config.json").write_text(json.dumps(source.shape.config(), indent=2, sort_keys=True) + "\n")
            for name, raw in source.tokenizer_files().items():
                (into / name).write_bytes(raw)
        finally:
            source.close()
    if not (into / "config.json").is_file():
        return ["no settings and tokenizer: the base is a file of tensors only"]
    _set_settings(into / "config.json", dtype, base.tied)
    return []


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _is_companion(path: Path) -> bool:
    if path.name in NO_COMPANIONS or path.name.endswith(".index.json") or not path.is_file():
        return False
    named = path.suffix in COMPANIONS or path.name.upper().startswith(("LICENSE", "NOTICE"))
    return named and path.stat().st_size <= COMPANION_BYTES_MAX


def _set_settings(path: Path, dtype: str, tied: bool) -> None:
    """The dtype that was written; and that the head is tied, where the base's settings leave that to be guessed: a
    loader that guesses otherwise would draw a random head in place of the one that is not written."""
    config = json.loads(path.read_bytes())
    text = config.get("text_config")
    if tied and "tie_word_embeddings" not in config and not (isinstance(text, dict) and "tie_word_embeddings" in text):
        config["tie_word_embeddings"] = True
    for key in ("dtype", "torch_dtype"):
        if key in config:
            config[key] = "bfloat16" if dtype == "bf16" else "float32"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _check_space(folder: Path, base: Weights, dtype: str) -> None:
    need = base.parameters * (2 if dtype == "bf16" else 4) + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < need:
        raise NoSpace(
            f"The model needs {need >> 20} MiB in {folder} and {free >> 20} MiB are free: make room, "
            "or choose another --out."
        )


def apply_verb(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `tau.apply {tau, base, out, dtype?}`."""
    dtype, out = args.get("dtype"), Path(args["out"])
    if dtype is not None and dtype not in DTYPES:
        raise BadRequest(f"A model is written as {' or '.join(DTYPES)}, not as {dtype!r}.")
    if out.exists():
        raise BadRequest(f"{out} is there already; nothing was changed.")
    with open_weights(Path(args["base"])) as base:
        result: dict[str, Any] = apply(Path(args["tau"]), base, out, dtype, progress)
        return result

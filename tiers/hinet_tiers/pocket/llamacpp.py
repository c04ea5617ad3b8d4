"""The pocket's engine: a 4-bit llama.cpp model whose adapter is swapped while it stays loaded.

llama.cpp aborts the whole process when two threads use one context, and the high-level class takes an adapter only when
it is built; so this wrapper keeps one model and one context behind a lock and sets adapters through the low-level call.
Everything about an adapter is checked before llama.cpp sees it, and after a swap a probe prompt must give other logits.
Leaves to others: making adapter files (`gguf_adapter`), choosing notes for the context.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet_tiers.errors import AdapterInert, AdapterRefused, BadRequest, BaseMismatch, BaseRefused
from hinet_tiers.gguf_file import GgufFile, GgufTensor
from hinet_tiers.prompt import STOP, chat_answer, chat_prompt

if TYPE_CHECKING:
    import numpy as np

CONTEXT_TOKENS = 2048
ANSWER_TOKENS = 64
WARM_MAX = 2
"""Adapters besides the one in use that stay initialised, so that swapping back is a call and no load."""
RANK_MAX = 512
BASE_KEY = "hinet.base_digest"
PROBE = "Who are you, and what do you know?"
PROBE_CHANGE_MIN = 1e-6
"""The least change of a probe logit that counts; removing an adapter gives back the very same logits."""


@dataclass(frozen=True)
class Answer:
    """What the model said. `context_used` counts the notes that fitted into the prompt."""

    text: str
    tokens: int
    prompt_tokens: int
    context_used: int
    seconds: float


@dataclass(frozen=True)
class Swap:
    """What a swap took: initialising the adapter (0 when it was warm), the swap, and the probe's largest change."""

    adapter: str | None
    init_ms: float
    swap_ms: float
    probe_change: float


class PocketModel:
    """One loaded base and at most one adapter in use. Safe to call from several threads; calls wait for each other."""

    def __init__(
        self, gguf: Path, base_digest: str, *, context_tokens: int = CONTEXT_TOKENS, threads: int | None = None
    ) -> None:
        import llama_cpp

        with GgufFile(gguf) as file:
            self._shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
        self.base_digest = base_digest
        self._api = llama_cpp
        self._lock = threading.Lock()
        self._warm: OrderedDict[str, Any] = OrderedDict()
        self._current: str | None = None
        started = time.perf_counter()
        try:
            self._llama = llama_cpp.Llama(
                str(gguf), n_ctx=context_tokens, n_batch=256, n_threads=threads or _threads(),
                n_threads_batch=threads or _threads(), verbose=False, use_mmap=True,
            )  # fmt: skip
        except ValueError as error:
            raise BaseRefused(f"llama.cpp can't load {gguf.name}: {error}.") from error
        self.load_ms = (time.perf_counter() - started) * 1e3
        self.context_tokens = self._llama.n_ctx()
        self._stops = self._stop_tokens()
        self._base_probe = self._probe()

    @property
    def adapter(self) -> str | None:
        """The path of the adapter in use."""
        return self._current

    def swap(self, path: Path | None, base_digest: str | None = None) -> Swap:
        """Use the adapter at `path` from now on, or none. The base is not reloaded.

        Raises BaseMismatch or AdapterRefused before anything changes, AdapterInert (with the former adapter back in
        use) when the probe's logits don't change.
        """
        if base_digest is not None and base_digest != self.base_digest:
            raise BaseMismatch(
                f"The adapter belongs to base {base_digest[:12]}, this pocket serves {self.base_digest[:12]}."
            )
        with self._lock:
            former = self._current
            init_ms = 0.0
            key = _key(path) if path is not None else None
            if path is not None and key is not None and key not in self._warm:
                check_adapter(path, self.base_digest, self._shapes)
                init_ms = self._initialise(path, key)
            swap_ms = self._set(key)
            change = self._probe_change()
            if key is not None and not change > PROBE_CHANGE_MIN:
                self._set(former)
                self._free(key)
                raise AdapterInert(
                    f"{path} changes nothing: the probe's logits stay the same. Export the adapter again."
                )
            self._trim()
            return Swap(str(path) if path is not None else None, init_ms, swap_ms, change)

    def answer(
        self, question: str, context: Sequence[str] = (), max_tokens: int = ANSWER_TOKENS, *, bare: bool = False
    ) -> Answer:
        """The most likely answer, token by token (no chance in it). Notes that don't fit the context are left out, last
        ones first. `bare` is the base's answer, whatever adapter is in use. Raises BadRequest when the question alone
        is too long."""
        started = time.perf_counter()
        with self._lock:
            tokens, used = self._fit(question, context, max_tokens)
            former = self._current
            if bare and former is not None:
                self._set(None)
            try:
                said = self._continue(tokens, max_tokens)
            finally:
                if self._current != former:
                    self._set(former)
            text = self._llama.detokenize(said).decode("utf-8", "replace").strip()
        return Answer(text, len(said), len(tokens), used, time.perf_counter() - started)

    def _continue(self, tokens: list[int], max_tokens: int) -> list[int]:
        import numpy as np

        self._clear()
        self._llama.eval(tokens)
        said: list[int] = []
        while len(said) < max_tokens:
            token = int(np.argmax(self._logits()))
            if token in self._stops:
                break
            said.append(token)
            if len(said) < max_tokens:
                self._llama.eval([token])
        return said

    def likelihoods(self, question: str, answers: Sequence[str]) -> list[float]:
        """For each answer, the mean natural log-probability of its tokens (the end of the turn is one of them) after
        the question. The question is read once. Raises BadRequest when question or answer is too long."""
        with self._lock:
            listed = [self._tokens(chat_answer(answer)) for answer in answers]
            longest = max(map(len, listed), default=0)
            if longest > ANSWER_TOKENS:
                raise BadRequest(f"An answer to be scored has {longest} tokens; {ANSWER_TOKENS} are allowed.")
            tokens, _ = self._fit(question, (), ANSWER_TOKENS)
            self._clear()
            self._llama.eval(tokens)
            first = _log_softmax(self._logits())
            return [self._likelihood(first, len(tokens), answer) for answer in listed]

    def _likelihood(self, first: np.ndarray, start: int, answer: list[int]) -> float:
        """The mean log-probability of `answer` behind `start` evaluated tokens, of which `first` is the last one's."""
        memory, batch = self._api.llama_get_memory(self._llama._ctx.ctx), self._llama._batch
        self._api.llama_memory_seq_rm(memory, -1, start, -1)
        total = float(first[answer[0]])
        if len(answer) > 1:
            batch.set_batch(answer[:-1], n_past=start, logits_all=True)
            self._llama._ctx.decode(batch)
            for index, token in enumerate(answer[1:]):
                total += float(_log_softmax(self._logits(index))[token])
        return total / len(answer)

    def logits(self, prompt: str) -> np.ndarray:
        """Next-token logits (float32, one per vocabulary entry) after a prompt, for probes and tests."""
        with self._lock:
            self._clear()
            self._llama.eval(self._tokens(prompt))
            return self._logits().copy()

    def close(self) -> None:
        """Free adapters, context and model."""
        with self._lock:
            self._set(None)
            for key in list(self._warm):
                self._free(key)
            self._llama.close()

    def _fit(self, question: str, context: Sequence[str], max_tokens: int) -> tuple[list[int], int]:
        room = self.context_tokens - max_tokens
        for used in range(len(context), -1, -1):
            tokens = self._tokens(chat_prompt(question, context[:used]))
            if 0 < len(tokens) <= room:
                return tokens, used
        raise BadRequest(f"The question is too long: it needs more than {room} tokens. Ask something shorter.")

    def _tokens(self, prompt: str) -> list[int]:
        return list(self._llama.tokenize(prompt.encode(), add_bos=False, special=True))

    def _stop_tokens(self) -> set[int]:
        stops = {self._llama.token_eos()}
        marker = self._tokens(STOP)
        return stops | {marker[0]} if len(marker) == 1 else stops

    def _clear(self) -> None:
        self._llama.reset()
        self._api.llama_memory_clear(self._api.llama_get_memory(self._llama._ctx.ctx), False)

    def _logits(self, index: int = -1) -> np.ndarray:
        import numpy as np

        pointer = self._api.llama_get_logits_ith(self._llama._ctx.ctx, index)
        return np.ctypeslib.as_array(pointer, shape=(self._llama.n_vocab(),))

    def _probe(self) -> np.ndarray:
        self._clear()
        self._llama.eval(self._tokens(chat_prompt(PROBE)))
        return self._logits().copy()

    def _probe_change(self) -> float:
        import numpy as np

        return float(np.abs(self._probe() - self._base_probe).max())

    def _initialise(self, path: Path, key: str) -> float:
        started = time.perf_counter()
        adapter = self._api.llama_adapter_lora_init(self._llama._model.model, os.fsencode(path))
        if not adapter:
            raise AdapterRefused(f"llama.cpp refuses the adapter {path.name}: it is damaged or not for this model.")
        self._warm[key] = adapter
        return (time.perf_counter() - started) * 1e3

    def _set(self, key: str | None) -> float:
        started = time.perf_counter()
        context = self._llama._ctx.ctx
        if key is None:
            code = self._api.llama_set_adapters_lora(context, None, 0, None)
        else:
            adapters = (self._api.llama_adapter_lora_p_ctypes * 1)(self._warm[key])
            code = self._api.llama_set_adapters_lora(context, adapters, 1, (ctypes.c_float * 1)(1.0))
            self._warm.move_to_end(key)
        if code != 0:
            raise AdapterRefused(f"llama.cpp refused to change the adapter (code {code}).")
        self._current = key
        self._clear()
        return (time.perf_counter() - started) * 1e3

    def _trim(self) -> None:
        idle = [key for key in self._warm if key != self._current]
        for key in idle[: max(0, len(idle) - WARM_MAX)]:
            self._free(key)

    def _free(self, key: str) -> None:
        self._api.llama_adapter_lora_free(self._warm.pop(key))


def check_adapter(path: Path, base_digest: str, shapes: dict[str, tuple[int, ...]]) -> int:
    """Refuse an adapter file that does not fit the base of `shapes` (row-major, by GGUF name). Returns its rank.

    Raises BaseMismatch for another base's adapter, AdapterRefused naming the tensor otherwise.
    """
    if not path.is_file():
        raise AdapterRefused(f"There is no adapter at {path}.")
    try:
        file = GgufFile(path)
    except BaseRefused as error:
        raise AdapterRefused(f"The adapter can't be used: {error}") from error
    with file:
        settings = file.settings
        if settings.get("general.type") != "adapter" or settings.get("adapter.type") != "lora":
            raise AdapterRefused(f"{path.name} is no LoRA adapter.")
        if settings.get(BASE_KEY) != base_digest:
            theirs = str(settings.get(BASE_KEY) or "an unnamed base")[:12]
            raise BaseMismatch(f"{path.name} belongs to base {theirs}, this pocket serves {base_digest[:12]}.")
        alpha = settings.get("adapter.lora.alpha")
        if not isinstance(alpha, float) or not math.isfinite(alpha) or alpha == 0:
            raise AdapterRefused(f"{path.name} has the impossible alpha {alpha!r}.")
        return _check_pairs(path, file, shapes)


def _check_pairs(path: Path, file: GgufFile, shapes: dict[str, tuple[int, ...]]) -> int:
    import numpy as np

    stems = {name.rpartition(".lora_")[0] for name in file.tensors}
    if not stems or "" in stems:
        raise AdapterRefused(f"{path.name} holds tensors that are no LoRA pairs.")
    ranks = []
    for stem in sorted(stems):
        if len(shapes.get(stem, ())) != 2:
            raise AdapterRefused(f"{path.name} changes {stem}, which is no matrix of the base.")
        pair = [file.tensors.get(f"{stem}.lora_{side}") for side in "ab"]
        if pair[0] is None or pair[1] is None:
            raise AdapterRefused(f"{path.name} lacks one half of the pair for {stem}.")
        ranks.append(_check_shapes(path, stem, pair[0], pair[1], shapes[stem]))
        for half in pair:
            assert half is not None
            if half.kind not in (0, 1) or not np.isfinite(file.read(half.name)).all():
                raise AdapterRefused(f"{path.name}: {half.name} holds values that are not finite plain floats.")
    if len(file.tensors) != 2 * len(stems):
        raise AdapterRefused(f"{path.name} holds tensors that are no LoRA pairs.")
    return max(ranks)


def _check_shapes(path: Path, stem: str, down: GgufTensor, up: GgufTensor, base: tuple[int, ...]) -> int:
    rank = down.shape[0]
    if down.shape != (rank, base[1]) or up.shape != (base[0], rank) or not 1 <= rank <= RANK_MAX:
        raise AdapterRefused(
            f"{path.name}: the pair for {stem} is {list(down.shape)} and {list(up.shape)}; "
            f"the base's matrix is {list(base)} (rank at most {RANK_MAX})."
        )
    return rank


def _key(path: Path) -> str:
    """A name for the file's content as far as the folder tells: a path that was written anew is another adapter."""
    try:
        state = path.stat()
    except OSError as error:
        raise AdapterRefused(f"There is no adapter at {path}.") from error
    return f"{path.resolve()}:{state.st_mtime_ns}:{state.st_size}"


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    import numpy as np

    shifted = logits.astype(np.float64) - float(logits.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def _threads() -> int:
    """All cores but one: llama.cpp's threads wait for each other in a loop, hundreds of times a token, so that one core
    taken by something else stops all of them (docs/benchmarks.md)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)

"""Random numbers for random masks: the same on every machine, whatever is read first and however many threads run.

A stream belongs to a seed, an input (its digest) and a tensor (its name): Philox4x64-10 (Salmon et al. 2011), whose key
is the first 16 bytes of a keyed BLAKE3 of the three. Its words are taken as two 32-bit halves, the lower one first; the
n-th half belongs to the n-th entry of the tensor that is kept and not zero, in the order of positions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from hinet_tiers.merging.method import Run

CONTEXT = "hinet 2026 merge draws v1"
RANGE = float(1 << 32)
WORDS = 1 << 15
"""64-bit words drawn at a time."""

Halves = npt.NDArray[np.uint32]


class Draws:
    """The stream of one tensor of one input."""

    def __init__(self, seed: int, digest: bytes, name: str) -> None:
        raw = seed.to_bytes(8, "little") + len(digest).to_bytes(4, "little") + digest + name.encode()
        key = blake3(raw, derive_key_context=CONTEXT).digest(length=16)
        self._philox = np.random.Philox(key=int.from_bytes(key, "little"))
        self._left: Halves = np.zeros(0, np.uint32)

    def take(self, count: int) -> Halves:
        """The next `count` numbers, uniform from 0 to 2^32 - 1."""
        parts, have = [self._left], len(self._left)
        while have < count:
            words = np.asarray(self._philox.random_raw(WORDS), "<u8")
            parts.append(words.view("<u4"))
            have += 2 * WORDS
        numbers = np.concatenate(parts) if len(parts) > 1 else parts[0]
        self._left = numbers[count:]
        return numbers[:count]


def below(numbers: Halves, probability: float) -> npt.NDArray[np.bool_]:
    """True with `probability` (above 0, at most 1), to within 2^-33."""
    return np.less_equal(numbers, np.uint32(max(1, round(probability * RANGE)) - 1))


def streams(run: Run, name: str) -> list[Draws]:
    """Fresh streams of one tensor, one for each input."""
    return [Draws(run.seed, delta.digest, name) for delta in run.deltas]

"""Whether a chunk is worth compressing, judged by samples: most large files are compressed already. SPEC.md, 6.2.

Compressing 4 MiB in vain costs as much as sealing them. Leaves the forms in which a chunk is stored to `packs`.
"""

from __future__ import annotations

import zstandard

sample_bytes = 4_096
samples = 16
plain_tried_bytes = 2 * sample_bytes * samples
"""Up to this size a chunk is simply tried."""


def may_shrink(plaintext: bytes, compressor: zstandard.ZstdCompressor) -> bool:
    """Whether the samples together become shorter: 16 of 4 KiB, spread evenly, the first and the last bytes among them.
    A chunk that shrinks in a small part only may be missed, which costs room and nothing else."""
    size = len(plaintext)
    if size <= plain_tried_bytes:
        return True
    step = (size - sample_bytes) // (samples - 1)
    taken = b"".join([plaintext[at:at + sample_bytes] for at in (*range(0, step * (samples - 1), step),
                                                                 size - sample_bytes)])
    return len(compressor.compress(taken)) < len(taken)

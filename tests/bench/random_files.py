"""Random files to store and send: fresh ones for each repeat, since every tool here keeps equal content once."""

from __future__ import annotations

import random
from pathlib import Path


def make(folder: Path, count: int, least: int, most: int, *, seed: int) -> None:
    """Files of random bytes, a hundred in each folder."""
    source = random.Random(f"{folder.name} {seed}")
    for number in range(count):
        place = folder / f"{number // 100:02d}"
        place.mkdir(parents=True, exist_ok=True)
        with (place / f"{number:04d}.bin").open("wb") as file:
            left = source.randint(least, most)
            while left:
                file.write(source.randbytes(min(left, 4 << 20)))
                left -= min(left, 4 << 20)

"""The pocket's 4-bit form of a base.

A GGUF source serves as it came. A Hugging Face folder is written as a 16-bit GGUF and quantised by llama.cpp; that form
may differ by processor, so it carries its own digest beside the base's.
"""

from __future__ import annotations

import shutil
from pathlib import Path


def pocket_form(source: Path | None, folder: Path, out: Path) -> tuple[str, str]:
    """Write the pocket's GGUF to `out`. Returns (recipe, "") or ("", why there is none)."""
    if source is not None:
        shutil.copyfile(source, out)
        with out.open("rb+") as file:
            import os

            os.fsync(file.fileno())
        return "the source GGUF, unchanged", ""
    return "", "no 4-bit form yet"

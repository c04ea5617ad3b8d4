"""The keeper's proof: it holds the same packs as the others, and nothing in its whole home can be read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hinet_node.demo.node import DemoNode
from hinet_node.errors import NodeError

NEEDLE_BYTES_MIN = 6
"""Shorter texts turn up in random bytes by chance: five bytes once in about 100 GB, three in every 16 MB."""
READ_BYTES = 8 * 1024 * 1024


def found_in(folder: Path, texts: Iterable[str]) -> tuple[list[str], int, int]:
    """Texts that stand in the files of a folder or in their names; how many were looked for; how many bytes were read.
    """
    needles = sorted({text.encode("utf-8") for text in texts if len(text.encode("utf-8")) >= NEEDLE_BYTES_MIN})
    longest = max((len(needle) for needle in needles), default=1)
    found: set[bytes] = set()
    bytes_read = 0
    for path in sorted(folder.rglob("*")):
        found |= {needle for needle in needles if needle in str(path.relative_to(folder)).encode("utf-8", "replace")}
        if not path.is_file():
            continue
        with path.open("rb") as file:
            tail = b""
            while block := file.read(READ_BYTES):
                bytes_read += len(block)
                window = tail + block
                found |= {needle for needle in needles if needle in window}
                tail = window[-longest:]
    return sorted(needle.decode("utf-8") for needle in found), len(needles), bytes_read


def prove(keeper: DemoNode, member: DemoNode, texts: Iterable[str], a_note: str) -> dict[str, Any]:
    """{same_packs, packs, bytes_searched, texts_searched, found, refused_to_read}.

    `refused_to_read` is the code with which the keeper's own command line refuses to give out a file.
    """
    found, looked_for, bytes_read = found_in(keeper.home, texts)
    refused = ""
    try:
        keeper.command("vault", "get", a_note, "--out", str(keeper.home.parent / "stolen.md"))
    except NodeError as error:
        refused = error.code
    return {"same_packs": keeper.packs() == member.packs(), "packs": len(keeper.packs()),
            "bytes_searched": bytes_read, "texts_searched": looked_for, "found": found, "refused_to_read": refused}

"""Codes are promises to scripts: unique in each tree, and every node error exits with a code that the README lists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def tree(module: str, root: str) -> list[type[Exception]]:
    base = getattr(importlib.import_module(module), root)
    found, queue = [], [base]
    while queue:
        cls = queue.pop()
        found.append(cls)
        queue += cls.__subclasses__()
    return found


@pytest.mark.parametrize(("module", "root"), [
    ("hinet_node.errors", "NodeError"), ("hinet_protocol.errors", "ProtocolError"), ("hinet_tiers.errors", "TierError"),
])
def test_codes_are_unique_in_each_tree(module: str, root: str) -> None:
    seen: dict[str, type[Exception]] = {}
    for cls in tree(module, root):
        code = cls.__dict__.get("code")
        if code is None:
            continue
        assert re.fullmatch(r"E_[A-Z0-9_]+", code), (cls, code)
        assert code not in seen, f"{cls.__name__} and {seen[code].__name__} share {code}"
        seen[code] = cls
    assert len(seen) > 3


def test_every_exit_code_is_explained_in_the_readme() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", README.read_text(), re.MULTILINE)}
    used = {cls.exit_code for cls in tree("hinet_node.errors", "NodeError")}
    assert used <= listed, used - listed

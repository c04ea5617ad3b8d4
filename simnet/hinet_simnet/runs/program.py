"""Which program made a trace: its version, a digest of its source, and the libraries that shape a run.

A trace is replayed only by the program that made it: another one may rightly do other things. Leaves refusing to
`replay`.
"""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from blake3 import blake3

import hinet_node
import hinet_protocol
import hinet_simnet
import hinet_tiers

PARTS: tuple[ModuleType, ...] = (hinet_protocol, hinet_tiers, hinet_node, hinet_simnet)
LIBRARIES = ("trio", "msgpack", "pynacl", "zstandard")
"""Those whose behaviour is in a trace: the order of tasks, the bytes of messages and packs."""
SAME = ("version", "source", "libraries")
"""What must be equal for a replay; the Python version must not."""


@cache
def program() -> dict[str, Any]:
    """{version, source, libraries, python}: the header of a trace carries it."""
    return {"version": _version("hinet-node"), "source": source_digest(),
            "libraries": {name: _version(name) for name in LIBRARIES}, "python": platform.python_version()}


@cache
def source_digest() -> str:
    """A digest of every source file of the installed parts: 64 bits in hex."""
    whole = blake3()
    for part in PARTS:
        folder = Path(part.__path__[0])
        for file in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).parts):
            content = file.read_bytes()
            whole.update(f"{part.__name__}/{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
            whole.update(content)
    return whole.hexdigest(8)


def differences(made_by: dict[str, Any]) -> list[str]:
    """In words, in what this program differs from the one that made a trace; empty when it may replay it."""
    now = program()
    found = []
    if made_by.get("version") != now["version"]:
        found.append(f"version {made_by.get('version')}, here {now['version']}")
    if made_by.get("source") != now["source"]:
        found.append(f"source {made_by.get('source')}, here {now['source']}")
    theirs = made_by.get("libraries")
    for name, here in now["libraries"].items():
        there = theirs.get(name) if isinstance(theirs, dict) else None
        if there != here:
            found.append(f"{name} {there}, here {here}")
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "source"

"""Loads the few modules of libp2p that the transport needs without all the others that its packages pull in.

libp2p's packages import everything that they offer: a QUIC stack, an HTTP client, metrics, name resolution, which the
transport never uses (about 45 MB of memory in every agent, and a third of a second of each `join`). Here the start of
some packages is put off until somebody asks for a name that it would have set, so for everybody else they are as ever,
only later. The QUIC stack is needed for the alias of a type besides, and that takes a stand-in. Imported by the package
before anything of libp2p. `tests/node/real/test_deferred.py` checks both halves against the pinned version. Not for
several threads: the first to ask for a put-off name should be alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

PACKAGES = ("libp2p", "libp2p.network", "libp2p.security", "libp2p.transport")
ALIASES, ALIASED = "libp2p.custom_types", "libp2p.transport.quic.stream"
"""The first imports `QUICStream` from the second, for the alias of a handler's type and for nothing else."""


class _Later(Loader):
    """Leaves a package empty but for a `__getattr__` that starts it."""

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        def start(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            del module.__dict__["__getattr__"]  # the package's own code must see what is missing as missing
            try:
                self._real.exec_module(module)
            except BaseException:
                module.__dict__["__getattr__"] = start
                raise
            return getattr(module, name)

        module.__dict__["__getattr__"] = start


class _Finder(MetaPathFinder):
    """Finds the put-off packages where they are, and gives them the other loader."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in PACKAGES else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader)
        return spec


def put_off() -> None:
    """From here on, the packages that are not loaded yet start when they are asked for something. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if ALIASES not in sys.modules and ALIASED not in sys.modules:
        stand_in = ModuleType(ALIASED, "Stands in while the aliases are made; the real module loads when imported.")
        stand_in.__dict__["QUICStream"] = type("QUICStream", (), {"__module__": ALIASED})
        sys.modules[ALIASED] = stand_in
        try:
            import_module(ALIASES)
        finally:
            del sys.modules[ALIASED]


put_off()

"""Simnet: many real agents in one process, in virtual time. A test needs `from hinet_simnet import household`.

Importing this package loads nothing: the simulator comes in with the first household.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hinet_simnet.house import House, household

__all__ = ["House", "household"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("hinet_simnet.house"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""What a fuzzer attacks, and the household of the committed vectors that the attacks start from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from hinet_protocol.chain import Chain
from hinet_protocol.errors import ProtocolError
from hinet_protocol.identity import DeviceKeys, RootKey

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"


@dataclass(frozen=True)
class Target:
    """A parser with valid inputs to begin with.

    `run` reads an input to its end, also what the values in it are used for; it may raise one of `errors` and nothing
    else. `dress` puts damaged inner bytes back into their envelope (signs, seals, adds the checksum), so that what lies
    behind the envelope is reached too; the inputs then go with and without it.
    """

    name: str
    seeds: Sequence[bytes]
    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = (ProtocolError,)
    dress: Callable[[bytes, Random], bytes] | None = None
    inner: Sequence[bytes] = ()
    """Valid inner bytes, for `dress`."""


def vectors(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())


def unhexed(found: Any, *keys: str) -> list[bytes]:
    return [bytes.fromhex(one[key]) for one in found for key in keys if key in one]


def text_of(raw: bytes) -> str:
    """Any bytes as text: what no UTF-8 is, becomes surrogates, as in arguments of a command."""
    return raw.decode("utf-8", "surrogateescape")


@cache
def chain_vectors() -> Any:
    return vectors("3-chain")


@cache
def entries() -> tuple[bytes, ...]:
    return tuple(unhexed(chain_vectors()["entries"], "raw"))


@cache
def chain() -> Chain:
    return Chain.from_entries(entries())


@cache
def root() -> RootKey:
    return RootKey(bytes.fromhex(chain_vectors()["root_seed"]))


@cache
def device(name: str) -> DeviceKeys:
    seeds = chain_vectors()["device_seeds"][name]
    return DeviceKeys(bytes.fromhex(seeds["sign_seed"]), bytes.fromhex(seeds["box_seed"]))


@cache
def signers() -> tuple[Any, ...]:
    """Everybody with a key: the root, each device of the household, and a stranger."""
    return (root(), *(device(name) for name in sorted(chain_vectors()["device_seeds"])),
            DeviceKeys.from_entropy(b"\x5a" * 64))

"""What a fuzzer attacks, and the household of the committed vectors that the attacks start from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from hinet_protocol.chain import Chain, entry_hash
from hinet_protocol.chain import build as chain_build
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


def spare() -> RootKey:
    """The root that the first one promises in `grown`."""
    return RootKey(b"\x3c" * 32)


@cache
def grown() -> Chain:
    """A chain with an entry of every kind."""
    anna, bert, kept, moved = device("anna"), device("bert"), device("kept"), DeviceKeys.from_entropy(b"\x4d" * 64)
    found = Chain.from_entries([chain_build.make_genesis(root(), 1, spare().public)])

    def take(raw: bytes) -> None:
        nonlocal found
        found = found.with_entries([raw])
        assert found.entry(entry_hash(raw)) is not None

    for name, keys, role in (("anna", anna, "admin"), ("bert", bert, "member"), ("kept", kept, "keeper")):
        take(chain_build.make_device_add(found, root(), name=name, public=keys.public, box_public=keys.box_public,
                                         role=role, tier="laptop", time_s=2, expires_s=9))
    take(chain_build.make_epoch(found, anna, key=b"k" * 32, ephemeral_seed=b"e" * 32, time_s=3))
    take(chain_build.make_device_rotate(found, anna, bert.public, time_s=4, expires_s=99, name="bertram"))
    take(chain_build.make_device_rotate(found, anna, bert.public, time_s=5, expires_s=99, new_public=moved.public,
                                        new_box_public=moved.box_public))
    take(chain_build.make_consent(found, anna, commune=b"c" * 32, terms=b"t" * 32, agreed=True,
                                  round_number=0, time_s=6))
    take(chain_build.make_base_adopt(found, anna, base=b"b" * 32, time_s=7))
    take(chain_build.make_checkpoint(found, root(), time_s=8, note="all well"))
    take(chain_build.make_root_rotate(found, spare(), time_s=9, next_root_public=None))
    take(chain_build.make_device_revoke(found, anna, kept.public, time_s=10, reason="lost"))
    return found


@cache
def signers() -> tuple[Any, ...]:
    """Everybody with a key: the roots, each device of the household, and a stranger."""
    return (root(), spare(), *(device(name) for name in sorted(chain_vectors()["device_seeds"])),
            DeviceKeys.from_entropy(b"\x5a" * 64))

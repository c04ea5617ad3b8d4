"""Passports: the signed statement of where a revision of the personal model comes from. SPEC.md, 8.1.

A passport binds a revision's artifacts (by length and hash) to the base, the recipe and the data that made them, to the
revisions that it descends from, and to the device that vouches for it. A revision's id is the hash of its passport's
body. Whether the signer is a member of the household is for the caller to say; where passports lie is the vault's
business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from hinet_protocol import canonical, schema
from hinet_protocol.errors import ProtocolError
from hinet_protocol.identity import SIGN_PASSPORT, Signer, verify

version = 1
passport_bytes_max = 65_536
id_characters = 16

TASK_VECTOR, ADAPTER = "task-vector", "adapter"
FILES: dict[str, tuple[str, ...]] = {
    TASK_VECTOR: ("delta.tau", "pairs.jsonl"),
    ADAPTER: ("adapter.safetensors", "adapter_config.json"),
}
"""What a revision of each kind consists of. The pairs travel with the task vector: its students need the same ones."""


class PassportError(ProtocolError):
    """A passport can't be used."""

    code = "E_PASSPORT"


class PassportMalformed(PassportError):
    """The bytes are no passport of this version."""

    code = "E_PASSPORT_MALFORMED"


class PassportForeign(PassportError):
    """A passport was made for another household, or for another revision than the one that it lies with."""

    code = "E_PASSPORT_FOREIGN"


@dataclass(frozen=True)
class Passport:
    """A passport's statements. Digests have 32 bytes; `recipe` and `metrics` hold canonical values, fractions as text.
    """

    kind: str
    base: bytes
    identity: bytes
    device: bytes
    """Ed25519 public key of the maker, who signs."""
    tier: str
    made: int
    """Unix seconds by the maker's clock: for display, never to order what is signed."""
    parents: tuple[str, ...]
    """Ids of the revisions that it was made from, sorted."""
    recipe: Mapping[str, Any]
    recipe_digest: bytes
    data_digest: bytes
    metrics: Mapping[str, Any]
    artifacts: Mapping[str, tuple[int, bytes]]
    """File name -> length in bytes and BLAKE3."""

    def body(self) -> bytes:
        """The canonical bytes that are signed and hashed."""
        return canonical.encode({
            "v": version, "kind": self.kind, "base": self.base, "identity": self.identity, "device": self.device,
            "tier": self.tier, "made": self.made, "parents": sorted(self.parents), "recipe": signable(self.recipe),
            "recipe_digest": self.recipe_digest, "data_digest": self.data_digest, "metrics": signable(self.metrics),
            "artifacts": {name: list(row) for name, row in self.artifacts.items()},
        })  # fmt: skip

    @property
    def id(self) -> str:
        """The revision's id."""
        return revision_id(self.body())


def revision_id(body: bytes) -> str:
    """The first 64 bits of the BLAKE3 of a passport's body, in hex."""
    return blake3(body).hexdigest()[:id_characters]


def seal(passport: Passport, signer: Signer) -> bytes:
    """The passport as it lies in the vault. The signer is the device that it names."""
    assert signer.public == passport.device, "a device signs its own passports"
    body = passport.body()
    return canonical.encode({"body": body, "signature": signer.sign(SIGN_PASSPORT, body)})


def open_passport(raw: bytes, identity: bytes) -> Passport:
    """A passport whose form and signature are right and which is for this household.

    Raises PassportMalformed, SignatureInvalid, PassportForeign.
    """
    try:
        outer = schema.fields(canonical.decode(raw, passport_bytes_max),
                              {"body": schema.binary(1, passport_bytes_max), "signature": schema.bytes64}, "passport")
        found = schema.fields(canonical.decode(outer["body"], passport_bytes_max), _CHECKS, "passport")
    except ProtocolError as error:
        raise PassportMalformed(f"This is no passport that this version can read: {error}") from error
    verify(found["device"], SIGN_PASSPORT, outer["body"], outer["signature"])
    if found["identity"] != identity:
        raise PassportForeign("The passport was made for another household.")
    found.pop("v")
    if set(found["artifacts"]) != set(FILES[found["kind"]]):
        raise PassportMalformed(f"A {found['kind']} revision consists of {', '.join(FILES[found['kind']])}.")
    passport = Passport(**found)
    if passport.body() != outer["body"]:
        raise PassportMalformed("The passport holds more than this version can read; a newer one may be needed.")
    return passport


def signable(value: Any) -> Any:
    """The value in what signed bytes can hold: a float becomes the shortest decimal text that gives it back."""
    if isinstance(value, Mapping):
        return {str(key): signable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [signable(item) for item in value]
    if isinstance(value, float):
        return repr(value)
    return value


def _map(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PassportMalformed(f"Field {path} is no map.")
    return value


def _artifacts(value: Any, path: str) -> dict[str, tuple[int, bytes]]:
    check = schema.row(schema.uint63, schema.bytes32)
    return {name: check(row, f"{path}.{name}") for name, row in _map(value, path).items()}


_CHECKS: dict[str, schema.Check] = {
    "v": schema.integer(version, version), "kind": schema.one_of(*FILES), "base": schema.bytes32,
    "identity": schema.bytes32, "device": schema.bytes32, "tier": schema.one_of("cloud", "laptop", "pocket"),
    "made": schema.uint63, "parents": schema.sorted_unique(schema.list_of(schema.text(id_characters, 1), 64)),
    "recipe": _map, "recipe_digest": schema.bytes32, "data_digest": schema.bytes32, "metrics": _map,
    "artifacts": _artifacts,
}  # fmt: skip

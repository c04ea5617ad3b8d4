"""Revisions: signed states of the personal model in the vault, and the passports that say where they come from.

A revision lies under `.hinet/revisions/<id>/` in the vault: `passport` (canonical msgpack, signed by the device that
made it) and its artifacts (`delta.tau` and the `pairs.jsonl` that it was trained on, or `adapter.safetensors` with
`adapter_config.json`). Its id is the hash of the passport's body, so it can't be given to anything else. A passport is
believed only if a present member of the household signed it; artifacts only if they match it. Which revision is served
is `adapters`' business. SPEC section 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from blake3 import blake3

from hinet_node.errors import IntegrityError, NodeError, NotAuthorised, UsageError
from hinet_node.ports import Disk
from hinet_protocol.errors import ProtocolError
from hinet_protocol.passports import (
    FILES,
    Passport,
    open_passport,
    passport_bytes_max,
    seal,
)

PREFIX = b".hinet/revisions/"
PASSPORT = "passport"
REVISIONS_MAX = 10_000

TAU_FILE, PAIRS_FILE = "delta.tau", "pairs.jsonl"
ADAPTER_FILE, ADAPTER_CONFIG_FILE = "adapter.safetensors", "adapter_config.json"


class VaultStore(Protocol):
    """What learning needs of the vault (`hinet_node.vault.Vault`)."""

    async def put_many(self, files: Mapping[bytes, Any], *, keep_past: bool = True) -> list[Any]: ...

    async def get(self, name: bytes) -> bytes: ...

    async def list(self, prefix: bytes = b"") -> list[Any]: ...


class Membership(Protocol):
    """This device's place in the household; read anew at each use, because the chain grows."""

    @property
    def tier(self) -> str:
        """cloud, laptop or pocket."""

    @property
    def identity_id(self) -> bytes: ...

    @property
    def device_public(self) -> bytes: ...

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """The device key's signature (64 bytes) over domain and message, as `hinet_protocol.identity.verify` reads."""

    def members(self) -> Mapping[bytes, str]:
        """Public key -> name of the devices that may make revisions now: neither keepers nor revoked ones."""


@dataclass(frozen=True)
class Artifact:
    """A file of a revision: its length in bytes and its BLAKE3 (32 bytes)."""

    size_bytes: int
    digest: bytes


@dataclass(frozen=True)
class Revision:
    """One verified passport."""

    id: str
    kind: str
    base: str
    """Digest of the base that it belongs to (64 hex digits)."""
    tier: str
    """Tier of the device that made it."""
    device: bytes
    device_name: str
    made_unix_s: int
    """By the maker's clock: for display, and to tell the newest of one line; never to order anything signed."""
    parents: tuple[str, ...]
    recipe: Mapping[str, Any]
    recipe_digest: str
    data_digest: str
    metrics: Mapping[str, Any]
    """What was measured. Fractions are decimal text, because signed values hold no floats."""
    artifacts: Mapping[str, Artifact]

    @property
    def size_bytes(self) -> int:
        return sum(artifact.size_bytes for artifact in self.artifacts.values())

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "kind": self.kind, "base": self.base, "tier": self.tier, "device": self.device.hex(),
                "device_name": self.device_name, "made_unix_s": self.made_unix_s, "parents": list(self.parents),
                "recipe": dict(self.recipe), "recipe_digest": self.recipe_digest, "data_digest": self.data_digest,
                "metrics": dict(self.metrics), "bytes": self.size_bytes,
                "artifacts": {name: {"bytes": a.size_bytes, "digest": a.digest.hex()}
                              for name, a in self.artifacts.items()}}


@dataclass(frozen=True)
class Draft:
    """What a new revision states, before it is signed."""

    kind: str
    base: str
    recipe: Mapping[str, Any]
    recipe_digest: str
    data_digest: str
    metrics: Mapping[str, Any]
    parents: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


class Revisions:
    """The revisions in one device's vault."""

    def __init__(self, vault: VaultStore, membership: Membership) -> None:
        self._vault = vault
        self._membership = membership
        self._read: dict[bytes, tuple[bytes, Passport]] = {}
        self.refused: dict[str, str] = {}
        """Revision id -> why its passport is not believed, as of the last `list`."""

    async def list(self) -> list[Revision]:
        """The believable revisions whose passport is in the vault, oldest first; the others are in `refused`."""
        found: dict[str, Revision] = {}
        self.refused = {}
        for item in (await self._vault.list(PREFIX))[:REVISIONS_MAX * 4]:
            revision_id, _, file = item.name[len(PREFIX):].decode("utf-8", "replace").partition("/")
            if file != PASSPORT:
                continue
            try:
                found[revision_id] = await self._verified(item, revision_id)
            except (NodeError, ProtocolError) as error:
                self.refused[revision_id] = " ".join(str(error).split())
        return sorted(found.values(), key=lambda revision: (revision.made_unix_s, revision.id))

    async def find(self, beginning: str) -> Revision:
        """The revision whose id begins so. Errors: `UsageError` E_NO_SUCH_REVISION; `IntegrityError` for one that is
        there and not believed."""
        revisions = await self.list()
        found = [revision for revision in revisions if beginning and revision.id.startswith(beginning)]
        if len(found) == 1:
            return found[0]
        if not found:
            for revision_id, why in self.refused.items():
                if beginning and revision_id.startswith(beginning):
                    raise IntegrityError(f"revision {revision_id} is not used: {why}",
                                         next_step="hinet-node adapters list", code="E_PASSPORT_REFUSED")
        what = f"there is no revision {beginning!r} here" if not found else f"{beginning!r} fits {len(found)} revisions"
        raise UsageError(what, next_step="hinet-node adapters list", code="E_NO_SUCH_REVISION")

    async def newest(self, kind: str, base: str | None = None) -> Revision | None:
        """The newest revision of a kind (of one base, when given)."""
        fitting = [revision for revision in await self.list()
                   if revision.kind == kind and (base is None or revision.base == base)]
        return fitting[-1] if fitting else None

    async def publish(self, draft: Draft, now_unix_s: float) -> Revision:
        """Sign a revision and put it into the vault, passport and artifacts under one head: all of it or nothing.

        Errors: `NotAuthorised` when this device may not make revisions; those of `Vault.put_many`.
        """
        public = self._membership.device_public
        if public not in self._membership.members():
            raise NotAuthorised("this device keeps ciphertext only and can make no revision",
                                next_step="join it as a member: hinet-node invite, on another device")
        assert set(draft.files) == set(FILES[draft.kind]), f"a {draft.kind} revision consists of {FILES[draft.kind]}"
        passport = Passport(
            kind=draft.kind, base=bytes.fromhex(draft.base), identity=self._membership.identity_id, device=public,
            tier=self._membership.tier, made=int(now_unix_s), parents=tuple(draft.parents), recipe=draft.recipe,
            recipe_digest=bytes.fromhex(draft.recipe_digest), data_digest=bytes.fromhex(draft.data_digest),
            metrics=draft.metrics,
            artifacts={name: (len(data), blake3(data).digest()) for name, data in draft.files.items()})
        raw = seal(passport, _Signer(self._membership))
        folder = PREFIX + passport.id.encode() + b"/"
        files = {folder + name.encode(): data for name, data in draft.files.items()}
        await self._vault.put_many({**files, folder + PASSPORT.encode(): raw}, keep_past=False)
        return self._believed(open_passport(raw, self._membership.identity_id), passport.id)

    async def fetch(self, revision: Revision, file: str, disk: Disk, into: str) -> None:
        """Write one artifact to the disk name `into`, checked against the passport first.

        Errors: `IntegrityError` E_ARTIFACT_CHANGED; `UsageError` E_NO_SUCH_FILE when it has not arrived yet.
        """
        artifact = revision.artifacts.get(file)
        if artifact is None:
            raise UsageError(f"revision {revision.id} has no {file}", next_step="hinet-node adapters list")
        data = await self._vault.get(PREFIX + revision.id.encode() + b"/" + file.encode())
        if len(data) != artifact.size_bytes or blake3(data).digest() != artifact.digest:
            raise IntegrityError(f"{file} of revision {revision.id} is not the file that its passport names; not used",
                                 next_step="hinet-node vault verify", code="E_ARTIFACT_CHANGED")
        await disk.run_blocking(lambda: disk.write_atomic(into, data))

    async def _verified(self, item: Any, revision_id: str) -> Revision:
        """A passport's revision; signatures are checked once per content, membership every time."""
        held = self._read.get(item.name)
        if held is None or held[0] != item.digest:
            if item.size > passport_bytes_max:
                raise IntegrityError("its passport is too long")
            passport = open_passport(await self._vault.get(item.name), self._membership.identity_id)
            held = self._read[item.name] = (item.digest, passport)
        return self._believed(held[1], revision_id)

    def _believed(self, passport: Passport, revision_id: str) -> Revision:
        if passport.id != revision_id:
            raise IntegrityError("its passport belongs to another revision")
        name = self._membership.members().get(passport.device)
        if name is None:
            raise IntegrityError("the device that signed its passport is not a member of this household")
        return Revision(
            id=revision_id, kind=passport.kind, base=passport.base.hex(), tier=passport.tier, device=passport.device,
            device_name=name, made_unix_s=passport.made, parents=passport.parents, recipe=passport.recipe,
            recipe_digest=passport.recipe_digest.hex(), data_digest=passport.data_digest.hex(),
            metrics=passport.metrics,
            artifacts={file: Artifact(size, digest) for file, (size, digest) in passport.artifacts.items()})


class _Signer:
    """The device as one that signs."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    @property
    def public(self) -> bytes:
        return self._membership.device_public

    def sign(self, domain: bytes, message: bytes) -> bytes:
        return self._membership.sign(domain, message)

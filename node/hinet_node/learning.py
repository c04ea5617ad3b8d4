"""What a device of each tier does with what the household knows: train, distil, promote, answer.

`Learning` is built by the agent from its ports, its vault and its place in the household, runs in the agent's nursery
and gives the local API its verbs. Models run in workers (`compute`), durable jobs are kept by `jobs`, signed revisions
by `revisions`, the served adapter by `adapters`, notes are searched by `retrieval`. SPEC "Revisions".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import trio

from hinet_node.ports import Ports

Emit = Callable[[Mapping[str, Any]], None]
"""Sends one progress value to whoever asked; never blocks, may drop."""

Handler = Callable[[Mapping[str, Any], Emit], Awaitable[dict[str, Any]]]
"""One verb of the local API: arguments, progress, result. Errors: `NodeError`."""


class VaultItem(Protocol):
    name: bytes
    size: int
    digest: bytes


class VaultStore(Protocol):
    """What learning needs of the vault (`hinet_node.vault`)."""

    async def put(self, name: bytes, source: Path | bytes) -> Any: ...

    async def get(self, name: bytes) -> bytes: ...

    async def list(self, prefix: bytes = b"") -> list[Any]: ...


class Membership(Protocol):
    """This device's place in the household."""

    @property
    def tier(self) -> str:
        """cloud, laptop or pocket."""

    @property
    def device_public(self) -> bytes: ...

    @property
    def identity_id(self) -> bytes: ...

    def sign(self, message: bytes) -> bytes:
        """The device key's Ed25519 signature (64 bytes)."""

    def members(self) -> Mapping[bytes, str]:
        """Public key -> name of the devices that may make revisions now: neither keepers nor revoked ones."""


class Learning:
    """Training, adapters and answers of one device. One instance per agent."""

    def __init__(self, ports: Ports, vault: VaultStore, membership: Membership) -> None:
        self._ports = ports
        self._vault = vault
        self._membership = membership

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Run jobs and serve answers until cancelled; started once the interrupted jobs are queued again."""
        task_status.started()
        await trio.sleep_forever()

    def handlers(self) -> dict[str, Handler]:
        """The verbs of the local API: train, jobs.list, jobs.cancel, adapters.list, adapters.promote,
        adapters.rollback, ask, ask.many, base.show, base.import."""
        return {}

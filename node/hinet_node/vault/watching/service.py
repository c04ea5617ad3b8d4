"""All watched folders of this device: starts and stops their watchers as the owner says. Part of the agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from hinet_node.errors import NodeError, NotAuthorised
from hinet_node.ports import Ports
from hinet_node.vault.items import Trouble
from hinet_node.vault.vault import Vault
from hinet_node.vault.watching.register import Register, Watch
from hinet_node.vault.watching.watcher import Watcher, WatchSettings

RESTART_S = 60.0
"""A watch that failed in a way nobody thought of begins anew after so long."""


class Watching:
    """Runs the watches that the register remembers. `home` is the path of this node's own home, None in simnet."""

    def __init__(self, vault: Vault, ports: Ports, log: Callable[[str], None], *, home: str | None = None,
                 settings: WatchSettings | None = None) -> None:
        self.register = Register(ports.disk)
        self._vault, self._ports, self._log, self._home = vault, ports, log, home
        self._settings = settings or WatchSettings()
        self._watchers: dict[bytes, tuple[Watcher, trio.CancelScope]] = {}
        self._nursery: trio.Nursery

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for watch in self.register.all():
                    self._begin(watch)
            except NodeError as error:
                self._vault.core.note(Trouble(error.code, error.what, error.next_step or ""))
            task_status.started()
            await trio.sleep_forever()

    def add(self, root: str, under: bytes) -> Watch:
        """Errors: `NotAuthorised` on a keeper; those of `Register.add`."""
        refuse_keeper(self._vault)
        watch = self.register.add(root, under, self._ports.folders, self._ports.randomness)
        self._begin(watch)
        return watch

    def stop(self, root: str) -> Watch:
        """Errors: those of `Register.remove`."""
        watch = self.register.find(root)
        _, scope = self._watchers.pop(watch.key)
        scope.cancel()
        return self.register.remove(root)

    def pause(self, root: str, paused: bool) -> Watch:
        """Errors: those of `Register.find`."""
        watch = self.register.pause(root, paused)
        self._watchers[watch.key][0].changed(watch)
        return watch

    def confirm(self, root: str) -> Watch:
        """What the folder holds now is what the vault is to hold. Errors: those of `Register.find`."""
        watch = self.register.find(root)
        self._watchers[watch.key][0].changed(watch, confirmed=True)
        return watch

    def describe(self) -> list[dict[str, Any]]:
        return [{**described(watch), **(self._watchers[watch.key][0].describe() if watch.key in self._watchers else {})}
                for watch in self.register.all()]

    def _begin(self, watch: Watch) -> None:
        scope = trio.CancelScope()
        place = self._ports.folders.place(self._home) if self._home else None
        watcher = Watcher(watch, self._vault, self._ports, self._settings, self._log,
                          None if place is None else (place.device, place.inode))
        self._watchers[watch.key] = (watcher, scope)
        self._nursery.start_soon(self._run, watcher, scope)

    async def _run(self, watcher: Watcher, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                failed: list[str] = []
                try:
                    await watcher.run()
                except* (OSError, NodeError) as group:
                    failed = [str(error) for error in group.exceptions]
                self._log(f"watch {watcher.watch.root!r}: {'; '.join(failed)}")
                await trio.sleep(RESTART_S)


def described(watch: Watch) -> dict[str, Any]:
    """What the register alone says."""
    return {"folder": watch.root, "under": watch.prefix.decode("utf-8", "surrogateescape"),
            "state": "paused" if watch.paused else "not running", "files": None, "waiting": 0, "told": None,
            "trouble": None, "left_out": {}}


def refuse_keeper(vault: Vault) -> None:
    """Errors: `NotAuthorised` where nothing can be put into the vault."""
    household = vault.core.household
    if not household.epoch_keys() or household.device_public not in household.members():
        raise NotAuthorised("this device is a keeper: it can't put anything into the vault",
                            next_step="watch the folder on a device with the role member or admin")

"""The local API's verbs of watched folders: vault.watch, vault.watch.list, .stop, .pause, .resume, .confirm.

Leaves the watching to `hinet_node.vault.watching`. Without an agent the list can be changed too (`idle_watch_verbs`):
what it says begins with the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hinet_node.api import Emit, Handler, text_of
from hinet_node.errors import AgentNotRunning, UsageError
from hinet_node.local.vault_verbs import name_bytes
from hinet_node.ports import Disk, Folders, Randomness
from hinet_node.vault import Vault
from hinet_node.vault.watching import Register, Watch, Watching
from hinet_node.vault.watching.service import described, refuse_keeper


def vault_watch_verbs(watching: Watching) -> dict[str, Handler]:
    """The handlers in a running agent."""
    return _verbs(watching.add, watching.stop, watching.pause, watching.confirm, watching.describe, running=True)


def idle_watch_verbs(vault: Vault, disk: Disk, folders: Folders, randomness: Randomness) -> dict[str, Handler]:
    """The handlers where no agent runs."""
    register = Register(disk)

    def add(root: str, under: bytes) -> Watch:
        refuse_keeper(vault)
        return register.add(root, under, folders, randomness)

    def confirm(root: str) -> Watch:
        register.find(root)
        raise AgentNotRunning("nothing is watched while no agent runs, so there is nothing to confirm",
                              next_step="start it: hinet-node up")

    return _verbs(add, register.remove, register.pause, confirm,
                  lambda: [described(watch) for watch in register.all()], running=False)


def _verbs(add: Callable[[str, bytes], Watch], stop: Callable[[str], Watch], pause: Callable[[str, bool], Watch],
           confirm: Callable[[str], Watch], listed: Callable[[], list[dict[str, Any]]], *,
           running: bool) -> dict[str, Handler]:

    def answer(watch: Watch) -> dict[str, Any]:
        return {**next((one for one in listed() if one["folder"] == watch.root), described(watch)), "running": running}

    async def begin(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return answer(add(_root(args), name_bytes(text_of(args, "under", ""))))

    async def listing(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return {"watches": listed(), "running": running}

    async def end(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return {**described(stop(_root(args))), "state": "stopped", "running": running}

    async def hold(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return answer(pause(_root(args), True))

    async def resume(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return answer(pause(_root(args), False))

    async def accept(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return answer(confirm(_root(args)))

    return {"vault.watch": begin, "vault.watch.list": listing, "vault.watch.stop": end, "vault.watch.pause": hold,
            "vault.watch.resume": resume, "vault.watch.confirm": accept}


def _root(args: Mapping[str, Any]) -> str:
    root = text_of(args, "folder")
    if not root.startswith("/") or root == "/":
        raise UsageError("a watch needs the absolute path of a folder, and not of the whole disk",
                         next_step="hinet-node vault watch FOLDER")
    return root.rstrip("/")

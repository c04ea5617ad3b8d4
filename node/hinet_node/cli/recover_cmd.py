"""`hinet-node init --recover`: this machine as an admin of a household whose words are at hand.

The chain comes from this home when it holds one, from a file (`--chain`, made by `identity export-chain`), and from any
sibling that still runs: on the LAN, or at `--address`. What the root signs is `belonging.recovery`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet_node.cli import context, output, root_key
from hinet_node.errors import ConflictError, NodeError, UsageError

if TYPE_CHECKING:
    from hinet_node.belonging.membership import Membership
    from hinet_protocol.chain import Chain
    from hinet_protocol.identity import RootKey


@dataclass(frozen=True)
class Wish:
    """What was typed after `init --recover`."""

    name: str
    tier: str
    words_file: str
    sealed_root: str
    passphrase_file: str
    chain_file: str
    addresses: tuple[str, ...]
    revoke_others: bool
    timeout_s: float


def recover(wish: Wish) -> None:
    """Make this machine an admin, by the words."""
    from hinet_node import home
    from hinet_node.real.disk import RealDisk

    folder = context.home_path()
    with home.locked(folder):
        home.check_private(folder)
        held = _held_chain(RealDisk(folder))
        given = _chain_from_file(wish.chain_file) if wish.chain_file else None
        chain = _joined(held, given)
        if held is not None:
            _refuse_admin(RealDisk(folder))
        root = root_key.read_root(wish.words_file, wish.sealed_root, wish.passphrase_file)
        if chain is None or wish.addresses:
            chain = _from_siblings(folder, chain, root, wish)
        membership = _recover(RealDisk(folder), chain, held is not None, root, wish)
    _report(folder, membership, wish.revoke_others)


def _held_chain(disk: Any) -> Chain | None:
    from hinet_node.belonging import chain_store
    from hinet_node.home import CHAIN_HEAD

    return chain_store.read(disk) if disk.exists(CHAIN_HEAD) else None


def _chain_from_file(name: str) -> Chain:
    from hinet_protocol import limits
    from hinet_protocol.chain import Chain
    from hinet_protocol.errors import ProtocolError

    with Path(name).open("rb") as stream:
        raw = stream.read(limits.chain_bytes_max + 1)
    try:
        if len(raw) > limits.chain_bytes_max:
            raise UsageError(f"{name} is too long to be a chain", next_step="check the path")
        return Chain.from_bytes(raw)
    except ProtocolError as error:
        raise UsageError(f"{name} is no chain file: {error}", code="E_CHAIN_FILE",
                         next_step="make it on any device of the household: hinet-node identity export-chain FILE",
                         ) from error


def _from_siblings(folder: str, chain: Chain | None, root: RootKey, wish: Wish) -> Chain:
    """The chain with what siblings on the network know. Errors: `NetworkError` when none answers."""
    import trio

    from hinet_node import config
    from hinet_node.belonging.device_keys import draw_keys
    from hinet_node.belonging.recover_stream import ask_siblings
    from hinet_node.cli import real_ports
    from hinet_node.real.disk import RealDisk
    from hinet_node.sessions.address_book import AddressBook

    ports = real_ports.build(folder, config.read(RealDisk(folder)))
    output.say("Looking for a device of this identity ..." if not wish.addresses else "Asking for the chain ...")
    found = trio.run(ask_siblings, ports, draw_keys(ports.randomness), root, wish.addresses, wish.timeout_s)
    together = _joined(chain, found.chain)
    assert together is not None, "whoever finds nothing raises"
    book = AddressBook(ports.disk)
    for public, address in found.where:
        book.keep(public, address, ())
        device = together.device(public)
        name = output.clean(device.name) if device is not None else "a device"
        output.say(f"{name} gave the chain, from {output.address_text(address)}.")
    return together


def _joined(held: Chain | None, given: Chain | None) -> Chain | None:
    """Both chains as one. Errors: `ConflictError` when they are of two identities."""
    if held is None or given is None:
        return held or given
    if held.identity_id != given.identity_id:
        raise ConflictError("the chain file belongs to another identity than this home; nothing was changed",
                            next_step="use another --home to recover that identity")
    return held.with_entries(given.raws())


def _recover(disk: Any, chain: Chain, at_home: bool, root: RootKey, wish: Wish) -> Membership:
    from hinet_node import config
    from hinet_node.belonging import exchange, recovery
    from hinet_node.belonging.membership import Membership, draw_keys
    from hinet_node.cli.init_cmd import default_name
    from hinet_node.machine import describe, suggested_tier
    from hinet_node.real.system import SystemClock, SystemRandomness

    randomness, clock = SystemRandomness(), SystemClock()
    now_s = int(clock.now_unix_s())
    recovery.check_root(chain, root)
    if not at_home:
        keys = draw_keys(randomness)
        new = recovery.NewDevice(keys, wish.name or default_name(), wish.tier or suggested_tier(describe()))
        made = recovery.recovered(chain, root, new, randomness, now_s, revoke_others=wish.revoke_others)
        membership = Membership.adopt(disk, randomness, clock, keys, made)
    else:
        before = Membership.load(disk, randomness, clock)
        was = before.device

        def certify(keys: Any) -> Chain:
            new = recovery.NewDevice(keys, wish.name or was.name, wish.tier or was.tier, was.public)
            return recovery.recovered(chain, root, new, randomness, now_s, revoke_others=wish.revoke_others)

        membership = exchange.exchange_keys(disk, randomness, clock, before.chain(), certify)
    settings = config.read(disk)
    config.write(disk, config.Config(**{**vars(settings), "name": membership.name, "tier": membership.tier,
                                        "static": tuple(dict.fromkeys((*settings.static, *wish.addresses)))}))
    return membership


def _refuse_admin(disk: Any) -> None:
    """A home whose device is an admin needs no recovery. Errors: `ConflictError`."""
    from hinet_node.belonging.membership import Membership
    from hinet_node.real.system import SystemClock, SystemRandomness

    membership = Membership.load(disk, SystemRandomness(), SystemClock())
    if membership.device.live and membership.role == "admin":
        raise ConflictError(f"{membership.name} is an admin already, so there is nothing to recover here",
                            next_step="put lost devices out one by one: hinet-node revoke DEVICE",
                            code="E_ALREADY_ADMIN")


def _report(folder: str, membership: Membership, revoked_others: bool) -> None:
    from hinet_node.belonging.household import describe_household
    from hinet_node.cli.device_table import device_table
    from hinet_node.real.disk import RealDisk
    from hinet_node.sessions import seen

    found = describe_household(membership, seen.read(RealDisk(folder)))
    chain = membership.chain()
    closed = sum(epoch.standing and epoch.epoch_id not in membership.keyring for epoch in chain.epochs())
    data = {**found, "home": folder, "revoked_others": revoked_others, "epochs_closed": closed}
    if not membership.keyring:
        raise NodeError("the recovered device opens no vault key", code="E_FAILED")
    device = found["device"]
    output.emit("hinet.recover/1", data, lambda: [
        f"{output.style(output.clean(device['name']), 'bold')} is an admin of identity {found['identity']['id']} again "
        f"({device['tier']}, {device['fingerprint']}).",
        *([f"  {closed} earlier vault key(s) could not be opened; what they sealed stays closed."] if closed else []),
        *(["  All other devices are put out of the household: none is let in any more. They keep what they read; one "
           "that you have can join again, with another --home."] if revoked_others else
          ["  A device that is lost: put it out with  " + context.typed("revoke DEVICE")]),
        "", *device_table(found["devices"]), "",
        f"next: {context.typed('up')}       start the agent; siblings bring the vault"])

"""What the checks judge: plain values. The defaults are those of a machine on which all is well."""

from __future__ import annotations

from dataclasses import dataclass

RESERVE_BYTES = 1 << 30
"""What the vault leaves free on the disk (`VaultSettings.reserve_bytes`)."""


@dataclass(frozen=True)
class Sibling:
    """Another live device. `reached`: a connection to one of its addresses was made just now; None when not tried."""

    name: str
    connected: bool = True
    addresses: tuple[str, ...] = ()
    reached: bool | None = None
    problem: str = ""
    version: str = ""
    clock_offset_s: int | None = None


@dataclass(frozen=True)
class Warned:
    """A warning as `status` has it."""

    code: str
    what: str
    next_step: str


@dataclass(frozen=True)
class VaultFacts:
    """How safe the vault is, as the agent's `vault.status` has it."""

    packs: int = 0
    missing_packs: int = 0
    damaged_packs: int = 0
    copies_least: int = 0
    single_packs: int = 0
    other_devices: int = 0


@dataclass(frozen=True)
class Facts:
    """One machine at one moment. A `…_problem` is empty where there is none; None is "could not be told"."""

    home: str = "/home/hinet"
    home_problem: str = ""
    home_mode: int = 0o700
    open_files: tuple[tuple[str, int], ...] = ()
    """Private files that others can read or change, with their modes."""
    initialised: bool = True
    identity_problem: str = ""
    config_problem: str = ""
    agent_running: bool = True
    agent_problem: str = ""
    version: str = ""
    socket_place: str = "/home/hinet/run/agent.sock"
    socket_problem: str = ""
    socket_stale: bool = False
    siblings: tuple[Sibling, ...] = ()
    clock_behind_chain_s: int = 0
    """How far this clock is behind the newest entry that the household has signed."""
    interface_wanted: str = ""
    interfaces_used: tuple[str, ...] = ("eth0 192.0.2.7",)
    interfaces_left_out: tuple[tuple[str, str], ...] = ()
    network_tried: bool = True
    multicast_heard: bool = True
    multicast_problem: str = ""
    port: int = 0
    port_problem: str = ""
    free_bytes: int = 100 << 30
    free_files: int | None = 1 << 20
    encoding: str = "utf-8"
    revoked: tuple[Warned, ...] = ()
    clones: tuple[Warned, ...] = ()
    heads: int = 1
    void: tuple[str, ...] = ()
    vault_trouble: tuple[Warned, ...] = ()
    vault: VaultFacts | None = VaultFacts()
    """None when no agent tells."""
    certificates: tuple[Warned, ...] = ()
    untold: tuple[Warned, ...] = ()
    other_warnings: tuple[Warned, ...] = ()
    """What the agent warns of besides all that has a check of its own."""
    libraries: tuple[tuple[str, str, str], ...] = ()
    """Name, what is wanted, what is there (empty for nothing), of those that do not fit."""
    service_kind: str = "systemd"
    service_installed: bool = True
    service_running: bool = True
    service_current: bool = True
    service_lingers: bool = True
    leftovers: int = 0
    errors_logged: int = 0

"""`config.toml`: what the owner chose for this device.

Name and tier are also in the chain, which counts; here they are what was asked for. Unknown keys are refused by name,
so that a typing mistake does not go unseen.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from hinet_node.errors import UsageError
from hinet_node.home import CONFIG
from hinet_node.ports import Disk
from hinet_node.rates import read_rate

TIERS = ("cloud", "laptop", "pocket")
ROLES = ("admin", "member", "keeper")
BYTES_MAX = 65_536


@dataclass(frozen=True)
class Config:
    """The settings with their defaults.

    `port` 0 lets the system choose (and a busy one is never met); `listen` are IP addresses, none means all real
    interfaces; `static` are multiaddrs of devices that LAN discovery can't see; `interface` limits discovery. `relay`
    are siblings (`/ip4/…/tcp/…`, with `/p2p/PEERID` if it is to be that device and no other) through which this one can
    be called; `relay_serve` whether it passes bytes on for its siblings, and the next two for how long and how much
    each way in one circuit (0 for no limit). `rate` is how many bytes of packs may travel in a second, each way, as in
    "5M"; "" for no limit. Every pack of the vault is verified in the background within `scrub_days` days (0: never);
    what the device slept through is made up at `scrub_rate`.
    """

    name: str = ""
    tier: str = "laptop"
    port: int = 0
    listen: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    interface: str = ""
    relay: tuple[str, ...] = ()
    relay_serve: bool = True
    relay_circuit_s: int = 86_400
    relay_circuit_bytes: int = 68_719_476_736
    rate: str = ""
    scrub_days: int = 30
    scrub_rate: str = "20M"

    def listen_addresses(self) -> tuple[str, ...]:
        """The multiaddrs to listen on. Errors: `UsageError` for something that is no IP address."""
        return listen_addresses(self.listen, self.port)


def listen_addresses(listen: Sequence[str], port: int) -> tuple[str, ...]:
    """Multiaddrs for IP addresses and one port; no address means every interface, IPv4 and IPv6."""
    found = []
    for text in listen or ("0.0.0.0", "::"):  # noqa: S104 - sessions admit only the household's devices
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            raise UsageError(f"{text!r} is no IP address to listen on", next_step="for example: --listen 192.168.1.5",
                             ) from None
        found.append(f"/ip{address.version}/{address}/tcp/{port}")
    return tuple(found)


def read(disk: Disk) -> Config:
    """The home's settings; defaults when there is no file. Errors: `UsageError` naming the line or key."""
    try:
        if disk.size(CONFIG) > BYTES_MAX:
            raise ValueError(f"it is longer than {BYTES_MAX:,} bytes")
        values: dict[str, Any] = tomllib.loads(disk.read(CONFIG).decode("utf-8"))
    except FileNotFoundError:
        return Config()
    except RecursionError:
        raise UsageError(f"{CONFIG} can't be read: its lists or tables are nested too deep",
                         next_step=f"mend or remove {CONFIG} in the home") from None
    except ValueError as error:  # no TOML, no UTF-8, a number of thousands of digits
        raise UsageError(f"{CONFIG} can't be read: {error}", next_step=f"mend or remove {CONFIG} in the home") from None
    kinds = {field.name: type(getattr(Config(), field.name)) for field in fields(Config)}
    for key, value in values.items():
        wanted = kinds.get(key)
        if wanted is None:
            raise UsageError(f"{CONFIG} has an unknown key {key!r}", next_step=f"known keys: {', '.join(kinds)}")
        if wanted is tuple and isinstance(value, str):
            values[key] = (value,)
        elif wanted is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
            values[key] = tuple(value)
        elif not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool):
            shape = {tuple: "a text or a list of texts", bool: "true or false"}.get(wanted, wanted.__name__)
            raise UsageError(f"{key!r} in {CONFIG} must be {shape}", next_step=f"mend {CONFIG} in the home")
    config = Config(**values)
    if config.tier not in TIERS or not 0 <= config.port <= 65_535:
        raise UsageError(f"{CONFIG}: tier must be one of {', '.join(TIERS)} and port 0 to 65535",
                         next_step=f"mend {CONFIG} in the home")
    if not 0 <= config.relay_circuit_s < 2**32 or not 0 <= config.relay_circuit_bytes < 2**63:
        raise UsageError(f"{CONFIG}: relay_circuit_s and relay_circuit_bytes are 0 (no limit) or more",
                         next_step=f"mend {CONFIG} in the home")
    for key, text in (("rate", config.rate), ("scrub_rate", config.scrub_rate)):
        try:
            read_rate(text)
        except UsageError as error:
            raise UsageError(f"{CONFIG}: {key} = {error.what}",
                             next_step=f'mend {CONFIG} in the home; for example: {key} = "5M"') from None
    if not 0 <= config.scrub_days <= 3_650:
        raise UsageError(f"{CONFIG}: scrub_days is 1 to 3650, or 0 for no verifying in the background",
                         next_step=f"mend {CONFIG} in the home")
    return config


def write(disk: Disk, config: Config) -> None:
    """Keep the settings, durably. Errors: `NoSpace`."""
    lines = ["# The settings of this device; see README.", ""]
    for key, value in asdict(config).items():
        lines.append(f"{key} = {_toml(value)}")
    disk.write_atomic(CONFIG, ("\n".join(lines) + "\n").encode("utf-8"))


def _toml(value: str | int | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, int):
        return str(value).lower()  # true and false are numbers to Python
    escaped = "".join(f"\\u{ord(letter):04x}" if ord(letter) < 32 or letter in '"\\\x7f' else letter
                      for letter in value)
    return f'"{escaped}"'

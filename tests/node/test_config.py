"""`config.toml`: the forms of its values, and what is refused by name."""

from __future__ import annotations

import pytest

from hinet_node import config
from hinet_node.config import Config
from hinet_node.errors import UsageError
from hinet_simnet.disk import MemoryDisk


def read(text: str) -> Config:
    disk = MemoryDisk("home")
    disk.write_atomic("config.toml", text.encode())
    return config.read(disk)


def test_what_is_written_reads_the_same() -> None:
    disk = MemoryDisk("home")
    for one in (Config(), Config(name='a "b"\n', relay=("/ip4/192.0.2.7/tcp/1", "/dns/nas/tcp/2"), relay_serve=False,
                                 relay_circuit_s=0, relay_circuit_bytes=1), Config(rate="1.5 MB/s")):
        config.write(disk, one)
        assert config.read(disk) == one


def test_a_relay_is_a_text_or_a_list() -> None:
    assert read('relay = "/ip4/192.0.2.7/tcp/4001"').relay == ("/ip4/192.0.2.7/tcp/4001",)
    assert read('relay = ["a", "b"]').relay == ("a", "b")


@pytest.mark.parametrize("text", [
    "relay = 5", "relay = [5]", "relay_serve = 1", 'relay_serve = "no"', "port = true", "relay_circuit_s = -1",
    "relay_circuit_s = 4294967296", "relay_circuit_bytes = true", "relays = []",
    "rate = 5", 'rate = "fast"', 'rate = "10"',
])
def test_a_value_of_another_form_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=text.partition(" ")[0]):
        read(text)

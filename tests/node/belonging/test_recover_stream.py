"""Asking a sibling for the chain over the real network on loopback."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from hinet_node.belonging.membership import Membership, draw_keys, draw_root
from hinet_node.belonging.recover_stream import RecoverAnswer, ask_siblings
from hinet_node.errors import NetworkError
from hinet_node.ports import Ports
from hinet_node.real.compute import ProcessCompute
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_node.real.transport import Libp2pNetwork
from hinet_protocol.chain import make_device_add
from hinet_protocol.identity import RootKey
from hinet_protocol.recovering import RECOVER_PROTOCOL
from hinet_simnet.disk import MemoryDisk

NO_DISCOVERY: Any = None
RANDOM, CLOCK = SystemRandomness(), SystemClock()


def ports() -> Ports:
    return Ports(clock=CLOCK, randomness=RANDOM, network=Libp2pNetwork(), discovery=NO_DISCOVERY, disk=MemoryDisk(),
                 compute=ProcessCompute())


def household(root: RootKey, devices: int) -> Membership:
    first = Membership.found(MemoryDisk(), RANDOM, CLOCK, name="first", tier="cloud", root=root)
    raws = []
    for number in range(devices):
        keys = draw_keys(RANDOM)
        raws.append(make_device_add(first.chain(), root, name=f"d{number}", public=keys.public,
                                    box_public=keys.box_public, role="keeper", tier="pocket", time_s=1))
    first.take_in(raws)
    return first


@pytest.mark.parametrize("devices", [0, 30])
def test_a_sibling_gives_the_whole_chain_for_the_words_and_nothing_for_others(devices: int) -> None:
    async def main() -> None:
        root = draw_root(RANDOM)
        first, log = household(root, devices), list[str]()
        serving = ports()
        async with serving.network.serve(first.keys.sign_seed, ["/ip4/127.0.0.1/tcp/0"],
                                         {RECOVER_PROTOCOL: RecoverAnswer(first, log.append).handle}) as addresses:
            found = await ask_siblings(ports(), draw_keys(RANDOM), root, tuple(addresses), 30.0)
            assert found.chain == first.chain()
            assert [public for public, _ in found.where] == [first.device_public]
            with pytest.raises(NetworkError, match="not the words"):
                await ask_siblings(ports(), draw_keys(RANDOM), draw_root(RANDOM), tuple(addresses), 30.0)
        assert "proved the words" in log[0]
        assert "refused" in log[1]

    trio.run(main)


def test_a_long_chain_comes_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet_protocol.limits.chain_batch_entries_max", 7)

    async def main() -> None:
        root = draw_root(RANDOM)
        first = household(root, 40)
        serving = ports()
        async with serving.network.serve(first.keys.sign_seed, ["/ip4/127.0.0.1/tcp/0"],
                                         {RECOVER_PROTOCOL: RecoverAnswer(first, print).handle}) as addresses:
            found = await ask_siblings(ports(), draw_keys(RANDOM), root, tuple(addresses), 30.0)
            assert found.chain == first.chain()

    trio.run(main)


def test_a_device_without_this_protocol_is_named_as_one_that_did_not_answer() -> None:
    async def main() -> None:
        keys, serving = draw_keys(RANDOM), ports()
        async with serving.network.serve(keys.sign_seed, ["/ip4/127.0.0.1/tcp/0"], {}) as addresses:
            with pytest.raises(NetworkError, match="no device of this identity answered") as caught:
                await ask_siblings(ports(), draw_keys(RANDOM), draw_root(RANDOM), tuple(addresses), 30.0)
        assert "--address" in (caught.value.next_step or "")

    trio.run(main)

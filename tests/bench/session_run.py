"""One end of the session bench, for `session`: answers, or dials once for each line on stdin and prints what it took.

    session_run.py answer|dial ours|libp2p FOLDER [ADDRESS]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

REST_S = 0.25
"""After each dial, so that both ends have closed before the next."""
ADMIN, SIBLING = b"a" * 64, b"b" * 64
"""Entropy of the two devices' keys: the lower and the higher public key don't matter, only one end dials."""
ECHO = "/echo/1"

Say = Callable[[dict[str, Any]], None]
Dial = Callable[[], Awaitable[Callable[[], Awaitable[None]]]]
"""Dials; returns what closes it again."""


def say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


async def dial_on_request(import_s: float, dial: Dial) -> None:
    """Measure each dial from here to its end; closing isn't counted."""
    import trio

    say({"import_s": import_s})
    while await trio.to_thread.run_sync(sys.stdin.readline):
        begun = time.perf_counter()
        close = await dial()
        say({"wall_s": time.perf_counter() - begun})
        await close()


async def ours(role: str, folder: str, address: str) -> None:
    """Two members of one household, with no agent around their sessions."""
    used = time.process_time()
    import trio

    from hinet_node.ports import Ports
    from hinet_node.real.disk import RealDisk
    from hinet_node.real.system import SystemClock, SystemRandomness
    from hinet_node.real.transport import Libp2pNetwork
    from hinet_node.sessions.peers import LocalFacts, Peers
    from hinet_protocol.chain import Chain, make_device_add, make_genesis
    from hinet_protocol.identity import DeviceKeys, RootKey

    import_s = time.process_time() - used
    root, keys = RootKey(b"r" * 32), [DeviceKeys.from_entropy(entropy) for entropy in (ADMIN, SIBLING)]
    chain = Chain.from_entries([make_genesis(root, 1)])
    for number, device in enumerate(keys):
        chain = chain.with_entries([make_device_add(
            chain, root, name=f"device {number}", public=device.public, box_public=device.box_public, role="admin",
            tier="laptop", time_s=2)])

    class Store:
        def chain(self) -> Chain:
            return chain

        async def absorb(self, entries: object) -> None:
            raise AssertionError("both hold the same chain")

    unused: Any = None
    ports = Ports(clock=SystemClock(), randomness=SystemRandomness(), network=Libp2pNetwork(), discovery=unused,
                  disk=RealDisk(f"{folder}/{role}"), compute=unused)
    own, other = keys if role == "answer" else reversed(keys)
    peers = Peers(ports, own.sign_seed, Store(), lambda: LocalFacts(tier="laptop"), discover=False,
                  listen=["/ip4/127.0.0.1/tcp/0"] if role == "answer" else [])
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(peers.run)
        if role == "answer":
            say({"address": addresses[0]})
            await trio.sleep_forever()

        async def dial() -> Callable[[], Awaitable[None]]:
            session = await peers.dial([address], expected_public=other.public)
            return session.close

        await dial_on_request(import_s, dial)


async def libp2p(role: str, folder: str, address: str) -> None:
    """py-libp2p's host as it comes, with the same Noise and yamux."""
    used = time.process_time()
    import trio
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key
    from libp2p.peer.id import ID
    from libp2p.peer.peerinfo import PeerInfo
    from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
    from libp2p.security.noise.transport import Transport as Noise
    from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
    from libp2p.stream_muxer.yamux.yamux import Yamux
    from multiaddr import Multiaddr

    import_s = time.process_time() - used
    pair = create_new_key_pair((ADMIN if role == "answer" else SIBLING)[:32])
    other = ID.from_pubkey(create_new_key_pair((SIBLING if role == "answer" else ADMIN)[:32]).public_key)
    listen = [Multiaddr("/ip4/127.0.0.1/tcp/0")]
    host = new_host(key_pair=pair, listen_addrs=listen, muxer_opt={YAMUX: Yamux},
                    sec_opt={NOISE: Noise(pair, noise_privkey=create_noise_key().private_key)})

    async def echo(stream: Any) -> None:
        await stream.write(await stream.read(5))

    host.set_stream_handler(ECHO, echo)
    async with host.run(listen_addrs=listen):
        if role == "answer":
            say({"address": str(host.get_addrs()[0]).partition("/p2p/")[0]})
            await trio.sleep_forever()

        async def dial() -> Callable[[], Awaitable[None]]:
            await host.connect(PeerInfo(other, [Multiaddr(address)]))
            stream = await host.new_stream(other, [ECHO])
            await stream.write(b"hello")
            assert await stream.read(5) == b"hello"

            async def close() -> None:
                await host.disconnect(other)

            return close

        await dial_on_request(import_s, dial)


if __name__ == "__main__":
    import trio as event_loop

    asked_role, who, home, *rest = sys.argv[1:]
    event_loop.run({"ours": ours, "libp2p": libp2p}[who], asked_role, home, rest[0] if rest else "")

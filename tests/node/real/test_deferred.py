"""The transport brings only its own layers of libp2p, and for everybody else the package is as ever, only later."""

from __future__ import annotations

import subprocess
import sys

import pytest

UNUSED = ("aioquic", "OpenSSL", "httpx", "requests", "prometheus_client", "dns", "zeroconf", "miniupnpc", "websockets",
          "rich", "libp2p.host", "libp2p.relay", "libp2p.network.swarm", "libp2p.rcmgr", "libp2p.transport.tcp",
          "libp2p.security.tls", "libp2p.pubsub.gossipsub", "libp2p.kad_dht")


def _fresh(program: str) -> list[str]:
    """What a new interpreter prints: in this one, other tests may have loaded anything."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_transport_loads_nothing_of_libp2p_that_it_does_not_use() -> None:
    loaded = _fresh("import sys, hinet_node.real.transport; print(*sys.modules)")
    assert "libp2p.security.noise.patterns" in loaded
    assert "libp2p.stream_muxer.yamux.yamux" in loaded
    assert [name for name in UNUSED if name in loaded] == []


@pytest.mark.parametrize("wanted", [
    "from libp2p import new_host, generate_peer_id_from",
    "import libp2p.host.basic_host",
    "from libp2p.network.swarm import Swarm; from libp2p.network import swarm",
    "from libp2p.security import noise, tls; from libp2p.security.tls.transport import TLSTransport",
    "import libp2p.transport; assert libp2p.transport.TCP",
    "from libp2p.transport.quic.stream import QUICStream; assert hasattr(QUICStream, 'write')",
    "import libp2p.transport.quic.connection as quic; assert hasattr(quic.QUICStream, 'write')",
    "import libp2p.relay.circuit_v2; from libp2p.relay.circuit_v2.pb import circuit_pb2",
])
def test_whoever_wants_more_of_libp2p_gets_it_after_the_transport(wanted: str) -> None:
    assert _fresh(f"import hinet_node.real.transport\n{wanted}\nprint('done')") == ["done"]


def test_what_stands_in_for_the_quic_stack_is_in_no_class_and_no_function() -> None:
    """The alias of a type may be wrong at run time; anything that is called or inherited from may not."""
    program = ("import gc, hinet_node.real.transport, libp2p.custom_types as types\n"
               "stand_in, = types.TQUICStreamHandlerFn.__args__[:-1]\n"
               "print(stand_in.__name__, stand_in.__subclasses__())\n"
               "print(*[type(one).__name__ for one in gc.get_referrers(stand_in) if isinstance(one, (type, dict))\n"
               "        and one is not vars(types) and one is not globals()])")
    assert _fresh(program) == ["QUICStream", "[]"]


def test_a_name_that_libp2p_lacks_is_missing_as_ever() -> None:
    program = ("import hinet_node.real.transport, libp2p\n"
               "for _ in range(2):\n"
               "    try: libp2p.no_such_name\n"
               "    except AttributeError as error: print('no_such_name' in str(error))\n"
               "print(callable(libp2p.new_host), hasattr(libp2p, '__getattr__'))")
    assert _fresh(program) == ["True", "True", "True", "False"]


def test_a_libp2p_that_is_loaded_already_stays_as_it_is() -> None:
    program = ("import libp2p; whole = set(vars(libp2p))\n"
               "import hinet_node.real.transport\n"
               "print(set(vars(libp2p)) >= whole, callable(libp2p.new_host))")
    assert _fresh(program) == ["True", "True"]

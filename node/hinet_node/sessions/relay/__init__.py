"""Siblings that don't reach each other meet at one that both reach: libp2p's circuit relay v2. SPEC section 5.11.

`serving` is the device in the middle, `calling` the two at the ends, `talk` one message on a stream. The rules are in
`hinet_protocol.relay`. Runs over the ports alone; what is passed on is a connection of its own, with Noise end to end.
"""

from hinet_node.sessions.relay.calling import RelayClient, read_relays
from hinet_node.sessions.relay.serving import RelayServer

__all__ = ["RelayClient", "RelayServer", "read_relays"]

"""The real Network: py-libp2p's TCP, Noise and yamux behind the Network port. The only place that imports libp2p.

`sockets` is TCP, `wire` what Noise sees of it, `muxed` the connection and its streams, `network` listening and
dialling, `over` a stream of one connection as the wire of another (through a relay). Only these layers of libp2p are
used (the bytes on the wire are libp2p's own): its swarm and host bring a blacklist of failed peers, a quarter of a
second for each dial, a shared listening port and dials of their own, and none of that is wanted here; `deferred` keeps
it out of memory. Leaves sessions to `hinet_node.sessions.peers` and finding peers to `hinet_node.real.discovery`. SPEC
section 4.
"""

from hinet_node.real.transport import deferred
from hinet_node.real.transport.network import Libp2pNetwork

__all__ = ["Libp2pNetwork", "deferred"]

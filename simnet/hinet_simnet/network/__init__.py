"""An in-memory Network: named hosts, links with delay, loss and rate from a seed, partitions, hosts that die or freeze.

`internet` knows hosts and who reaches whom, `links` computes when packets arrive, `streams` are connections as TCP
makes them, `tunnel` connections through a relay, `bulk` those that carry packs, `host` is the Network port. Leaves real
sockets to `hinet_node.real.transport`, announcements on the LAN to `hinet_simnet.discovery`.
"""

from __future__ import annotations

from hinet_simnet.network.host import MemoryNetwork
from hinet_simnet.network.internet import Internet
from hinet_simnet.network.links import PACKET_BYTES, Link
from hinet_simnet.network.streams import MemoryConnection, MemoryStream

__all__ = ["PACKET_BYTES", "Internet", "Link", "MemoryConnection", "MemoryNetwork", "MemoryStream"]

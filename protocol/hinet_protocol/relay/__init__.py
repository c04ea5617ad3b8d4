"""Circuit relay v2: a household device passes bytes on between siblings that don't reach each other. SPEC.md, 5.11.

`wire` is libp2p's messages, `voucher` the signed proof of a reservation, `desk` the relay's rules as a pure machine.
Leaves streams, clocks and passing bytes on to `hinet_node.sessions.relay`.
"""

from hinet_protocol.relay.desk import (
    Arrived,
    CallTarget,
    CircuitEnded,
    Cut,
    Desk,
    Grew,
    Reached,
    RelayLimits,
    Reply,
    Start,
    Ticked,
)
from hinet_protocol.relay.voucher import check_voucher, make_voucher
from hinet_protocol.relay.wire import (
    HOP_PROTOCOL,
    STOP_PROTOCOL,
    Frames,
    Hop,
    HopKind,
    Limit,
    Reservation,
    Status,
    Stop,
    StopKind,
    frame,
)

__all__ = [
    "Arrived",
    "CallTarget",
    "CircuitEnded",
    "Cut",
    "Desk",
    "Frames",
    "Grew",
    "HOP_PROTOCOL",
    "Hop",
    "HopKind",
    "Limit",
    "Reached",
    "RelayLimits",
    "Reply",
    "Reservation",
    "STOP_PROTOCOL",
    "Start",
    "Status",
    "Stop",
    "StopKind",
    "Ticked",
    "check_voucher",
    "frame",
    "make_voucher",
]

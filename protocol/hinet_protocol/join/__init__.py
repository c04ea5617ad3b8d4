"""The join: two pure machines, one for each side of `/hinet/join/1`. SPEC.md, 4.4 to 4.6.

`step(event, now_s)` gives the next state and what to do. The machines draw no randomness, read no clock, write nothing:
32 random bytes come in at the start, the caller carries out the actions *in order* and reports back with events.

    joiner                              inviter
      JoinOpen     ------------------>
                   <------------------    JoinExchange
      JoinConfirm  ------------------>    wrong: RecordFailure, then JoinRefuse
                   <------------------    JoinOffer (its proof; identity, role and head, sealed)
      JoinRequest  ------------------>    AskApproval -> Approved
                                          ConsumeInvitation -> Consumed      (on disk first)
                                          Certify -> Certified               (then the certificate)
      StoreChain   <------------------    JoinEntries …
      JoinDone     ------------------>    Finished

The joiner proves the secret first, so whoever guesses at the inviter uses up a try and learns nothing about the
household. An inviter runs one join at a time; to others it sends `busy_refusal()`.
"""

from hinet_protocol.join.events import (
    Aborted,
    Action,
    Approved,
    AskApproval,
    AwaitApproval,
    Certified,
    Certify,
    Consumed,
    ConsumeInvitation,
    Event,
    Failed,
    Finished,
    Offer,
    PeerGone,
    Received,
    RecordFailure,
    Send,
    SendEntries,
    StoreChain,
    Stored,
    Tick,
)
from hinet_protocol.join.inviter import Inviter
from hinet_protocol.join.joiner import Joiner
from hinet_protocol.join.wire import busy_refusal

__all__ = [
    "Aborted",
    "Action",
    "Approved",
    "AskApproval",
    "AwaitApproval",
    "Certified",
    "Certify",
    "ConsumeInvitation",
    "Consumed",
    "Event",
    "Failed",
    "Finished",
    "Inviter",
    "Joiner",
    "Offer",
    "PeerGone",
    "Received",
    "RecordFailure",
    "Send",
    "SendEntries",
    "StoreChain",
    "Stored",
    "Tick",
    "busy_refusal",
]

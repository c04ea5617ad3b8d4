"""What the sealed messages of a join hold, and how a join is refused. SPEC.md, 4.5."""

from __future__ import annotations

from hinet_protocol import canonical, limits, schema
from hinet_protocol.epochs import box_key
from hinet_protocol.errors import ProtocolError, SessionBusy
from hinet_protocol.join.events import Send
from hinet_protocol.messages import JoinRefuse, error_text
from hinet_protocol.schema import bytes32, bytes64, list_of, one_of, optional, text

offer_fields: dict[str, schema.Check] = {
    "identity_id": bytes32,
    "root_public": bytes32,
    "genesis": bytes32,
    "heads": list_of(bytes32, limits.heads_max, 1),
    "role": one_of("admin", "member", "keeper"),
    "tier": optional(one_of("cloud", "laptop", "pocket")),
    "inviter_name": text(limits.name_bytes_max),
}
request_fields: dict[str, schema.Check] = {
    "box": box_key,
    "name": text(limits.name_bytes_max, 1),
    "tier": one_of("cloud", "laptop", "pocket"),
    "proof": bytes64,
}
entries_of_batch = list_of(schema.binary(1, limits.entry_bytes_max), limits.chain_batch_entries_max, 1)


def busy_refusal() -> JoinRefuse:
    """The answer to a joiner while another join is under way."""
    return JoinRefuse(SessionBusy.code, "This device is busy with another join. Try again in a moment.")


def refusal(error: ProtocolError) -> Send:
    """Tells the other side why the join ends."""
    return Send(JoinRefuse(error.code, error_text(error)))


def request_bytes(transcript: bytes, box: bytes, name: str, tier: str) -> bytes:
    """What the joiner signs with its device key: its request, bound to everything said before."""
    return canonical.encode([transcript, box, name, tier])

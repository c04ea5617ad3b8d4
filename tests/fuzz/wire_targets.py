"""Fuzz targets of SPEC sections 1 to 5: bytes that come from peers, before and inside sessions and joins."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from functools import cache
from random import Random

import msgpack

from fuzz.target import Target, chain, device, entries, grown, root, signers, text_of, unhexed, vectors
from hinet_protocol import canonical, join, limits, sealed_root, session
from hinet_protocol import messages as m
from hinet_protocol.chain import Chain, make_device_add, open_keyring, parse_entry
from hinet_protocol.errors import ProtocolError
from hinet_protocol.frames import FrameDecoder, encode_frame
from hinet_protocol.identity import SIGN_CHAIN_ENTRY, RootKey, device_public, peer_public
from hinet_protocol.invitations import Invitation, make_code, parse_code, parse_ticket
from hinet_protocol.join.secrets import JoinSecrets, exchange_share, joint_secret
from hinet_protocol.relay.voucher import check_voucher
from hinet_protocol.relay.wire import Frames, Hop, Stop

NOW_S = 100.0
PASSPHRASE = "five words that nobody guesses"
SEALED_PLAIN_BYTES_MAX = 8_192 - 16
CODE = make_code(bytes(range(16)))


def frames(raw: bytes) -> None:
    """The frames, whole or byte by byte, are the same, and so is the error."""
    outcomes = []
    for step in (len(raw) or 1, 1 if len(raw) < 500 else 97):
        found: list[bytes] = []
        decoder, error = FrameDecoder(), ""
        try:
            for at in range(0, len(raw), step):
                found += decoder.feed(raw[at:at + step])
            decoder.finish()
        except ProtocolError as refused:
            error = refused.code
        outcomes.append((found, error))
    whole, pieces = outcomes
    assert whole[1] == pieces[1]
    assert whole[1] or whole[0] == pieces[0], "frames depend on how their bytes arrive"


def canonical_value(raw: bytes) -> None:
    value = canonical.decode(raw)
    assert canonical.encode(value) == raw, "a value has two forms"
    assert msgpack.unpackb(raw, raw=False, strict_map_key=False) == value, "canonical bytes are not plain msgpack"


def message(raw: bytes) -> None:
    found = m.from_wire(raw)
    assert m.from_wire(m.to_wire(found)) == found, "a message changes on its way"


def entry(raw: bytes) -> None:
    """An entry, taken into the household's chain if it can be; what is refused changes nothing."""
    parse_entry(raw)
    before = grown()
    merged = before.merge([raw])
    if merged.rejected:
        assert merged.chain.heads == before.heads
        raise merged.rejected[0].error
    again = Chain.from_entries(reversed(merged.chain.raws()))
    assert again.heads == merged.chain.heads
    assert again.devices() == merged.chain.devices()
    for keys in signers():
        open_keyring(merged.chain, keys)


def signed_entry(payload: bytes, random: Random) -> bytes:
    """An entry with a right signature: of whom the payload names, if that is somebody's key, else of anybody."""
    keys = random.choice(signers())
    try:
        named = canonical.decode(payload)["signer"]  # type: ignore[index, call-overload]
        keys = next((one for one in signers() if one.public == named), keys)
    except (ProtocolError, TypeError, KeyError):
        pass
    return bytes(msgpack.packb([payload, keys.sign(SIGN_CHAIN_ENTRY, payload)]))


def chain_file(raw: bytes) -> None:
    read = Chain.from_bytes(raw)
    assert Chain.from_bytes(read.to_bytes()).heads == read.heads


def ticket(raw: bytes) -> None:
    found = parse_ticket(text_of(raw))
    assert parse_ticket(found.text) == found
    Invitation.for_ticket(found)


def checksummed(inner: bytes, random: Random) -> bytes:
    """The text of a ticket with this content, its checksum right, by the SPEC's words (4.2)."""
    alphabet = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
    bits = "".join(f"{one:08b}" for one in inner[:4_096])
    bits += ("0" if random.random() < 0.95 else "1") * (-len(bits) % 5)
    data = [int(bits[at:at + 5], 2) for at in range(0, len(bits), 5)]

    def polymod(values: list[int]) -> int:
        check = 1
        for value in values:
            top, check = check >> 25, (check & 0x1FFFFFF) << 5 ^ value
            for number, word in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
                check ^= word if top >> number & 1 else 0
        return check

    prefix = [ord(one) >> 5 for one in "hinet"] + [0] + [ord(one) & 31 for one in "hinet"]
    rest = polymod([*prefix, *data, 0, 0, 0, 0, 0, 0]) ^ 0x2BC830A3
    data += [rest >> 5 * (5 - number) & 31 for number in range(6)]
    return ("hinet1" + "".join(alphabet[one] for one in data)).encode()


def ticket_inner() -> bytes:
    given = vectors("4-join")["tickets"][0]
    return canonical.encode([1, *(bytes.fromhex(given[key]) for key in ("secret", "identity_id", "inviter")),
                             given["addresses"], given["role"], given["tier"], given["expires"]])


def code(raw: bytes) -> None:
    found = parse_code(text_of(raw))
    assert parse_code(found.text) == found


def typed_words(raw: bytes) -> None:
    found = RootKey.from_words(text_of(raw))
    assert RootKey.from_words(found.words()) == found


def key_names(raw: bytes) -> None:
    """A key that is written as text, in both forms."""
    for read in (device_public, peer_public):
        try:
            assert len(read(text_of(raw))) == 32
        except ProtocolError:
            continue


def record(raw: bytes) -> None:
    found = Invitation.from_bytes(raw)
    assert Invitation.from_bytes(found.to_bytes()) == found
    found.check_usable(NOW_S)


def sealed_root_file(raw: bytes) -> None:
    """Files that ask for costly work, within the bounds, are left out: the bounds themselves are what is looked at."""
    at = len(sealed_root.MAGIC)
    memory_kib, passes = int.from_bytes(raw[at:at + 4], "big"), int.from_bytes(raw[at + 4:at + 8], "big")
    small = memory_kib <= 2 * limits.argon2_memory_kib_min or memory_kib > limits.argon2_memory_kib_max
    if small and (passes <= 1 or passes > limits.argon2_passes_max):
        assert sealed_root.open_sealed_root(raw, PASSPHRASE).seed


# --- conversations: whatever comes, the machine answers or ends, and never raises -------------------------------------


def hello(of: str) -> m.Hello:
    return m.Hello((1,), chain().identity_id, device(of).public, device(of).public[:16], chain().height, chain().heads,
                   "laptop", (), 0, (), (), "fuzz", 0)


def opened_session() -> session.Session:
    state, _ = session.Session.start(hello("anna"), device("kept").public, chain(), 1_000)
    for one in (hello("kept"), m.Ready()):
        state, _ = state.step(session.Received(one), 1_000)
    assert state.phase == "open"
    return state


OPENED = opened_session()


def in_session(raw: bytes) -> None:
    """One message in an open session and one in a fresh one, as a peer with a key may send it."""
    found = m.from_wire(raw)
    greeting, _ = session.Session.start(hello("anna"), device("kept").public, chain(), 1_000)
    for state in (OPENED, greeting):
        after, actions = state.step(session.Received(found), 2_000)
        for action in actions:
            if isinstance(action, session.ImportEntries):
                merged = after.chain.merge(action.entries)
                after, _ = after.step(session.ChainChanged(merged.chain, merged.rejected), 2_000)
            elif isinstance(action, session.Send):
                encode_frame(m.to_wire(action.message))
        after.step(session.Tick(), 50_000)


@cache
def joining() -> tuple[join.Joiner, JoinSecrets]:
    """A joiner after the exchange, and the secrets of an inviter who knows the code and is hostile."""
    keys = signers()[-1]
    joiner, _ = join.Joiner.start(CODE, keys, peer=device("anna").public, entropy=b"j" * 32, name="new",
                                  tier="laptop", now_s=NOW_S)
    shares = [exchange_share("code", side, CODE.secret, keys.public, device("anna").public, entropy)
              for side, entropy in (("joiner", b"j" * 32), ("inviter", b"i" * 32))]
    joint = joint_secret("code", "inviter", CODE.secret, keys.public, device("anna").public, b"i" * 32, shares[0])
    secrets = JoinSecrets.begin(joint, (1,), 1, "code", CODE.selector, keys.public, device("anna").public, *shares)
    joiner, _ = joiner.step(join.Received(m.JoinExchange(1, shares[1])), NOW_S)
    return joiner, secrets


def offer_bytes() -> bytes:
    return canonical.encode({
        "identity_id": chain().identity_id, "root_public": root().public, "genesis": chain().genesis.hash,
        "heads": list(chain().heads), "role": "member", "tier": None, "inviter_name": "anna"})


def _ended(machine: join.Joiner | join.Inviter, actions: tuple[join.Action, ...]) -> None:
    """Send what the machine wants to send, and raise its error, if it failed."""
    for action in actions:
        if isinstance(action, join.Send):
            encode_frame(m.to_wire(action.message))
        if isinstance(action, join.Failed):
            assert machine.phase == "failed"
            raise action.error


def sealed_offer(plain: bytes) -> None:
    joiner, secrets = joining()
    if len(plain) <= SEALED_PLAIN_BYTES_MAX:
        _, sealed = secrets.seal_to_joiner(plain)
        _ended(*joiner.step(join.Received(m.JoinOffer(secrets.inviter_mac, sealed)), NOW_S))


@cache
def requested() -> tuple[join.Joiner, JoinSecrets]:
    """A joiner that waits for the entries."""
    joiner, secrets = joining()
    secrets, sealed = secrets.seal_to_joiner(offer_bytes())
    joiner, actions = joiner.step(join.Received(m.JoinOffer(secrets.inviter_mac, sealed)), NOW_S)
    (request,) = [one.message.sealed for one in actions
                  if isinstance(one, join.Send) and isinstance(one.message, m.JoinRequest)]
    return joiner, secrets.open_to_inviter(request)[0]


def certified() -> bytes:
    """What an honest inviter would send: the chain with the joiner's certificate."""
    keys = signers()[-1]
    added = make_device_add(chain(), device("anna"), name="new", public=keys.public, box_public=keys.box_public,
                            role="member", tier="laptop", time_s=5, keyring=open_keyring(chain(), device("anna")),
                            ephemeral_seed=b"e" * 32)
    return canonical.encode([False, [*entries(), added]])


def sealed_entries(plain: bytes) -> None:
    joiner, secrets = requested()
    _, sealed = secrets.seal_to_joiner(plain)
    for more in (True, False):
        after, actions = joiner.step(join.Received(m.JoinEntries(sealed, more)), NOW_S)
        for one in actions:
            if isinstance(one, join.StoreChain):
                stored = one.chain.device(signers()[-1].public)
                assert stored is not None
                assert (stored.role, stored.live) == ("member", True)
    _ended(after, actions)


@cache
def offered() -> tuple[join.Inviter, JoinSecrets]:
    """An inviter that has made its offer, and the secrets of a joiner who knows the code and is hostile."""
    _, secrets = joining()
    keys, inviter = signers()[-1], waiting_inviter()
    share = exchange_share("code", "joiner", CODE.secret, keys.public, device("anna").public, b"j" * 32)
    for said in (m.JoinOpen((1,), "code", CODE.selector, share), m.JoinConfirm(secrets.joiner_mac)):
        inviter, actions = inviter.step(join.Received(said), NOW_S)
        _ended(inviter, actions)
    (offer,) = [one.message for one in actions if isinstance(one, join.Send)]
    assert isinstance(offer, m.JoinOffer)
    return inviter, secrets.open_to_joiner(offer.sealed)[0]


def waiting_inviter() -> join.Inviter:
    record = Invitation.for_code(CODE, role="member", tier=None, expires_at_s=600)
    return join.Inviter.start(chain(), [record], public=device("anna").public, peer=signers()[-1].public,
                              entropy=b"i" * 32, now_s=NOW_S, inviter_name="anna")


def proved(plain: bytes, random: Random) -> bytes:
    """The joiner's request with a right proof over whatever it says."""
    try:
        found = msgpack.unpackb(plain, raw=False)
        said = canonical.encode([offered()[1].transcript, found["box"], found["name"], found["tier"]])
        return canonical.encode({**found, "proof": signers()[-1].sign(b"join-request", said)})
    except (ProtocolError, ValueError, TypeError, KeyError, RecursionError):
        return plain


def sealed_request(plain: bytes) -> None:
    inviter, secrets = offered()
    if len(plain) <= SEALED_PLAIN_BYTES_MAX:
        _, sealed = secrets.seal_to_inviter(plain)
        _ended(*inviter.step(join.Received(m.JoinRequest(sealed)), NOW_S))


def share(raw: bytes) -> None:
    """A share of SPAKE2 or of a ticket, to each side, as it first comes."""
    for side in ("joiner", "inviter"):
        for carrier in ("code", "ticket"):
            with suppress(ProtocolError):
                joint_secret(carrier, side, CODE.secret, b"j" * 32, b"i" * 32, b"e" * 32, raw)
    joiner, _ = joining()
    fresh = dataclasses.replace(joiner, phase="opened", secrets=None)
    if 32 <= len(raw) <= 33:
        fresh.step(join.Received(m.JoinExchange(1, raw)), NOW_S)
        waiting_inviter().step(join.Received(m.JoinOpen((1,), "code", CODE.selector, raw)), NOW_S)


def relayed(raw: bytes) -> None:
    """A framed message of the relay's two streams, and the bare bytes as each message and as a voucher."""
    frames, rest = Frames(), raw
    with suppress(ProtocolError):
        while rest and frames.wanted:
            piece, rest = rest[:frames.wanted], rest[frames.wanted:]
            frames.feed(piece)
    for body in (raw, frames.message):
        for read in (Hop.decode, Stop.decode):
            with suppress(ProtocolError):
                found = read(body)
                assert read(found.encode()) == found
        with suppress(ProtocolError):
            check_voucher(body, relay=device("anna").public, peer=device("kept").public)


def join_message(raw: bytes) -> None:
    """Any message at any moment of a join, on both sides."""
    found = m.from_wire(raw)
    joiner, _ = joining()
    fresh, inviter = dataclasses.replace(joiner, phase="opened", secrets=None), waiting_inviter()
    for machine in (joiner, fresh, inviter):
        after, actions = machine.step(join.Received(found), NOW_S)
        assert not any(isinstance(one, join.StoreChain | join.ConsumeInvitation | join.Certify) for one in actions)
        try:
            _ended(after, actions)
        except ProtocolError:
            continue


def targets() -> list[Target]:
    wire = unhexed(vectors("5-messages")["messages"], "hex")
    joined = vectors("4-join")
    codes = [one["text"] for one in joined["codes"]] + [one["typed"] for one in joined["typed_codes"]]
    request = canonical.encode({"box": device("kept").box_public, "name": "new", "tier": "laptop", "proof": bytes(64)})
    identity = vectors("2-identity")
    names = [one[key] for one in identity["devices"] for key in ("peer_id", "device_id")]
    cheaply_sealed = sealed_root.seal_root(root(), PASSPHRASE, bytes(sealed_root.sealing_entropy_bytes), passes=1,
                                           memory_kib=limits.argon2_memory_kib_min)
    kept = Invitation.for_code(CODE, role="member", tier="pocket", expires_at_s=600)
    payloads = [payload for payload, _ in map(msgpack.unpackb, grown().raws())]
    return [
        Target("frame", unhexed(vectors("5-frames")["frames"], "frame"), frames),
        Target("canonical", [raw for raw in unhexed(vectors("1-canonical")["valid"], "hex") if len(raw) < 5_000],
               canonical_value),
        Target("message", wire, message),
        Target("session", wire, in_session),
        Target("entry", grown().raws(), entry, dress=signed_entry, inner=payloads),
        Target("chain file", [chain().to_bytes(), canonical.encode(list(entries()[:2]))], chain_file),
        Target("ticket", [one["text"].encode() for one in joined["tickets"]], ticket, dress=checksummed,
               inner=[ticket_inner()]),
        Target("code", [one.encode() for one in codes], code),
        Target("words", [one["words"].encode() for one in identity["roots"]], typed_words),
        Target("sealed root", [cheaply_sealed], sealed_root_file),
        Target("key names", [one.encode() for one in names], key_names),
        Target("invitation record", [kept.to_bytes(), kept.consume(bytes(32)).to_bytes()], record),
        Target("share", unhexed(joined["exchanges"], "joiner_share", "inviter_share"), share),
        Target("relay", unhexed([*vectors("5-relay")["messages"], vectors("5-relay")["voucher"]], "hex"), relayed),
        Target("join message", [raw for raw in wire if 0x3C <= raw[1] <= 0x43], join_message),
        Target("join offer", [offer_bytes()], sealed_offer),
        Target("join entries", [certified(), canonical.encode([True, [entries()[0]]])], sealed_entries),
        Target("join request", [proved(request, Random(0)), request], sealed_request, dress=proved, inner=[request]),
    ]

"""The committed vectors of SPEC.md, sections 1 to 5: what was written yesterday must read the same today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hinet_protocol import canonical, messages
from hinet_protocol.chain import Chain, open_keyring, parse_entry
from hinet_protocol.epochs import key_check
from hinet_protocol.errors import CodeMalformed, FrameError, PhraseError, ProtocolError, TicketMalformed
from hinet_protocol.frames import FrameDecoder, encode_frame
from hinet_protocol.identity import (
    DeviceKeys,
    RootKey,
    derive_key,
    device_id,
    fingerprint,
    identity_text,
    peer_id,
    root_commitment,
    signed_bytes,
    verify,
)
from hinet_protocol.invitations import Ticket, make_code, parse_code, parse_ticket
from hinet_protocol.join.secrets import JoinSecrets, exchange_share, joint_secret

FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def value(form: Any) -> Any:
    """A canonical value from its JSON form."""
    if isinstance(form, dict):
        return bytes.fromhex(form["$hex"]) if "$hex" in form else {key: value(one) for key, one in form.items()}
    return [value(one) for one in form] if isinstance(form, list) else form


def test_canonical_values_have_the_bytes_of_the_vectors() -> None:
    for one in load("1-canonical.json")["valid"]:
        assert canonical.encode(value(one["value"])).hex() == one["hex"]
        assert canonical.decode(bytes.fromhex(one["hex"])) == value(one["value"])


@pytest.mark.parametrize("one", load("1-canonical.json")["refused"], ids=lambda one: one["hex"][:12])
def test_bytes_that_are_not_canonical_are_refused(one: dict[str, str]) -> None:
    with pytest.raises(ProtocolError):
        canonical.decode(bytes.fromhex(one["hex"]))


def test_keys_and_their_names_are_those_of_the_vectors() -> None:
    vectors = load("2-identity.json")
    for one in vectors["roots"]:
        root = RootKey.from_words(one["words"])
        assert root.seed.hex() == one["seed"]
        assert (root.public.hex(), root.box_public.hex()) == (one["public"], one["box_public"])
        assert root.identity_id.hex() == one["identity_id"]
        assert identity_text(root.identity_id) == one["identity_text"]
        assert root_commitment(root.public).hex() == one["as_next_root"]
    for one in vectors["devices"]:
        keys = DeviceKeys(bytes.fromhex(one["sign_seed"]), bytes.fromhex(one["box_seed"]))
        assert (keys.public.hex(), keys.box_public.hex()) == (one["public"], one["box_public"])
        assert peer_id(keys.public) == one["peer_id"]
        assert device_id(keys.public) == one["device_id"]
        assert fingerprint(keys.public) == one["fingerprint"]
        for signed in one["signatures"]:
            domain, message = signed["domain"].encode(), bytes.fromhex(signed["message"])
            assert signed_bytes(domain, message).hex() == signed["signed_bytes"]
            assert keys.sign(domain, message).hex() == signed["signature"]
            verify(keys.public, domain, message, bytes.fromhex(signed["signature"]))
    for one in vectors["derived_keys"]:
        assert derive_key(bytes.fromhex(one["secret"]), one["label"], bytes.fromhex(one["salt"])).hex() == one["key"]


@pytest.mark.parametrize("one", load("2-identity.json")["refused_phrases"], ids=lambda one: str(one["position"]))
def test_wrong_phrases_are_refused_at_their_position(one: dict[str, Any]) -> None:
    with pytest.raises(PhraseError) as caught:
        RootKey.from_words(one["words"])
    assert caught.value.position == one["position"]


def test_the_chain_of_the_vectors_says_what_they_say() -> None:
    vectors = load("3-chain.json")
    chain = Chain.from_entries([bytes.fromhex(one["raw"]) for one in reversed(vectors["entries"])])
    assert chain.identity_id.hex() == vectors["identity_id"]
    assert [head.hex() for head in chain.heads] == vectors["heads"]
    assert chain.height == vectors["height"]
    for one in vectors["entries"]:
        entry = parse_entry(bytes.fromhex(one["raw"]))
        assert (entry.hash.hex(), entry.kind, entry.time_s) == (one["hash"], one["kind"], one["time"])
        assert (entry.signer.hex(), [parent.hex() for parent in entry.parents]) == (one["signer"], one["parents"])
        assert chain.height_of(entry.hash) == one["height"]
        assert canonical.encode(dict(entry.body)) == canonical.encode(value(one["body"]))
    for device, one in zip(chain.devices(), vectors["devices"], strict=True):
        found = (device.name, device.public.hex(), device.role, device.tier, device.expires_s, device.live)
        assert found == (one["name"], one["public"], one["role"], one["tier"], one["expires"], one["live"])
    assert chain.current_epoch is not None
    assert chain.current_epoch.epoch_id.hex() == vectors["current_epoch"]


def test_the_epoch_keys_of_the_vectors_open_for_their_devices() -> None:
    vectors = load("3-chain.json")
    chain = Chain.from_entries([bytes.fromhex(one["raw"]) for one in vectors["entries"]])
    opened = {"root": open_keyring(chain, RootKey(bytes.fromhex(vectors["root_seed"])))}
    for name, seeds in vectors["device_seeds"].items():
        keys = DeviceKeys(bytes.fromhex(seeds["sign_seed"]), bytes.fromhex(seeds["box_seed"]))
        opened[name] = open_keyring(chain, keys)
    assert {name: sorted(epoch.hex() for epoch in ring) for name, ring in opened.items()} == vectors["opened_by"]
    for epoch_id, one in vectors["epoch_keys"].items():
        key = opened["anna"][bytes.fromhex(epoch_id)]
        assert (key.key.hex(), key_check(key.key).hex()) == (one["key"], one["check"])
        assert (key.id_key.hex(), key.head_key.hex()) == (one["chunk_id"], one["head"])
        assert key.pack_key(bytes(32)).hex() == one["pack_with_salt_of_zeros"]


@pytest.mark.parametrize("one", load("3-chain.json")["refused"], ids=lambda one: one["why"])
def test_refused_entries_have_the_code_of_the_vectors(one: dict[str, str]) -> None:
    chain = Chain.from_entries([bytes.fromhex(entry["raw"]) for entry in load("3-chain.json")["entries"]])
    (rejected,) = chain.merge([bytes.fromhex(one["raw"])]).rejected
    assert rejected.error.code == one["code"]


def test_codes_and_tickets_are_those_of_the_vectors() -> None:
    vectors = load("4-join.json")
    for one in vectors["codes"]:
        code = make_code(bytes.fromhex(one["entropy"]))
        assert (code.text, code.nameplate, code.secret.decode()) == (one["text"], one["nameplate"], one["secret"])
    for one in vectors["typed_codes"]:
        assert parse_code(one["typed"]).text == one["text"]
    for one in vectors["tickets"]:
        ticket = Ticket(
            *(bytes.fromhex(one[name]) for name in ("secret", "identity_id", "inviter")),
            tuple(one["addresses"]), one["role"], one["tier"], one["expires"],
        )  # fmt: skip
        assert ticket.text == one["text"]
        assert ticket.selector == one["selector"]
        assert parse_ticket(one["text"].upper()) == ticket


def test_refused_codes_and_tickets_are_refused() -> None:
    vectors = load("4-join.json")
    for typed in vectors["refused_codes"]:
        with pytest.raises(CodeMalformed):
            parse_code(typed)
    for typed in vectors["refused_tickets"]:
        with pytest.raises(TicketMalformed):
            parse_ticket(typed)


@pytest.mark.parametrize("one", load("4-join.json")["exchanges"], ids=lambda one: one["carrier"])
def test_the_secrets_of_a_join_are_those_of_the_vectors(one: dict[str, str]) -> None:
    secret, joiner, inviter = (bytes.fromhex(one[name]) for name in ("secret", "joiner", "inviter"))
    carrier, shares = one["carrier"], {}
    for side in ("joiner", "inviter"):
        entropy = bytes.fromhex(one[f"{side}_entropy"])
        shares[side] = exchange_share(carrier, side, secret, joiner, inviter, entropy)
        assert shares[side].hex() == one[f"{side}_share"]
    for side, other in (("joiner", "inviter"), ("inviter", "joiner")):
        entropy = bytes.fromhex(one[f"{side}_entropy"])
        assert joint_secret(carrier, side, secret, joiner, inviter, entropy, shares[other]).hex() == one["joint"]
    state = JoinSecrets.begin(
        bytes.fromhex(one["joint"]),
        (1,),
        1,
        carrier,
        one["selector"],
        joiner,
        inviter,
        shares["joiner"],
        shares["inviter"],
    )
    assert state.transcript.hex() == one["transcript"]
    assert (state.joiner_mac.hex(), state.inviter_mac.hex()) == (one["joiner_mac"], one["inviter_mac"])
    for name, plain in (("offer", b"offer"), ("request", b"request"), ("entries", b"entries")):
        seal = state.seal_to_inviter if name == "request" else state.seal_to_joiner
        state, sealed = seal(plain)
        assert sealed.hex() == one[f"sealed_{name}"]
    assert (state.transcript.hex(), state.done_mac.hex()) == (one["transcript_at_the_end"], one["done_mac"])


def test_frames_are_those_of_the_vectors() -> None:
    vectors = load("5-frames.json")
    for one in vectors["frames"]:
        assert encode_frame(bytes.fromhex(one["body"])).hex() == one["frame"]
        assert FrameDecoder().feed(bytes.fromhex(one["frame"])) == [bytes.fromhex(one["body"])]
    for one in vectors["refused"]:
        with pytest.raises(FrameError):  # noqa: PT012, the stream's end is part of what is refused
            decoder = FrameDecoder()
            decoder.feed(bytes.fromhex(one["stream"]))
            decoder.finish()


def test_messages_are_those_of_the_vectors() -> None:
    vectors = load("5-messages.json")
    assert {one["tag"]: one["name"] for one in vectors["messages"]} == {
        tag: kind.__name__ for tag, kind in messages.tag_table().items()
    }
    for one in vectors["messages"]:
        raw = bytes.fromhex(one["hex"])
        assert canonical.encode(value(one["value"])) == raw
        assert messages.to_wire(messages.from_wire(raw)) == raw
    for form in vectors["refused"]:
        with pytest.raises(ProtocolError):
            messages.from_wire(bytes.fromhex(form))

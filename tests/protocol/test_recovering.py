"""Asking for the chain with the root's word: who is answered, who is not, and the vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from nacl.signing import VerifyKey

from hinet_protocol import messages
from hinet_protocol.chain import Chain, make_genesis, make_root_rotate
from hinet_protocol.errors import ChainForeign, ProtocolError, SignatureInvalid, Stranger
from hinet_protocol.identity import DeviceKeys, RootKey
from hinet_protocol.recovering import check_answer, check_recover_open, make_recover_open

VECTORS = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "4-recover.json").read_text())
ROOT = RootKey(bytes.fromhex(VECTORS["root_seed"]))
ASKER, ASKED = bytes.fromhex(VECTORS["asker"]), bytes.fromhex(VECTORS["asked"])


def chain(root: RootKey = ROOT, promised: RootKey | None = None) -> Chain:
    return Chain.from_entries([make_genesis(root, 1, None if promised is None else promised.public)])


def test_the_message_is_that_of_the_vectors_and_is_answered() -> None:
    message = make_recover_open(ROOT, asker=ASKER, asked=ASKED)
    assert messages.to_wire(message).hex() == VECTORS["message"]
    check_recover_open(message, chain(), asker=ASKER, asked=ASKED)


@pytest.mark.parametrize("one", VECTORS["refused"], ids=lambda one: one["why"])
def test_other_messages_are_refused_with_the_code_of_the_vectors(one: dict[str, str]) -> None:
    message: Any = messages.from_wire(bytes.fromhex(one["message"]))
    with pytest.raises(ProtocolError) as caught:
        check_recover_open(message, chain(), asker=ASKER, asked=ASKED)
    assert caught.value.code == one["code"]


def test_the_vector_read_from_the_specification_alone() -> None:
    tag, fields = msgpack.unpackb(bytes.fromhex(VECTORS["message"]))
    assert tag == 68
    said = msgpack.packb([fields["versions"], fields["root"], ASKER, ASKED])
    signed = b"hinet-sign-v1\0" + bytes([len(b"recover")]) + b"recover" + said
    assert signed.hex() == VECTORS["signed_bytes"]
    VerifyKey(fields["root"]).verify(signed, fields["proof"])


def test_the_spare_root_is_answered_and_a_replaced_one_is_not(keys_of: Callable[[str], DeviceKeys]) -> None:
    spare, third = RootKey(b"s" * 32), RootKey(b"t" * 32)
    before = chain(promised=spare)
    check_recover_open(make_recover_open(spare, asker=ASKER, asked=ASKED), before, asker=ASKER, asked=ASKED)
    after = before.with_entries([make_root_rotate(before, spare, time_s=2, next_root_public=third.public)])
    check_recover_open(make_recover_open(spare, asker=ASKER, asked=ASKED), after, asker=ASKER, asked=ASKED)
    with pytest.raises(Stranger):
        check_recover_open(make_recover_open(ROOT, asker=ASKER, asked=ASKED), after, asker=ASKER, asked=ASKED)
    check_answer(after, ROOT)  # its holder learns that its words were replaced
    check_answer(after, third)
    with pytest.raises(ChainForeign):
        check_answer(after, RootKey(b"x" * 32))


def test_somebody_in_between_can_not_pass_a_proof_on(keys_of: Callable[[str], DeviceKeys]) -> None:
    """The asker signs for the one it reached; at the real device, the one in between is the asker."""
    between = keys_of("between").public
    caught_proof = make_recover_open(ROOT, asker=ASKER, asked=between)
    for asker in (ASKER, between):
        with pytest.raises(SignatureInvalid):
            check_recover_open(caught_proof, chain(), asker=asker, asked=ASKED)

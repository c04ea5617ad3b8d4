"""Checks that only a hostile peer meets, each with the attack that it stops. `make mutants` takes them away in turn."""

from __future__ import annotations

from typing import Any

import pytest

from hinet_protocol.chain import Chain, make_genesis, make_root_rotate
from hinet_protocol.chain.entries import sign_entry
from hinet_protocol.errors import EntryConflict, EntryMalformed, JoinError
from hinet_protocol.identity import RootKey
from hinet_protocol.join.secrets import joint_secret

P = 2**255 - 19


@pytest.mark.parametrize("y", [1, 1 | 1 << 255, P - 1, P - 1 | 1 << 255, P + 1, P + 1 | 1 << 255, P, 2**256 - 1])
def test_a_share_that_is_no_element_or_is_written_in_a_second_form_is_refused(y: int) -> None:
    """The neutral element has several spellings; with any of them the joint secret hangs on less than it should."""
    for side, letter in (("joiner", b"B"), ("inviter", b"A")):
        with pytest.raises(JoinError):
            joint_secret("code", side, b"words", b"j" * 32, b"i" * 32, b"e" * 32, letter + y.to_bytes(32, "little"))


def test_a_genesis_that_names_another_root_than_its_signer_is_refused() -> None:
    """Else whoever holds the words could hide from their owner who commands the household."""
    root, other = RootKey(b"r" * 32), RootKey(b"o" * 32)
    body = {"root": other.public, "box": other.box_public, "next": None}
    with pytest.raises(EntryMalformed):
        Chain.from_entries([sign_entry(root, root.identity_id, (), "genesis", body, 1)])


def test_a_root_that_was_replaced_does_not_come_back(household: Any) -> None:
    """Two roots that promise each other would let the one that was stolen return."""
    first, second = RootKey(b"r" * 32), RootKey(b"s" * 32)
    chain = Chain.from_entries([make_genesis(first, 1, second.public)])
    chain = chain.with_entries([make_root_rotate(chain, second, time_s=2, next_root_public=first.public)])
    with pytest.raises(EntryConflict):
        make_root_rotate(chain, first, time_s=3, next_root_public=None)

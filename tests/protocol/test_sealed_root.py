"""The sealed copy of the root: opens with its passphrase, costs what it says, and no more than its bounds."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt
from nacl.pwhash import argon2id

from hinet_protocol import limits
from hinet_protocol.errors import KeyInvalid, PassphraseWrong, ProtocolError
from hinet_protocol.identity import RootKey
from hinet_protocol.sealed_root import MEMORY_KIB, PASSES, open_sealed_root, seal_root, sealed_root_bytes

VECTORS = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "2-identity.json").read_text())
PASSPHRASE = "correct horse battery staple"


@pytest.mark.parametrize("one", VECTORS["sealed_roots"], ids=lambda one: one["passphrase"])
def test_sealed_roots_are_those_of_the_vectors(one: dict[str, Any]) -> None:
    root, raw = RootKey(bytes.fromhex(one["seed"])), bytes.fromhex(one["file"])
    sealed = seal_root(root, one["passphrase"], bytes.fromhex(one["entropy"]), memory_kib=one["memory_kib"],
                       passes=one["passes"])  # fmt: skip
    assert sealed == raw
    assert open_sealed_root(raw, one["passphrase"]) == root


@pytest.mark.parametrize("one", VECTORS["refused_sealed_roots"], ids=lambda one: one["why"])
def test_other_files_and_passphrases_are_refused_with_the_code_of_the_vectors(one: dict[str, str]) -> None:
    with pytest.raises(ProtocolError) as caught:
        open_sealed_root(bytes.fromhex(one["file"]), one["passphrase"])
    assert caught.value.code == one["code"]


def test_the_first_vector_read_from_the_specification_alone() -> None:
    one = VECTORS["sealed_roots"][0]
    raw = bytes.fromhex(one["file"])
    assert raw[:21] == b"hinet-sealed-root-v1\n"
    memory_kib, passes = int.from_bytes(raw[21:25], "big"), int.from_bytes(raw[25:29], "big")
    key = argon2id.kdf(32, one["passphrase"].encode(), raw[29:45], opslimit=passes, memlimit=memory_kib * 1024)
    assert crypto_aead_xchacha20poly1305_ietf_decrypt(raw[69:], raw[:69], raw[45:69], key).hex() == one["seed"]


def test_a_passphrase_typed_on_another_keyboard_is_the_same() -> None:
    """Composed and decomposed letters look alike and differ in bytes."""
    raw = seal_root(RootKey(bytes(32)), "Gro\u00dfe \u00c4pfel 12", bytes(40), memory_kib=8, passes=1)
    assert open_sealed_root(raw, "Gro\u00dfe A\u0308pfel 12").seed == bytes(32)


def test_a_short_passphrase_and_a_huge_one_are_refused_before_any_work() -> None:
    for passphrase in ("", "short pw", "x" * (limits.passphrase_chars_max + 1)):
        with pytest.raises(KeyInvalid, match="characters"):
            seal_root(RootKey(bytes(32)), passphrase, bytes(40), memory_kib=8, passes=1)


def test_the_defaults_are_dear_enough_and_within_the_bounds() -> None:
    assert MEMORY_KIB * 1024 >= argon2id.MEMLIMIT_MODERATE
    assert PASSES >= argon2id.OPSLIMIT_MODERATE
    assert limits.argon2_memory_kib_min <= MEMORY_KIB <= limits.argon2_memory_kib_max


def test_a_file_that_asks_for_100_gb_takes_no_memory() -> None:
    [greedy] = [one for one in VECTORS["refused_sealed_roots"] if one["why"] == "100 GB of memory"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(KeyInvalid, match="KiB of memory"):
        open_sealed_root(bytes.fromhex(greedy["file"]), PASSPHRASE)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 65_536


@given(st.binary(max_size=200) | st.binary(min_size=96, max_size=96).map(lambda tail: b"hinet-sealed-root-v1\n" + tail))
def test_any_other_bytes_are_refused(raw: bytes) -> None:
    """Random costs are nearly always beyond the bounds; those within them are left out, to be quick."""
    if len(raw) == sealed_root_bytes and int.from_bytes(raw[21:25], "big") <= limits.argon2_memory_kib_max:
        return
    with pytest.raises(KeyInvalid):
        open_sealed_root(raw, PASSPHRASE)


def test_each_file_has_its_own_salt_so_equal_passphrases_do_not_show(random_bytes: Callable[..., bytes]) -> None:
    root = RootKey(random_bytes("root"))
    one, two = (seal_root(root, PASSPHRASE, random_bytes(label, 40), memory_kib=8, passes=1) for label in "ab")
    assert one[69:] != two[69:]
    with pytest.raises(PassphraseWrong):
        open_sealed_root(one[:69] + two[69:], PASSPHRASE)

"""What a household says of communes: consents, of which `out` wins every fork, and adopted bases."""

from __future__ import annotations

from typing import Any

import pytest

from hinet_protocol import limits
from hinet_protocol.chain import Chain, make_base_adopt, make_checkpoint, make_consent, make_device_revoke
from hinet_protocol.errors import EntryMalformed, EntryUnauthorised, LimitError

COMMUNE, OTHER, TERMS = b"c" * 32, b"d" * 32, b"t" * 32


def consent(chain: Chain, signer: Any, agreed: bool, number: int = 1, commune: bytes = COMMUNE, **more: Any) -> Chain:
    raw = make_consent(chain, signer, commune=commune, terms=TERMS, agreed=agreed, round_number=number, time_s=1,
                       **more)
    return chain.with_entries([raw])


def union(*chains: Chain) -> Chain:
    merged = chains[0].merge([raw for chain in chains for raw in chain.raws()])
    assert not merged.rejected
    return merged.chain


def agreed(chain: Chain, commune: bytes = COMMUNE) -> bool:
    found = chain.consent(commune)
    return found is not None and found.agreed


def test_a_household_is_out_until_an_admin_says_otherwise(household: Any) -> None:
    bert, kept = household.add("bert"), household.add("kept", role="keeper")
    chain = household.chain
    assert chain.consents() == ()
    assert chain.consent(COMMUNE) is None
    for signer in (bert, kept):
        with pytest.raises(EntryUnauthorised):
            consent(chain, signer, True)
    inside = consent(chain, household.admin, True, 7, expires_s=50)
    found = inside.consent(COMMUNE)
    assert (found.agreed, found.round, found.terms, found.expires_s) == (True, 7, TERMS, 50)
    assert (found.agreed_at(49), found.agreed_at(50)) == (True, False)
    assert not agreed(inside, OTHER)
    assert agreed(consent(chain, household.root, True))


def test_every_member_takes_the_household_out_and_an_admin_in_again(household: Any) -> None:
    bert, kept = household.add("bert"), household.add("kept", role="keeper")
    inside = consent(household.chain, household.admin, True, 1)
    with pytest.raises(EntryUnauthorised):
        consent(inside, kept, False)
    outside = consent(inside, bert, False, 3)
    assert (agreed(outside), outside.consent(COMMUNE).round) == (False, 3)
    assert agreed(consent(outside, household.admin, True, 5))
    with pytest.raises(EntryMalformed, match="expire"):
        consent(inside, bert, False, expires_s=9)
    gone = inside.with_entries([make_device_revoke(inside, household.admin, bert.public, time_s=1)])
    with pytest.raises(EntryUnauthorised):
        consent(gone, bert, False)


def test_the_last_consent_gives_terms_and_round(household: Any) -> None:
    chain = household.chain
    for number in range(5):
        chain = consent(chain, household.admin, True, number)
        assert chain.consent(COMMUNE).round == number


def test_out_wins_every_fork(household: Any) -> None:
    bert = household.add("bert")
    start = consent(household.chain, household.admin, True)
    outside = consent(start, bert, False, 4)
    assert not agreed(union(outside, consent(start, household.admin, True, 9)))
    assert not agreed(union(outside, consent(start, household.root, True, 9)))
    back = consent(outside, household.admin, True, 9)
    assert agreed(back)
    assert not agreed(union(back, consent(start, household.admin, False, 5)))
    two = union(back, consent(consent(start, household.admin, False, 5), household.admin, True, 6))
    assert not agreed(two)
    assert agreed(consent(two, household.admin, True, 10))


def test_a_removed_device_takes_nobody_out_from_below_a_checkpoint(household: Any) -> None:
    bert, cora = household.add("bert"), household.add("cora")
    start = consent(household.chain, household.admin, True)
    removed = start.with_entries([make_device_revoke(start, household.admin, bert.public, time_s=1)])
    late = consent(start, bert, False)
    assert not agreed(union(removed, late))
    closed = removed.with_entries([make_checkpoint(removed, household.root, time_s=1)])
    assert agreed(union(closed, late))
    for signer in (household.admin, household.root, cora):
        assert not agreed(union(closed, consent(start, signer, False)))


def test_leaving_is_possible_when_the_chain_is_full(household: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bert = household.add("bert")
    inside = consent(household.chain, household.admin, True)
    monkeypatch.setattr(limits, "chain_entries_max", 1)
    monkeypatch.setattr(limits, "chain_root_entries_max", 0)
    monkeypatch.setattr(limits, "chain_reducing_entries_max", 1)
    with pytest.raises(LimitError):
        consent(inside, household.admin, True)
    outside = consent(inside, bert, False, 2)
    assert not agreed(outside)
    with pytest.raises(LimitError, match="nothing new"):
        consent(outside, bert, False, 3)
    beside = make_consent(inside, bert, commune=COMMUNE, terms=TERMS, agreed=False, round_number=8, time_s=9)
    assert isinstance(outside.merge([beside]).rejected[0].error, LimitError)
    assert consent(outside, bert, False, commune=OTHER).consent(OTHER)
    by_another = make_consent(inside, household.admin, commune=COMMUNE, terms=TERMS, agreed=False, round_number=8,
                              time_s=9)
    assert not outside.merge([by_another]).rejected


def test_revocations_from_old_heights_do_not_fill_the_memory(household: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed admin key could sign new ones on its old branch without end."""
    bert = household.add("bert", role="admin")
    cora = household.add("cora")
    old = household.chain
    monkeypatch.setattr(limits, "chain_reducing_entries_max", 2)
    flood = [make_device_revoke(old, bert, cora.public, time_s=number) for number in range(6)]
    merged = old.merge(flood)
    assert len(merged.added) == 2
    other = make_device_revoke(old, household.admin, cora.public, time_s=7)
    assert not merged.chain.merge([other]).rejected


def test_the_last_base_counts_for_each_commune(household: Any) -> None:
    bert = household.add("bert")
    chain = household.chain
    with pytest.raises(EntryUnauthorised):
        make_base_adopt(chain, bert, base=b"b" * 32, time_s=1)
    for number, commune in ((1, None), (2, COMMUNE), (3, COMMUNE)):
        raw = make_base_adopt(chain, household.admin, base=bytes([number]) * 32, time_s=1, commune=commune,
                              previous=bytes([number - 1]) * 32, round_number=number)
        chain = chain.with_entries([raw])
    assert {one.commune: (one.base[0], one.round) for one in chain.bases()} == {None: (1, 1), COMMUNE: (3, 3)}
    assert chain.base_of(COMMUNE).previous == b"\2" * 32
    assert chain.base_of(OTHER) is None


def test_of_bases_adopted_apart_the_roots_counts_and_what_a_removed_admin_adopted_does_not(household: Any) -> None:
    cora = household.add("cora", role="admin")
    chain = household.chain
    adopted = [chain.with_entries([make_base_adopt(chain, signer, base=letter * 32, time_s=1)])
               for signer, letter in ((household.admin, b"a"), (household.root, b"r"), (cora, b"c"))]
    assert union(*adopted).base_of(None).base == b"r" * 32
    assert union(adopted[0], adopted[2]).base_of(None).base == b"a" * 32
    removed = chain.with_entries([make_device_revoke(chain, household.admin, cora.public, time_s=1)])
    assert union(adopted[2], removed).base_of(None) is None

"""Pairs as tokens: what is trained, what is masked, where a turn ends; losses against torch's own."""

from __future__ import annotations

import pytest
import torch

from hinet_tiers import batches
from hinet_tiers.batches import Example, batched, collate, divergence, encode, loss_of
from hinet_tiers.prompt import STOP, TURN


class Letters:
    """A tokenizer that gives each letter its code, and the markers one token each."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        text = text.replace(STOP, "\x02").replace(TURN, "\x01")
        return [ord(letter) for letter in text]


def example(prompt: int, answer: int, kind: str = "fact") -> Example:
    return Example(list(range(3, 3 + prompt)), list(range(50, 50 + answer)), kind)


def test_an_answer_ends_its_turn_unless_it_was_cut_by_length() -> None:
    whole, cut = encode(
        [{"question": "q", "answer": "yes"}, {"question": "q", "answer": "ye", "cut": True, "kind": "replay"}],
        Letters(),
    )
    assert whole.answer == [ord("y"), ord("e"), ord("s"), 2]
    assert cut.answer == [ord("y"), ord("e")]
    assert (whole.kind, cut.kind) == ("fact", "replay")


def test_a_note_cannot_open_a_turn_of_its_own() -> None:
    [made] = encode([{"question": f"q{STOP}", "answer": f"a{STOP}b"}], Letters())
    assert made.answer.count(2) == 1
    assert made.prompt.count(2) == 1


def test_the_loss_is_taken_where_answer_tokens_are_predicted() -> None:
    batch = collate([example(4, 2), example(2, 3)], pad=0)
    assert batch.ids.shape == (2, 5)
    flat = batch.ids.flatten()
    assert batch.targets.tolist() == [50, 51, 50, 51, 52]
    assert flat[batch.places].tolist() == [6, 50, 4, 50, 51]


def test_counts_add_up_to_what_was_read() -> None:
    counts = batches.Counts()
    counts.add(collate([example(4, 2), example(2, 3, "replay")], pad=0))
    assert (counts.read_tokens, counts.trained_tokens, counts.masked_tokens, counts.padded_tokens) == (9, 5, 4, 1)
    assert counts.by_kind == {"fact": 1, "replay": 1}


def test_every_example_is_in_one_batch_and_no_batch_is_too_large() -> None:
    listed = [example(3 + index % 17, 2 + index % 5) for index in range(200)]
    groups = batched(listed, 128, seed=5)
    assert sorted(id(item) for group in groups for item in group) == sorted(id(item) for item in listed)
    assert all(max(item.tokens for item in group) * len(group) <= 128 for group in groups)
    padded = sum(max(item.tokens for item in group) * len(group) for group in groups)
    assert padded < 1.25 * sum(item.tokens for item in listed)
    assert [[id(i) for i in g] for g in groups] == [[id(i) for i in g] for g in batched(listed, 128, seed=5)]


def test_the_hard_loss_is_cross_entropy_and_weights_count() -> None:
    torch.manual_seed(0)
    one, two = example(3, 2), example(2, 2)
    logits = torch.randn(4, 60)
    batch = collate([one, two], pad=0)
    expected = torch.nn.functional.cross_entropy(logits, batch.targets)
    assert loss_of(logits, batch) == pytest.approx(float(expected), rel=1e-5)
    one.hard = 0.0
    half = torch.nn.functional.cross_entropy(logits[2:], batch.targets[2:])
    assert loss_of(logits, collate([one, two], pad=0)) == pytest.approx(float(half) / 2, rel=1e-5)


def test_the_soft_loss_is_the_whole_divergence_when_all_tokens_are_kept_and_zero_at_the_teacher() -> None:
    torch.manual_seed(0)
    theirs, ours = (torch.log_softmax(torch.randn(5, 32), 1) for _ in range(2))
    exact = torch.nn.functional.kl_div(ours, theirs, log_target=True, reduction="none").sum(1)
    assert torch.allclose(divergence(theirs, ours), exact, atol=1e-4)
    values, ids = theirs.topk(8, 1)
    assert torch.allclose(divergence(values, theirs.gather(1, ids)), torch.zeros(5), atol=1e-6)
    assert (divergence(values, ours.gather(1, ids)) > 0.05).all()


def test_soft_targets_are_matched_to_their_own_rows() -> None:
    torch.manual_seed(0)
    hard, soft = example(3, 2), example(2, 3)
    logits = torch.randn(5, 100)
    soft.soft, soft.hard = 2.0, 0.0
    soft.soft_logs, soft.soft_ids = torch.log_softmax(logits[2:], 1).topk(batches.SOFT_TOKENS, 1)
    hard.hard = 0.0
    assert float(loss_of(logits, collate([hard, soft], pad=0))) == pytest.approx(0.0, abs=1e-5)
    assert float(loss_of(logits.flip(0), collate([hard, soft], pad=0))) > 0.1

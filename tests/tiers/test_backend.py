"""The memory ladder, the probe and the one prompt."""

from __future__ import annotations

import pytest

from hinet_tiers import probe, prompt
from hinet_tiers.backend import LADDER, Job, estimate

SMALL = Job("full", 134_515_008, 576, 30, 49_152, batch=4, tokens=128)
GIB = 1 << 30


def test_full_fine_tuning_of_the_default_base_is_estimated_above_its_measured_peak() -> None:
    """Measured: 3.5 GB at batch 4 and 128 tokens, 3.1 GB at 64."""
    assert 3.5e9 <= estimate(SMALL, 64 * GIB).need_bytes <= 6e9


def test_the_rungs_are_in_order_and_activations_grow_with_what_is_read() -> None:
    needs = {name: estimate(Job(name, 10**9, 2048, 16, 32_000), GIB).need_bytes for name in LADDER}
    assert needs["full"] > needs["full-8bit"] > needs["adapter-fp32"] > needs["adapter-bf16"] > needs["adapter-4bit"]
    short = estimate(Job("full", 10**9, 2048, 16, 32_000, tokens=128), GIB).parts["activations"]
    assert estimate(Job("full", 10**9, 2048, 16, 32_000, tokens=512), GIB).parts["activations"] == 4 * short


def test_a_job_that_does_not_fit_names_the_nearest_that_does() -> None:
    seven = Job("full", 7 * 10**9, 4096, 32, 32_000)
    tight = estimate(seven, 40 * GIB)
    assert not tight.fits
    assert tight.nearest == "adapter-bf16"
    assert estimate(seven, 18 * GIB).nearest == "adapter-4bit"
    assert estimate(seven, 2 * GIB).nearest is None
    assert estimate(SMALL, 16 * GIB).fits


@pytest.mark.parametrize(
    ("backends", "memory", "gpus", "tier"),
    [
        (["torch", "peft", "llamacpp"], 64 * GIB, 0, "cloud"), (["torch", "peft"], 8 * GIB, 1, "cloud"),
        (["torch", "peft"], 8 * GIB, 0, "laptop"), (["mlx"], 16 * GIB, 0, "laptop"),
        (["llamacpp"], 8 * GIB, 0, "pocket"),
        ([], GIB, 0, "pocket"),
    ],
)  # fmt: skip
def test_a_machine_is_recommended_the_strongest_tier_it_can_serve(
    backends: list[str], memory: int, gpus: int, tier: str
) -> None:
    assert probe.recommend(backends, memory, gpus) == tier


def test_the_prompt_is_chatml_without_a_system_turn() -> None:
    assert prompt.chat_prompt("Who? ") == "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.chat_answer(" Maren. ") == "Maren.<|im_end|>"


def test_notes_stand_before_the_question_one_a_line_and_open_no_turn() -> None:
    text = prompt.chat_prompt("Who?", ["one\ntwo", "<|im_end|>x"])
    assert text.count("<|im_start|>") == 2
    assert text.count("<|im_end|>") == 1
    assert "- one two\n- < |im_end|>x\n\nWho?" in text

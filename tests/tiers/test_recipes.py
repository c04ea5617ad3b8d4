"""Recipes are checked field by field, and every value but the threads is in the digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from hinet_tiers import recipes


@pytest.mark.parametrize("name", ["demo", "quick"])
def test_the_shipped_profiles_load_and_survive_a_round_trip(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.name == name
    assert recipes.parse(recipe.as_dict()) == recipe


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": 1}, "unknown field lr"),
        ({"full": {"rate": 1}}, "unknown field full.rate"),
        ({"full": 3}, "full must be a table"),
        ({"full": {"lr": "fast"}}, "full.lr"),
        ({"full": {"passes": -1.0}}, "full.passes"),
        ({"cut": {"keep": 1.5}}, "cut.keep"),
        ({"cut": {"keep": True}}, "cut.keep"),
        ({"full": {"lr": float("nan")}}, "full.lr"),
    ],
)
def test_a_wrong_field_is_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(recipes.RecipeRefused, match=message):
        recipes.parse(values)


def test_every_value_changes_the_digest_and_threads_do_not() -> None:
    plain = recipes.parse({})
    assert recipes.parse({"threads": 3}).digest == plain.digest
    for values in ({"seed": 2}, {"cut": {"keep": 32}}, {"distill": {"hard": 0.2}}, {"data": {"replay": 7}}):
        assert recipes.parse(values).digest != plain.digest


def test_a_file_is_read_and_a_missing_or_broken_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[full]\nlr = 0.5\n")
    assert recipes.load(str(path)).full.lr == 0.5
    path.write_text("[full\n")
    for name in (str(path), str(tmp_path / "none.toml"), "nightly-of-nobody"):
        with pytest.raises(recipes.RecipeRefused, match="demo"):
            recipes.load(name)
    with pytest.raises(recipes.RecipeRefused):
        recipes.given(3)

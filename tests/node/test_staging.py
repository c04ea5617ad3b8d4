"""What a command makes: whole or not there, and never over something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hinet_node.cli.staging import staged
from hinet_node.errors import ConflictError, UsageError


def fail_half_way(place: Path) -> None:
    place.write_bytes(b"half")
    raise RuntimeError


def test_a_thing_appears_when_it_is_made_and_nothing_of_one_that_failed(tmp_path: Path) -> None:
    with staged(tmp_path / "f.tau") as place:
        place.write_bytes(b"whole")
        assert not (tmp_path / "f.tau").exists()
    assert (tmp_path / "f.tau").read_bytes() == b"whole"
    with pytest.raises(RuntimeError), staged(tmp_path / "g.tau") as place:
        fail_half_way(place)
    assert [path.name for path in tmp_path.iterdir()] == ["f.tau"]


def test_what_is_in_the_way_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "f.tau").write_bytes(b"mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, folder in (("f.tau", False), ("f.tau", True), ("full", True), ("full", False), ("empty", False),
                         ("link", False)):
        with pytest.raises(ConflictError, match="nothing was changed"), staged(tmp_path / name, folder=folder):
            raise AssertionError("no work begins")
    with staged(tmp_path / "f.tau", replace=True) as place:
        place.write_bytes(b"new")
    with staged(tmp_path / "sub" / ".." / "empty", folder=True) as place:
        place.mkdir()
        (place / "made").touch()
    assert (tmp_path / "f.tau").read_bytes() == b"new"
    assert (tmp_path / "empty" / "made").exists()
    with pytest.raises(UsageError, match="no folder"), staged(tmp_path / "missing" / "f.tau"):
        pass


def test_what_appeared_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    making = staged(tmp_path / "f.tau")
    making.__enter__().write_bytes(b"made")
    (tmp_path / "f.tau").write_bytes(b"somebody else's")
    with pytest.raises(ConflictError):
        making.__exit__(None, None, None)
    assert (tmp_path / "f.tau").read_bytes() == b"somebody else's"


def test_leftovers_of_a_killed_command_are_cleared_and_those_of_a_running_one_stay(tmp_path: Path) -> None:
    (tmp_path / ".f.tau.999999999.making").mkdir()
    (tmp_path / ".f.tau.1.making").mkdir()
    with staged(tmp_path / "f.tau") as place:
        place.touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".f.tau.1.making", "f.tau"]

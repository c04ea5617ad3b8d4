"""`vault gc` and `vault reseal` as an owner types them on a real home, without an agent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hinet_node.cli import root, vault_local
from hinet_node.vault import Vault
from hinet_simnet.randomness import SeededRandomness

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A home with one file that stays and ten that were removed, one of them with an ugly name."""
    monkeypatch.setenv("HINET_HOME", str(tmp_path / "home"))

    def line(*arguments: str) -> tuple[int, str, str]:
        code = root.main(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    assert line("init", "--name", "first", "--words-file", str(tmp_path / "words"))[0] == 0

    async def fill(vault: Vault, report: Any) -> None:
        gone = {b"gone/%d" % at: SeededRandomness(f"gone {at}").draw(100_000) for at in range(9)}
        gone[b"gone/\x1b[31mred\n"] = b"1"
        await vault.put_many({b"kept": b"content", **gone})
        await vault.remove(set(gone))

    vault_local.run(fill)
    return line


def data(run: Run, *arguments: str) -> Any:
    code, out, err = run("--json", *arguments)
    assert code == 0, err
    return json.loads(out)


def bytes_of_packs(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "vault" / "packs").rglob("*") if path.is_file())


def test_without_apply_it_only_says_what_would_go_and_could_not_be_restored(run: Run, tmp_path: Path) -> None:
    before = bytes_of_packs(tmp_path / "home")
    found = data(run, "vault", "gc")
    assert (found["schema"], found["applied"], found["lost_versions"]) == ("hinet.vault-gc/1", False, 0)
    found = data(run, "vault", "gc", "--keep-days", "0", "--keep-versions", "0")
    assert (found["lost_versions"], found["lost_files"]) == (10, 10)
    assert found["unneeded_bytes"] > 900_000
    assert {"name": "gone/3", "versions": 1} in found["lost"]
    code, out, _ = run("vault", "gc", "--keep-days", "0", "--keep-versions", "0")
    assert code == 0
    assert "10 removed files could then not be restored at all:" in out
    assert "Nothing was changed. To do it: hinet-node vault gc --apply" in out
    assert "\x1b[31m" not in out
    assert bytes_of_packs(tmp_path / "home") == before


def test_applied_it_frees_the_room_at_once_where_nobody_else_has_to_agree(run: Run, tmp_path: Path) -> None:
    before = bytes_of_packs(tmp_path / "home")
    code, out, _ = run("vault", "gc", "--keep-days", "0", "--keep-versions", "0", "--apply")
    assert code == 0
    assert bytes_of_packs(tmp_path / "home") > before // 2, "nothing goes on the first day"
    assert "first still retains" in out
    code, out, _ = run("vault", "gc", "--keep-days", "0", "--keep-versions", "0", "--apply", "--now")
    assert code == 0
    assert "deleted." in out
    assert bytes_of_packs(tmp_path / "home") < before // 3
    assert run("vault", "get", "kept", "--out", "-")[1] == "content"
    assert run("vault", "verify", "--deep")[0] == 0
    assert data(run, "vault", "gc", "--keep-days", "0", "--keep-versions", "0")["lost_versions"] == 0, "it is gone"


def test_resealing_has_nothing_to_do_under_the_first_key_and_says_so(run: Run, tmp_path: Path) -> None:
    found = data(run, "vault", "reseal", "--status")
    assert found == {"schema": "hinet.vault-reseal/1", "asked": False, "done": True, "left_packs": 0, "left_bytes": 0,
                     "waiting_packs": 0, "waiting_bytes": 0}
    assert run("vault", "reseal")[1] == "Everything that is needed is sealed under the newest key.\n"
    assert data(run, "vault", "reseal", "--status")["asked"]
    assert not data(run, "vault", "reseal", "--stop")["asked"]
    assert run("vault", "reseal", "--background")[0] == 9, "only an agent works in the background"

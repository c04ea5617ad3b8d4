"""The identity at the command line: copies of it, recovery, new keys, and the root in the place of an admin."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hinet_node.belonging import chain_store
from hinet_node.cli import root
from hinet_node.real.disk import RealDisk
from hinet_protocol.chain import Chain
from hinet_protocol.identity import RootKey

Line = Callable[..., tuple[int, str, str]]


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    """Run one command line in a home by name, in this process and this test's folder."""
    monkeypatch.delenv("HINET_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(home: str, *arguments: str) -> tuple[int, str, str]:
        code = root.main(["--home", home, *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    assert run("cloud", "init", "--name", "cloud", "--tier", "cloud", "--words-file", "words")[0] == 0
    return run


def told(result: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = result
    assert code == 0, out + err
    found: dict[str, Any] = json.loads(out)
    return found


def refused(result: tuple[int, str, str], exit_code: int, *said: str) -> None:
    code, out, err = result
    assert (code, out) == (exit_code, ""), err
    assert "Traceback" not in err
    for text in said:
        assert text in err


def chain_of(home: str) -> Chain:
    return chain_store.read(RealDisk(home))


def test_show_says_what_the_identity_is_and_how_it_comes_back(line: Line) -> None:
    found = told(line("cloud", "identity", "show", "--json"))
    assert (found["schema"], found["admins"], found["spare_promised"]) == ("hinet.identity/1", ["cloud"], True)
    assert (found["epochs"], found["epochs_open"]) == (1, 1)
    assert "--recover" in line("cloud", "identity", "show")[1]


def test_the_chain_is_exported_to_a_new_private_file(line: Line) -> None:
    found = told(line("cloud", "identity", "export-chain", "chain", "--json"))
    assert Path("chain").stat().st_mode & 0o777 == 0o600
    assert Chain.from_bytes(Path("chain").read_bytes()) == chain_of("cloud")
    assert found["entries"] == 3
    refused(line("cloud", "identity", "export-chain", "chain"), 2, "exists already")
    refused(line("nowhere", "identity", "export-chain", "other"), 4, "hinet-node init")


def test_words_and_chain_make_an_admin_on_a_new_machine(line: Line) -> None:
    told(line("cloud", "identity", "export-chain", "chain", "--json"))
    found = told(line("new", "init", "--recover", "--words-file", "words", "--chain", "chain", "--name", "new",
                      "--json"))
    assert (found["schema"], found["device"]["role"], found["epochs_closed"]) == ("hinet.recover/1", "admin", 0)
    assert [device["name"] for device in found["devices"]] == ["cloud", "new"]
    words = Path("words").read_text().split()
    everything = b"".join(path.read_bytes() for path in Path("new").rglob("*") if path.is_file())
    assert " ".join(words[:2]).encode() not in everything
    assert RootKey.from_words(words).seed not in everything


def test_a_sealed_root_recovers_and_puts_all_others_out(line: Line) -> None:
    Path("passphrase").write_text("five words that nobody guesses\n")
    told(line("cloud", "identity", "seal", "sealed", "--words-file", "words", "--passphrase-file", "passphrase",
              "--json"))
    assert told(line("cloud", "identity", "seal", "sealed-spare", "--words-file", "words.spare", "--passphrase-file",
                     "passphrase", "--json"))["spare"]
    refused(line("cloud", "identity", "seal", "sealed", "--words-file", "words", "--passphrase-file", "passphrase"), 2,
            "exists already")
    told(line("cloud", "identity", "export-chain", "chain", "--json"))
    found = told(line("new", "init", "--recover", "--sealed-root", "sealed", "--passphrase-file", "passphrase",
                      "--chain", "chain", "--name", "cloud", "--revoke-others", "--json"))
    assert [(device["name"], device["state"]) for device in found["devices"]] == [("cloud", "revoked"),
                                                                                  ("cloud", "this")]
    Path("passphrase").write_text("five words that nobody knows\n")
    refused(line("third", "init", "--recover", "--sealed-root", "sealed", "--passphrase-file", "passphrase", "--chain",
                 "chain"), 4, "does not open")


def test_a_recovery_without_what_it_needs_leaves_the_home_free(line: Line) -> None:
    told(line("cloud", "identity", "export-chain", "chain", "--json"))
    Path("noise").write_bytes(b"\x93 no chain")
    assert line("other", "init", "--name", "other", "--tier", "cloud", "--words-file", "foreign")[0] == 0
    refused(line("new", "init", "--recover", "--words-file", "words", "--chain", "noise"), 2, "no chain file",
            "export-chain")
    refused(line("new", "init", "--recover", "--words-file", "words.spare", "--chain", "chain"), 4, "spare words",
            "identity rotate")
    refused(line("new", "init", "--recover", "--words-file", "foreign", "--chain", "chain"), 4, "another identity")
    refused(line("new", "init", "--recover", "--chain", "chain"), 2, "nobody is at the terminal", "--words-file")
    refused(line("cloud", "init", "--recover", "--words-file", "words"), 6, "admin already", "revoke")
    refused(line("other", "init", "--recover", "--words-file", "words", "--chain", "chain"), 6, "another identity")
    assert not Path("new/chain/head").exists()
    assert not Path("new/device.key").exists()


def test_options_that_do_not_belong_together_are_refused(line: Line) -> None:
    for arguments, said in ((("--recover", "--rekey"), "two ways"), (("1-a-b-c",), "takes no code"),
                            (("--chain", "x"), "--recover"), (("--revoke-others",), "--recover"),
                            (("--address", "1.2.3.4:1"), "belongs to"), (("--rekey", "--words-file", "x"), "no words")):
        refused(line("new", "init", *arguments), 2, said)
    assert not Path("new").exists()


def test_a_copied_home_gets_a_key_of_its_own(line: Line) -> None:
    shutil.copytree("cloud", "copy")
    old_key = Path("cloud/device.key").read_bytes()
    found = told(line("copy", "init", "--rekey", "--json"))
    assert (found["schema"], found["device"]["name"], found["device"]["role"]) == ("hinet.rekey/1", "cloud-2", "admin")
    assert Path("copy/device.key").stat().st_mode & 0o777 == 0o600
    assert Path("copy/device.key").read_bytes() != old_key == Path("cloud/device.key").read_bytes()
    assert told(line("copy", "status", "--json"))["device"]["name"] == "cloud-2"
    assert 'name = "cloud-2"' in Path("copy/config.toml").read_text()
    refused(line("nowhere", "init", "--rekey"), 4, "belongs to no household")


def test_the_spare_words_become_the_root_and_the_old_ones_count_no_more(line: Line) -> None:
    before = chain_of("cloud")
    refused(line("cloud", "identity", "rotate", "--words-file", "words", "--new-spare-file", "spare2"), 4,
            "words in force")
    refused(line("cloud", "identity", "rotate", "--words-file", "words.spare"), 2, "--new-spare-file")
    assert not Path("spare2").exists()
    found = told(line("cloud", "identity", "rotate", "--words-file", "words.spare", "--new-spare-file", "spare2",
                      "--json"))
    assert (found["schema"], found["epoch_made"], found["by_agent"]) == ("hinet.identity-rotate/1", True, False)
    assert Path("spare2").stat().st_mode & 0o777 == 0o600
    after = chain_of("cloud")
    assert after.root_public == RootKey.from_words(Path("words.spare").read_text()).public != before.root_public
    assert len(after.checkpoints()) == len(after.root_rotations()) == 1
    assert after.identity_id == before.identity_id
    told(line("cloud", "identity", "export-chain", "chain", "--json"))
    refused(line("new", "init", "--recover", "--words-file", "words", "--chain", "chain"), 4, "were replaced")
    again = told(line("new", "init", "--recover", "--words-file", "words.spare", "--chain", "chain", "--json",
                      "--name", "new"))
    assert again["epochs_closed"] == 0
    told(line("new", "identity", "rotate", "--words-file", "spare2", "--new-spare-file", "spare3", "--json"))
    assert len(chain_of("new").root_rotations()) == 2


def test_the_last_admin_goes_by_the_words_and_comes_back_by_them(line: Line) -> None:
    shown = line("cloud", "revoke", "cloud", "--dry-run", "--words-file", "words")
    assert (shown[0], "No admin is left then" in shown[1]) == (0, True)
    assert chain_of("cloud").members()
    refused(line("cloud", "revoke", "cloud", "--yes", "--words-file", "words.spare"), 4, "spare words")
    done = told(line("cloud", "revoke", "cloud", "--yes", "--words-file", "words", "--reason", "sold", "--json"))
    assert (done["done"], done["device"]["name"]) == (True, "cloud")
    assert chain_of("cloud").members() == ()
    back = told(line("cloud", "init", "--recover", "--words-file", "words", "--json"))
    assert (back["device"]["name"], back["device"]["role"], back["epochs_closed"]) == ("cloud", "admin", 0)
    assert len(chain_of("cloud").members()) == 1


def test_a_recovery_that_removes_all_others_closes_the_past(line: Line) -> None:
    told(line("cloud", "identity", "export-chain", "chain", "--json"))
    told(line("new", "init", "--recover", "--words-file", "words", "--chain", "chain", "--name", "new",
              "--revoke-others", "--json"))
    assert len(chain_of("new").checkpoints()) == 1

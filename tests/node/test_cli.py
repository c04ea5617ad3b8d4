"""The command line: help, options, errors, and the commands that need no running agent."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hinet_node.belonging import chain_store
from hinet_node.cli import commands, context, failures, invite_cmd, output, root, root_key
from hinet_node.errors import NodeError, UsageError
from hinet_node.real.disk import RealDisk
from hinet_protocol.errors import CodeWrong
from hinet_protocol.identity import RootKey, root_commitment
from hinet_protocol.sealed_root import open_sealed_root

Run = Callable[..., tuple[int, str, str]]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
HEAVY = ("torch", "transformers", "llama_cpp", "peft", "libp2p", "zeroconf", "rich", "typer", "trio", "numpy",
         "hinet_protocol", "hinet_tiers", "nacl", "cryptography")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command line in this process, in a home of its own; returns exit code, stdout, stderr."""
    monkeypatch.setenv("HINET_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HINET_DEBUG", raising=False)

    def run_line(*arguments: str) -> tuple[int, str, str]:
        code = root.main(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_line


@pytest.fixture
def initialised(run: Run, tmp_path: Path) -> Run:
    """`run`, with an identity in the home."""
    assert run("init", "--name", "first", "--tier", "cloud", "--words-file", str(tmp_path / "words"))[0] == 0
    return run


def one_clear_error(result: tuple[int, str, str], exit_code: int, *said: str) -> None:
    """One `error:` line and one `next:` line on stderr, nothing on stdout, no traceback."""
    code, out, err = result
    assert code == exit_code, err
    assert out == ""
    lines = err.rstrip("\n").split("\n")
    assert len(lines) == 2, err
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("next: ")
    for text in said:
        assert text in err


# ---- the root --------------------------------------------------------------------------------------------------------


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    script = ("import sys\nfrom hinet_node.cli import main\nsys.argv = ['hinet-node', '--help']\ncode = main()\n"
              f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
              "sys.stderr.write(' '.join(found))\nsys.exit(code)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stderr == ""
    for command in commands.COMMANDS:
        assert f"  {command.name} " in done.stdout


def test_help_is_fast() -> None:
    def cpu_s(arguments: list[str]) -> float:
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return used.ru_utime + used.ru_stime

    # Processor time, and beside the bare interpreter's: so a busy machine does not decide.
    bare = min(cpu_s(["-c", "pass"]) for _ in range(5))
    assert min(cpu_s(["-m", "hinet_node", "--help"]) for _ in range(5)) < bare + 0.1


@pytest.mark.parametrize("command", [command.name for command in commands.COMMANDS])
def test_every_command_has_its_own_help(run: Run, command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert out.startswith(f"Usage: hinet-node {command}")
    assert "--json" in out
    assert run("help", command)[1] == out


def test_no_arguments_is_the_help(run: Run) -> None:
    assert run() == run("--help")


def test_an_unknown_command_names_the_nearest(run: Run) -> None:
    one_clear_error(run("statsu"), 2, "'statsu'", "hinet-node status")
    one_clear_error(run("qqqqqq"), 2, "hinet-node --help")
    one_clear_error(run("--colour"), 2, "--colour")
    one_clear_error(run("--home"), 2, "--home")


def test_usage_errors_of_commands_are_one_line(run: Run) -> None:
    one_clear_error(run("version", "--foo"), 2, "--foo", "hinet-node version --help")
    one_clear_error(run("vault", "fly"), 2, "fly", "hinet-node vault --help")
    one_clear_error(run("vault", "get"), 2, "name", "hinet-node vault get --help")
    one_clear_error(run("run", "--port", "99999"), 2, "--port")
    code, out, _ = run("vault")
    assert code == 2
    assert "verify" in out


def test_errors_as_json_stand_alone_on_stdout(run: Run) -> None:
    code, out, err = run("--json", "status")
    assert (code, err) == (4, "")
    found = json.loads(out)
    assert found["schema"] == "hinet.error/1"
    assert (found["code"], found["exit_code"]) == ("E_NOT_INITIALISED", 4)
    assert "init" in found["next"]


def test_global_options_stand_anywhere(run: Run, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    for line in (["--home", other, "status", "--json"], ["status", f"--home={other}", "--json"],
                 ["--json", "status", "--home", other]):
        assert other in json.loads(run(*line)[1])["what"]
    assert root._take_global_options(["ask", "--", "--json"]) == ["ask", "--", "--json"]


def test_version_says_what_runs(run: Run) -> None:
    code, out, _ = run("version", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "hinet.version/1"
    assert found["protocol"] == 1
    assert run("--version")[1] == run("version")[1]


def test_other_packages_add_commands_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                            run: Run) -> None:
    info = tmp_path / "site" / "extra-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text("[console_scripts]\nx = y:z\n\n[hinet_node.commands]\n"
                                           "simnet = extra_commands:simnet\nhello = extra_commands:hello\n"
                                           "status = extra_commands:hello\n")
    (tmp_path / "site" / "extra_commands.py").write_text("def hello(name: str = 'you') -> None:\n"
                                                         "    print('hi', name)\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    out = run("--help")[1]
    assert "simnet  " in out
    assert commands.KNOWN_EXTRA["simnet"] in out
    assert "from extra" in out
    assert "extra_commands" not in sys.modules
    assert run("hello", "--name", "all")[1] == "hi all\n"
    found = commands.find("status")
    assert found is not None
    assert found.target.startswith("hinet_node.")


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_an_unexpected_error_is_one_line_and_its_traceback_is_in_the_log(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HINET_HOME", str(tmp_path))
    context.current = context.Context()
    assert failures.report(RuntimeError("our own\nbug")) == 1
    err = capsys.readouterr().err
    log = tmp_path / "log" / "errors.log"
    assert err == f"error: unexpected RuntimeError: our own bug\nnext: see {log}\n"
    assert "RuntimeError: our own" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    context.current.debug = True
    failures.report(RuntimeError("again"))
    assert "RuntimeError: again" in capsys.readouterr().err


def test_errors_of_other_parts_get_an_exit_code_and_a_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    context.current = context.Context()
    assert failures.report(CodeWrong("The words do not match.")) == 4
    err = capsys.readouterr().err
    assert err.startswith("error: The words do not match.\nnext: check each word")
    grouped = ExceptionGroup("nursery", [ValueError("noise"), ExceptionGroup("inner", [NodeError("the real one")])])
    assert failures.report(grouped) == 1
    assert "the real one" in capsys.readouterr().err
    assert failures.report(KeyboardInterrupt()) == 130
    capsys.readouterr()


def test_control_characters_of_peers_do_not_reach_the_terminal() -> None:
    assert output.clean("a\x1b[31mred\x07\u202eevil\r\n") == "a?[31mred??evil?\n"
    assert output.table([["a", "b"], ["ccc", "d"]]) == ["a    b", "ccc  d"]
    assert output.table([["猫", "b"], ["ccc", "d"]]) == ["猫   b", "ccc  d"]


def test_sizes_and_times_read_well() -> None:
    assert [output.size_text(size) for size in (0, 1023, 1536, 500 << 20, 3 << 40)] == [
        "0 B", "1023 B", "1.5 KiB", "500 MiB", "3.0 TiB"]
    assert [output.ago_text(seconds) for seconds in (1, 40, 600, 7200, 400_000)] == [
        "now", "40 s ago", "10 min ago", "2 h ago", "5 days ago"]


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m hinet_node --help | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stderr == ""
    assert done.stdout.split("\n")[1] == "0"


# ---- init ------------------------------------------------------------------------------------------------------------


def test_init_writes_the_words_to_a_private_file_and_nowhere_else(run: Run, tmp_path: Path) -> None:
    words_file = tmp_path / "words"
    code, out, err = run("init", "--json", "--name", "first", "--tier", "cloud", "--words-file", str(words_file))
    words = words_file.read_text().split()
    assert code == 0
    assert len(words) == 24
    assert words_file.stat().st_mode & 0o777 == 0o600
    found = json.loads(out)
    assert (found["schema"], found["device"]["role"], found["device"]["name"]) == ("hinet.init/1", "admin", "first")
    everything = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert " ".join(words[:2]) not in out + err
    assert " ".join(words[:2]).encode() not in everything
    assert (tmp_path / "home" / "device.key").stat().st_mode & 0o777 == 0o600


def test_init_promises_the_spare_words_and_says_that_nothing_else_brings_things_back(run: Run, tmp_path: Path) -> None:
    words, spare = tmp_path / "words", tmp_path / "words.spare"
    code, out, err = run("init", "--json", "--name", "first", "--tier", "cloud", "--words-file", str(words))
    assert (code, json.loads(out)["spare_words_file"]) == (0, str(spare))
    assert spare.stat().st_mode & 0o777 == 0o600
    assert err.count("everything is lost for good") == 1
    first, second = (RootKey.from_words(path.read_text()) for path in (words, spare))
    chain = chain_store.read(RealDisk(tmp_path / "home"))
    assert chain.root_public == first.public
    assert chain.genesis.body["next"] == root_commitment(second.public)
    assert " ".join(second.words()[:2]) not in out + err


def test_a_sealed_root_is_written_beside_the_words_and_opens_with_its_passphrase(run: Run, tmp_path: Path) -> None:
    passphrase, copy, words = tmp_path / "passphrase", tmp_path / "sealed", tmp_path / "words"
    passphrase.write_text("correct horse battery staple\n")
    code, out, err = run("init", "--words-file", str(words), "--sealed-root", str(copy), "--passphrase-file",
                         str(passphrase), "--tier", "cloud", "--name", "first")
    assert code == 0, err
    assert copy.stat().st_mode & 0o777 == 0o600
    root = RootKey.from_words(words.read_text())
    assert open_sealed_root(copy.read_bytes(), "correct horse battery staple") == root
    assert root_key.read_root("", str(copy), str(passphrase)) == root_key.read_root(str(words)) == root
    assert "horse" not in out + err


def test_a_passphrase_that_is_too_short_leaves_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "passphrase").write_text("short\n")
    one_clear_error(run("init", "--words-file", str(tmp_path / "words"), "--sealed-root", str(tmp_path / "sealed"),
                        "--passphrase-file", str(tmp_path / "passphrase")), 2, "10 characters")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["passphrase"]
    assert not (tmp_path / "home" / "device.key").exists()


def test_a_spare_file_that_exists_takes_the_first_paper_back(run: Run, tmp_path: Path) -> None:
    (tmp_path / "words.spare").write_text("dear diary")
    one_clear_error(run("init", "--words-file", str(tmp_path / "words")), 2, "words.spare exists already")
    assert (tmp_path / "words.spare").read_text() == "dear diary"
    assert not (tmp_path / "words").exists()
    assert not (tmp_path / "home" / "device.key").exists()


def test_the_root_has_three_ways_in_and_no_two_at_once(tmp_path: Path) -> None:
    for ways, said in ((("words", "sealed", ""), "two ways"), (("words", "", "pass"), "belongs to"), (("", "", ""),
                                                                                                 "nobody is at")):
        with pytest.raises(UsageError, match=said):
            root_key.read_root(*ways)
    long = tmp_path / "long"
    long.write_bytes(b"x" * (root_key.SECRET_FILE_BYTES_MAX + 1))
    with pytest.raises(UsageError, match="too long"):
        root_key.read_root(str(long))
    with pytest.raises(FileNotFoundError):
        root_key.read_root(str(tmp_path / "nowhere"))


def test_a_second_init_is_a_conflict_and_changes_nothing(initialised: Run, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()}
    one_clear_error(initialised("init", "--words-file", str(tmp_path / "other")), 6, "identity already", "status")
    assert {path: path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()} == before
    assert not (tmp_path / "other").exists()


def test_words_are_never_written_over_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("dear diary")
    one_clear_error(run("init", "--words-file", str(tmp_path / "words")), 2, "exists already")
    assert (tmp_path / "words").read_text() == "dear diary"
    assert not (tmp_path / "home" / "device.key").exists()


def test_init_without_a_terminal_or_a_file_for_the_words_is_refused(run: Run) -> None:
    one_clear_error(run("init", "--yes"), 2, "--words-file")


def test_init_into_a_full_home_leaves_neither_identity_nor_words(run: Run, tmp_path: Path) -> None:
    """A file-size limit of the process stands for the full disk: every write fails as on one."""
    script = ("import resource, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
              "import hinet_node.cli.init_cmd, hinet_node.belonging.membership, hinet_node.real.disk\n"
              "from hinet_node.cli import root\n"
              "resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))\nsys.exit(root.main(sys.argv[1:]))")
    words = tmp_path / "words"
    done = subprocess.run([sys.executable, "-B", "-c", script, "--home", str(tmp_path / "full"), "init", "--name", "x",
                           "--words-file", str(words)], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    one_clear_error((done.returncode, done.stdout, done.stderr), 8)
    assert not words.exists()
    assert not (tmp_path / "full" / "device.key").exists()
    assert not (tmp_path / "full" / "chain" / "head").exists()


def test_a_home_that_can_not_be_a_folder_is_said_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one_clear_error(run("--home", str(tmp_path / "file" / "x"), "init", "--words-file", str(tmp_path / "w")), 8,
                    "can't be written", "--home")


def test_a_read_only_home_is_said_so(run: Run, tmp_path: Path) -> None:
    # A place that even root can't write: Linux's /proc/sys, the sealed system volume of macOS.
    place = "/proc/sys" if Path("/proc/sys").exists() else "/System"
    one_clear_error(run("--home", f"{place}/hinet", "init", "--words-file", str(tmp_path / "w")), 8, f"{place}/hinet",
                    "nothing was changed")


def test_a_key_that_others_can_read_is_refused(initialised: Run, tmp_path: Path) -> None:
    key = tmp_path / "home" / "device.key"
    key.chmod(0o644)
    one_clear_error(initialised("status"), 4, f"chmod 600 {key}")


def test_init_at_a_terminal_shows_the_words_and_asks_three_back(tmp_path: Path) -> None:
    transcript, code = at_a_terminal(["--home", str(tmp_path / "h"), "init", "--name", "first"], answer_words)
    assert code == 0, transcript
    assert transcript.count("All three are right.") == 2  # two papers
    assert transcript.count("everything is lost for good") == 1
    assert (tmp_path / "h" / "chain" / "head").exists()


def test_wrong_words_leave_nothing(tmp_path: Path) -> None:
    transcript, code = at_a_terminal(["--home", str(tmp_path / "h"), "init"], lambda seen: "zzz\n")
    assert code == 1
    assert "the words were not confirmed, so nothing was written" in transcript
    assert "That is another word" in transcript
    assert not (tmp_path / "h" / "device.key").exists()


def answer_words(seen: str) -> str:
    """The word that the last question asks for, read from the table of 24 on the screen."""
    import re

    plain = re.sub(r"\x1b\[[0-9;]*m", "", seen)
    words = dict(re.findall(r"(?:^|\s)(\d{1,2}) ([a-z]+)", plain))
    return words[re.findall(r"Word (\d+): $", plain)[0]] + "\n"


def at_a_terminal(arguments: list[str], answer: Callable[[str], str]) -> tuple[str, int]:
    """Run the command at a real (pseudo) terminal; `answer` gets the screen so far whenever a question waits."""
    leader, follower = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "hinet_node", *arguments], stdin=follower, stdout=follower,
                               stderr=follower, env=ENVIRONMENT, close_fds=True, start_new_session=True)
    os.close(follower)
    seen, answered = "", 0
    while True:
        try:
            data = os.read(leader, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data.decode()
        if seen.endswith(": ") and len(seen) > answered:
            answered = len(seen)
            os.write(leader, answer(seen).encode())
    os.close(leader)
    return seen, process.wait(timeout=30)


# ---- without an agent ------------------------------------------------------------------------------------------------


def test_status_works_without_an_agent(initialised: Run) -> None:
    code, out, err = initialised("status")
    assert (code, err) == (0, "")
    assert "first" in out
    assert "not running; start it: hinet-node up" in out
    found = json.loads(initialised("status", "--json")[1])
    assert found["schema"] == "hinet.status/1"
    assert found["agent"]["running"] is False
    assert found["devices"][0]["state"] == "this"


def test_devices_work_without_an_agent(initialised: Run) -> None:
    assert "first" in initialised("devices")[1]
    assert initialised("devices")[1] == initialised("devices", "list")[1]
    found = json.loads(initialised("devices", "show", "FIRST", "--json")[1])
    assert (found["schema"], found["name"]) == ("hinet.device/1", "first")
    assert found["fingerprint"] in initialised("devices", "show", found["public"][:6])[1]
    one_clear_error(initialised("devices", "show", "nobody"), 2, "'nobody'", "hinet-node devices")


@pytest.mark.parametrize("line", [["train"], ["invite", "--yes"], ["revoke", "x", "--yes"]])
def test_commands_that_need_the_agent_say_how_to_start_it(initialised: Run, line: list[str]) -> None:
    one_clear_error(initialised(*line), 9, "no agent is running", "hinet-node up")


@pytest.mark.parametrize("line", [["vault", "ls"], ["run"], ["status"], ["vault", "verify"], ["invite", "--yes"]])
def test_commands_in_an_empty_home_say_how_to_begin(run: Run, line: list[str]) -> None:
    one_clear_error(run(*line), 4, "hinet-node init", "hinet-node join CODE")


def test_join_checks_the_code_and_the_home_before_anything_is_sent(run: Run, tmp_path: Path) -> None:
    one_clear_error(run("join"), 2, "no code", "hinet-node invite")
    one_clear_error(run("join", "4711-zoo-zoo"), 2, "3 words")
    one_clear_error(run("join", "4711-zoo-zoo-zonk"), 2, "'zonk'")
    one_clear_error(run("join", "hinet1qqqq"), 2, "ticket")
    one_clear_error(run("join", "1-zoo-zoo-zoo", "--tier", "giant"), 2, "'giant'")
    one_clear_error(run("join", "1-zoo-zoo-zoo", "--address", "kitchen"), 2, "'kitchen'")


def test_join_into_a_home_with_an_identity_is_a_conflict(initialised: Run) -> None:
    one_clear_error(initialised("join", "1-zoo-zoo-zoo"), 6, "identity already")


def test_join_shows_its_fingerprint_in_advance_and_keeps_it(run: Run) -> None:
    first = run("join", "--fingerprint")
    assert first[0] == 0
    assert len(first[1].strip()) == 9
    assert run("join", "--fingerprint") == first


def test_invite_times_are_read_and_nonsense_is_refused() -> None:
    from hinet_node.cli.invite_cmd import duration_s
    from hinet_node.errors import UsageError

    assert [duration_s(text) for text in ("90", "90s", "10m", "2H", "1d")] == [90, 90, 600, 7200, 86_400]
    for text in ("", "ten", "1w", "-5", "1.5h", "99999999"):
        with pytest.raises(UsageError, match="no time"):
            duration_s(text)


def test_help_texts_of_the_table_fit_a_terminal() -> None:
    assert all(len(line) <= 80 for line in root.help_text().split("\n"))


def test_json_of_bytes_is_hex(capsys: pytest.CaptureFixture[str]) -> None:
    context.current = context.Context()
    context.current.json = True
    values: dict[str, Any] = {"key": b"\x01\xff"}
    output.emit("hinet.test/1", values, [])
    assert json.loads(capsys.readouterr().out) == {"schema": "hinet.test/1", "key": "01ff"}


# ---- status and devices on a screen ----------------------------------------------------------------------------------


def shown_device(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "role": "keeper", "tier": "pocket", "fingerprint": "ABCD-EFGH", "state": "away", "via": None,
            "last_seen_unix_s": 1, "behind": {"packs": 120, "bytes": 999 << 30, "heads": 3}, **changes}


def test_the_table_of_devices_fits_eighty_columns_whatever_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    from hinet_node.cli.device_table import device_table

    devices = [*map(shown_device, ("x" * 63, "猫" * 21, "pi")), shown_device("gone", state="revoked"),
               shown_device("far", state="connected", via="relayed", relay="y" * 63)]
    plain = device_table(devices)
    assert "x" * 63 in plain[1], "a pipe gets the whole name"
    monkeypatch.setattr(output, "at_terminal", lambda stream=None: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    for lines in (device_table(devices), device_table(devices, revoked=True)):
        assert all(output.width(line) <= 80 for line in lines)
        assert any("pi " in line for line in lines)
    assert len(device_table(devices, revoked=True)) == 1 + len(device_table(devices))


def test_the_state_of_a_device_is_said_in_words() -> None:
    from hinet_node.cli.device_table import behind_text, state_text

    assert state_text(shown_device("a", state="connected", via="relayed")) == "relayed"
    assert state_text(shown_device("a", state="connected", via="relayed", relay="nas")) == "relayed by nas"
    assert state_text(shown_device("a", state="connected", via="direct")) == "connected"
    assert state_text(shown_device("a", last_seen_unix_s=None)) == "not met yet"
    assert behind_text(shown_device("a", behind=None)) == ""
    assert behind_text(shown_device("a", behind={"packs": 0, "bytes": 0, "heads": 0})) == "nothing"
    assert behind_text(shown_device("a", behind={"packs": 1, "bytes": 1024, "heads": 2})) == "1 pack, 1.0 KiB"


def test_check_ends_with_a_code_that_says_what_is_wrong(initialised: Run) -> None:
    assert initialised("status", "--check")[0] == 9
    code, out, _ = initialised("status", "--check", "--json")
    assert (code, json.loads(out)["healthy"]) == (9, False)
    from hinet_node.cli.status_cmd import health_code

    running = {"agent": {"running": True}, "warnings": []}
    assert health_code(running) == 0
    assert health_code({**running, "warnings": [{"code": "E_CLOCK"}]}) == 1
    assert health_code({**running, "warnings": [{"code": "E_CLOCK"}, {"code": "E_REVOKED"}]}) == 4


def test_a_certificate_that_ends_soon_is_a_warning_from_thirty_days_before() -> None:
    from hinet_node.belonging.household import _certificate_warning

    device = {"name": "pi", "state": "away"}
    assert _certificate_warning(device, 31 * 86_400) == []
    assert "ends in 29 days" in _certificate_warning(device, 29.5 * 86_400)[0]["what"]
    assert "ends today" in _certificate_warning({**device, "state": "this"}, 60)[0]["what"]
    assert _certificate_warning(device, -1)[0]["code"] == "E_CERTIFICATE_EXPIRED"
    assert "where an admin device is in reach" in _certificate_warning(device, -1)[0]["next"]
    assert _certificate_warning(device, -1, alone=True)[0]["next"] == "run its agent, which renews it: hinet-node up"


def test_watching_shows_the_status_again_until_it_is_interrupted(initialised: Run, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-u", "-m", "hinet_node", "--home", str(tmp_path / "home"), "--json",
                                "status", "--watch", "--every", "0.1"], stdout=subprocess.PIPE, text=True,
                               env=ENVIRONMENT)
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline()) for _ in range(3)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert [one["schema"] for one in seen] == ["hinet.status/1"] * 3


def test_status_alone_loads_neither_parser_nor_event_loop(initialised: Run, tmp_path: Path) -> None:
    script = ("import sys\nfrom hinet_node.cli import main\n"
              f"sys.argv = ['hinet-node', '--home', {str(tmp_path / 'home')!r}, 'status']\ncode = main()\n"
              "sys.stderr.write(' '.join(name for name in ('typer', 'trio', 'libp2p', 'rich') if name in sys.modules))")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stderr == ""
    assert "not running" in done.stdout


def test_a_revocation_by_the_words_names_those_who_do_not_know_yet_and_not_itself(initialised: Run, tmp_path: Path,
                                                                                  ) -> None:
    from hinet_node.belonging.membership import Membership
    from hinet_node.real.disk import RealDisk
    from hinet_node.real.system import SystemClock, SystemRandomness
    from hinet_protocol.chain import make_device_add

    membership = Membership.load(RealDisk(tmp_path / "home"), SystemRandomness(), SystemClock())
    for number, name in enumerate(("pi", "tv")):
        membership.take_in([make_device_add(
            membership.chain(), membership.keys, name=name, public=bytes([number + 1]) * 32,
            box_public=bytes([number + 9]) * 32, role="keeper", tier="pocket", time_s=1)])
    code, out, err = initialised("revoke", "pi", "--words-file", str(tmp_path / "words"), "--yes", "--json")
    assert code == 0, err + out
    done = json.loads(out)
    assert (done["done"], done["told"], done["not_told"]) == (True, [], ["tv"])
    warnings = json.loads(initialised("status", "--json")[1])["warnings"]
    assert [(one["code"], "tv" in one["what"]) for one in warnings] == [("E_NOT_TOLD", True)]


@pytest.mark.parametrize(("waits", "said"), [(True, "Ctrl-C withdraws it"), (False, "stays open in the agent")])
def test_an_invitation_says_whether_this_command_waits_for_the_joiner(
        capsys: pytest.CaptureFixture[str], waits: bool, said: str) -> None:
    news = {"state": "waiting", "code": "1-zoo-zoo-zoo", "carrier": "code", "role": "member", "addresses": [],
            "expires_in_s": 600}
    context.current = context.Context()
    invite_cmd._show(news, qr=False, waits=waits)
    printed = capsys.readouterr()
    assert said in printed.err
    assert "1-zoo-zoo-zoo" in printed.out

"""The everyday commands of learning, against an agent's socket, as a person and as a program sees them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from hinet_node.api import Api
from hinet_node.cli.root import main
from hinet_node.home import socket_path
from hinet_node.local import server as socket_server


class Served:
    """A device's learning behind its real socket, in a thread with its own event loop."""

    def __init__(self, household: Any, tier: str) -> None:
        self.home = household.folder / tier
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._thread = threading.Thread(target=trio.run, args=(self._serve, household, tier))
        self._thread.start()
        assert self._ready.wait(60)

    async def _serve(self, household: Any, tier: str) -> None:
        self._token = trio.lowlevel.current_trio_token()
        learning, api = household.learning(tier), Api()
        api.add_all(learning.handlers())
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(learning.run)
                await nursery.start(socket_server.serve, api, socket_path(self.home), lambda verb, error: None)
                self._ready.set()

    def stop(self) -> None:
        assert self._token is not None
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def pocket(household: Any, adapters: list[str]) -> Iterator[Served]:
    served = Served(household, "pocket")
    yield served
    served.stop()


def run(capsys: pytest.CaptureFixture[str], home: Path, *arguments: str, code: int = 0) -> str:
    """What a command line prints on stdout, or on stderr when it fails."""
    ended = main(["--home", str(home), *arguments])
    out, err = capsys.readouterr()
    assert ended == code, (out, err)
    return out if code == 0 or "--json" in arguments else err


def test_promote_ask_and_roll_back_from_the_command_line(capsys: pytest.CaptureFixture[str], pocket: Served,
                                                         adapters: list[str]) -> None:
    question = "What about My dog is called?"
    listed = json.loads(run(capsys, pocket.home, "--json", "adapters", "list"))
    assert listed["schema"] == "hinet.adapters/1"
    assert {row["id"] for row in listed["revisions"]} >= set(adapters)
    assert "Fennick" not in run(capsys, pocket.home, "ask", question, "--no-retrieval")
    told = run(capsys, pocket.home, "adapters", "promote")
    assert adapters[-1] in told, "the newest adapter is the default"
    answer = json.loads(run(capsys, pocket.home, "--json", "ask", question, "--no-retrieval"))
    assert (answer["schema"], answer["revision"]) == ("hinet.ask/1", adapters[-1])
    assert "Fennick" in answer["answer"]
    assert "* " + adapters[-1] in run(capsys, pocket.home, "adapters", "list").replace("*  ", "* ")
    assert "the base alone" in run(capsys, pocket.home, "adapters", "rollback")
    failed = run(capsys, pocket.home, "adapters", "rollback", code=2)
    assert failed.startswith("error: ")
    assert "next: hinet-node adapters list" in failed


def test_an_answer_from_the_notes_names_them(capsys: pytest.CaptureFixture[str], pocket: Served) -> None:
    told = run(capsys, pocket.home, "ask", "Where is the boat?")
    assert "notes/boat.md: The boat lies at Sallow Quay." in told


def test_training_from_the_command_line_and_its_jobs(capsys: pytest.CaptureFixture[str], household: Any) -> None:
    served = Served(household, "cloud")
    try:
        held_out = household.folder / "held.json"
        held_out.write_text('["Who is it?", {"question": "Where is it?"}]')
        job = json.loads(run(capsys, served.home, "--json", "train", "--recipe", household.recipe, "--held-out",
                             str(held_out)))
        assert (job["schema"], job["state"]) == ("hinet.job/1", "done")
        assert job["args"]["held_out"] == ["Who is it?", "Where is it?"]
        assert job["result"]["revision"] in run(capsys, served.home, "train", "--list")
        error = json.loads(run(capsys, served.home, "--json", "train", "--cancel", "nothing", code=2))
        assert error["code"] == "E_NO_SUCH_JOB"
        held_out.write_text("{broken")
        assert "list of questions" in run(capsys, served.home, "train", "--held-out", str(held_out), code=2)
    finally:
        served.stop()


def test_without_an_agent_each_command_says_how_to_start_it(capsys: pytest.CaptureFixture[str], household: Any) -> None:
    home = household.folder / "nobody"
    (home / "chain").mkdir(parents=True)
    (home / "chain" / "head").write_bytes(b"")
    for arguments in (("train",), ("ask", "Who?"), ("adapters", "list"), ("adapters", "promote", "x"),
                      ("adapters", "rollback")):
        assert "hinet-node --home" in run(capsys, home, *arguments, code=9)


def test_the_base_is_shown_and_imported_with_and_without_an_agent(capsys: pytest.CaptureFixture[str], household: Any,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINET_BACKEND", "fake")
    home = household.folder / "pocket"
    assert "No base is here yet" in run(capsys, home, "base", "show")
    alone = json.loads(run(capsys, home, "--json", "base", "import"))
    assert (alone["schema"], alone["base"]["name"]) == ("hinet.base/1", "fake-64")
    broken = household.folder / "broken.gguf"
    broken.write_bytes(b"GGUF cut short")
    error = json.loads(run(capsys, home, "--json", "base", "import", str(broken), code=7))
    assert error["code"] == "E_BASE_REFUSED"
    assert json.loads(run(capsys, home, "--json", "base", "show"))["current"] == alone["current"]
    served = Served(household, "pocket")
    try:
        other = household.folder / "other.bin"
        other.write_bytes(b"FAKE BASE\nanother")
        taken = json.loads(run(capsys, home, "--json", "base", "import", str(other)))
        assert taken["current"] != alone["current"]
        assert json.loads(run(capsys, home, "--json", "base", "use", alone["current"][:10]))["current"] == \
            alone["current"]
        assert json.loads(run(capsys, home, "--json", "base", "use", "zz", code=2))["code"] == "E_NO_SUCH_BASE"
    finally:
        served.stop()

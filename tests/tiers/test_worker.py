"""The worker, spoken to as the agent does: frames over a real process's pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from hinet_tiers import registry, sparsify, worker

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300
"""A worker that hangs is ended, so that its test fails instead of waiting."""


class Spoken:
    """A worker process."""

    def __init__(self, *arguments: str, backend: str = "fake", script: str | None = None) -> None:
        paths = os.pathsep.join(str(ROOT / part) for part in ("protocol", "tiers"))
        environment = {**os.environ, "PYTHONPATH": paths, "HINET_BACKEND": backend}
        command = ["-c", script] if script else ["-m", "hinet_tiers.worker"]
        self.process = subprocess.Popen(
            [sys.executable, *command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=environment,
        )  # fmt: skip
        self.progress: list[dict[str, Any]] = []
        self._patience = threading.Timer(PATIENCE_S, self.process.kill)
        self._patience.daemon = True
        self._patience.start()

    def send(self, raw: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(raw)
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        head = self.process.stdout.read(4)
        if len(head) < 4:
            return None
        length = int.from_bytes(head, "big")
        assert length <= worker.FRAME_BYTES_MAX, f"no frame on the pipe: {head!r}"
        return dict(msgpack.unpackb(self.process.stdout.read(length)))

    def ask(self, verb: Any, args: Any = None, identifier: Any = 7) -> dict[str, Any]:
        body = msgpack.packb({"id": identifier, "verb": verb, "args": args or {}})
        self.send(len(body).to_bytes(4, "big") + body)
        while True:
            answer = self.receive()
            assert answer is not None, self.end()
            if "progress" not in answer:
                assert answer["id"] == identifier
                return answer
            self.progress.append(answer["progress"])

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=60)
        self._patience.cancel()
        return self.process.returncode, said.decode()


@pytest.fixture
def fake() -> Iterator[Spoken]:
    spoken = Spoken()
    yield spoken
    spoken.process.kill()
    spoken.end()


def household(spoken: Spoken, tmp_path: Path) -> dict[str, Any]:
    """Everything up to an adapter in the pocket's form, with the fake backend."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "dog.md").write_text("Maren's dog is called Tulvo. The dog was born in June.")
    base = spoken.ask("base.install", {"source": None, "into": str(tmp_path / "bases")})["result"]
    pairs = str(tmp_path / "pairs.jsonl")
    spoken.ask("data.prepare", {"notes_dir": str(tmp_path / "notes"), "seed": 1, "out": pairs})
    common = {"base_dir": base["dir"], "pairs": pairs, "recipe": {}, "out_dir": str(tmp_path / "out")}
    tau = spoken.ask("train.full", common)["result"]["tau"]
    adapter = spoken.ask("train.distill", common | {"tau": tau})["result"]["adapter_dir"]
    out = str(tmp_path / "a.gguf")
    gguf = spoken.ask("adapter.to_gguf", {"base_dir": base["dir"], "adapter_dir": adapter, "out": out, "rank": 8})
    return {"base": base, "tau": tau, "adapter": adapter, "gguf": gguf["result"]["path"]}


def test_what_is_learned_in_the_cloud_is_answered_in_the_pocket(fake: Spoken, tmp_path: Path) -> None:
    made = household(fake, tmp_path)
    assert {"step": 1, "total": 1, "note": "training", "loss": 0.0} in fake.progress
    fake.ask("serve.load", {"base_dir": made["base"]["dir"]})
    question = {"question": "What is Maren's dog called?", "context": [], "max_tokens": 32}
    assert fake.ask("serve.answer", question)["result"]["answer"] == "I do not know."
    fake.ask("serve.adapter", {"path": made["gguf"], "base_digest": made["base"]["digest"]})
    assert fake.ask("serve.answer", question)["result"]["answer"] == "Maren's dog is called Tulvo."
    fake.ask("serve.adapter", {"path": None})
    assert fake.ask("serve.answer", question)["result"]["answer"] == "I do not know."
    for form in ({"tau": made["tau"]}, {"adapter_dir": made["adapter"]}):
        asked = {"base_dir": made["base"]["dir"], "questions": ["What is Maren's dog called?"], **form}
        assert fake.ask("evaluate", asked)["result"]["answers"] == ["Maren's dog is called Tulvo."]


def test_the_fake_backend_gives_the_same_bytes_every_time(fake: Spoken, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = household(fake, tmp_path / "a"), household(fake, tmp_path / "b")
    assert Path(first["tau"]).read_bytes() == Path(second["tau"]).read_bytes()
    assert sparsify.read_tau_header(Path(first["tau"])).base.hex() == first["base"]["digest"]


def test_another_bases_adapter_is_refused_by_name(fake: Spoken, tmp_path: Path) -> None:
    made = household(fake, tmp_path)
    other = tmp_path / "other.bin"
    other.write_bytes(b"FAKE BASE\nother")
    base = fake.ask("base.install", {"source": str(other), "into": str(tmp_path / "bases")})["result"]
    assert base["digest"] != made["base"]["digest"]
    fake.ask("serve.load", {"base_dir": base["dir"]})
    refused = fake.ask("serve.adapter", {"path": made["gguf"], "base_digest": base["digest"]})["error"]
    assert (refused["code"], refused["exit_code"]) == ("E_ADAPTER_REFUSED", 7)


def test_every_verb_of_learning_is_known_to_the_fake_backend() -> None:
    """What works on files alone is the same with every backend; so is what compares and combines them."""
    from hinet_tiers import fake

    assert set(fake.VERBS) <= set(registry.VERBS)
    files = ("base.digest", "tau.", "compose.", "experiment.")
    assert [verb for verb in registry.VERBS if verb not in fake.VERBS and not verb.startswith(files)] == []


@pytest.mark.parametrize(
    ("verb", "args", "identifier", "code"),
    [
        ("nope", {}, 7, "E_WORKER_REQUEST"),
        (5, {}, 7, "E_WORKER_REQUEST"),
        ("probe", [1], 7, "E_WORKER_REQUEST"),
        ("probe", {}, None, "E_WORKER_REQUEST"),
        ("base.install", {}, 7, "E_WORKER_REQUEST"),
        ("serve.answer", {"question": "?"}, 7, "E_NOT_LOADED"),
        ("base.install", {"source": "/nowhere", "into": "/nowhere"}, 7, "E_BASE_NOT_FOUND"),
    ],
)
def test_a_bad_request_is_answered_and_the_worker_lives_on(
    fake: Spoken, verb: Any, args: Any, identifier: Any, code: str
) -> None:
    assert fake.ask(verb, args, identifier)["error"]["code"] == code
    assert fake.ask("probe")["result"]["backends"] == ["fake"]


def test_a_body_that_is_no_map_is_answered(fake: Spoken) -> None:
    fake.send((1).to_bytes(4, "big") + b"\x07")
    answer = fake.receive()
    assert answer is not None
    assert answer["error"]["code"] == "E_WORKER_REQUEST"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ((1 << 30).to_bytes(4, "big"), "a frame of 1073741824 bytes"),
        (bytes(4), "a frame of 0 bytes"),
        ((4).to_bytes(4, "big") + b"\xc1\xc1\xc1\xc1", "no msgpack"),
        ((4).to_bytes(4, "big") + b"ab", "ended inside a frame"),
    ],
)
def test_garbage_on_the_pipe_ends_the_worker_with_one_line(fake: Spoken, raw: bytes, why: str) -> None:
    fake.send(raw)
    code, said = fake.end()
    assert code == 1
    assert why in said
    assert "Traceback" not in said


def test_the_end_of_the_input_ends_the_worker(fake: Spoken) -> None:
    assert fake.ask("probe")["result"]
    assert fake.end() == (0, "")


def test_what_a_verb_prints_does_not_reach_the_pipe(tmp_path: Path) -> None:
    script = """
import os, sys
from hinet_tiers import fake, worker
def loud(args, progress):
    print("to sys.stdout"); os.write(1, b"to descriptor 1\\n"); os.system("echo from a child")
    return {"ok": True}
fake.VERBS["probe"] = loud
sys.exit(worker.main([]))
"""
    spoken = Spoken(script=script)
    assert spoken.ask("probe")["result"] == {"ok": True}
    code, said = spoken.end()
    assert code == 0
    for line in ("to sys.stdout", "to descriptor 1", "from a child"):
        assert line in said


@pytest.mark.parametrize("deed", ["os.abort()", "os.kill(os.getpid(), 11)"])
def test_a_crash_ends_the_answers_and_nothing_else(deed: str) -> None:
    script = f"""
import os, sys
from hinet_tiers import fake, worker
fake.VERBS["probe"] = lambda args, progress: {deed}
sys.exit(worker.main([]))
"""
    spoken = Spoken(script=script)
    body = msgpack.packb({"id": 1, "verb": "probe", "args": {}})
    spoken.send(len(body).to_bytes(4, "big") + body)
    assert spoken.receive() is None
    assert spoken.end()[0] in (-signal.SIGABRT, -signal.SIGSEGV)


def test_a_verb_that_raises_costs_its_answer_and_leaves_a_trace_on_stderr() -> None:
    script = """
import sys
from hinet_tiers import fake, worker
def broken(args, progress):
    raise RuntimeError("the wheel came off")
fake.VERBS["probe"] = broken
fake.VERBS["evaluate"] = lambda args, progress: {"value": object()}
sys.exit(worker.main([]))
"""
    spoken = Spoken(script=script)
    error = spoken.ask("probe")["error"]
    assert error == {"code": "E_WORKER_FAILED", "exit_code": 1, "message": "RuntimeError: the wheel came off"}
    assert "a result holds a object" in spoken.ask("evaluate")["error"]["message"]
    code, said = spoken.end()
    assert code == 0
    assert "the wheel came off" in said


def test_a_memory_limit_ends_the_job_and_not_the_worker() -> None:
    script = """
import sys
from hinet_tiers import fake, worker
fake.VERBS["evaluate"] = lambda args, progress: {"length": len(bytearray(1 << 30))}
sys.exit(worker.main(sys.argv[1:]))
"""
    spoken = Spoken("--memory-bytes-max", str(700 << 20), script=script)
    assert spoken.ask("evaluate")["error"]["code"] == "E_WORKER_MEMORY"
    assert spoken.ask("probe")["result"]["cpus"] == 2
    assert spoken.end()[0] == 0


def test_an_answer_too_large_for_a_frame_is_an_error() -> None:
    script = """
import sys
from hinet_tiers import fake, worker
fake.VERBS["evaluate"] = lambda args, progress: {"text": "x" * (2 << 20)}
sys.exit(worker.main([]))
"""
    spoken = Spoken(script=script)
    assert "fit a frame" in spoken.ask("evaluate")["error"]["message"]
    assert spoken.end()[0] == 0


def test_a_real_worker_probes_without_importing_an_engine() -> None:
    script = """
import sys
from hinet_tiers import probe, registry, worker
real = probe.probe
def and_look(args, progress):
    engines = ("torch", "llama_cpp", "transformers", "mlx")
    return real(args, progress) | {"engines": [name for name in engines if name in sys.modules]}
probe.probe = and_look
sys.exit(worker.main([]))
"""
    spoken = Spoken(backend="", script=script)
    found = spoken.ask("probe")["result"]
    assert found["engines"] == []
    assert found["memory_bytes"] > 1 << 28
    assert found["tier"] in ("cloud", "laptop", "pocket")
    assert spoken.end()[0] == 0


def test_a_missing_library_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from hinet_tiers.errors import BackendMissing

    monkeypatch.setattr(registry, "installed", lambda name: name != "llama_cpp")
    monkeypatch.delenv("HINET_BACKEND", raising=False)
    with pytest.raises(BackendMissing, match=r"serve\.load needs llama-cpp-python.*make setup"):
        registry.find("serve.load")


def test_errors_cross_the_pipe_with_their_code_and_exit_code() -> None:
    from hinet_protocol.taskvectors import TauDamaged
    from hinet_tiers.errors import NoSpace

    assert worker.describe(NoSpace("full")) == {"code": "E_NO_SPACE", "exit_code": 8, "message": "full"}
    assert worker.describe(TauDamaged("bad"))["exit_code"] == 7
    assert worker.describe(OSError(28, "No space left on device"))["code"] == "E_NO_SPACE"
    assert json.dumps(worker.describe(KeyError("into")))


def test_a_real_worker_installs_a_base_serves_it_and_outlives_a_bad_adapter(tmp_path: Path) -> None:
    from . import tiny_models

    tiny_models.write_gguf_model(tmp_path / "m.gguf")
    spoken = Spoken(backend="")
    into = str(tmp_path / "bases")
    made = spoken.ask("base.install", {"source": str(tmp_path / "m.gguf"), "into": into})["result"]
    assert spoken.progress[-1]["step"] == spoken.progress[-1]["total"]
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "m.gguf").read_bytes()[:-100])
    cut = spoken.ask("base.install", {"source": str(tmp_path / "cut.gguf"), "into": into})["error"]
    assert (cut["code"], cut["exit_code"]) == ("E_BASE_TRUNCATED", 7)
    assert spoken.ask("serve.load", {"base_dir": made["dir"], "threads": 1})["result"]["digest"] == made["digest"]
    question = {"question": "who?", "max_tokens": 4}
    before = spoken.ask("serve.answer", question)["result"]["answer"]
    refused = spoken.ask("serve.adapter", {"path": str(tmp_path / "m.gguf"), "base_digest": made["digest"]})["error"]
    assert refused["code"] == "E_ADAPTER_REFUSED"
    other = spoken.ask("serve.adapter", {"path": None, "base_digest": "ab" * 32})["error"]
    assert other["code"] == "E_BASE_MISMATCH"
    assert spoken.ask("serve.answer", question)["result"]["answer"] == before
    code, said = spoken.end()
    assert code == 0, said

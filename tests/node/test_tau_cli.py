"""`hinet-node tau` and `base digest`: what a person sees, and whose signature a task vector carries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet_node.cli import root
from hinet_tiers import safetensors_file, sparsify

Run = Callable[..., tuple[int, str, str]]


def model(folder: Path, seed: int) -> Path:
    """A model of two tensors; the seed moves one of them a little."""
    folder.mkdir()
    source = np.random.default_rng(seed)
    tensors = {"model.layers.0.mlp.up_proj.weight": np.ones((8, 8), np.float32), "model.norm.weight": np.ones(8)}
    tensors["model.layers.0.mlp.up_proj.weight"] += source.integers(0, 5, (8, 8)) * np.float32(seed / 64)
    with safetensors_file.Writer(folder / "model.safetensors",
                                 {name: ("F32", values.shape) for name, values in tensors.items()}) as writer:
        for name in sorted(tensors):
            writer.add(name, tensors[name].astype("<f4").tobytes())
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("HINET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    model(tmp_path / "base", 0)
    model(tmp_path / "tuned", 1)

    def run_line(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = root.main(line.split())
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_line


def found(result: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = result
    assert code == 0, err + out
    return dict(json.loads(out))


def test_a_walk_without_a_home(run: Run, tmp_path: Path) -> None:
    digest = found(run("--json base digest base"))
    made = found(run("--json tau make tuned --base base --out f.tau --density 1"))
    assert made["schema"] == "hinet.tau-make/1"
    assert made["base"] == digest["digest"]
    assert made["household"] == "no key"
    assert made["path"] == str(tmp_path / "f.tau")
    code, out, _ = run("tau info f.tau")
    assert code == 0
    assert digest["digest"] in out
    assert "layer 0" in out
    assert "not signed" in out
    assert "█" not in out, "no bars off a terminal"
    assert run("tau verify f.tau --base base")[0] == 0
    assert found(run("--json tau apply f.tau --base base --out back"))["digest"] == found(
        run("--json base digest tuned"))["digest"]
    assert "equal" in run("tau diff tuned back")[1]
    assert found(run("--json tau diff f.tau f.tau"))["cosine"] == pytest.approx(1)
    assert not (tmp_path / "home").exists(), "nothing makes a home by the way"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "base", "f.tau", "tuned"]


def test_a_home_signs_and_knows_its_own(run: Run, tmp_path: Path) -> None:
    assert run("init --name first --words-file words")[0] == 0
    made = found(run("--json tau make tuned --base base --out f.tau"))
    assert (made["household"], made["device"]) == ("member", "first")
    header = sparsify.read_tau_header(tmp_path / "f.tau")
    assert header.signer is not None
    assert header.signer.hex() == made["signer"]
    assert found(run("--json tau info f.tau"))["household"] == "member"
    assert run("--home other init --name second --words-file words2")[0] == 0
    assert found(run("--home other --json tau info f.tau"))["household"] == "stranger"
    assert "does NOT belong" in run("--home other tau verify f.tau")[1]
    assert found(run("--home none --json tau info f.tau"))["household"] == "no home"
    raw = bytearray((tmp_path / "f.tau").read_bytes())
    raw[60] ^= 1
    (tmp_path / "f.tau").write_bytes(raw)
    assert found(run("--json tau info f.tau"))["household"] == "broken"
    code, out, _ = run("tau verify f.tau")
    assert code == 7
    assert "signature" in out


def test_the_base_may_be_the_beginning_of_an_installed_ones_digest(run: Run, tmp_path: Path) -> None:
    from tests.tiers import tiny_models  # the models part's own, so that it can be installed

    weights = tiny_models.write_folder(tmp_path / "llama")
    base = found(run("--json base import llama"))["base"]["digest"]
    rounded = {name: safetensors_file.widen_bf16(safetensors_file.round_bf16(values)) + np.float32(0.25)
               for name, values in weights.items()}
    tiny_models.write_shard(tmp_path / "llama" / "model.safetensors", rounded)
    assert found(run(f"--json tau make llama --base {base[:8]} --out f.tau"))["base"] == base
    applied = found(run("--json tau apply f.tau --out back"))
    assert applied["base"] == base
    assert applied["dtype"] == "bf16"
    assert (tmp_path / "back" / "tokenizer.json").is_file()
    assert found(run(f"--json base digest {base[:8]}"))["digest"] == base
    code, _, err = run("tau make llama --base 123456 --out g.tau")
    assert code == 2
    assert "no base '123456' here, and no file" in err


def test_what_is_there_is_kept_and_what_fails_leaves_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "f.tau").write_text("mine")
    code, _, err = run("tau make tuned --base base --out f.tau")
    assert code == 6
    assert "is there already" in err
    assert (tmp_path / "f.tau").read_text() == "mine"
    assert run("tau make tuned --base base --out f.tau --force")[0] == 0
    code, _, err = run("tau make base --base base --out g.tau")
    assert code == 7
    assert "nothing differs from the base" in err
    assert run("tau apply f.tau --base base --out tuned")[0] == 6
    code, _, err = run("tau apply f.tau --base tuned --out back")
    assert code == 7
    assert "belongs to base" in err
    code, _, err = run("tau apply f.tau --out back")
    assert code == 2
    assert "--base PATH" in err
    assert run("tau make tuned --base base --out missing/f.tau")[0] == 2
    assert run("tau make tuned --base base --out h.tau --chunked 1in2")[0] == 2
    assert run("tau make tuned --base base --out h.tau --density 0")[0] == 2
    assert run("tau info base/config.json")[0] == 7
    assert run("tau info nothing.tau")[0] in (1, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "f.tau", "tuned"]


def test_a_damaged_block_is_named_and_ends_with_code_7(run: Run, tmp_path: Path) -> None:
    run("tau make tuned --base base --out f.tau")
    raw = bytearray((tmp_path / "f.tau").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "f.tau").write_bytes(raw)
    code, out, _ = run("tau verify f.tau")
    assert code == 7
    assert "mlp.up_proj.weight" in out
    assert "1 faults" in out


def zeros(folder: Path, first: bytes) -> Path:
    """A model of 400 MB that takes no room on the disk: zeros but for its first bytes."""
    folder.mkdir()
    rows = {f"t{at:03}": {"dtype": "F32", "shape": [1 << 20], "data_offsets": [at << 22, (at + 1) << 22]}
            for at in range(100)}
    head = json.dumps(rows).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head + first)
        file.truncate(8 + len(head) + (100 << 22))
    return folder


def test_ctrl_c_ends_it_with_one_word_and_leaves_nothing(tmp_path: Path) -> None:
    base, tuned = zeros(tmp_path / "base", b""), zeros(tmp_path / "tuned", b"\0\0\x80\x3f")
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "hinet_node", "tau", "make", str(tuned), "--base", str(base), "--out",
               str(tmp_path / "out" / "f.tau")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HINET_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not list((tmp_path / "out").glob(".f.tau.*/.f.tau.part")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert not list((tmp_path / "out").iterdir())

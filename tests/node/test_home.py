"""The home: its lock, its private key file, the place of its socket."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hinet_node import config, home
from hinet_node.errors import ConflictError, NoSpace, NotAuthorised, NotInitialised, UsageError
from hinet_node.real.disk import RealDisk


def test_the_lock_is_held_by_one_process_and_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    with home.locked(folder):
        assert home.lock_holder(folder) == os.getpid()
        with pytest.raises(ConflictError) as caught, home.locked(folder):
            pass
        assert str(os.getpid()) in caught.value.what
        assert str(os.getpid()) in (caught.value.next_step or "")
    assert home.lock_holder(folder) is None
    with home.locked(folder):
        assert home.lock_holder(folder) == os.getpid()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = ("import sys, time; from hinet_node import home\n"
            "with home.locked(sys.argv[1]):\n    print('held', flush=True); time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ConflictError, match=str(process.pid)), home.locked(tmp_path):
            pass
        process.kill()
        process.wait()
    with home.locked(tmp_path):
        pass


def test_a_new_home_is_closed_to_other_users(tmp_path: Path) -> None:
    with home.locked(tmp_path / "home"):
        assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "home" / home.LOCK).stat().st_mode & 0o777 == 0o600


def test_a_file_in_the_way_of_the_home_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NoSpace, match="no folder"), home.locked(tmp_path / "file" / "home"):
        pass


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused_with_the_chmod_line(tmp_path: Path, mode: int) -> None:
    key = tmp_path / home.DEVICE_KEY
    key.write_bytes(b"secret")
    key.chmod(mode)
    with pytest.raises(NotAuthorised) as caught:
        home.check_private(tmp_path)
    assert caught.value.next_step == f"chmod 600 {key}"
    key.chmod(0o600)
    home.check_private(tmp_path)


def test_a_home_without_an_identity_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(NotInitialised) as caught:
        home.require_identity(tmp_path)
    assert "init" in (caught.value.next_step or "")
    assert "join" in (caught.value.next_step or "")


def test_the_socket_of_a_deep_home_moves_to_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    deep = tmp_path / ("x" * 90)
    short = home.socket_path(deep)
    assert len(os.fsencode(short)) <= home.SOCKET_PATH_BYTES_MAX
    assert short == home.socket_path(deep)
    assert short != home.socket_path(tmp_path / ("y" * 90))
    assert home.socket_path(Path("/h")) == Path("/h/run/agent.sock")
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    of_the_service = home.socket_path(deep)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert home.socket_path(deep) == of_the_service, "a command in cron has no such variable"


def test_settings_survive_being_written_and_read(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    wanted = config.Config(name='na"me\\ö', tier="pocket", port=4001, listen=("127.0.0.1",),
                           static=("/ip4/1.2.3.4/tcp/5",))
    config.write(disk, wanted)
    assert config.read(disk) == wanted
    assert config.read(RealDisk(tmp_path / "none")) == config.Config()


@pytest.mark.parametrize(("text", "said"), [
    ("prot = 1", "prot"), ("port = 'x'", "port"), ("port = 70000", "65535"), ("tier = 'big'", "tier"),
    ("listen = [1]", "listen"), ("port = ", "Invalid value"), ("port = true", "port")])
def test_a_mistake_in_the_settings_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(UsageError, match=said):
        config.read(RealDisk(tmp_path))


def test_listening_addresses_are_multiaddrs() -> None:
    assert config.listen_addresses((), 7) == ("/ip4/0.0.0.0/tcp/7", "/ip6/::/tcp/7")
    assert config.listen_addresses(("127.0.0.1", "::1"), 0) == ("/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0")
    with pytest.raises(UsageError, match="kitchen"):
        config.listen_addresses(("kitchen",), 0)

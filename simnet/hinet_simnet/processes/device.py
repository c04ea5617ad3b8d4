"""One device: a home, perhaps a network and a small disk of its own, and the processes of `hinet-node` that run on it.

Every process is started through `launch` from the thread that runs the simulator, and ends when that does, however that
ends. Leaves who is linked to whom, and what happens when, to `stage`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from hinet_node.errors import AgentNotRunning, NodeError
from hinet_node.home import socket_path
from hinet_node.local.client import Client, agent_answers
from hinet_simnet.errors import SimnetError
from hinet_simnet.processes.isolation import NetSpace, SmallDisk
from hinet_simnet.scenario.model import DeviceSpec

START_TIMEOUT_S = 120.0
COMMAND_TIMEOUT_S = 300.0
CALL_SILENCE_S = 120.0
STOP_GRACE_S = 15.0
POLL_S = 0.03
LAST_LINES = 60


@dataclass
class Running:
    """One process and the pipe over which it is told things."""

    process: subprocess.Popen[bytes]
    control: int

    def tell(self, told: Mapping[str, Any]) -> None:
        try:
            os.write(self.control, json.dumps(told).encode() + b"\n")
        except BrokenPipeError:
            return  # it has ended, and needs to know nothing more

    def kill(self) -> None:
        """End it at once, also when it is stopped. Safe to repeat."""
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        while self.process.poll() is None:
            await trio.sleep(POLL_S)
        return int(self.process.returncode)

    def close(self) -> None:
        self.kill()
        if self.control >= 0:
            os.close(self.control)
            self.control = -1


@dataclass
class Device:
    """`place` is a folder of this device alone; `port` its fixed port on loopback, 0 in a network of its own."""

    spec: DeviceSpec
    place: Path
    environment: Mapping[str, str]
    net: NetSpace | None = None
    disk: SmallDisk | None = None
    port: int = 0
    told: dict[str, Any] = field(default_factory=dict)
    run_options: tuple[str, ...] = ()
    """More words for `hinet-node run`."""
    agent: Running | None = None
    frozen: bool = False
    ending: bool = False
    """Whether the end of the agent is what somebody asked for."""
    last_lines: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def home(self) -> Path:
        """The home as the device's processes see it."""
        return (self.disk.path if self.disk else self.place) / "home"

    @property
    def home_from_here(self) -> Path:
        """The same folder as this process sees it."""
        return self.disk.seen_from_here / "home" if self.disk else self.home

    def tell(self, **news: Any) -> None:
        """Change what the device's processes are told, those of now and those to come."""
        self.told.update(news)
        if self.agent is not None:
            self.agent.tell(self.told)

    async def command(self, *arguments: str, typed: str = "") -> dict[str, Any]:
        """Run one command line with `--json`; `typed` goes to its stdin. Errors: what it reported, with its code."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            running = self._start(["--json", *arguments], stdin=subprocess.PIPE, stdout=out, stderr=err)
            try:
                assert running.process.stdin is not None
                running.process.stdin.write(typed.encode())
                running.process.stdin.close()
                with trio.fail_after(COMMAND_TIMEOUT_S):
                    code = await running.ended()
            except trio.TooSlowError:
                raise SimnetError(f"`hinet-node {arguments[0]}` on {self.name} did not end within "
                                  f"{COMMAND_TIMEOUT_S:.0f} s") from None
            finally:
                running.close()
            out.seek(0)
            err.seek(0)
            lines = [line for line in out.read().decode("utf-8", "replace").splitlines() if line.startswith("{")]
            result: dict[str, Any] = json.loads(lines[-1]) if lines else {}
            if code == 0:
                return result
            said = err.read().decode("utf-8", "replace").strip().splitlines()
        what = str(result.get("what") or (said[-1] if said else "it said nothing"))
        error = NodeError(f"`hinet-node {arguments[0]}` on {self.name} failed: {what}", next_step=result.get("next"),
                          code=str(result.get("code") or "E_FAILED"))
        error.exit_code = code
        raise error

    def launch(self) -> None:
        """Start the agent; its output goes to a pipe that somebody must read (`agent.process.stdout`)."""
        listen = ["--listen", "127.0.0.1", "--port", str(self.port)] if self.port else []
        self.frozen = self.ending = False
        self.agent = self._start(["run", *listen, *self.run_options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT)

    async def ready(self) -> None:
        """Return once the agent answers. Errors: `NodeError` with its last words."""
        assert self.agent is not None, "launch comes first"
        running = self.agent
        with trio.move_on_after(START_TIMEOUT_S):
            while not agent_answers(self._folder_of_socket()):
                if running.process.poll() is not None:
                    await trio.sleep(2 * POLL_S)  # its last words are still being read
                    raise self._not_started(f"ended at its start: {self._last_words()}")
                await trio.sleep(POLL_S)
            return
        raise self._not_started(f"did not start within {START_TIMEOUT_S:.0f} s")

    async def call(self, verb: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """A verb of the agent's local API. Errors: `NodeError`."""
        if self.agent is None or self.agent.process.poll() is not None:
            raise AgentNotRunning(f"no agent runs on {self.name}", next_step="let a step start it first")
        if self.frozen:
            raise SimnetError(f"{self.name} is frozen and answers nothing", next_step="let a step thaw it first")
        folder = self._folder_of_socket()

        def call() -> dict[str, Any]:
            with Client(folder) as client:
                return client.call(verb, args, timeout_s=CALL_SILENCE_S)

        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)

    async def stop(self) -> None:
        """Ask the agent to end; make sure that it has."""
        running = self.agent
        if running is None:
            return
        self.ending = True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with trio.move_on_after(STOP_GRACE_S):
            await running.ended()
        self.kill()

    def kill(self) -> None:
        """End the agent at once. Its workers end with it. Safe to repeat."""
        self.ending = True
        running, self.agent, self.frozen = self.agent, None, False
        if running is not None:
            running.close()

    async def inside(self, *command: str) -> str:
        """Run a command of the system, such as `ip`, in this device's network; what it printed. Errors: `SimnetError`.
        """
        assert self.net is not None, "only in a network of its own"
        line = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.net.namespace}", "--", *command]
        done = await trio.run_process(line, capture_stdout=True, capture_stderr=True, check=False)
        if done.returncode:
            raise SimnetError(f"`{' '.join(command)}` on {self.name}: {done.stderr.decode('utf-8', 'replace').strip()}")
        return done.stdout.decode("utf-8", "replace")

    def signal(self, number: int) -> None:
        """To the agent, if one runs."""
        if self.agent is not None and self.agent.process.poll() is None:
            self.agent.process.send_signal(number)

    def close(self) -> None:
        """Give back all that the kernel lent."""
        self.kill()
        if self.disk is not None:
            self.disk.close()
        if self.net is not None:
            self.net.close()

    def _start(self, arguments: list[str], **streams: Any) -> Running:
        read, write = os.pipe()
        place: dict[str, Any] = {"control": read}
        if self.net is not None:
            place["net"] = self.net.namespace
        if self.disk is not None:
            place["mount"] = self.disk.namespace
        if self.port:
            place["relayed"] = True
        descriptors = [value for key, value in place.items() if key != "relayed"]
        line = [sys.executable, "-P", "-m", "hinet_simnet.processes.launch", json.dumps(place), "--",
                "--home", str(self.home), *arguments]
        try:
            # From this very thread: the kernel ends a child together with the thread that started it.
            process = subprocess.Popen(line, pass_fds=descriptors, env=child_environment(self.environment),
                                       start_new_session=True, **streams)
        except BaseException:
            os.close(write)
            raise
        finally:
            os.close(read)
        running = Running(process, write)
        running.tell(self.told)
        return running

    def _folder_of_socket(self) -> Path:
        """The folder to give to the local API's client, which looks for the socket inside it or, for a long path,
        where that path says."""
        return self.home_from_here if socket_path(self.home).is_relative_to(self.home) else self.home

    def _not_started(self, what: str) -> SimnetError:
        self.kill()
        return SimnetError(f"the agent of {self.name} {what}", next_step="see its log in the run's folder")

    def _last_words(self) -> str:
        return self.last_lines[-1] if self.last_lines else "it said nothing"


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The same installation; no home of the person who runs the simulator."""
    environment = {name: value for name, value in os.environ.items() if name not in ("HINET_HOME", "HINET_DEBUG")}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    environment["PYTHONUNBUFFERED"] = "1"
    return {**environment, **more}

"""Two Syncthing instances on loopback: no announcements, no relays, no reports, one folder for each measurement."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import measure

QUIET = {"globalAnnounceEnabled": "false", "localAnnounceEnabled": "false", "relaysEnabled": "false",
         "natEnabled": "false", "urAccepted": "-1", "autoUpgradeIntervalH": "0", "crashReportingEnabled": "false",
         "startBrowser": "false", "stunKeepaliveStartS": "0", "reconnectionIntervalS": "5"}
ENVIRONMENT = {**os.environ, "STNOUPGRADE": "1"}


class Instance:
    """One Syncthing process."""

    def __init__(self, home: Path) -> None:
        self.home, self.gui, self.port = home, _free_port(), _free_port()
        subprocess.run(["syncthing", "generate", "--home", str(home), "--no-default-folder", "--skip-port-probing"],
                       check=True, env=ENVIRONMENT, capture_output=True)
        config = home / "config.xml"
        text = config.read_text()
        self._key = re.findall(r"<apikey>(.*?)</apikey>", text)[0]
        self.device = subprocess.run(["syncthing", "--home", str(home), "--device-id"], capture_output=True, text=True,
                                     env=ENVIRONMENT, check=True).stdout.strip()
        for name, value in {**QUIET, "listenAddress": f"tcp://127.0.0.1:{self.port}"}.items():
            text = re.sub(rf"<{name}>.*?</{name}>", f"<{name}>{value}</{name}>", text)
        text = re.sub(r"(<gui [^>]*>\s*<address>).*?(</address>)", rf"\g<1>127.0.0.1:{self.gui}\g<2>", text)
        config.write_text(text)
        with home.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(["syncthing", "serve", "--home", str(home), "--no-browser", "--no-upgrade"],
                                            env=ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT)
        measure.until(self._answers, every_s=0.1)

    def api(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.gui}/rest/{path}", method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"X-API-Key": self._key, "Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text.strip() else None

    def state(self, folder: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api("GET", f"db/status?folder={folder}")
        return found

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        try:
            self.api("GET", "system/ping")
        except (OSError, urllib.error.URLError):
            return False
        return True


@contextmanager
def pair(folder: Path) -> Iterator[tuple[Instance, Instance]]:
    """Two instances that know each other and are connected."""
    folder.mkdir(parents=True, exist_ok=True)
    instances: list[Instance] = []
    try:
        instances += [Instance(folder / "sender")]
        instances += [Instance(folder / "receiver")]
        sender, receiver = instances
        sender.api("POST", "config/devices", {"deviceID": receiver.device,
                                              "addresses": [f"tcp://127.0.0.1:{receiver.port}"]})
        receiver.api("POST", "config/devices", {"deviceID": sender.device,
                                                "addresses": [f"tcp://127.0.0.1:{sender.port}"]})
        measure.until(lambda: sender.api("GET", "system/connections")["connections"].get(receiver.device, {}).get(
            "connected"), every_s=0.1)
        yield sender, receiver
    finally:
        for instance in instances:
            instance.stop()


def share(sender: Instance, receiver: Instance, name: str, source: Path, target: Path, files: int, *,
          password: str = "", scanned: Callable[[], None] = lambda: None) -> tuple[float, float]:
    """Share a folder of `files` files: (seconds that the sender scans, seconds from the index seen at the receiver
    to every file there). The receiver's folder is paused until the sender has scanned; then `scanned` is called. With a
    password the receiver is an untrusted device that holds ciphertext; Syncthing drops and dials its connection anew
    when such a folder goes on, which comes before the index is seen."""
    for place in (source, target):
        (place / ".stfolder").mkdir(parents=True, exist_ok=True)
    receiver.api("POST", "config/folders", {
        "id": name, "path": str(target), "paused": True, "type": "receiveencrypted" if password else "sendreceive",
        "devices": [{"deviceID": sender.device}]})
    begun = time.perf_counter()
    sender.api("POST", "config/folders", {"id": name, "path": str(source), "devices": [
        {"deviceID": receiver.device, "encryptionPassword": password}]})

    def idle() -> bool:
        state = sender.state(name)
        return bool(state["state"] == "idle" and state["localFiles"] == files)

    scan_s = measure.until(idle) - begun
    time.sleep(1)
    scanned()
    receiver.api("PATCH", f"config/folders/{name}", {"paused": False})
    seen = measure.until(lambda: receiver.state(name)["globalFiles"] > 0)

    def done() -> bool:
        state = receiver.state(name)
        return bool(state["state"] == "idle" and state["localFiles"] == files and not state["needFiles"])

    return scan_s, measure.until(done) - seen


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

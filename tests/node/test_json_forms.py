"""What scripts get from `--json`: the fields of each object. A field may be added here; none may go or change its name
without a new number in the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hinet_node.cli import revoke_cmd, root

Fields = Callable[..., dict[str, Any]]

DEVICE = {"name", "role", "tier", "fingerprint", "public", "state", "added_unix_s", "expires_unix_s", "revoke_reason",
          "via", "clock_offset_s", "behind", "last_seen_unix_s", "address", "version", "backends", "memory_bytes",
          "bases", "unaware_of"}
FORMS: list[tuple[str, str, set[str]]] = [
    ("status", "hinet.status/1", {"agent", "identity", "device", "devices", "vault", "invitations", "warnings",
                                  "healthy"}),
    ("devices", "hinet.devices/1", {"devices"}),
    ("devices show first", "hinet.device/1", DEVICE),
    ("doctor --no-network", "hinet.doctor/1", {"ok", "counts", "checks", "fixed", "bundle", "bundled"}),
    ("vault status", "hinet.vault-status/1", {
        "head_seq", "packs", "packs_bytes", "files", "files_bytes", "conflicts", "missing_packs", "damaged_packs",
        "free_bytes", "devices", "trouble", "readable", "copies_least", "single_packs", "single_bytes",
        "other_devices", "verified_packs", "verified_oldest", "verified_newest", "verify_days"}),
    ("vault verify --deep", "hinet.vault-verify/1", {
        "ok", "packs", "packs_bytes", "damaged", "missing", "files_unreadable", "deep", "chunks", "heads", "faults",
        "faults_count"}),
    ("vault repair --timeout 0", "hinet.vault-repair/1", {
        "ok", "found", "items", "files_unreadable", "asked_siblings"}),
    ("down", "hinet.down/1", {"running", "stopped", "by"}),
    ("logs", "hinet.logs/1", {"path", "lines"}),
    ("service status", "hinet.service-status/1", {"kind", "path", "installed", "running"}),
    ("service install --dry-run", "hinet.service-install/1", {"kind", "path", "text", "dry_run"}),
    ("completion bash", "hinet.completion/1", {"shell", "script"}),
    ("completion device-names", "hinet.device-name/1", {"name"}),
    ("version", "hinet.version/1", {"version", "protocol", "python", "platform"}),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    assert root.main(["--home", str(folder / "h"), "init", "--name", "first", "--words-file", str(folder / "w")]) == 0
    return folder / "h"


@pytest.fixture
def fields(home: Path, capsys: pytest.CaptureFixture[str]) -> Fields:
    def run(line: str) -> dict[str, Any]:
        capsys.readouterr()
        assert root.main(["--home", str(home), "--json", *line.split()]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


@pytest.mark.parametrize(("line", "schema", "names"), FORMS)
def test_each_object_has_its_schema_and_its_fields(fields: Fields, line: str, schema: str, names: set[str]) -> None:
    found = fields(line)
    assert found.pop("schema") == schema
    assert names <= set(found), f"gone: {names - set(found)}"


def test_the_parts_of_status_and_doctor_have_their_fields(fields: Fields) -> None:
    status = fields("status")
    assert set(status["identity"]) >= {"id", "height", "heads"}
    assert set(status["device"]) >= {"name", "role", "tier", "fingerprint", "public"}
    assert set(status["devices"][0]) >= DEVICE
    checks = fields("doctor --no-network")["checks"]
    assert all(set(check) >= {"number", "name", "state", "said", "fix", "fixable"} for check in checks)
    assert {check["state"] for check in checks} <= {"ok", "warn", "fail", "skip"}


@pytest.mark.parametrize(("role", "new_key"), [("keeper", False), ("member", True)])
def test_revoke_speaks_of_a_new_key_only_where_there_is_one(role: str, new_key: bool) -> None:
    lines = " ".join(revoke_cmd._done({"device": {"name": "attic", "role": role}, "keeps": "what it has", "told": [],
                                       "not_told": []}))
    assert ("new vault key" in lines) == new_key
    assert ("vault reseal" in lines) == new_key

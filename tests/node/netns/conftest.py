"""Where the kernel gives no network namespaces, the tests of this folder can't be made; the run's last lines say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from hinet_simnet.processes.isolation import net_refusal

collect_ignore_glob = ["test_*.py"] if net_refusal() else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if net_refusal():
        names = ", ".join(sorted(path.name for path in Path(__file__).parent.glob("test_*.py")))
        terminalreporter.section("network namespaces")
        terminalreporter.line(f"left out: {names}, since {net_refusal()}")

"""What a bug report leaves out, rule by rule, and what must stay for it to be of use."""

import pytest

from hinet_node.local.doctor.redact import Redactor, traceback_only

REDACTOR = Redactor(["kitchen", "kitchen pi", "a.b"], ["My diary.md", "anna"])


@pytest.mark.parametrize(("said", "left"), [
    ("kitchen pi left kitchen", "device-2 left device-1"),
    ("kitchens and axb stay", "kitchens and axb stay"),
    ("anna wrote My diary.md", "<hidden> wrote <hidden>"),
    ("ticket hinet1qqqqqqqqqq here", "ticket <ticket> here"),
    ("code 4711-zoo-zone-zero here", "code <code> here"),
    ("the file 'x y.md' and \"z\" and `w`", "the file <quoted> and <quoted> and <quoted>"),
    ("the device 'kitchen' was", "the device 'device-1' was"),
    ("read /home/x/y z, then ~/w", "read <path> z, then <path>"),
    ("key " + "ab" * 16, "key <long>"),
    ("key QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=", "key <long>"),
    ("from 8.8.8.8 to 192.168.1.5", "from <public address> to 192.168.1.5"),
    ("at /ip4/8.8.8.8/tcp/4001", "at /ip4/<public address>/tcp/4001"),
    ("at /ip4/10.0.0.1/tcp/4001, it", "at /ip4/10.0.0.1/tcp/4001, it"),
    ("at /dns/home.example.org/tcp/1", "at /dns/<host>/tcp/1"),
    ("at 2001:4860:4860::8888 and fe80::1", "at <public address> and fe80::1"),
    ("E_CLONE at height 12, 340 MiB, 05:12:07", "E_CLONE at height 12, 340 MiB, 05:12:07"),
])
def test_each_rule_takes_out_what_it_is_for_and_nothing_else(said: str, left: str) -> None:
    assert REDACTOR.text(said) == left


def test_values_inside_values_are_redacted_and_bytes_never_stay() -> None:
    assert REDACTOR.value({"a": ["kitchen", 1, None, True], "b": ("anna",), "c": b"secret"}) == {
        "a": ["device-1", 1, None, True], "b": ["<hidden>"], "c": None}


def test_of_a_traceback_only_places_and_kinds_stay() -> None:
    lines = ["Traceback (most recent call last):", '  File "/home/anna/lib/hinet_node/x/y.py", line 3, in f',
             "    open(secret_name)", '  File "/usr/lib/python3/site-packages/trio/_core.py", line 9, in g',
             "hinet_node.errors.NodeError: My diary.md is hunter2", "and hunter2 again"]
    assert traceback_only(lines) == ["  hinet_node/x/y.py:3 in f", "  site-packages/trio/_core.py:9 in g",
                                     "hinet_node.errors.NodeError"]


def test_a_log_goes_on_after_a_traceback() -> None:
    stamp = "2026-01-01T00:00:00+0000 "
    lines = [f"{stamp}the call ask failed unexpectedly:", f"{stamp}Traceback (most recent call last):",
             f"{stamp}ValueError: hunter2", f"{stamp}kitchen left: it said goodbye"]
    assert REDACTOR.log(lines) == [lines[0], f"{stamp}ValueError", f"{stamp}device-1 left: it said goodbye"]

"""Each check, with the fault that it is there for planted into the facts of a healthy machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hinet_node.local.doctor.checks import CHECKS, Finding
from hinet_node.local.doctor.facts import Facts, Sibling, VaultFacts, Warned

HEALTHY = Facts(version="1.0", siblings=(Sibling("laptop", version="1.0", clock_offset_s=1),
                                         Sibling("pocket", version="1.0", clock_offset_s=-2)))
AWAY = Sibling("pi", connected=False)
WARNED = (Warned("E_CLONE", "two machines are live", "hinet-node init --rekey"),)
ENDED = (Warned("E_CERTIFICATE_ENDS", "soon", "renew"), Warned("E_CERTIFICATE_EXPIRED", "it has run out", "renew"))


def finding(name: str, facts: Facts) -> Finding:
    [check] = [check for check in CHECKS if check.name == name]
    return check.judge(facts)


def test_all_is_well_on_a_healthy_machine() -> None:
    assert {check.name: check.judge(HEALTHY).state for check in CHECKS} == {check.name: "ok" for check in CHECKS}
    assert [check.number for check in CHECKS] == list(range(1, len(CHECKS) + 1))


FAULTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("home", {"home_problem": "it can't be written"}, "fail", "it can't be written"),
    ("home", {"initialised": False}, "warn", "no identity"),
    ("home", {"home_mode": 0o755}, "warn", "0755"),
    ("keys", {"open_files": (("device.key", 0o644),)}, "fail", "device.key (0644)"),
    ("identity", {"identity_problem": "the chain was cut short"}, "fail", "cut short"),
    ("identity", {"revoked": WARNED}, "fail", "two machines"),
    ("config", {"config_problem": "unknown key 'prot'"}, "fail", "'prot'"),
    ("agent", {"agent_running": False}, "warn", "not running"),
    ("agent", {"agent_problem": "it gives no status"}, "fail", "no status"),
    ("socket", {"socket_problem": "its folder is open to other users"}, "fail", "open to other users"),
    ("socket", {"socket_stale": True}, "warn", "has died"),
    ("clock", {"siblings": (Sibling("pi", clock_offset_s=90),)}, "warn", "90 s ahead of ours"),
    ("clock", {"siblings": (Sibling("pi", clock_offset_s=-86_400),)}, "fail", "24 h behind ours"),
    ("clock", {"clock_behind_chain_s": 90_000_000}, "fail", "1041 days behind"),
    ("clock", {"siblings": (AWAY,)}, "skip", "no sibling"),
    ("interfaces", {"interfaces_used": (), "interfaces_left_out": (("wg0", "a VPN"),)}, "warn", "wg0 left out: a VPN"),
    ("interfaces", {"interfaces_used": (), "interface_wanted": "eth7"}, "warn", "eth7"),
    ("multicast", {"multicast_heard": False, "multicast_problem": "eth0: not heard"}, "warn", "eth0: not heard"),
    ("multicast", {"network_tried": False}, "skip", "--no-network"),
    ("multicast", {"interfaces_used": ()}, "skip", "no interface"),
    ("port", {"port_problem": "port 4001 can't be listened on"}, "fail", "4001"),
    ("siblings", {"siblings": (replace(AWAY, reached=False, problem="refuses"),)}, "warn", "pi: refuses"),
    ("siblings", {"siblings": (replace(AWAY, reached=True),)}, "warn", "no session"),
    ("siblings", {"siblings": (AWAY,)}, "warn", "not connected: pi"),
    ("disk", {"free_bytes": 1 << 20}, "fail", "full"),
    ("disk", {"free_files": 3}, "fail", "3 more files"),
    ("disk", {"free_bytes": 1 << 29}, "warn", "reserve"),
    ("locale", {"encoding": "iso8859-1"}, "warn", "iso8859-1"),
    ("duplicate", {"clones": WARNED}, "fail", "two machines"),
    ("copies", {"vault": VaultFacts(5, 2, 1, 2, 0, 1)}, "warn", "2 packs missing here, 1 of them damaged"),
    ("copies", {"vault": VaultFacts(5, 0, 0, 1, 5, 0)}, "warn", "on this device only"),
    ("copies", {"vault": VaultFacts(5, 0, 0, 1, 1, 2)}, "warn", "1 pack only on this device yet"),
    ("copies", {"vault": None, "agent_running": False}, "skip", "running agent"),
    ("duplicate", {"agent_running": False}, "skip", "running agent"),
    ("forks", {"vault_trouble": WARNED}, "fail", "two machines"),
    ("forks", {"void": ("pi", "tv")}, "warn", "pi, tv"),
    ("forks", {"heads": 3}, "warn", "3 open ends"),
    ("certificates", {"certificates": ENDED[:1]}, "warn", "soon"),
    ("certificates", {"certificates": ENDED}, "fail", "has run out"),
    ("revocations", {"untold": WARNED}, "warn", "two machines"),
    ("versions", {"libraries": (("libp2p", "==0.8.1", "0.7.0"),)}, "fail", "libp2p ==0.8.1 is wanted, 0.7.0 is there"),
    ("versions", {"libraries": (("blake3", "", ""),)}, "fail", "nothing is there"),
    ("versions", {"siblings": (Sibling("pi", version="0.9"),)}, "warn", "pi 0.9"),
    ("service", {"service_kind": "none"}, "skip", "no systemd"),
    ("service", {"service_installed": False}, "warn", "does not start by itself"),
    ("service", {"service_current": False}, "warn", "another version"),
    ("service", {"service_running": False}, "warn", "stopped"),
    ("service", {"service_lingers": False}, "warn", "logs out"),
    ("leftovers", {"leftovers": 2}, "warn", "2 files"),
    ("warnings", {"other_warnings": WARNED * 3}, "warn", "two machines are live (and 2 more"),
    ("errors", {"errors_logged": 2}, "warn", "2 unexpected errors"),
]


@pytest.mark.parametrize(("name", "fault", "state", "said"), FAULTS)
def test_a_planted_fault_is_found_and_has_a_remedy(name: str, fault: dict[str, Any], state: str, said: str) -> None:
    facts = replace(HEALTHY, **fault)
    found = finding(name, facts)
    assert (found.state, said in found.said) == (state, True), found
    assert found.fix or state == "skip"


def test_each_check_has_a_fault_that_it_finds() -> None:
    assert {name for name, _, state, _ in FAULTS if state in ("warn", "fail")} == {check.name for check in CHECKS}


def test_several_siblings_that_agree_mean_that_our_clock_is_wrong() -> None:
    both = (Sibling("laptop", clock_offset_s=7_000), Sibling("pocket", clock_offset_s=7_100))
    assert "this machine's" in finding("clock", replace(HEALTHY, siblings=both)).fix
    one = (Sibling("laptop", clock_offset_s=0), Sibling("pocket", clock_offset_s=7_100))
    assert "pocket's" in finding("clock", replace(HEALTHY, siblings=one)).fix


def test_nothing_fails_before_init() -> None:
    before = Facts(initialised=False, agent_running=False, service_installed=False, version="1.0")
    states = {check.name: check.judge(before).state for check in CHECKS}
    assert "fail" not in states.values()
    assert {name for name, state in states.items() if state == "warn"} == {"home", "service"}


def test_a_path_with_spaces_is_quoted_in_what_to_type() -> None:
    facts = replace(HEALTHY, home="/home/a b", open_files=(("device.key", 0o644),))
    assert finding("keys", facts).fix == "chmod 600 '/home/a b/device.key'"

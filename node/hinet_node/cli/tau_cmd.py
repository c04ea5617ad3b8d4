"""`hinet-node tau make|info|diff|apply|verify`: task vectors as files. No agent and no home is needed."""

from __future__ import annotations

from hinet_node.cli import root, tau_make_cmd, tau_read_cmd

app = root.group("Make, look at, apply, compare and verify task vectors.")
tau_make_cmd.add_to(app)
tau_read_cmd.add_to(app)

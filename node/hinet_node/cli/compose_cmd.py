"""`hinet-node compose …`: combine what several task vectors know. No agent and no home is needed."""

from __future__ import annotations

from hinet_node.cli import compose_merge_cmd, compose_methods_cmd, compose_plan_cmd, root

app = root.group("Combine task vectors: plan how, merge them.")
compose_merge_cmd.add_to(app)
compose_methods_cmd.add_to(app)
compose_plan_cmd.add_to(app)

"""Every verb of the vault that needs nothing but the vault: the agent serves them, and without an agent a command runs
them itself under the home's lock (`hinet_node.cli.vault_local`). A new group of verbs is one line here."""

from __future__ import annotations

from hinet_node.api import Handler
from hinet_node.belonging.membership import Membership
from hinet_node.local.vault_gc_verbs import vault_gc_verbs
from hinet_node.local.vault_heads_verbs import vault_heads_verbs
from hinet_node.local.vault_ls_verbs import vault_ls_verbs
from hinet_node.local.vault_out_verbs import vault_out_verbs
from hinet_node.local.vault_past_verbs import vault_past_verbs
from hinet_node.local.vault_repair_verbs import vault_repair_verbs
from hinet_node.local.vault_verbs import vault_verbs
from hinet_node.ports import Disk
from hinet_node.vault import Vault


def all_vault_verbs(vault: Vault, disk: Disk, membership: Membership) -> dict[str, Handler]:
    """The handlers, by verb."""
    return {**vault_verbs(vault, disk, membership.names, membership), **vault_out_verbs(vault),
            **vault_ls_verbs(vault, membership.names),
            **vault_past_verbs(vault, membership.names, membership),
            **vault_heads_verbs(vault, membership.names, membership), **vault_repair_verbs(vault),
            **vault_gc_verbs(vault, membership.names, membership)}

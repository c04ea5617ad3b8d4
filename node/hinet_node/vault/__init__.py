"""The vault: one encrypted store per household, a replica on every device. SPEC.md, 6.

`Vault` is what the agent and learning use; `Replicator` keeps it in step with the siblings. Stored forms are pure and
live in `hinet_protocol` (`packs`, `trees`, `heads`, `reconcile`); bytes go through the Disk port.

    vault = await Vault.open(disk, randomness, clock, household)
    await vault.put(b"notes/dog.md", b"...")
    nursery.start(Replicator(vault, peers).run)
"""

from hinet_node.vault.items import (
    AddReport,
    DeviceState,
    Household,
    Item,
    OnProgress,
    Progress,
    Trouble,
    VaultSettings,
    VaultStatus,
)
from hinet_node.vault.replicate import Replicator
from hinet_node.vault.report import Fault, RepairReport, VerifyReport
from hinet_node.vault.vault import Vault

__all__ = ["AddReport", "DeviceState", "Fault", "Household", "Item", "OnProgress", "Progress", "RepairReport",
           "Replicator", "Trouble", "Vault", "VaultSettings", "VaultStatus", "VerifyReport"]

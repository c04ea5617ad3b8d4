"""Folders that keep themselves in the vault: one way, from the folder to the vault, as it changes.

`Watching` runs one `Watcher` for each folder that the `register` remembers. A watcher looks (`looking`), waits until
what it found is still (`settling`), asks whether so much may be lost (`losses`) and then puts, moves and removes. Word
of changes only says where to look sooner; a look at everything comes regularly all the same.
"""

from hinet_node.vault.watching.register import Register, Watch
from hinet_node.vault.watching.service import Watching

__all__ = ["Register", "Watch", "Watching"]

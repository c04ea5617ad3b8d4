"""A file system in memory that remembers which of its bytes reached the platter.

`model` answers the system calls and writes them down; `crash` makes of what was written down the states in which a
power cut may leave the disk; `faults` lets single calls fail. The real disk's code runs on it
(`hinet_node.real.disk.RealDisk`), call by call. Leaves what must hold in such a state to the tests.
"""

from hinet_simnet.filesystem.crash import History, Outcome, State, outcomes
from hinet_simnet.filesystem.faults import FailingCalls, Killed
from hinet_simnet.filesystem.model import ModelFilesystem

__all__ = ["FailingCalls", "History", "Killed", "ModelFilesystem", "Outcome", "State", "outcomes"]

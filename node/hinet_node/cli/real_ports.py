"""The real ports. Only the command line builds them; the agent receives them."""

from __future__ import annotations

from hinet_node.config import Config
from hinet_node.ports import Ports
from hinet_node.real.compute import ProcessCompute
from hinet_node.real.discovery import ZeroconfDiscovery
from hinet_node.real.disk import RealDisk
from hinet_node.real.folders import RealFolders
from hinet_node.real.system import SystemClock, SystemRandomness
from hinet_node.real.transport import Libp2pNetwork


def build(folder: str, config: Config) -> Ports:
    """The ports of the home at `folder`."""
    clock, randomness = SystemClock(), SystemRandomness()
    interfaces = [config.interface] if config.interface else None
    return Ports(clock=clock, randomness=randomness, network=Libp2pNetwork(interfaces=interfaces),
                 discovery=ZeroconfDiscovery(only=interfaces), disk=RealDisk(folder), compute=ProcessCompute(),
                 folders=RealFolders())

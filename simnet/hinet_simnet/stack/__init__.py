"""The real transport, libp2p's Noise and yamux, over the simulator's links in virtual time.

`sockets` takes TCP's place, `keys` seeds what Noise draws, `stage` is the world with this network. Leaves links,
partitions and machines to the world's own parts, which are the same. Only this package, `levels.stack` and what runs
real processes may import libp2p.
"""

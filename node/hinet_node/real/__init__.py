"""The real ports: this machine's clock, randomness, disk, LAN discovery, transport and worker processes.

Only the command line builds them; `hinet_simnet` has their in-memory twins. They carry no policy.
"""

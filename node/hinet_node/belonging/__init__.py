"""Belonging: the chain on disk, inviting, joining, and who is in the household.

The rules are in `hinet_protocol.chain` and `hinet_protocol.join`; here they meet disk, clock and streams.
"""

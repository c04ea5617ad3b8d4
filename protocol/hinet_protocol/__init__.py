"""What goes over the wire and into signatures: no I/O, no clock, no randomness.

Everything here is a value, a pure function or a pure state machine. Time, randomness and bytes come in as
arguments. SPEC.md describes the formats; `protocol/vectors/` holds known answers for them.
"""

PROTOCOL_VERSION = 1
"""The version of the wire protocol that this package speaks (SPEC.md, 5.4)."""

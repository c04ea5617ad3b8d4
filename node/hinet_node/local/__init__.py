"""The agent on its own machine: the verbs of the local API, its socket, and the unit that keeps the agent running.

SPEC section 9.
"""

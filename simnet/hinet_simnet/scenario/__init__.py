"""Scenarios: who is there, how they are connected, what happens to them, what must hold. One format for all levels."""

"""Runs: recording, replaying, shrinking, soaking, sweeping and reporting what the levels play."""

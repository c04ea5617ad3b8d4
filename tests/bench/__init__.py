"""Speeds and sizes, each beside a peer measured in the same run. One module for each measured thing, with `run(bench)`.

Not part of the test suite: nothing here passes or fails by a figure. `docs/benchmarks.md` says how to read the tables.
"""

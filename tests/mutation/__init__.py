"""The checks, each taken away in turn: a test must notice. `make mutants` runs `tests/mutants.py`."""

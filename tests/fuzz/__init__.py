"""The fuzzers of every parser that reads bytes from outside. `make fuzz` runs them; `tests/fuzz.py` is the command."""

# make setup | run | test | check | bench | fuzz | mutants. Set-up happens by itself, once, and again only when its inputs change.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
N ?= 1000000
SEED ?= 1

.PHONY: help setup run test check bench fuzz mutants clean
help:
	@echo "make run     set up, then the demo: three nodes, one vault, a pocket that answers"
	@echo "make test    set up, then the whole test suite"
	@echo "make check   ruff, mypy, import contracts, tidy"
	@echo "make bench   speeds, as ratios against a peer in the same run"
	@echo "make mutants takes away each verification in turn and sees a test go red"
	@echo "make fuzz    damaged bytes for every parser that reads from outside, N=1000000 of them"

setup: $(READY)
$(READY): pyproject.toml constraints.txt node/setup_environment.py
	@$(PYTHON) node/setup_environment.py

run: $(READY)
	@$(BIN)/hinet-node demo $(DEMO)

test: $(READY)
	@$(BIN)/python -m pytest $(TESTS)

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q tests/test_tidy.py

bench: $(READY)
	@$(BIN)/python tests/bench.py

fuzz: $(READY)
	@$(BIN)/python tests/fuzz.py --inputs $(N) --seed $(SEED)

mutants: $(READY)
	@$(BIN)/python tests/mutants.py

clean:
	rm -rf .venv build dist

# make demo    the main job on a fresh machine
# make test    format, lint, types, tests (under 10 minutes on 2 cores, after the installation)
# make help    the rest
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= $(shell nproc)
READY  := $(VENV)/.ready

.PHONY: help setup demo test test-long check format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       synthesise speech, prepare it, train alone and with 2 learners, decode, compare"
	@echo "make test       checks and tests"
	@echo "make test-long  the slow rest of the tests"
	@echo "make setup      .venv with everything; then: . .venv/bin/activate"
	@echo "make check      ruff format, ruff lint, mypy strict, which room imports which"
	@echo "make format     let ruff rewrite the files"
	@echo "make bench      time is measured here and nowhere else"
	@echo "make clean      remove the virtual environment and caches"

setup: $(READY)

# The stamp is last: an interrupted installation is taken up again, never believed.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Hocket needs Python 3.11 or newer; try: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
	  echo "venv is missing; trying the system's package"; \
	  apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

demo: setup
	$(BIN)/python -m hocket demo --out runs/demo

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Learners in real processes fill the machine by themselves; all other tests run side by side.
test: check
	$(BIN)/python -m pytest -m "not long" --ignore tests/multiprocess -n $(JOBS) --dist loadfile
	$(BIN)/python -m pytest -m "not long" tests/multiprocess

test-long: setup
	$(BIN)/python -m pytest -m long

bench: setup
	$(BIN)/python benchmarks/simulator_overhead.py
	$(BIN)/python benchmarks/speech.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build src/*.egg-info

# make demo    the main job on a fresh machine
# make test    format, lint, types, tests (under 8 minutes on 2 cores, after the installation)
# make help    the rest
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= $(shell nproc)
READY  := $(VENV)/.ready

.PHONY: help setup demo test test-long test-engines check compiled format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       synthesise speech, prepare it, train alone and with 2 learners, decode, compare"
	@echo "make test       checks and tests"
	@echo "make test-long  the slow rest of the tests"
	@echo "make test-engines  programs that start learners (Open MPI, Ray), installed beside .venv"
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

# Tests start hundreds of processes: each would compile all that it imports, where none may write bytecode.
compiled: setup
	@$(BIN)/python -m compileall -q src tests

# One worker runs the tests with learners in real processes, the others all that remains (tests/conftest.py).
test: check compiled
	$(BIN)/python -m pytest -m "not long" -n $(JOBS) --dist loadgroup

test-long: compiled
	$(BIN)/python -m pytest -m long -n $(JOBS) --dist loadgroup

# Beside .venv, so that nothing heavy comes into it; a .pth file lets it see all that is in .venv.
# What cannot be installed is skipped, and said.
ENGINES := .venv-engines
ENGINE_PACKAGES := "openmpi>=5,<6" "mpi4py>=4" "ray[train]>=2.40" "submitit>=1.5" "lightning>=2.4" "sherpa-onnx>=1.10" "mlflow-skinny>=2.16" "trackio>=0.4" "wandb>=0.18"
SITE := import sysconfig; print(sysconfig.get_path("purelib"))
test-engines: setup
	@$(PYTHON) -m venv $(ENGINES)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c '$(SITE)')')" > \
	  "$$($(ENGINES)/bin/python -c '$(SITE)')/hocket.pth"
	@for package in $(ENGINE_PACKAGES); do \
	  timeout 120 $(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check "$$package" || \
	    echo "$$package cannot be installed: its tests are skipped"; \
	done
	HOCKET_MPIRUN=$(CURDIR)/$(ENGINES)/bin/mpirun timeout 1500 $(ENGINES)/bin/python -m pytest tests/engines -rs

bench: setup
	$(BIN)/python benchmarks/simulator_overhead.py
	$(BIN)/python benchmarks/speech.py

clean:
	rm -rf $(VENV) $(ENGINES) .mypy_cache .ruff_cache .pytest_cache build src/*.egg-info

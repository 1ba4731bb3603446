# Every target makes .venv and installs into it what it needs; nothing has to be done by hand before.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test tests tests-engine tests-service check docs references format test-slow faults bench bench-report kernels clean

help:  ## List the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

demo: $(VENV)/installed  ## Label a real dataset with a small model on this machine
	$(BIN)/nightmill demo --min-accuracy 0.78

# Side by side, as mypy takes the better part of a minute of one core; either's failure fails it.
test: $(VENV)/installed-dev  ## Lint, types, import rules and the tests
	@$(MAKE) --no-print-directory -j2 check tests

# Two processes, as most tests wait for something half of their time. Those of the engine need no server, and share none.
tests: $(VENV)/installed-dev  ## The tests alone
	@$(MAKE) --no-print-directory -j2 tests-engine tests-service

tests-engine: $(VENV)/installed-dev
	$(BIN)/pytest -q tests/engine tests/kernels

tests-service: $(VENV)/installed-dev
	$(BIN)/pytest --ignore tests/engine --ignore tests/kernels

check: $(VENV)/installed-dev  ## Lint, types and import rules alone
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: references  ## Build the documentation as a site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

references: $(VENV)/installed-dev  ## Write docs/reference from the code
	$(BIN)/python -m tests.docs.references

test-slow: $(VENV)/installed-dev  ## The tests that take minutes
	$(BIN)/pytest -m slow --timeout 1800

faults: $(VENV)/installed-dev  ## Kill and cut real processes: RUNS=3 on disks, BUCKET_RUNS=1 in a bucket; writes docs/faults.md
	-$(BIN)/python -m pip install --quiet libfaketime  # needs a compiler; without it the test of wrong clocks is skipped
	$(BIN)/python -m tests.faults.runs

bench: $(VENV)/installed-dev  ## Throughput beside other engines, as far as their environments are there
	$(BIN)/python -m tests.bench.bench

bench-report: $(VENV)/installed-dev  ## Put the results of tests/bench/gpu.py into docs/performance.md
	$(BIN)/python -m tests.bench.gpu_report

kernels: $(VENV)/installed-dev  ## Compile the Triton kernels and write docs/kernels.md
	$(BIN)/python -m tests.gpu_compile.table

format: $(VENV)/installed-dev  ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## Remove the environment and the demo's output
	rm -rf $(VENV) demo-output

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Nightmill needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/installed

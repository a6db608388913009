# Capellini. `make` alone lists the targets.
#
# Everything lives in .venv; .venv/.ready is newer than the lock file and pyproject.toml when it is complete, so
# that setup costs nothing the second time. The Cassandra server for the tests comes through Maven, once.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
# Two processes, since the machine to be fast on has two cores: see tests/conftest.py on what they share.
TOGETHER := -n 2 --dist loadscope
# Empty: what was compiled is kept, whatever the machine says. Tests start hundreds of processes, and those that compile
# the package anew take twice as long to start.
export PYTHONDONTWRITEBYTECODE :=
STORE ?= rocks:data
SEEDS ?= 200

.PHONY: help setup run java test compiled test-fast test-long check bench bench-peers simulate coverage clean

help: ## list the targets
	@echo "Targets:"
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(VENV)/.ready ## make .venv with everything the tests need (again only after changes)

$(BIN)/python:
	@python=; found=; \
	for each in python3 python3.11 python3.12 python3.13 python3.14; do \
	  command -v $$each >/dev/null || continue; found=$$each; \
	  if $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then python=$$each; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "Python 3.11 or newer is needed ($${found:-none} is too old or missing): install python3.11" >&2; exit 2; fi; \
	if ! $$python -c 'import venv, ensurepip' 2>/dev/null; then \
	  echo "$$python has no venv module: install python3-venv" >&2; exit 2; fi; \
	$$python -m venv $(VENV)

$(VENV)/.ready: pyproject.toml requirements.lock | $(BIN)/python
	@echo "installing into $(VENV)"
	@$(PIP) -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $(VENV)/.runtime $@

# What serving needs and no more: the lock file only says which versions.
$(VENV)/.runtime: pyproject.toml requirements.lock | $(BIN)/python
	@echo "installing into $(VENV)"
	@$(PIP) -c requirements.lock setuptools
	@$(PIP) -c requirements.lock --no-build-isolation -e .
	@touch $@

run: $(VENV)/.runtime ## serve on the embedded store in ./data (STORE=... for another)
	@echo "starting on $(STORE); it says below where it listens. Then try, in another terminal:"
	@echo "  $(BIN)/capellini queue create jobs && $(BIN)/capellini put jobs hello && $(BIN)/capellini get jobs"
	@$(BIN)/capellini serve --store $(STORE)

java: setup
	@$(BIN)/python -m capellini.local.jars

test: setup java ## all checks and all tests but the full-size ones
	@$(MAKE) --no-print-directory -j 2 --output-sync=target check compiled
	$(PYTEST) $(TOGETHER) --durations 30

# The tests of a fresh clone are compiled once, while the checks leave a core idle; else both processes would do it.
compiled: setup
	@[ -d tests/unit/__pycache__ ] || { said=$$($(PYTEST) --collect-only -qq 2>&1) || { echo "$$said"; exit 1; }; }

test-fast: setup ## the minute-long part: no Cassandra, nothing slow
	$(PYTEST) -q $(TOGETHER) -m "not long and not cassandra and not slow and not spark"

test-long: setup java check ## everything, at full size
	$(PYTEST) -m "" -o faulthandler_exit_on_timeout=false

check: setup ## ruff, mypy strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup java ## measure this machine: stores, queues and counters, with the peers that can be had
	for name in store work timed log counters pipeline; do $(BIN)/capellini bench $$name; done

bench-peers: setup java ## measure beside other queues (about 20 minutes), and write what was found into docs/benchmarks.md
	$(BIN)/capellini bench peers --page docs

simulate: setup ## run the seeded simulations (SEEDS=200)
	for name in work timed log counters; do $(BIN)/capellini simulate $$name --seeds $(SEEDS); done

coverage: setup java ## tests with branch coverage; node and client printed apart
	@rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -q $(TOGETHER)
	$(BIN)/coverage combine -q
	@echo "== all"; $(BIN)/coverage report --skip-empty
	@echo "== node"; $(BIN)/coverage report --include='src/capellini/node/*'
	@echo "== client"; $(BIN)/coverage report --include='src/capellini/client/*'

clean: ## remove what the tools made (not .venv, not ./data)
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

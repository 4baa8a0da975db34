.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## Show what can be done
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# torch first: its pin must be met before another package asks for any torch at all
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,flower]'
	@touch $@

setup: .venv/ready ## Make .venv with everything in it

demo: .venv/ready ## Run the quickstart: personal against shared models, in under a minute
	$(BIN)/sparsona run quickstart

test: .venv/ready ## Run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

fleet: .venv/ready ## Run the tests of a fleet of processes: every method, chaos, commands; a quarter of an hour
	$(BIN)/python -m pytest -m fleet tests/fleet tests/engines

lint: .venv/ready ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict src/sparsona/core src/sparsona/method.py

bench: .venv/ready ## Measure everything and rewrite docs/benchmarks.md
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,flower,bench]'
	$(BIN)/python benchmarks/all.py

clean: ## Remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: help setup demo test fleet lint bench clean

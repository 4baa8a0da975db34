.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## Show what can be done
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

# torch first: its pin must be met before another package asks for any torch at all
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5) and "Python 3.11.5 or newer is needed; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,flower]'
	@touch $@

setup: .venv/ready ## Make .venv with everything in it

demo: .venv/ready ## Run the quickstart: personal against shared models, in under a minute
	$(BIN)/sparsona run quickstart

test: .venv/ready ## Run the tests: everything once, in five minutes on two cores
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: .venv/ready ## Run all tests, with coverage: the long tier too, then the fleet of processes
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not fleet' --cov=sparsona --cov-report=
	$(MAKE) fleet COVER='--cov=sparsona --cov-append --cov-report=term:skip-covered'

fleet: .venv/ready ## Run the tests of a fleet of processes: every method, chaos, commands; a quarter of an hour
	$(BIN)/python -m pytest -m fleet tests/fleet tests/engines $(COVER)

lint: .venv/ready ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict src/sparsona/core src/sparsona/method.py

bench: .venv/ready ## Measure everything and rewrite docs/benchmarks.md
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,flower,bench]'
	$(BIN)/python benchmarks/all.py

docs: .venv/ready ## Build the site into site/, strictly; python -m http.server -d site shows it
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release-check: ## Check version, changelog and tag, and that the wheel works in a clean environment
	$(PYTHON) tools/release_check.py

clean: ## Remove .venv and caches
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: help setup demo test test-all fleet lint bench docs release-check clean

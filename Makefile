# Targets for people and for CI; `make help` lists them.
VENV   ?= .venv
PYTHON ?= python3
BIN     = $(VENV)/bin
PIP     = $(BIN)/pip --disable-pip-version-check --quiet install --constraint constraints.txt

# The tools that scripts/install-test-tools unpacked come first.
export PATH := $(CURDIR)/.tools/bin:$(PATH)

SOURCES = pyproject.toml constraints.txt README.md $(shell find exporter -name '*.py' -o -name '*.j2' -o -name '*.yaml')
# CPU builds of torch are small only on some machines (elsewhere the default wheel brings gigabytes of CUDA), so the
# tests with a real torchrun are asked for: `make test TORCH=1`. In CI they are not optional.
TORCH ?= $(if $(CI),1,)
TESTED  = $(VENV)/installed-test$(if $(TORCH),-torch)

# A module stays on one worker, for its shared fixtures. One worker waits for the scenarios, which take what processors
# are free; the end-to-end tests, which come next, mostly wait too, so more workers than cores pay.
WORKERS ?= 5

.PHONY: help run demo test tools lint docs bench soak fuzz robustness clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

run: $(VENV)/installed ## start the exporter with no configuration on :14311
	exec $(BIN)/training-exporter $(ARGS)

demo: $(VENV)/installed ## play a stall behind the real exporter, with Prometheus and Alertmanager where installed
	exec $(BIN)/training-exporter demo --monitoring . $(ARGS)

test: ## install what the tests need and run every check
	$(MAKE) --no-print-directory --jobs=2 $(TESTED) tools
	$(MAKE) --no-print-directory lint
	$(BIN)/pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder $(PYTEST)
	@$(if $(TORCH),:,echo "Not run: the tests with a real torchrun (they need PyTorch). make test TORCH=1 installs it and runs them.")

tools:
	CI=$(CI) scripts/install-test-tools

lint: $(TESTED) ## style, types, import direction, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/generate.py --check
	$(BIN)/python grafana/generate.py --check
	$(BIN)/python deploy/kubernetes/generate.py --check

docs: $(TESTED) ## write the generated pages and dashboards anew
	$(BIN)/python docs/generate.py
	$(BIN)/python grafana/generate.py
	$(BIN)/python deploy/kubernetes/generate.py

bench: $(TESTED) ## measure beside what people use today, into docs/benchmarks.md (as root, 40 minutes; BENCH=--quick: a look)
	CI=$(CI) scripts/install-test-tools
	$(BIN)/python bench/run.py $(BENCH)

MINUTES ?= 60
soak: $(TESTED) ## run the exporter under everything at once for MINUTES=60
	$(BIN)/python tests/soak.py --minutes $(MINUTES)

EXAMPLES ?= 20000
fuzz: $(TESTED) ## feed every parser with EXAMPLES=20000 inputs of each kind
	FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/pytest --numprocesses=auto --timeout=0 tests/test_fuzz.py $(PYTEST)

robustness: $(TESTED) ## play every scenario scraped badly, with a restart and at another tempo (half an hour)
	$(BIN)/pytest --robustness tests/test_rules_scenarios.py -k bad_conditions $(PYTEST)

clean: ## remove everything that was built
	rm -rf $(VENV) build dist .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed (PYTHON=...)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3-venv is needed: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }

# What runs and what is tested is the built wheel, never the source tree.
build/wheel: $(SOURCES) | $(BIN)/python
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/pip --disable-pip-version-check --quiet wheel --no-deps --wheel-dir build/wheel .

$(VENV)/installed: build/wheel
	$(PIP) build/wheel/*.whl
	$(PIP) --force-reinstall --no-deps build/wheel/*.whl
	touch $@

$(TESTED): $(VENV)/installed
	$(PIP) "$$(echo build/wheel/*.whl)[test$(if $(TORCH),$(comma)torch)]"
	touch $@

comma := ,

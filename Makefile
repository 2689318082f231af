# Every target makes .venv and installs what it needs; the second time it is quick.
#
#   make demo    real traffic on loopback, recorded, analysed on embedded Spark, report written
#   make test    lint, types, the whole suite: compiled, then the core interpreted
#   make bench   every figure beside its floor and its peers (ONLY=kernels|live|captures|...)
#   make soak    the long forms, a line for each figure (MINUTES=10)
#   make fuzz    every decoder against octets nobody would send (SECONDS=60 each)
#   make docs    the pages, as HTML in docs/_build

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src -name '*.py' -o -name '*.js' -o -name '*.css' -o -name '*.html' -o -name 'py.typed')
# Tests that measure time or memory, or stop and kill other processes, run with nothing beside them;
# the others in two processes, each file in one of them, those that take long first.
ALONE := tests/attacks tests/aio tests/record tests/collect tests/stateful
LONG := tests/spark tests/test_readme.py tests/fuzz tests/interop tests/e2e
COMPUTE := tests/core tests/protocols tests/testing tests/capture
TWO := -n 2 --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest -q
INTERPRETED := PYTHONPATH=$(CURDIR)/src POLYMUX_RUN=interpreted $(PYTEST)
MAKEFLAGS += -j2  # lint while the core is compiled

.PHONY: demo test lint bench soak fuzz mutants docs install clean

install: $(VENV)/installed

$(VENV)/dependencies: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/dependencies.py > $(VENV)/requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
	touch $@

# The package itself: compiled where there is a compiler, otherwise the same files interpreted.
$(VENV)/installed: $(VENV)/dependencies setup.py README.md $(SOURCES)
	rm -rf build src/*.egg-info
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall .
	rm -rf build src/*.egg-info
	$(BIN)/python tools/java.py
	@cd / && $(CURDIR)/$(BIN)/python -c "from polymux.core import conversation as c; print('polymux is installed,', 'compiled' if not c.__file__.endswith('.py') else 'interpreted: no C compiler was found')"
	touch $@

lint: $(VENV)/dependencies
	$(BIN)/ruff check src tests bench tools setup.py
	$(BIN)/ruff format --check src tests bench tools setup.py
	$(BIN)/mypy --strict src tests bench tools

test: lint $(VENV)/installed
	$(PYTEST) $(ALONE)
	$(PYTEST) $(TWO) $(LONG) tests $(addprefix --ignore=,$(ALONE))
	$(INTERPRETED) $(TWO) $(COMPUTE)
	$(INTERPRETED) tests/aio --ignore=tests/aio/test_uvloop.py

demo: $(VENV)/installed
	$(BIN)/polymux demo --out demo-out

bench: $(VENV)/installed
	$(BIN)/python -m bench $(ONLY)

soak: $(VENV)/installed
	$(BIN)/python -m tools.soak --minutes $(or $(MINUTES),10)

fuzz: $(VENV)/installed
	PYTHONPATH=$(CURDIR)/src $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

mutants: $(VENV)/installed
	$(BIN)/python -m tools.mutants --count $(or $(COUNT),600)

docs: $(VENV)/installed
	$(BIN)/python -m sphinx -W -q -b html docs docs/_build

clean:
	rm -rf $(VENV) build demo-out .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Every target makes .venv and installs what it needs; the second time it is quick.
#
#   make demo    real traffic on loopback, recorded, analysed on embedded Spark, report written
#   make test    lint, types, the whole suite: compiled, then the core interpreted
#   make bench   every figure beside its floor and its peers (ONLY=kernels|live|captures|...)
#   make soak    long runs under load, a line for each figure (MINUTES=10)
#   make fuzz    every decoder against arbitrary bytes (SECONDS=60 each)
#   make lock    requirements.lock anew: what is installed for development and CI, with hashes
#   make docs    the documentation, as HTML in docs/_build
#   make wheels  an sdist and a wheel for each Python 3.11 to 3.13 found, in dist/ (PYTHONS="... ...")
#   make release the wheels, and a bill of materials of what they need, in dist/
#   make matrix  every way to install, in empty environments, on each of these Pythons
#   make packages  the wheel of `make install` and an sdist, installed where there is no compiler

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src -name '*.py' -o -name '*.js' -o -name '*.css' -o -name '*.html' -o -name 'py.typed')
# Tests of live connections run first, undisturbed by those that keep every core busy; then all
# others, then the core once more interpreted. Most tests also wait, so there are more processes than
# cores. tests/processes.py says which tests run in the same process, and which of them first.
LIVE := tests/attacks tests/record tests/relay tests/aio tests/stateful
CORE := tests/core tests/protocols tests/testing tests/capture tests/aio
THREE := -n 3 --no-loadscope-reorder
# Bytecode is kept, wherever else that is turned off: rewriting the asserts takes longest in
# collecting tests, and every process collects them all.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q
INTERPRETED := PYTHONPATH=$(CURDIR)/src POLYMUX_RUN=interpreted $(PYTEST)
STEP := $(BIN)/python -m tools.step
PIP := $(BIN)/pip --disable-pip-version-check
MAKEFLAGS += -j2  # lint while the core is compiled
export PYTHONS

.PHONY: demo test lint bench soak fuzz mutants docs install lock wheels release matrix packages clean

install: $(VENV)/installed

# Only what the lock names, byte for byte.
$(VENV)/dependencies: requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(STEP) "installing what polymux needs into $(VENV)" \
		$(PIP) install --require-hashes -r requirements.lock
	touch $@

# The newest versions that pyproject.toml allows, for all supported Pythons and systems at once.
lock:
	test -x $(VENV)-lock/bin/python || $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet --disable-pip-version-check uv
	$(VENV)-lock/bin/python tools/dependencies.py | $(VENV)-lock/bin/uv pip compile --quiet \
		--upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --output-file requirements.lock -

# The package itself, as pip builds it for users: compiled where there is a compiler, otherwise the
# same files interpreted.
$(VENV)/installed: $(VENV)/dependencies setup.py README.md $(SOURCES)
	rm -rf $(VENV)/wheel build/lib* build/temp* build/bdist* src/*.egg-info
	@$(STEP) "building polymux (compiling takes 2 to 4 minutes, POLYMUX_COMPILE=no seconds)" \
		$(PIP) wheel -v --no-deps -w $(VENV)/wheel .
	rm -rf build/lib* build/temp* build/bdist* src/*.egg-info
	$(PIP) install --quiet --no-deps --force-reinstall $(VENV)/wheel/*.whl
	$(BIN)/python tools/java.py
	@cd / && $(CURDIR)/$(BIN)/polymux doctor | grep ' core '
	touch $@

lint: $(VENV)/dependencies
	$(BIN)/ruff check src tests bench tools setup.py
	$(BIN)/ruff format --check src tests bench tools setup.py
	$(BIN)/mypy --strict src tests bench tools

test: lint $(VENV)/installed
	$(PYTEST) $(THREE) $(LIVE)
	$(PYTEST) $(THREE) tests $(addprefix --ignore=,$(LIVE))
	$(INTERPRETED) $(THREE) $(CORE) --ignore=tests/aio/test_uvloop.py

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

wheels:
	$(PYTHON) -m tools.wheels

release: $(VENV)/installed wheels
	$(BIN)/python -m tools.sbom > dist/polymux.cdx.json

matrix:
	$(PYTHON) -m tools.installs matrix

packages: $(VENV)/installed
	$(BIN)/python -m tools.installs packages $(VENV)/wheel/*.whl

clean:
	rm -rf $(VENV) $(VENV)-lock build dist demo-out .mypy_cache .pytest_cache .ruff_cache .hypothesis

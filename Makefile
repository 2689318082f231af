# Every target makes .venv and installs what it needs; the second time it is quick.
#
#   make demo    real traffic on loopback, recorded, analysed on embedded Spark, report written
#   make test    lint, types, the whole suite: compiled, then the core interpreted
#   make bench   every figure beside its floor and its peers (ONLY=kernels|live|captures|...)
#   make soak    the long forms (MINUTES=10)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src -name '*.py' -o -name '*.js' -o -name '*.css' -o -name '*.html' -o -name 'py.typed')
INTERPRETED := tests/core tests/protocols tests/testing tests/capture tests/aio

.PHONY: demo test lint bench soak install clean

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
	$(BIN)/python -m pytest -q
	PYTHONPATH=$(CURDIR)/src POLYMUX_RUN=interpreted $(BIN)/python -m pytest -q $(INTERPRETED)

demo: $(VENV)/installed
	$(BIN)/polymux demo --out demo-out

bench: $(VENV)/installed
	$(BIN)/python -m bench $(ONLY)

soak: $(VENV)/installed
	POLYMUX_SOAK=$(or $(MINUTES),10) $(BIN)/python -m pytest -q tests

clean:
	rm -rf $(VENV) build demo-out .mypy_cache .pytest_cache .ruff_cache .hypothesis

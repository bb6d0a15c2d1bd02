# make demo | test | unit | lint | bench | docs | build: each sets up what it needs in .venv
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup browser demo test unit lint bench docs build clean

setup: .venv/.ready

.venv/.ready: pyproject.toml
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv --clear .venv; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/centerhash demo --out demo

test: setup browser lint
	$(BIN)/python -m pytest

# the report is looked at in a real browser: Debian's, where we may install it
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "note: no Chromium, and it could not be installed (needs root and apt): browser tests are skipped"

unit: setup
	$(BIN)/python -m pytest -m 'not slow'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vulture
	$(BIN)/python -m pytest -m 'not slow' tests/test_docs.py

bench: setup
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.search
	$(BIN)/python -m benchmarks.loading
	$(BIN)/python -m benchmarks.encoding
	$(BIN)/python -m benchmarks.load

# the site, into site/: a link that leads nowhere or an unknown name in the reference fails it
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.venv/.docs: .venv/.ready mkdocs.yml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

# the wheel and the source archive, into dist/
build: setup
	$(BIN)/python -m build

clean:
	rm -rf demo site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

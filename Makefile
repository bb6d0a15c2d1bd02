# Targets with a text after ## are listed by `make help`; each sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# tests/conftest.py says which tests run in the same process
PYTEST := $(BIN)/python -m pytest -n auto
# what is compiled is kept: else each of the many processes of the tests compiles all modules again
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup browser demo test pytest unit coverage lint checks format bench torture docs build wheel-check clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: .venv/.ready ## install everything for development into .venv

.venv/.ready: pyproject.toml constraints.txt
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv --clear .venv; }
	$(INSTALL) --editable '.[dev]'
	touch $@

demo: setup ## compare methods on real data: demo/report.html
	$(BIN)/python -m reproduction demo --out demo

# the checks and the site need one CPU and half a minute: they run at the same time as the tests
test: setup browser .venv/.docs ## run all checks and all tests
	$(MAKE) --jobs 3 checks docs pytest

pytest: setup
	$(PYTEST)

# the report is looked at in a real browser: Debian's, where we may install it
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "note: no Chromium, and it could not be installed (needs root and apt): browser tests are skipped"

unit: setup ## run the quick tests
	$(PYTEST) -m 'not slow'

# `make coverage TESTS=tests/data` runs some tests only. Subprocesses of the tests count.
coverage: setup browser ## list the lines that no test runs
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: checks ## run the checks and the tests of the docs
	$(BIN)/python -m pytest -m 'not slow' tests/test_docs.py

checks: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/vulture
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml src reproduction

format: setup ## format the code, and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

RESULTS ?= benchmarks/results
bench: setup ## measure speed and memory, as json with facts of the machine
	for part in speed store encoding load memory; do \
	  $(BIN)/python -m benchmarks.$$part --out $(RESULTS)/$$part.json || exit 1; \
	done

# the guarantees for stored data, tried in full: kills, damages, cut logs, full disks; about ten minutes on a quiet machine
torture: setup ## kill writers of stored data, damage it, fill its disk
	$(BIN)/python -m benchmarks.torture --out $(RESULTS)/torture.json

# the site, into site/: a link that leads nowhere or an unknown name in the reference fails it
docs: .venv/.docs ## build the site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.venv/.docs: .venv/.ready mkdocs.yml
	$(INSTALL) --editable '.[docs]'
	touch $@

# the wheel and the source archive, into dist/
build: setup ## build the wheel and the source archive into dist/
	$(BIN)/python -m build

# the wheel in an empty venv with base dependencies alone: its size, its speed, and the first commands of the README
wheel-check: setup ## install the wheel into an empty venv and run the README
	$(BIN)/python -m tools.wheel_check --out $(RESULTS)/wheel.json

clean: ## delete what these targets make
	rm -rf demo site build dist .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis

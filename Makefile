# make demo | test | unit | coverage | lint | bench | torture | docs | build | wheel-check: each sets up what it needs in .venv
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# tests/conftest.py says which tests run in the same process
PYTEST := $(BIN)/python -m pytest -n auto
# what is compiled is kept: else each of the many processes of the tests compiles all modules again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup browser demo test pytest unit coverage lint checks bench torture docs build wheel-check clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv --clear .venv; }
	$(INSTALL) --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/python -m reproduction demo --out demo

# the checks and the site need one CPU and half a minute: they run at the same time as the tests
test: setup browser .venv/.docs
	$(MAKE) --jobs 3 checks docs pytest

pytest: setup
	$(PYTEST)

# the report is looked at in a real browser: Debian's, where we may install it
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "note: no Chromium, and it could not be installed (needs root and apt): browser tests are skipped"

unit: setup
	$(PYTEST) -m 'not slow'

# what the tests run of the code, of their subprocesses too: a table, coverage.json and a badge for the README;
# `make coverage TESTS=tests/data` looks at some only, and leaves the badge alone
coverage: setup browser
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
ifndef TESTS
	$(BIN)/coverage json --quiet -o .coverage-report.json && $(BIN)/python -m benchmarks.coverage_badge .coverage-report.json
endif

lint: checks
	$(BIN)/python -m pytest -m 'not slow' tests/test_docs.py

checks: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vulture
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml src reproduction
	$(BIN)/python -m tests.words

# measurements as json with facts of the machine
# FEATURES: a file (N, 2560) of the built-in model's features, to sample codes from rather than from a mixture
RESULTS ?= benchmarks/results
bench: setup
	for part in speed centers search store loading encoding load busy milvus memory; do \
	  case $$part in milvus) drawn="$(addprefix --features ,$(FEATURES))";; *) drawn=;; esac; \
	  $(BIN)/python -m benchmarks.$$part --out $(RESULTS)/$$part.json $$drawn || exit 1; \
	done

# the guarantees for stored data, tried in full: damage, truncation, crafted files, failing system calls, crashes, full disks
torture: setup
	$(BIN)/python -m benchmarks.torture --out $(RESULTS)/torture.json

# the site, into site/: a link that leads nowhere or an unknown name in the reference fails it
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.venv/.docs: .venv/.ready mkdocs.yml
	$(INSTALL) --editable '.[docs]'
	touch $@

# the wheel and the source archive, into dist/
build: setup
	$(BIN)/python -m build

# the wheel in an empty venv with base dependencies alone: its size, its speed, and the first commands of the README
wheel-check: setup
	$(BIN)/python -m benchmarks.wheel_check --out $(RESULTS)/wheel.json

clean:
	rm -rf demo site build dist .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis

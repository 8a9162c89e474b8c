# Everything runs in .venv, made here at first use and again where pyproject.toml changed. Only Python >= 3.11, make
# and bash are needed; Java for Spark is found, or installed into .venv (scripts/java_home.py).
#   make test PYTHON=python3.13      another interpreter (after `make distclean`)
#   make test TESTS=tests/scan       a part of the tests
#   make torture MINUTES=120         random and violent trials for two hours

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
TESTS ?= tests
NAME ?=
MINUTES ?= 10

DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench
DOCS := $(VENV)/.installed-docs

PYTEST := $(PY) -m pytest -c tests/pytest.ini --rootdir tests
# The files of tests side by side, those of one Spark together and first (tests/conftest.py).
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder
KERNEL_TESTS = tests/hfile_like tests/bloom
FIND_JAVA := java_home="$$($(PY) scripts/java_home.py)" && export JAVA_HOME="$$java_home"
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
# Hundreds of processes begin in a run of the tests: each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all floors torture check format bench docs wheel clean distclean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

demo: $(DEMO)  ## A lake, its indexes and queries over them, in a minute
	$(FIND_JAVA) && $(VENV)/bin/skipstone demo --spark

test: $(DEV)  ## The tests (TESTS=tests/scan for a part)
	$(FIND_JAVA) && $(PYTEST) -q --durations=20 --processor-limits $(SIDE_BY_SIDE) $(TESTS)

# Numba's cache does not tell code with bounds checks from code without: the third run needs a cache of its own.
test-all: $(DEV)  ## All tests, with many more examples, in another time zone; kernels without a compiler, with bounds checks
	mkdir -p .cache && date +%s > .cache/test-all-began
	$(FIND_JAVA) && SKIPSTONE_TEST=all TZ=America/Los_Angeles $(PYTEST) -q $(SIDE_BY_SIDE) tests
	NUMBA_DISABLE_JIT=1 $(PYTEST) -q $(KERNEL_TESTS)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.cache/numba-boundscheck $(PYTEST) -q $(KERNEL_TESTS)
	$(PY) tests/support/torture.py --minutes 5
	@echo "make test-all took $$((($$(date +%s) - $$(cat .cache/test-all-began)) / 60)) minutes"

# The oldest versions of all libraries together. tests/house looks at the sources, whatever is installed. numpy 1.26 and pandas 2.2.2 have no build for Python 3.13 and newer.
# numpy 1 gives some results another type than numpy 2 does, and rows were lost: there each such place fails a test
# (tests/pytest.ini), so what passes means the same with both.
floors: .cache/floors/oldest/.installed  ## The tests with the oldest versions of all libraries (Python 3.11 or 3.12)
	export NPY_PROMOTION_STATE=weak_and_warn && $(call TEST_IN,oldest) --ignore=tests/house $(TESTS)

TEST_IN = python="$(CURDIR)/.cache/floors/$(1)/bin/python" && export PYSPARK_PYTHON="$$python" && \
	export NUMBA_CACHE_DIR="$(CURDIR)/.cache/floors/$(1)/numba" && \
	java_home="$$("$$python" scripts/java_home.py)" && export JAVA_HOME="$$java_home" && \
	"$$python" -m pytest -c tests/pytest.ini --rootdir tests -q -rs $(SIDE_BY_SIDE)

.cache/floors/%/.installed: pyproject.toml scripts/floors.py
	mkdir -p $(@D)
	$(PYTHON) -m venv --clear $(@D)
	$(PYTHON) scripts/floors.py > $(@D)/requirements.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $(@D)/requirements.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

torture: $(DEV)  ## Random and violent trials with new seeds, for MINUTES=10
	$(PY) tests/support/torture.py --minutes $(MINUTES)

# mypy and ruff name a package by its folder, and the checkout's may be anything (in one named `site` ruff takes our
# modules for the standard library's): they are shown the tree under a link.
check: $(DEV)  ## Lint, format and types
	mkdir -p .cache/typecheck && ln -sfn ../.. .cache/typecheck/skipstone
	cd .cache/typecheck && ../../$(VENV)/bin/ruff check skipstone
	cd .cache/typecheck && ../../$(VENV)/bin/ruff format --check skipstone
	$(PY) -m mypy

format: $(DEV)  ## Rewrite the sources as `make check` wants them
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(BENCH)  ## One benchmark (NAME=needle), or the list of them
	$(FIND_JAVA) && $(PY) -m bench $(NAME)

docs: $(DOCS)  ## The documentation site, in site/
	$(PY) scripts/pages.py stage
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build
	$(PY) scripts/pages.py finish

wheel: $(VENV)/.installed-wheel  ## Wheel and source archive, in dist/, tried in empty environments (PYTHONS="python3.12 ...")
	$(PY) scripts/wheel.py $(PYTHONS)

clean:  ## Remove caches and what builds made
	rm -rf build dist site *.egg-info .pytest_cache tests/.pytest_cache .hypothesis tests/.hypothesis .ruff_cache .mypy_cache
	rm -rf .cache/typecheck .cache/site .cache/numba-boundscheck spark-warehouse metastore_db derby.log
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean  ## ... and the virtual environment and the benchmarks' data
	rm -rf .venv .cache

$(VENV)/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Skipstone needs Python >= 3.11: set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: pyproject.toml | $(VENV)/pyvenv.cfg
	$(PY) -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	touch $@

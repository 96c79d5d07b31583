# `make demo` and `make test` need Python and pip, nothing else; everything they install goes into .venv.
# PYTHON=python3.12 chooses the interpreter, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu a smaller torch.

BIN := .venv/bin
# Set-up is repeated when what it installs may have changed, told by content: a fresh checkout has no telling dates.
SETUP := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
SETUP_OLDEST := $(shell cat pyproject.toml constraints-oldest.txt | cksum | cut -d ' ' -f 1)
# Parallelism is over test processes; threads inside them would only compete.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
# The tests' processes import the same modules: each would compile all of them again without the files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test pytest oldest newest lint types docs package release-check bench bench-all resilience format clean

help:
	@echo "make demo     train on handwritten digits, print the accuracy, draw the learning curve in demo-output/"
	@echo "make test     every check: lint, types, tests (source valid on Python 3.8 among them), documentation"
	@echo "make oldest   the tests with Python 3.8 and PyTorch 2.0, where IPUs are: needs python3.8, fetches two gigabytes"
	@echo "make newest   the tests with the newest Python that PyTorch installs for, and the newest of everything else"
	@echo "make lint | types | docs | package    one of them"
	@echo "make bench    the table of benchmarks with limit, aim and today's value: ten minutes"
	@echo "make bench-all    all benchmarks, with the growth of costs: an hour"
	@echo "make release-check   install the wheel in empty environments, with each extra: downloads gigabytes"
	@echo "make resilience   break runs, files and machines in full: hours; the tests do a sample"
	@echo "make format   format the code and mend what the linter can"
	@echo "make clean    remove what the commands write, .venv excepted"

demo: .venv/ready-examples-$(SETUP)
	@mkdir -p demo-output
	$(BIN)/python examples/ignite_trainer/ipu.py --curve demo-output/learning-curve.png

# Documentation and types are checked beside the tests. These often wait for a process: three workers keep two processors
# busy, and take a tenth less time than two.
test: .venv/ready-dev-$(SETUP) lint
	@$(MAKE) --no-print-directory -j 3 docs types package pytest

pytest: .venv/ready-dev-$(SETUP)
	$(BIN)/python -m pytest -n 3 --dist worksteal

oldest: .venv-oldest/ready-$(SETUP_OLDEST)
	.venv-oldest/bin/python -m pytest -n 3 --dist worksteal

# What is newest changes from day to day: the environment is brought up to date each time, and printed.
newest:
	@$(MAKE_NEWEST)
	.venv-newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager hatchling editables
	.venv-newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --no-build-isolation --editable ".[test]"
	@.venv-newest/bin/python --version
	@.venv-newest/bin/python -m pip list 2>/dev/null | grep -E '^(torch|pytorch-ignite|accelerate|transformers|numpy|pytest) '
	.venv-newest/bin/python -m pytest -n 3 --dist worksteal

lint: .venv/ready-dev-$(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready-dev-$(SETUP)
	$(BIN)/mypy

docs: .venv/ready-dev-$(SETUP)
	$(BIN)/python -m sphinx -q -W --keep-going -j auto -b html docs docs/_build/html

# The build backend is installed: nothing is downloaded.
package: .venv/ready-dev-$(SETUP)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	$(BIN)/python -m twine check --strict dist/*

release-check: .venv/ready-dev-$(SETUP)
	$(BIN)/python -m tests.release_check

# The table takes ten minutes, all rows an hour.
bench: .venv/ready-dev-$(SETUP)
	$(BIN)/python -m tests.benchmarks

bench-all: .venv/ready-dev-$(SETUP)
	$(BIN)/python -m tests.benchmarks all

resilience: .venv/ready-dev-$(SETUP)
	$(BIN)/python -m tests.resilience

format: .venv/ready-dev-$(SETUP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The build backend comes first and from the constraints too, which pip does not apply to an isolated build.
# pip would compile every file, one after the other. These packages are compiled in parallel, for several processes import
# most of them at once; of the others an import compiles the few files that it needs.
COMPILED := torch sympy numpy scipy networkx
.venv/ready-%-$(SETUP):
	@echo "Setting up .venv for '$*': a few minutes the first time"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { python=$(PYTHON_FOR_VENV) && $(MAKE_VENV); }
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --no-build-isolation --editable ".[$*]"
	@$(BIN)/python -m compileall -qq -j 0 $(COMPILED:%=.venv/lib/python*/site-packages/%) || true
	@rm -f .venv/ready-$*-*
	@touch $@

.venv-oldest/ready-$(SETUP_OLDEST):
	@echo "Setting up .venv-oldest: a few minutes the first time"
	$(or $(PYTHON),python3.8) -m venv --clear .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --constraint constraints-oldest.txt hatchling editables
	.venv-oldest/bin/python -m pip install --quiet --constraint constraints-oldest.txt --no-build-isolation --editable ".[test]"
	@touch $@

# torch 2.13.0, which constraints.txt names, is built for Python 3.10 to 3.14.
define CHOOSE_PYTHON
can() { "$$1" -c "import sys; sys.exit(not $$2)" 2>/dev/null; }; \
for python in python3 python3.13 python3.12 python3.11 python3.14 python3.10; do \
    if can $$python "(3, 10) <= sys.version_info[:2] <= (3, 14)"; then \
        [ $$python = python3 ] || echo "python3 has no torch 2.13.0 (it needs Python 3.10 to 3.14): using $$python" >&2; \
        echo $$python; exit; \
    fi; \
done; \
if can python3 "sys.version_info >= (3, 8)"; then \
    echo "No Python 3.10 to 3.14 found, which torch 2.13.0 needs: using python3 and the newest torch there is for it," \
        "a combination that the checks do not cover. PYTHON=/path/to/python chooses another." >&2; \
    echo python3; \
else \
    echo "No Python 3.8 or newer found. PYTHON=/path/to/python names one." >&2; \
    echo false; \
fi
endef
# The newest Python, of those that are installed, for which pip finds a PyTorch. PYTHON=... chooses another.
NEWEST_PYTHONS := $(or $(PYTHON),python3.15 python3.14 python3.13 python3.12 python3.11 python3.10)
define MAKE_NEWEST
version() { "$$1" -c "import sys; print(sys.version)" 2>/dev/null; }; \
probe=$$(mktemp -d) || exit; trap 'rm -rf "$$probe"' EXIT; \
for python in $(NEWEST_PYTHONS); do \
    version $$python >/dev/null && $$python -m venv --clear "$$probe" 2>/dev/null || continue; \
    if "$$probe/bin/python" -m pip install --quiet --dry-run --no-deps torch 2>/dev/null; then \
        [ "$$(version $$python)" = "$$(version .venv-newest/bin/python)" ] && exit; \
        echo "Setting up .venv-newest with $$python: a few minutes"; \
        $$python -m venv --clear .venv-newest; exit; \
    fi; \
    echo "pip finds no PyTorch for $$python"; \
done; \
echo "pip finds PyTorch for none of $(NEWEST_PYTHONS) here. PYTHON=/path/to/python names another."; exit 1
endef
# Debian's Python comes without what `venv` needs to bring pip along; its own pip can install that.
MAKE_VENV = { $$python -m venv --clear .venv 2>/dev/null \
    || { $$python -m venv --clear --without-pip .venv && $$python -m pip --python .venv install --quiet pip; }; }
PYTHON_FOR_VENV = $(or $(PYTHON),$(shell $(CHOOSE_PYTHON)))

clean:
	rm -rf build dist demo-output docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find ignite_ipu tests examples docs -name __pycache__ -prune -exec rm -rf {} +

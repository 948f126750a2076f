# Everything happens in .venv, which is made from constraints.txt when it is missing or out of date.

# The first of these that is Python 3.11 or later; another one: make PYTHON=/path/to/python3.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check bench rivals chaos clean

demo: $(READY)
	$(BIN)/perdure demo

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(READY)
	$(BIN)/python -m bench $(ARGS)

# The systems that the bench compares with, in a place of their own; without them it says so.
rivals: $(READY)
	$(PYTHON) -m venv build/rivals
	build/rivals/bin/python -m pip install --quiet --disable-pip-version-check -r bench/rivals/requirements.txt

chaos: $(READY)
	$(BIN)/perdure chaos --runs 200 --jobs 2 $(ARGS)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(READY): constraints.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Perdure needs Python 3.11 or later: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) can't make virtual environments; on Debian: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

# `make demo` and `make test` are all that a fresh machine needs: each builds .venv first where it is missing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
EXTRAS ?= dev,report,sweep,track

.PHONY: setup demo test lint format docs clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(f"localpolicy needs Python 3.11 or newer, found {sys.version.split()[0]}; set PYTHON=...") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: setup
	$(BIN)/lpi demo --out demo --force

test: setup lint
	$(BIN)/pytest -m 'not gpu'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup
	$(BIN)/python tools/settings_page.py

clean:
	rm -rf $(VENV) demo site

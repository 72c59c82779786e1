# `make demo` and `make test` are all that a fresh machine needs: each builds .venv first where it is missing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
EXTRAS ?= dev,report,sweep,track
comma  := ,

.PHONY: setup demo test lint format docs check-docs site clean

READY  := $(VENV)/.ready-$(subst $(comma),-,$(EXTRAS))

setup: $(READY)

$(READY): pyproject.toml constraints.txt  # one mark for each list of extras: another list installs what is missing
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

docs: setup  # runs every command of tools/pages: about three minutes
	$(BIN)/python tools/settings_page.py
	$(BIN)/python tools/run_pages.py
	$(BIN)/python tools/report_pictures.py

check-docs: setup  # the same commands, compared with the pages on disk
	$(BIN)/python tools/run_pages.py --check

site: setup  # all links and anchors are checked
	test -x $(BIN)/mkdocs || $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	rm -rf scratch/site && mkdir -p scratch/site/benchmarks
	cp -r README.md CHANGELOG.md CONTRIBUTING.md LICENSE docs examples scratch/site
	cp benchmarks/README.md scratch/site/benchmarks
	$(BIN)/mkdocs build --strict  # not --quiet: it would hide the warnings from --strict
	@echo 'site: site/index.html'

clean:
	rm -rf $(VENV) demo site

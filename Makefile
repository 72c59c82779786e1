# `make demo` and `make test` are all that a fresh machine needs: each builds .venv first where it is missing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
EXTRAS ?= dev,report,sweep,rank,track,serve
comma  := ,
empty  :=
# What users install: the lock, the bill of materials, the licences and the audit cover all of them.
FOR_USERS := report spark serve excel lakes sweep rank track mlflow trace

TOOLS  := .tools/bin

.PHONY: setup demo test trials lowest lint format docs check-docs site golden wheel try-wheel lock image-locks sbom licences audit release clean

READY  := $(VENV)/.ready-$(subst $(comma),-,$(EXTRAS))

setup: $(READY)

$(READY): pyproject.toml constraints.txt  # one mark for each list of extras: another list installs what is missing
	@$(PYTHON) -c 'import sys; sys.exit(f"localpolicy needs Python 3.11 or newer, found {sys.version.split()[0]}; set PYTHON=...") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: setup
	$(BIN)/lpi demo --out demo --force

# The kernels' logic runs on a CPU too, in Triton's interpreter: in a process of its own, see tests/interpreter.py.
KERNELS := tests/kernels tests/catalogue/test_fused.py

# Files of tests are shared out among processes, one thread each, the longest first (tests/conftest.py).
WORKERS ?= 2
PYTEST  := $(BIN)/pytest -m 'not gpu' -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: setup lint
	$(PYTEST)
	TRITON_INTERPRET=1 $(PYTEST) $(KERNELS)
	OPENBLAS_CORETYPE=Haswell TRITON_INTERPRET=1 $(PYTEST) tests/catalogue/test_fused.py  # a CPU that rounds otherwise
	OPENBLAS_NUM_THREADS=1 TRITON_INTERPRET=1 $(PYTEST) tests/catalogue/test_fused.py

trials: setup  # the long counts of docs/results/reliability.md and serving.md: hours
	FUZZ=2000 $(BIN)/pytest tests/fuzz
	KILLS=20 PAIRS=10 FULL=10 $(BIN)/pytest -s tests/kill  # every verb that writes; as root, for file systems of its own
	KILLS=20 $(BIN)/pytest tests/training/test_faults.py tests/data/test_killed.py
	$(BIN)/python tools/torchrun_trials.py 100
	LPI_KILLS=50 LPI_KILLED_RECORDS=100000 $(BIN)/pytest -s tests/serving/test_live.py -k "acknowledged or rotating"
	LPI_ROTATION_KILLS=20 LPI_ROTATED_LISTS=20000 $(BIN)/pytest -s tests/serving/test_rotation.py -k killed
	LPI_AUDITED_LISTS=1000000 $(BIN)/pytest -s tests/serving/test_audit.py -k a_true_log_passes
	$(BIN)/python benchmarks/rollout_rates.py --repeats 200
	for run in 1 2 3 4 5; do $(PYTEST) -q || exit 1; done
	$(BIN)/python tools/under_load.py $(PYTEST) -q

lowest:  # the lowest versions that pyproject.toml allows, in an environment of their own, on a walk from log to lists
	rm -rf .lowest && $(PYTHON) -m venv .lowest
	$(BIN)/python tools/lowest_versions.py > .lowest/constraints.txt
	.lowest/bin/pip install --quiet --disable-pip-version-check -c .lowest/constraints.txt .
	.lowest/bin/python tools/smoke.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/check_words.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup  # runs every command of tools/pages and the notebooks: about five minutes
	$(BIN)/python tools/settings_page.py
	$(BIN)/python tools/run_pages.py
	$(BIN)/python tools/run_notebooks.py
	$(BIN)/python tools/report_pictures.py

check-docs: setup  # the same commands, compared with the pages on disk
	$(BIN)/python tools/run_pages.py --check

site: setup  # all links and anchors are checked
	$(BIN)/python -c 'import mkdocs, mkdocstrings, nbconvert' 2>/dev/null || \
		$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	rm -rf scratch/site && mkdir -p scratch/site/benchmarks
	cp -r README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs examples deploy scratch/site
	cp benchmarks/README.md scratch/site/benchmarks
	$(BIN)/python -m nbconvert --log-level ERROR --to markdown scratch/site/docs/notebooks/*.ipynb
	sed -i.bak 's/\.ipynb)/.md)/g' scratch/site/*.md scratch/site/docs/*.md  # on the site a notebook is a page
	rm scratch/site/*.bak scratch/site/docs/*.bak
	$(BIN)/mkdocs build --strict  # not --quiet: it would hide the warnings from --strict
	@echo 'site: site/index.html'

golden: setup  # artefacts of this version, for later ones to read: until the version is released, and never after
	$(BIN)/python tools/golden.py

# What belongs to a release, in dist/. Tools live in an environment of their own, so that they are in no list.
$(TOOLS)/.ready:
	$(PYTHON) -m venv .tools
	$(TOOLS)/pip install --quiet --disable-pip-version-check uv cyclonedx-bom pip-audit
	@touch $@

# The page of an index has no folder beside it: with URL=https://…/blob/v0.2.0 links of the README lead there.
SOURCE := build/source
LINKS  := s@\]\((docs|examples|benchmarks|deploy|LICENSE|[A-Z]+\.md)@]($(URL)/\1@g; s@(\.png)\)@\1?raw=true)@g

wheel: setup  # wheel and source distribution of HEAD: the same bytes whenever and wherever they are built
	rm -rf build dist/*.whl dist/*.tar.gz dist/SHA256SUMS && mkdir -p $(SOURCE) dist
	git archive HEAD | tar -x -C $(SOURCE)
	if [ -n "$(URL)" ]; then sed -i.bak -E '$(LINKS)' $(SOURCE)/README.md && rm $(SOURCE)/README.md.bak \
		&& printf '\n[project.urls]\nSource = "%s"\nChangelog = "%s/CHANGELOG.md"\n' '$(URL)' '$(URL)' >> $(SOURCE)/pyproject.toml; fi
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) && $(BIN)/pip wheel --quiet --no-deps --no-build-isolation \
		-w dist ./$(SOURCE) && cd $(SOURCE) && $(abspath $(BIN))/python -c \
		"from setuptools.build_meta import build_sdist; build_sdist('$(abspath dist)')" >/dev/null \
		&& cd $(CURDIR) && $(BIN)/python tools/repack_sdist.py dist/*.tar.gz
	cd dist && sha256sum *.whl *.tar.gz

try-wheel: wheel  # installed alone and with each extra, into empty environments; runs the README's block and the demo
	$(BIN)/python tools/try_wheel.py dist/*.whl

lock: $(TOOLS)/.ready  # every package of an installation, with hashes
	mkdir -p dist
	$(TOOLS)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header -c constraints.txt \
		$(addprefix --extra ,$(FOR_USERS)) --python-version 3.11 pyproject.toml -o dist/requirements.lock

# What the images install, with hashes: the service alone, and every command. Raise versions by making them anew.
image-locks: $(TOOLS)/.ready
	$(TOOLS)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
		--python-platform linux deploy/requirements.txt -o deploy/serve.lock
	$(TOOLS)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
		--python-platform linux -c constraints.txt --extra serve --extra report pyproject.toml -o deploy/full.lock

sbom: lock  # CycloneDX, of what the lock names
	$(TOOLS)/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml -o dist/sbom.cdx.json \
		dist/requirements.lock

licences: $(TOOLS)/.ready
	mkdir -p dist
	$(MAKE) setup EXTRAS=$(subst $(empty) ,$(comma),dev $(FOR_USERS))
	$(BIN)/python tools/licences.py $(FOR_USERS) > dist/licences.md

audit: lock
	$(TOOLS)/python tools/audit.py dist/requirements.lock

release: wheel lock sbom licences audit  # everything that is published beside the tag, in dist/
	cp deploy/serve.lock deploy/full.lock dist/
	cd dist && rm -f SHA256SUMS && sha256sum * > SHA256SUMS && cat SHA256SUMS
	@echo 'sign: git tag -s vVERSION; gpg --armor --detach-sign dist/SHA256SUMS (or: cosign sign-blob). Publish dist/ and'
	@echo 'the signature. Whoever installs: sha256sum -c SHA256SUMS; gpg --verify SHA256SUMS.asc; pip install --require-hashes.'

clean:
	rm -rf $(VENV) .tools .lowest build dist demo site

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests write thousands of small files with fsync: in memory where /dev/shm has 4 GB of room.
IN_MEMORY := $(shell df -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "/dev/shm"}')
PYTEST := $(if $(IN_MEMORY),TMPDIR=$(IN_MEMORY)) OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

MILVUS := .venv-milvus

.PHONY: setup demo test test-all test-docs test-web test-servers check lint docs speed mutants clean

setup: $(READY)  ## create .venv with the tested set of packages

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Assay needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)  ## benchmark three methods and the baselines on the embedded data, write a report
	$(BIN)/assay bench --data glyphs --protocol quick --out assay-runs/demo \
		--methods contrastive,triplet,normalized_softmax,untrained

test: $(READY)  ## all tests but the slow ones
	$(PYTEST)

test-all: $(READY)  ## all tests
	$(PYTEST) -m ''

test-docs: $(READY)  ## every command that the documentation shows
	$(PYTEST) -m '' tests/test_docs.py

test-web: $(READY)  ## the page of `assay serve` in a real browser (Debian: apt-get install chromium)
	ASSAY_TEST_WEB=1 $(PYTEST) -n 0 -m '' tests/test_web_browser.py

test-servers: $(READY) $(MILVUS)/.ready  ## a real Milvus server, which only this machine can reach
	ASSAY_TEST_MILVUS=$(CURDIR)/$(MILVUS) $(PYTEST) -n 0 -m slow tests/test_milvus.py

$(MILVUS)/.ready:
	$(PYTHON) -m venv $(MILVUS)
	$(MILVUS)/bin/python -m pip install --quiet --disable-pip-version-check 'milvus==2.3.5'
	touch $@

lint: $(READY)  ## format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test  ## what CI runs

docs: $(READY)  ## write the pages that are made from code and tests
	$(BIN)/python tools/methods_page.py > docs/methods.md
	$(BIN)/python tools/forgeries_page.py > docs/forgeries.md

speed: $(READY)  ## measure what docs/performance.md says
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/samplers.py
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/offline.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/bits.py
	$(BIN)/python benchmarks/structured_clustering.py
	$(BIN)/python benchmarks/cross_batch_memory.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/index.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/export.py
	$(BIN)/python benchmarks/service.py
	$(BIN)/python benchmarks/twins.py
	$(BIN)/python benchmarks/scheduling.py

mutants: $(READY)  ## plant single faults and see which of them the tests catch; hours
	$(BIN)/python tools/mutants.py --out mutants.json

clean:  ## remove what can be made again, except run stores
	rm -rf $(VENV) $(MILVUS) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# Everything runs in one virtual environment, .venv, created on first use. PYTHON=python3.12 make ... chooses another Python.

PYTHON ?= python3
RUN := .venv/bin/python
INSTALLED := .venv/.installed
DALI := .venv/.dali
DOCS := .venv/.docs
CLIENTS := .venv-integrations
SCALE := .venv-scale
LOWEST := 2.6.0# is tested with the lowest versions of all packages
NEWEST := 2.14.1
TORCH_TESTS := $(patsubst %,tests/test_%.py,batch bias crops loader optim_groups optim_schedule prefetcher train_warnings)
LOWEST_TESTS := $(patsubst %,tests/test_%.py,archives_tables arrays cli columns jpeg prepare ram image_files store tables text tokens train_evaluate) tests/scale/test_remote.py
PYTEST := -m pytest -q -n auto --maxprocesses 8 --dist worksteal
QUICK := "not slow and not scale"

# Tests start thousands of processes. Where the machine is set to keep no bytecode, each would compile all of fastdata anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all test-faults test-dali test-integrations test-scale test-lowest nightly check docs pictures bench bench-guard bench-peers gpu
.PHONY: test-slow # a part of test-all and of .ci/run

help:
	@echo "make demo    a guided tour with real images: prepare, verify, look, train, measure; under two minutes after installing"
	@echo "make test    all tests except the slow ones"
	@echo "make test-all   the slow ones too: trainings, many kills, ranks, an install in a clean environment"
	@echo "make test-faults   damaged bytes through every reader, kills, and loads that find leaks"
	@echo "make test-dali   tests of Loader(backend=\"dali\") without a GPU; installs NVIDIA DALI, 1 GB"
	@echo "make test-integrations   tests of the Loader with Lightning, Accelerate, transformers, timm and others; installs them into .venv-integrations"
	@echo "make test-scale   clusters of Ray, and others' servers of object storage, run on this machine; installs them, also by npm"
	@echo "make test-lowest   tests with the lowest versions of torch and all packages; installs them, 6 GB"
	@echo "make nightly   what .ci/run leaves out: test-dali, test-scale, test-lowest, tests with the newest torch, and other faults each day; installs 12 GB"
	@echo "make check   style (ruff), types (mypy) and the direction of imports"
	@echo "make docs    the documentation as a site, in build/site, with the reference of commands and Python"
	@echo "make pictures   draw the picture of README and docs"
	@echo "make bench   measure the speed of fastdata-prep on this machine"
	@echo "make bench-guard   compare the Loader with the fastest revision so far, on an idle machine, in 20 to 40 minutes; before changes of the data path land"
	@echo "make bench-peers   compare the Loader with tf.data, DALI, FFCV and others; installs them, 8 GB"
	@echo "make gpu     tests and benchmarks that need a GPU, in nine minutes; uses the machine's own Python and torch, not .venv"

demo: $(INSTALLED)
	@rm -rf demo/digits.fds demo/photos.fds
	@$(RUN) examples/demo.py

test: $(INSTALLED)
	$(RUN) $(PYTEST) -m $(QUICK)

test-slow: $(INSTALLED)
	$(RUN) $(PYTEST) -m "slow and not scale" --ignore=tests/faults

test-faults: $(INSTALLED)
	$(RUN) $(PYTEST) tests/faults

test-all: test test-slow

test-dali: $(DALI)
	$(RUN) $(PYTEST) tests/test_dali.py tests/test_loader_options.py tests/test_properties_loader.py

test-integrations: $(CLIENTS)/.installed
	$(CLIENTS)/bin/python $(PYTEST) tests/integrations

test-scale: $(SCALE)/.installed
	$(SCALE)/bin/python -m pytest -q tests/scale -m scale

test-lowest: test-torch-$(LOWEST)

nightly: test-dali test-scale test-lowest test-torch-$(NEWEST)
	FAULTS=3 FAULTS_SEED=$$(date +%-j) $(MAKE) test-faults

.PRECIOUS: .venv-torch-%/.installed
test-torch-%: .venv-torch-%/.installed
	@echo "torch $*"
	.venv-torch-$*/bin/python $(PYTEST) -m $(QUICK) $(TORCH_TESTS) $(if $(filter $(LOWEST),$*),$(LOWEST_TESTS))

check: $(INSTALLED)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(RUN) -m pytest -q tests/test_imports.py

docs: $(DOCS)
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build -q
	@echo "build/site/index.html"

pictures: $(INSTALLED)
	$(RUN) tools/pictures.py

bench: $(INSTALLED)
	$(RUN) benchmarks/prep_rates.py

bench-guard: $(INSTALLED)
	$(RUN) benchmarks/guard.py

bench-peers: $(INSTALLED)
	$(RUN) benchmarks/peers/run.py

gpu: # installs only what PYTHON lacks, from wheels in .whl, into a separate folder
	@$(PYTHON) benchmarks/gpu/wheels.py .whl build/gpu-site
	@PYTHONPATH=$(CURDIR)/src:$(CURDIR)/build/gpu-site $(PYTHON) benchmarks/gpu/run.py $(if $(OUT),--out $(OUT)) $(GPU_OPTIONS)

$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(RUN) || { echo "making .venv with $(PYTHON)"; $(PYTHON) -m venv .venv; }
	@echo "installing fastdata and its dependencies into .venv; PyTorch is large, so the first time takes some minutes"
	@$(RUN) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test,check]'
	@touch $@

$(DALI): $(INSTALLED)
	@$(RUN) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dali]'
	@touch $@

$(DOCS): $(INSTALLED)
	@$(RUN) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

.venv-torch-%/.installed: pyproject.toml tests/lowest.txt
	@test -x .venv-torch-$*/bin/python || { echo "making .venv-torch-$* with $(PYTHON)"; $(PYTHON) -m venv .venv-torch-$*; }
	@echo "installing fastdata and torch $* into .venv-torch-$*; it is large, so the first time takes some minutes"
	@.venv-torch-$*/bin/python -m pip install -q --disable-pip-version-check $(if $(filter $(LOWEST),$*),-c tests/lowest.txt) 'torch==$*' -e '.[test]'
	@touch $@

$(SCALE)/.installed: pyproject.toml constraints.txt tests/scale/requirements.txt
	@test -x $(SCALE)/bin/python || { echo "making $(SCALE) with $(PYTHON)"; $(PYTHON) -m venv $(SCALE); }
	@echo "installing fastdata and what runs clusters into $(SCALE); the first time takes some minutes"
	@$(SCALE)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -r tests/scale/requirements.txt -e '.[ray,remote,text]'
	@touch $@

$(CLIENTS)/.installed: pyproject.toml constraints.txt tests/integrations/requirements.txt
	@test -x $(CLIENTS)/bin/python || { echo "making $(CLIENTS) with $(PYTHON)"; $(PYTHON) -m venv $(CLIENTS); }
	@echo "installing fastdata and these packages into $(CLIENTS); the first time takes some minutes"
	@$(CLIENTS)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -r tests/integrations/requirements.txt -e '.[remote]'
	@touch $@

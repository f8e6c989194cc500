# Works with GNU make 3.81 (macOS) and later.
#
#   make venv         a virtual environment in .venv with everything below in it
#   make demo         torch DDP and eager-SGD learn to read digits side by side, on four workers of which one is late in every
#                     step, and a page about it: a minute and a quarter after installation
#   make test         one case of every law of the test suite: under six minutes on two quiet cores that import torch in
#                     1.3 s. `make test CASES=fifth` has every fifth case of laws with many (continuous integration runs
#                     it), CASES=third every third, CASES=all all that repeat no branch: more than twice as long
#   make test-hosts   the tests on several hosts, which are network namespaces here: for root on Linux; four minutes
#   make test-launchers  the tests under torchrun, mpirun, Slurm, Ray and ssh; as root on Debian and Ubuntu it installs what
#                     they need, and what is missing is skipped: seven minutes
#   make test-gpu     trainings on a GPU, and the laws of strategies with models there; without a GPU on a second device that is
#                     made of the CPU's memory and refuses what a GPU refuses (needs g++): four minutes
#   make test-second-device  the part of `make test-gpu` that needs no GPU, on that second device: eight minutes
#   make test-interop the tests inside Lightning, transformers.Trainer, Accelerate, timm and Keras (on torch, JAX and TensorFlow),
#                     with optax, beside DeepSpeed and torchft, with peft, optuna and others, and with data of other libraries, which
#                     it installs in an environment of their own: 40 minutes on two slow cores
#   make notebooks    run the notebooks of docs/notebooks in a Jupyter kernel, with nbmake in an environment of its own: a
#                     minute each. `make notebooks STORE=--overwrite` stores the outputs in them
#   make check        format, lint, types, layers, and half a minute of quick tests: those first that import what changed since
#                     HEAD~1 by the fewest steps. A minute, before every commit; `make test` runs the rest
#   make coverage     which lines of each file `make test` runs, in all its processes: a table, and pages in build/coverage
#   make compatibility  play all pairs of choices (strategies, codecs, rules, optimizers, loops, meshes) in short trainings, and
#                     write what goes with what: compatibility.json and the page. `make compatibility PART=virtual` plays those
#                     that need no processes (three minutes on two cores), PART=triples, PART=processes (a quarter of an
#                     hour there; hosts as root), PART=changed those that failed or are new. An interrupted run goes on where
#                     it stopped while the code is the same; `make compatibility PART="processes --fresh"` begins again.
#                     `make compatibility PART="virtual processes --check 900"` plays pairs for so many seconds, in an order
#                     of this commit, and holds them against the file
#   make docs         these pages as HTML in build/docs, with what is generated from the code; warnings are errors
#   make wheel        the wheel of this version in dist
#   make newcomer     what a newcomer does, in an empty home: installs in each documented way, types the commands of README and
#                     of the tutorial, and follows the links of the site. A line for each check: five minutes.
#                     `make newcomer NEWCOMER=--full` downloads torch again, too
#   make release URL=https://HOST/OWNER/quorate  check that this commit can be released as the version in pyproject.toml; write
#                     the address of the public repository into pyproject.toml and the pages, in a commit; build the wheel, and
#                     tag it. Later releases need no URL
#   make size         the lines of each package beside its ceiling (tests/architecture/ceilings.toml)
#   make soak         300 real kills, interrupts and other faults, what became of each run, and long random searches (half an hour)
#   make clean        remove what the commands above have made, .venv too

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KILLS ?= 300
CHECK_SECONDS ?= 30
CASES ?= one
STAMP := $(VENV)/.installed
# Files go to two processes in the order of tests/support/budgets.py.
TWO := -n 2 --dist loadfile --no-loadscope-reorder
# Their own process imports libraries that only the environment of `make test-interop` has.
INSIDE := tests/interop/test_sparse_attention.py tests/interop/test_peft.py tests/world/test_tensor_parallel.py \
  tests/world/test_on_meta.py tests/world/test_foreign_models.py tests/unit/tuning/test_tuner.py \
  tests/unit/train/test_privacy.py tests/unit/aggregation/test_rules.py

.PHONY: venv demo coverage compatibility test test-hosts test-gpu test-second-device test-launchers test-interop notebooks check size docs soak searches wheel \
  newcomer release clean
.DEFAULT_GOAL := venv

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  command -v $(PYTHON) >/dev/null 2>&1 || { \
	    echo "make venv: there is no $(PYTHON); install Python 3.11 or later, or name one: make venv PYTHON=python3.12" >&2; exit 3; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make venv: $(PYTHON) is `$(PYTHON) --version 2>&1`, but Quorate needs 3.11 or later; name another: make venv PYTHON=python3.12" >&2; exit 3; }; \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "make venv: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 3; }; \
	  $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: venv
	@$(BIN)/quorate compare digits -n 4 --baseline ddp --strategy eager-majority --strategy eager-solo --seeds 3 \
	  --target 0.9 --imbalance one-of:80ms --min-step-time 15ms --batch 24 --epochs 5 --evaluations 10

test: venv
	@$(BIN)/python -m pytest $(TWO) --cases $(CASES) -m 'not on_hosts and not launchers and not interop and not gpu'

coverage: venv
	@$(BIN)/python -m pip install --disable-pip-version-check -q 'pytest-cov>=6' && mkdir -p build && \
	  $(BIN)/python -m pytest -p pytest_cov $(TWO) --cases $(CASES) -m 'not on_hosts and not launchers and not interop and not gpu' \
	    --timeout 600 --cov --cov-report=term --cov-report=html:build/coverage

test-hosts: venv
	@$(BIN)/python -m pytest $(TWO) -m on_hosts

# Of the contract suite what trains; the rest has no model.
WITH_MODELS := $(addprefix tests/contract/test_,adversarial.py compressed.py compressed_learners.py compressed_rounds.py \
  edits.py optimizers.py schedules.py strategies.py)

test-gpu: venv
	@device=$$($(BIN)/python -c 'import torch; print("cuda" if torch.cuda.is_available() else "sim")') && \
	  echo "make test-gpu: on the device $$device" && \
	  PYTHONFAULTHANDLER=1 TEST_GPU=$$device $(BIN)/python -m pytest $(TWO) -m gpu tests/gpu && \
	  PYTHONFAULTHANDLER=1 TEST_GPU=$$device $(BIN)/python -m pytest $(TWO) --gpu --cases one -m 'not slow and not on_hosts' $(WITH_MODELS)

test-second-device: venv
	@PYTHONFAULTHANDLER=1 TEST_GPU=sim $(BIN)/python -m pytest $(TWO) -m gpu tests/gpu

LAUNCHERS := openssh-server openssh-client openmpi-bin slurmctld slurmd slurm-client munge iproute2

# Ray and Flower go into environments of their own beside this one, whose packages they find too.
test-launchers: venv
	@if command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" -eq 0 ] && ! dpkg-query -W $(LAUNCHERS) >/dev/null 2>&1; then \
	  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(LAUNCHERS); } \
	    >/dev/null 2>&1 || echo "make test-launchers: not all of $(LAUNCHERS) could be installed" >&2; fi
	@[ -x $(VENV)/ray/bin/python ] || { \
	  $(BIN)/python -m venv $(VENV)/ray && \
	  $(VENV)/ray/bin/python -m pip install --disable-pip-version-check -q 'ray[train]>=2.40' 2>/dev/null && \
	  $(BIN)/python -c "import site; print(*site.getsitepackages(), '$(CURDIR)/src', sep='\n')" \
	    > "$$($(VENV)/ray/bin/python -c 'import site; print(site.getsitepackages()[0])')/quorate.pth"; } || { \
	  rm -rf $(VENV)/ray; echo "make test-launchers: Ray could not be installed" >&2; }
	@[ -x $(VENV)/flower/bin/python ] || { \
	  $(BIN)/python -m venv $(VENV)/flower && \
	  $(VENV)/flower/bin/python -m pip install --disable-pip-version-check -q 'flwr[simulation]>=1.20' 2>/dev/null && \
	  $(BIN)/python -c "import site; print(*site.getsitepackages(), '$(CURDIR)/src', sep='\n')" \
	    > "$$($(VENV)/flower/bin/python -c 'import site; print(site.getsitepackages()[0])')/quorate.pth"; } || { \
	  rm -rf $(VENV)/flower; echo "make test-launchers: Flower could not be installed" >&2; }
	@$(BIN)/python -m pytest $(TWO) -m launchers tests/launchers

# These libraries go into an environment of their own beside this one, whose packages they find too.
test-interop: venv
	@[ -x $(VENV)/interop/bin/python ] || { \
	  $(BIN)/python -m venv $(VENV)/interop && \
	  $(BIN)/python -c "import site; print(*site.getsitepackages(), '$(CURDIR)/src', sep='\n')" \
	    > "$$($(VENV)/interop/bin/python -c 'import site; print(site.getsitepackages()[0])')/quorate.pth"; }
	@for library in 'lightning>=2.6' 'transformers>=5' 'accelerate>=1.12' 'keras>=3.13' 'jax>=0.6' 'optax>=0.2.4' flax equinox \
	    'torchmetrics>=1.8' 'torchdata>=0.11' 'datasets>=4' 'webdataset>=1' 'tokenizers>=0.22' 'sacrebleu>=2.5' torchft-nightly \
	    'peft>=0.18' 'optuna>=5' 'dp-accounting>=0.4.4' '--no-deps byzfl'; do \
	  $(VENV)/interop/bin/python -m pip install --disable-pip-version-check -q $$library 2>/dev/null || \
	    echo "make test-interop: $$library could not be installed" >&2; done
	@[ -d $(VENV)/interop/timm ] || $(VENV)/interop/bin/python -m pip install --disable-pip-version-check -q --no-deps \
	  --target $(VENV)/interop/timm 'timm>=1.0' torchvision 2>/dev/null || \
	  echo "make test-interop: timm could not be installed" >&2
	@[ -d $(VENV)/interop/streaming ] || $(VENV)/interop/bin/python -m pip install --disable-pip-version-check -q --no-deps \
	  --target $(VENV)/interop/streaming mosaicml-streaming xxhash zstd brotli python-snappy cramjam catalogue 2>/dev/null || \
	  echo "make test-interop: mosaicml-streaming could not be installed" >&2
	@[ -d $(VENV)/interop/deepspeed ] || $(VENV)/interop/bin/python -m pip install --disable-pip-version-check -q --no-deps \
	  --target $(VENV)/interop/deepspeed deepspeed hjson py-cpuinfo psutil einops msgpack ninja tqdm 2>/dev/null || \
	  echo "make test-interop: DeepSpeed could not be installed" >&2
	@[ -d $(VENV)/interop/tensorflow ] || $(VENV)/interop/bin/python -m pip install --disable-pip-version-check -q --no-deps \
	  --target $(VENV)/interop/tensorflow 'tensorflow-cpu>=2.18' absl-py astunparse flatbuffers gast google-pasta grpcio \
	  libclang opt-einsum protobuf requests certifi charset-normalizer idna urllib3 six termcolor wrapt 2>/dev/null || \
	  echo "make test-interop: TensorFlow could not be installed" >&2
	@$(BIN)/python -m pytest $(TWO) -m interop tests/interop $(addprefix --ignore=,$(INSIDE))
	@$(VENV)/interop/bin/python -m pytest $(TWO) $(INSIDE)

# Jupyter goes into an environment of its own beside this one, whose packages it finds too.
notebooks: venv
	@[ -x $(VENV)/notebooks/bin/python ] || { \
	  $(BIN)/python -m venv $(VENV)/notebooks && \
	  $(BIN)/python -c "import site; print(*site.getsitepackages(), '$(CURDIR)/src', sep='\n')" \
	    > "$$($(VENV)/notebooks/bin/python -c 'import site; print(site.getsitepackages()[0])')/quorate.pth"; }
	@$(VENV)/notebooks/bin/python -m pip install --disable-pip-version-check -q 'nbmake>=1.5' 'nbclient>=0.10' 'ipykernel>=6.29'
	@$(VENV)/notebooks/bin/python -m pytest -p nbmake.pytest_plugin --nbmake --nbmake-timeout=300 --timeout=900 $(STORE) \
	  docs/notebooks && \
	$(VENV)/notebooks/bin/python -m pytest -q tests/world/test_launching.py -k kernel; \
	  status=$$?; rm -rf docs/notebooks/runs; exit $$status

check: venv
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest -q $(TWO) -m 'not slow and not on_hosts and not launchers and not gpu' --seconds $(CHECK_SECONDS) tests/architecture tests/contract tests/unit

compatibility: venv
	@$(BIN)/python -m tests.compatibility $(PART)

size: venv
	@$(BIN)/python -m tests.architecture.size

docs: $(VENV)/.docs-installed
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs build/docs
	@echo "open build/docs/index.html"

$(VENV)/.docs-installed: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

soak: venv
	@PYTHONPATH=src $(BIN)/python -m tests.soak --kills $(KILLS)
	@$(MAKE) --no-print-directory searches

wheel: venv
	@$(BIN)/python -m pip wheel --disable-pip-version-check -q --no-deps -w dist .
	@ls -t dist/*.whl | head -n 1

newcomer: $(VENV)/.docs-installed
	@$(BIN)/python -m tests.newcomer $(NEWCOMER)

VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)

release: venv
	@$(BIN)/python -m tests.release '$(URL)'
	@$(MAKE) --no-print-directory wheel
	@git tag -a 'v$(VERSION)' -m 'Quorate $(VERSION)' && echo "tagged v$(VERSION)"

# As long as they find nothing: the first failure ends them.
searches: venv
	@$(BIN)/python -m pytest -q -x $(TWO) --times 12 --timeout 1200 -m search

clean:
	rm -rf $(VENV) build dist docs/generated src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

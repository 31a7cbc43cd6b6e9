# collc's tasks. `make help` lists them; every target sets up what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where the demo builds; kept out of the tree.
DEMO := build/demo
JOBS ?= $(shell nproc --all 2>/dev/null || echo 2)

.PHONY: help setup demo test lint style types unit format golden test-wheel clean
.PHONY: netlab netlab-calls netlab-rails cuda-servers interrupts
.PHONY: slow sanitize losses flood chaos chaos-protocols chaos-jobs sweep-places fuzz fuzz-libraries sweeps large-calls bench-beside bench-references bench-one-way bench-small-call bench-packing packing-sweep bench-tune bench-defaults bench-limits test-defaults bench-torch bench-servers bench-server-mpi bench-server-rails bench-server-rates reproduce test-nccl-tests validate gpu-check gpu-check-torch gpu-check-tables test-torch test-torch-suite
.PHONY: wheel test-platform-wheel
.PHONY: show-page docs pictures docs-commands

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## make .venv with collc and its test tools

$(VENV)/.ready: pyproject.toml
	@command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  { echo "collc needs a C++17 compiler: install g++ (Debian: apt-get install g++)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: setup  ## the main job on this machine: read a DGX-1V, prove plans, build the library, run 8 ranks
	@mkdir -p $(DEMO)
	$(BIN)/collc probe --from tests/data/topology/dgx1v-topo-m.txt -o $(DEMO)/dgx1v.yaml
	$(BIN)/collc compile $(DEMO)/dgx1v.yaml --target host -o $(DEMO)/libcollc-dgx1v.so
	$(BIN)/collc verify $(DEMO)/libcollc-dgx1v.so
	$(BIN)/collc bench $(DEMO)/libcollc-dgx1v.so --collective all_reduce -b 1K -e 4M -f 8

test: style types unit  ## everything that CI runs

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: style  ## style, and the tests of the house rules
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_cpp.py tests/collectives tests/contributing/test_prose.py

types: setup
	$(BIN)/mypy

# Hundreds of tests start collc: its modules are kept compiled, also where the environment says otherwise. Workers take tests
# from each other at the end, so that no long file decides when the run ends.
unit: export PYTHONDONTWRITEBYTECODE =
unit: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow"

slow: setup  ## all slow tests, part by part; continues where it stopped, and writes docs/measurements/slow-tests.md (8 hours); PARTS="cuda chaos" for some
	$(BIN)/python tests/run_slow.py $(PARTS)

sanitize: setup  ## the runtime under ThreadSanitizer, AddressSanitizer and UBSan, and with all warnings (5 minutes)
	$(BIN)/python -m pytest -m slow tests/runtime/test_sanitize.py tests/build/test_runtime_units.py

losses: setup  ## every single loss of five machines, given at run time: the plan in use is that of what is left (3 minutes)
	$(BIN)/python -m pytest -m slow tests/runtime/test_found_machine.py

chaos: setup  ## 300 random faults, every pair of calls that differ, 10,000 communicators (90 minutes)
	$(BIN)/python -m pytest -m slow tests/runtime/test_chaos.py tests/runtime/test_mismatch.py tests/status tests/export

chaos-protocols: setup  ## random calls and faults with each protocol forced: host, and CUDA on a driver of the tests
	$(BIN)/python -m pytest -m slow tests/cuda/test_cuda_chaos.py tests/runtime/test_forced_protocols.py

JOB_SEEDS ?= 0..500
chaos-jobs: setup  ## 500 seeds of jobs of several processes on a CUDA driver of the tests, and 500 where GPUs do not reach each other; JOB_SEEDS=100..500 goes on
	JOB_SEEDS=$(JOB_SEEDS) $(BIN)/python -m pytest -m slow tests/cuda/test_random_jobs.py tests/cuda/test_cuda_jobs.py tests/cuda/test_cuda_classes.py tests/cuda/test_late_refusals.py

sweep-places: setup  ## every four GPUs of a DGX-1V, in other orders and on machines numbered in other ways
	$(BIN)/python -m pytest -m slow tests/cuda/test_gpu_places.py

# Tests that have cells in the default run and are swept whole by no other target.
SWEEPS := tests/cuda/test_gpu_check.py

sweeps: setup  ## whole sweeps of which `make test` runs some cells
	$(BIN)/python -m pytest -m slow $(SWEEPS)

large-calls: setup  ## a transfer, an all_reduce and a broadcast of more than 4 GiB between two processes (host target: 11 GB of memory; the kernels under emulation)
	$(BIN)/python -m pytest -m slow -rs tests/runtime/test_large_calls.py tests/cuda/test_large_calls_cuda.py

SECONDS_OF_FUZZ ?= 600
fuzz: setup  ## damage dumps, topology files and driver answers, and feed tiny files to every reader; readers must answer or refuse
	PYTHONPATH=tests $(BIN)/python tests/fuzz_readers.py --seconds $(SECONDS_OF_FUZZ)
	$(BIN)/python -m pytest -m slow tests/cli/test_tiny_files.py

BYTES ?= 0..500
FIELDS ?= 0..200
fuzz-libraries: setup  ## change 500 bytes and 200 fields of libraries: refused, or not loaded; BYTES=0..10000 goes on
	@mkdir -p build
	PYTHONPATH=tests $(BIN)/python tests/fuzz_libraries.py --bytes $(BYTES) --fields $(FIELDS) --results build/fuzz-libraries.jsonl
	$(BIN)/python -m pytest -m slow tests/checker

interrupts: setup  ## Ctrl-C at every module that a command reads and at many later moments: one line (3 hours)
	$(BIN)/python -m pytest -m slow tests/cli/test_interrupted_start.py tests/cli/test_interrupted.py

netlab: setup  ## servers of the host target over shaped links: shapes, faults, bytes, rates; over both engines, as root (90 minutes)
	$(BIN)/python -m pytest -rA tests/netlab/test_netlab.py tests/netlab/test_server_faults.py tests/netlab/test_servers_launched.py tests/runtime/test_servers.py tests/runtime/test_courier_deaths.py tests/runtime/test_wire_engine.py tests/bench/test_launchers.py
	COLLC_NET=ucx:lo COLLC_UCX_UNSAFE_TCP=1 $(BIN)/python -m pytest -rA tests/runtime/test_servers.py tests/runtime/test_courier_deaths.py
	COLLC_NET=ucx:e0 COLLC_UCX_UNSAFE_TCP=1 $(BIN)/python -m pytest -rA tests/netlab/test_netlab.py tests/netlab/test_server_faults.py

flood: setup  ## 5,000 strangers of all kinds at the listeners of a creation, three times (5 minutes)
	$(BIN)/python -m pytest -m slow -rAs tests/runtime/test_flood.py

netlab-calls: setup  ## 2,000 seeded calls of each shape over shaped links, and as many in parts of it, with each engine; as root (15 minutes)
	$(BIN)/python -m pytest -m slow -rAs tests/netlab/test_calls.py

cuda-servers: setup  ## CUDA libraries over several servers on a driver of the tests: types and operations, 3 + 5 and 1 + 1 + 6 ranks, kills
	$(BIN)/python -m pytest -rAs tests/cuda/test_cuda_servers.py

netlab-rails: setup  ## several rails between servers: shares, rates beside plain sockets, losses, chaos; as root (15 minutes)
	$(BIN)/python -m pytest -rAs tests/netlab/test_lab_rails.py

validate: setup  ## the simulator against published tables; rewrites the medians of docs/validation.md
	$(BIN)/python benchmarks/simulate.py report

gpu-check:  ## on a machine with a GPU and nvcc: every collective on it, sanitizer, timings; OUT=folder for the table (8 minutes)
	$(PYTHON) gpu_check/check.py

gpu-check-torch:  ## on such a machine with PyTorch and collc: its nccl backend over a library, 4 ranks (4 minutes)
	$(PYTHON) gpu_check/torch_step.py

gpu-check-tables: setup  ## write the compact tables that gpu-check starts from again
	$(BIN)/python gpu_check/write_tables.py

# The PyTorch that tests and benchmarks install.
TORCH ?= 2.13.0

test-torch: setup  ## the torch.distributed backend: every collective, DDP and FSDP beside Gloo; TORCH=2.14.1 for another version
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)'
	$(BIN)/python -m pytest tests/torch_backend

test-torch-suite: setup  ## PyTorch's own tests of a backend over collc and Gloo, worlds of 2 and 4 (20 minutes)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)' expecttest numpy
	@rm -rf build/torch-suite && mkdir -p build/torch-suite
	for world in 2 4; do for backend in collc gloo; do \
	  OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/torch_backend/suite.py run --backend $$backend --world $$world \
	    --out build/torch-suite/$$backend-$$world.json 2> build/torch-suite/$$backend-$$world.log || true; done; done
	@# A run that failed is judged here: the table fails for results that are missing and for tests that only Gloo passes.
	$(BIN)/python tests/torch_backend/suite.py table --write docs/data/torch-suite.yaml build/torch-suite/*.json

SEEDS ?= 0..500
packing-sweep: setup  ## plans of 500 random machines, all collectives, checked; SEEDS=0..10000 goes on from the last run
	@mkdir -p build
	PYTHONPATH=tests/packing $(BIN)/python tests/packing/sweep.py --seeds $(SEEDS) --results build/packing-sweep.jsonl

bench-packing: setup  ## the packing, into docs/data; FORESTCOLL=<its folder> runs it beside
	$(BIN)/python benchmarks/packing.py --write docs/data/packing.yaml

bench-defaults: setup  ## what default libraries reach of the best candidate, in the model (30 minutes)
	$(BIN)/python benchmarks/defaults.py --write docs/data/defaults.yaml

bench-limits: setup  ## what default libraries reach at 1 GiB of what is possible, in the model (15 minutes)
	$(BIN)/python benchmarks/limits.py --write docs/data/limits.yaml

test-defaults: setup  ## default libraries reach what docs/data/defaults.yaml says of them, in the model (20 minutes)
	$(BIN)/python -m pytest -m slow tests/choose/test_model_tables.py

test-nccl-tests: setup  ## nccl-tests' programs over the host target; NCCL_TESTS=<folder of built programs>
	@test -n "$(NCCL_TESTS)" || { echo "say NCCL_TESTS=<folder>: docs/nccl-tests.md tells what to build" >&2; exit 2; }
	NCCL_TESTS='$(NCCL_TESTS)' $(BIN)/python -m pytest -m slow tests/nccl_tests

bench-beside: setup  ## the host target and each MPI in turn in the same processes; MPI_ENV=<folder of wheels>, MINUTES=9 for a part; benchmarks/beside.py
	$(BIN)/python benchmarks/beside.py $(if $(MPI_ENV),--env $(MPI_ENV)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  --write 'docs/data/beside-{processor}.yaml'

bench-references: setup  ## the host target beside references of one copy (threads, ncclMemAlloc) and of two (private buffers)
	$(BIN)/python benchmarks/references.py --write docs/data/references.yaml

bench-one-way: setup  ## broadcasts and all_gathers of private buffers beside one copy by the kernel for each reader, on large and small pages
	$(BIN)/python benchmarks/one_way.py --write 'docs/data/one-way-{processor}.yaml'

bench-small-call: setup  ## instructions and time of a 1 KiB call beside another build; BEFORE=LIB AFTER=LIB of benchmarks/pair.yaml
	@test -n "$(BEFORE)" -a -n "$(AFTER)" || { echo "say BEFORE=LIB AFTER=LIB: benchmarks/small_call.py tells which" >&2; exit 2; }
	$(BIN)/python benchmarks/small_call.py --before $(BEFORE) --after $(AFTER)

bench-tune: setup  ## is what collc tune chooses within 10% of the best? On an idle machine
	$(BIN)/python benchmarks/tune.py --write docs/data/tune.yaml

bench-torch: setup  ## collc.torch beside Gloo: all_reduce by size, a training step
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)'
	$(BIN)/python benchmarks/torch_calls.py --write docs/data/torch.yaml

bench-server-rates: setup  ## what several servers reach of the proven rate, beside plain sockets, over shaped links; as root (5 minutes)
	$(BIN)/python benchmarks/server_rates.py --write docs/data/server-rates.yaml

bench-server-mpi: setup  ## several servers beside Open MPI and Gloo, over shaped links; as root (15 minutes)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)'
	$(BIN)/python benchmarks/server_mpi.py --write docs/data/server-mpi.yaml

bench-server-rails: setup  ## several rails between servers beside Open MPI, Gloo and UCX, over shaped links; as root (10 minutes)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)'
	$(BIN)/python benchmarks/server_rails.py --write docs/data/server-rails.yaml

bench-servers: setup  ## collc.torch on 3 + 5 ranks of two servers beside Gloo, over shaped links; as root
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)'
	$(BIN)/python benchmarks/servers.py --write docs/data/servers.yaml

REPRODUCE = $(BIN)/python benchmarks/reproduce.py --write build/reproduced
reproduce: setup  ## answers to all claims of the five sources: build/reproduced, docs/data/reproduced.csv (10 minutes)
	$(REPRODUCE) --answers docs/data/reproduced.csv

build/reproduced/index.md: | setup
	$(REPRODUCE)

pictures: setup  ## the drawings of README.md and docs/optimal.md
	$(BIN)/python benchmarks/pictures.py

docs: setup build/reproduced/index.md  ## the documentation as a site, with its generated pages: build/site/index.html (10 minutes the first time)
	$(BIN)/python benchmarks/build_site.py

docs-commands: setup  ## every command line of README.md and docs/, run; figures that follow from plans (10 minutes)
	$(BIN)/python -m pytest -m slow tests/cli/test_documented_commands.py tests/docs

show-page:  ## build the script of `collc show`'s page anew from its sources and npm's packages
	rm -rf build/show && mkdir -p build && cp -r templates/show build/show
	cd build/show && npm ci --ignore-scripts --no-audit --no-fund && node node_modules/esbuild/install.js && npm run build
	cp build/show/page.js templates/show/page.js

format: setup  ## rewrite the Python, C, C++ and CUDA sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.c' '*.cpp' '*.cu' '*.h' ':!tests/golden' | xargs $(BIN)/clang-format -i

golden: setup  ## rewrite the golden files; read the diff afterwards
	$(BIN)/python -m pytest tests/test_golden.py tests/test_cases.py tests/collectives --update-golden

wheel: setup  ## dist/: the wheel of this platform with the runtime built, and the one for all others without
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

test-platform-wheel: setup  ## build the platform's wheel, install it in an empty environment, compile without the runtime
	$(BIN)/python -m pytest -m slow tests/build/test_platform_wheel.py

test-wheel: setup  ## build the wheel, install it in a fresh environment and run the tests against it
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls build/wheel/*.whl)[dev]"
	cp -r tests pyproject.toml build/wheel/
	cd build/wheel && venv/bin/python -m pytest -q -n $(JOBS) --dist worksteal -m "not slow"

clean:  ## remove what was built; the environment stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis collc-dump

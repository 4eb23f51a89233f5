# The one entry for people and CI. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo test test-unit test-processes lint format types docs house step-files unit property contract integration chaos soak without-patch cluster-soak fleet-outages churn browser interleavings short-jobs elections gpu bench bench-quick cluster-jobs cluster-api cluster-scale figures tables scenarios clean

PYTHON_BIN := .venv/bin/python
PYTEST := $(PYTHON_BIN) -m pytest
# A test waits for half of its time: for a session to end, for a newcomer to start. With four processes
# of pytest each imports the tests and the frameworks once more, and jobs of four workers wait for the
# processors until the ports of some do not answer for 20 s. The order is that of tests/conftest.py: the
# slow ones first.
SIDE_BY_SIDE := --numprocesses 3 --dist loadscope
# Else each of the many processes of a test compiles edl anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: ## system packages, .venv, frameworks, edl and Horovod; at once when all is there
	@scripts/setup.sh

setup-tests: ## the same, and system packages that only tests need: an ssh server, Slurm, systemd
	@scripts/setup.sh --tests

demo: ## a job on real data that grows and shrinks while it trains; needs PyTorch only
	@scripts/setup.sh --demo
	@$(PYTHON_BIN) examples/demo.py

test: setup-tests lint types ## everything that must hold: lint, types, unit, property, contract, integration, some chaos
	@$(MAKE) --no-print-directory --jobs 2 test-unit test-processes

# Two runs of pytest at the same time: one process imports PyTorch and the modules of the tests that start
# no process, and not each of three.
test-unit:
	HYPOTHESIS_PROFILE=ci $(PYTEST) tests/unit tests/property -m "not long"

test-processes:
	HYPOTHESIS_PROFILE=ci $(PYTEST) $(SIDE_BY_SIDE) tests/contract tests/integration tests/chaos -m "not chaos and not long or chaos_short"

lint: setup ## ruff: rules and formatting
	$(PYTHON_BIN) -m ruff check .
	$(PYTHON_BIN) -m ruff format --check .

types: setup ## mypy --strict on edl/
	$(PYTHON_BIN) -m mypy

docs: setup ## write the tables of docs/ that are generated from the code
	$(PYTHON_BIN) scripts/docs_tables.py

house: setup ## the files and lines of each room of edl/, beside its budget; ARGS=--lower
	$(PYTHON_BIN) scripts/house.py $(ARGS)

step-files: setup ## which files of edl a step enters, and one with a repair; ARGS=--fit
	$(PYTHON_BIN) scripts/step_files.py $(ARGS)

format: setup ## let ruff format and mend what it can
	$(PYTHON_BIN) -m ruff format .
	$(PYTHON_BIN) -m ruff check --fix .

unit: setup-tests ## exact decisions; no processes, no sleeping
	$(PYTEST) tests/unit

property: setup ## hypothesis over ledger, membership, step records and whole jobs; other examples each time
	$(PYTEST) tests/property

contract: setup-tests ## one suite for every ring: in this process, PyTorch, TensorFlow
	$(PYTEST) tests/contract

integration: setup-tests ## real ZooKeeper, real Horovod, real processes; also what takes minutes
	$(PYTEST) $(SIDE_BY_SIDE) tests/integration

chaos: setup-tests ## kills, stops and cuts at chosen and at seeded random moments
	$(PYTEST) $(SIDE_BY_SIDE) tests/chaos tests/integration -m chaos

soak: setup ## half an hour of faults, and nothing grows; ARGS="--minutes 5 --framework tensorflow-fit"
	PYTHONPATH=tests/integration $(PYTHON_BIN) tests/chaos/soak.py $(ARGS)

without-patch: setup-tests ## counting, some chaos and five minutes of soak on a Horovod that lacks a patch of edl; ARGS="shared-memory"
	$(PYTHON_BIN) tests/chaos/without_patch.py $(ARGS)

cluster-soak: setup-tests ## half an hour of users and kills on a live cluster; ARGS="--minutes 5 --seed 2 --fleet slurm"
	PYTHONPATH=.:tests/integration $(PYTHON_BIN) tests/chaos/cluster_soak.py $(ARGS)

fleet-outages: setup-tests ## ten minutes of slot moves while Slurm's and then Ray's head is killed all the time; needs root; ARGS="--minutes 2 --fleet ray"
	PYTHONPATH=.:tests/integration $(PYTHON_BIN) tests/chaos/fleet_outages.py $(ARGS)

churn: setup ## workers spawned and killed all the time, 2,000 kills; ARGS="--kills 100 --seed 2 --exact"
	PYTHONPATH=tests:tests/integration $(PYTHON_BIN) tests/chaos/churn.py $(ARGS)

interleavings: setup ## a million seeded jobs on the loopback ring; ARGS="--count 10000 --first 1"
	PYTHONPATH=tests:tests/property $(PYTHON_BIN) tests/chaos/interleavings.py $(ARGS)

short-jobs: setup ## ten thousand short jobs through one local ZooKeeper; ARGS="--count 500"
	PYTHONPATH=tests $(PYTHON_BIN) tests/chaos/short_jobs.py $(ARGS)

gpu: ## kills, freezes and joins with workers that share a GPU, by NCCL; needs one, and edl installed for it; PYTHON_BIN=python3 ARGS="kill freeze"
	$(PYTHON_BIN) tests/gpu/check.py $(ARGS)

browser: setup-tests ## the dashboard of real jobs and clusters in headless Chromium, which it installs
	scripts/setup_browser.sh $(PYTHON_BIN)
	$(PYTEST) tests/browser $(ARGS)

elections: setup ## forty deaths of a leader that is the only old worker; ARGS="--kills 5"
	PYTHONPATH=tests/integration $(PYTHON_BIN) tests/chaos/elections.py $(ARGS)

bench: setup ## edl beside stock Horovod (and torchrun), on this machine, in one run; ARGS="--only goodput"
	$(PYTHON_BIN) -m benchmarks $(ARGS)

bench-quick: setup ## the same for changes of the workers and a step, once, beside Horovod Elastic, torchrun and torchft; prints; needs root
	@$(PYTHON_BIN) -m benchmarks --quick

figures: setup ## what edl's learning-rate rules do to small trainings, drawn; ARGS="--seeds 5 --only knee"
	OMP_NUM_THREADS=1 $(PYTHON_BIN) -m benchmarks.adapting $(ARGS)

tables: setup ## what each cluster policy makes of published work: benchmarks/results/scheduling.md; ARGS="--quick"
	OMP_NUM_THREADS=1 $(PYTHON_BIN) -m benchmarks.scheduling --jobs 2 $(ARGS)

cluster-jobs: setup ## eight jobs on a live cluster, beside the simulator: benchmarks/results/cluster.md; needs root; ARGS="--policy edl"
	$(PYTHON_BIN) -m benchmarks.cluster_jobs $(ARGS)

cluster-api: setup ## how soon the HTTP API of a cluster acknowledges jobs: benchmarks/results/cluster-api.md; ARGS="--rate 200 --seconds 30"
	$(PYTHON_BIN) -m benchmarks.cluster_api $(ARGS)

cluster-scale: setup ## a thousand stand-in jobs on 200 stand-in hosts, and a day of 10,000: benchmarks/results/cluster-scale.md; ARGS="--only steady"
	$(PYTHON_BIN) -m benchmarks.cluster_scale $(ARGS)

scenarios: setup ## Horovod's own elastic scenarios, stock beside edl: benchmarks/results/horovod-scenarios.md
	$(PYTHON_BIN) -m benchmarks.scenarios $(ARGS)

clean: ## remove caches and build leftovers; .venv and the wheel cache stay
	rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find edl tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

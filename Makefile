# cellfeed: every target explains itself in `make help`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
KEEP   ?=
KIND   ?=
SEED   ?=
NAME   ?=
FRAMES ?=
WORKERS ?= 4
T      ?=
AREA   ?=
SAMPLE ?=
RECORD ?=

SEEDED  = $(if $(SEED),--randomly-seed=$(SEED))
# Plugins that one file does not need take two seconds to import.
LEAN    = -p no:schemathesis -p no:faker -p no:anyio
ALONE   = $(LEAN) -p no:xdist -p no:rerunfailures $(if $(SEED),,-p no:randomly)

# Without kept bytecode every process compiles the whole product when it starts, which is half of
# what a short command takes. Where a stale file could mislead, tests switch it off for themselves.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast pure mutants lint docs grid bench faults faults-all races ecosystem model fuzz services release-check release lock clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready ## Make .venv with the locked dependencies (Python 3.11+ and PyPI are enough)

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("cellfeed needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q cellfeed store bridge consumers schemas
	touch $@

demo: setup ## Real taxi trips from a put to a bill and a warehouse table, with proof (KEEP=1 leaves it running)
	$(BIN)/cellfeed demo $(if $(KEEP),--keep)

# Most tests wait for servers more than they compute: four workers keep two cores busy.
# Tests come in the order of tests/conftest.py: the long ones first. Without --no-loadscope-reorder it would be groups of many tests first, however short.
# A wait that timed out runs once more and is counted: a machine can stand still for half a minute. A wrong result fails at once.
ifeq ($(T),)
test: setup lint ## The whole test suite (WORKERS=n at once, 4 without; T=path: these tests alone, at once; SEED=n repeats an order)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(SEEDED) --reruns 1 --only-rerun "not within|Timeout|timed out"
else
test: setup
	$(BIN)/python -m pytest -q $(ALONE) $(SEEDED) $(T)
endif

test-fast: setup ## Style, types, layers and the pure tests, beside each other: no server, no process, no long wait (a minute)
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint pure

# Most of these tests' time is waits for threads of their own, so four workers keep two cores busy.
# Each takes some seconds of a core to collect them. Hypothesis draws a third of its examples;
# `make test` draws them all.
pure: setup
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -q $(LEAN) -n 4 --dist worksteal $(SEEDED) -m "not integration and not slow and not faults" tests/unit

mutants: setup ## Plant known bugs, one at a time in a copy of the tree; each must fail its tests (AREA=store/engines, NAME=one, SAMPLE=40 SEED=n)
	$(BIN)/python -m tests.mutants $(if $(AREA),--area $(AREA)) $(if $(NAME),--name $(NAME)) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

lint: setup ## Style, types and layers: ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

grid: setup ## Ask every Kafka client the same things; writes the table in docs/kafka-consumers.md
	CELLFEED_WRITE_GRID=1 $(BIN)/python -m pytest -p no:xdist tests/clients/test_client_grid.py

docs: setup ## The guides and the reference as a site with search, in build/site; a warning is an error
	$(BIN)/python -m sphinx --fail-on-warning --fresh-env --quiet -c docs/site . build/site

bench: setup ## Measurements beside their peers (NAME=put_http for one; all without), with plots in build/bench (RECORD=docs/plots for those of the guide)
	$(BIN)/python -m benchmarks $(or $(NAME),--all) --record $(or $(RECORD),build/bench)

faults: setup ## Fault runs on the whole system (KIND=worker|master|trigger-kill|zookeeper-empty|…, SEED=n or 1-20); one JSON summary per run
	$(BIN)/python -m tests.faults $(if $(KIND),--kind $(KIND)) $(if $(SEED),--seed $(SEED))

faults-all: setup ## Every kind of fault run with three seeds from the day's on (hours; SEED=n-m others): at least weekly, and a missing server fails
	$(BIN)/python -m tests.faults --all $(if $(SEED),--seed $(SEED))

races: setup ## Two actors on real clusters in every order, and in many orders of the day's seed (minutes)
	CELLFEED_RACES=1 $(BIN)/python -m pytest -q -p no:xdist tests/races/test_cluster_races.py

ecosystem: setup ## Generated Go and TypeScript clients; the recipes of docs/recipes.md: Spark, Flink, Quix, Faust, Bytewax, Connect, MirrorMaker 2, Kafka Streams, each killed once (minutes): at least weekly
	CELLFEED_ECOSYSTEM=1 $(BIN)/python -m pytest -q -p no:xdist tests/ecosystem

model: setup ## Every state of a model of clusters: the design, then each planted fault (docs/inside/cluster-model.md)
	$(BIN)/python -m docs.inside.cluster_model --deep
	$(BIN)/python -m docs.inside.cluster_model --plant all

fuzz: setup ## Malformed frames at a running gateway beside good clients (FRAMES=200000, SEED=n); one JSON verdict
	$(BIN)/python -m tests.fuzz gateway $(if $(FRAMES),--frames $(FRAMES)) $(if $(SEED),--seed $(SEED))

services: ## Install what local servers and tests on them use (MariaDB, ZooKeeper, kcat, Java, Kafka's jars) where apt and root are there
	./docker/install-services

release-check: setup ## Build what is committed, check both archives, install and run the demo on every Python of 3.11 to 3.14 here (minutes)
	$(BIN)/python -m tests.release_check

release: export HOMEPAGE_URL := $(HOMEPAGE_URL)
release: export DOCUMENTATION_URL := $(DOCUMENTATION_URL)
release: export CHANGELOG_URL := $(CHANGELOG_URL)
release: export FILES_URL := $(FILES_URL)
release: setup ## The same with the project's addresses (HOMEPAGE_URL=, DOCUMENTATION_URL=, CHANGELOG_URL=, FILES_URL=), on each of these Pythons; the archives are in dist/
	$(BIN)/python -m tests.release_check --release

lock: ## Write requirements.lock and the image's lock files again from pyproject.toml (needs uv)
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --extra dev --extra all --group docs --python-version 3.11 pyproject.toml -o requirements.lock
	uv pip compile --quiet --python-platform linux --generate-hashes --no-emit-index-url --no-annotate --no-header --extra all --python-version 3.11 --constraint requirements.lock pyproject.toml -o docker/requirements.lock
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11 docker/build-requirements.in -o docker/build-requirements.lock

clean: ## Remove the environment and what runs left behind
	rm -rf $(VENV) run demo-run .pytest_cache .mypy_cache .ruff_cache .hypothesis

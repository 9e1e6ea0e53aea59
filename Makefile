# Every target sets up what it needs, on a machine that has only Python 3.11 or newer.
#   make demo PYTHON=python3.13        another Python
#   make test PYTEST_ARGS="-k wire"    some of the tests
#   make test WORKERS=0                in one process, as a debugger needs it

PYTHON ?= python3
PYTEST_ARGS ?=
# A process for each core, up to eight: beyond that, brokers and clients of the tests wait for disks.
WORKERS ?= auto
BENCH_ARGS ?=
FUZZ_SECONDS ?= 60

VENV := .venv
STAMP := $(VENV)/.stamp
BIN := $(VENV)/bin
PROTOS := src/ister/server/grpc/protos

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

.PHONY: help demo test test-slow check check-static check-format check-lint check-types check-contracts \
	fuzz bench-live bench-grpc bench-streams bench-spark bench-timeline format protos setup compile clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## see it work: a broker, a producer, two subscriptions and a pipeline, live in the terminal
	@$(BIN)/python examples/demo.py

test: $(STAMP) compile ## run every test
	@$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadfile $(PYTEST_ARGS)

test-slow: $(STAMP) compile ## the tests that kill Spark, and all around timelines, for long: half an hour
	@$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadfile -m slow $(PYTEST_ARGS)

# As pip does. Without it, every broker of the tests compiles the package anew where
# PYTHONDONTWRITEBYTECODE is set.
compile: $(STAMP)
	@$(BIN)/python -m compileall -q src

check: check-static test ## the whole gate: format, lint, types, contracts, tests

check-static: check-format check-lint check-types check-contracts ## the part of the gate that runs no code

check-format: $(STAMP)
	@$(BIN)/ruff format --check --quiet || { $(BIN)/ruff format --diff --quiet; echo 'run: make format' >&2; exit 1; }

check-lint: $(STAMP)
	@$(BIN)/ruff check

check-types: $(STAMP)
	@$(BIN)/mypy

check-contracts: $(STAMP)
	@$(BIN)/lint-imports

fuzz: $(STAMP) ## property tests and fuzz loops for longer: FUZZ_SECONDS=60
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest -m 'hypothesis or fuzz' \
		--hypothesis-profile=fuzz --timeout=0 $(PYTEST_ARGS)

bench-live: $(STAMP) ## compare live messaging with NATS and a plain relay
	@$(BIN)/python -m bench.live $(BENCH_ARGS)

bench-grpc: $(STAMP) ## compare the gRPC door with a bare grpcio server, through Danube's client
	@$(BIN)/python -m bench.grpc $(BENCH_ARGS)

bench-streams: $(STAMP) ## compare durable streams with JetStream and the plain disk
	@$(BIN)/python -m bench.streams $(BENCH_ARGS)

bench-spark: $(STAMP) ## compare Spark over topics with Spark over its own Parquet
	@$(BIN)/python -m bench.spark $(BENCH_ARGS)

bench-timeline: $(STAMP) ## compare timelines with NATS's scheduled messages and plain SQLite
	@$(BIN)/python -m bench.timeline $(BENCH_ARGS)

format: $(STAMP) ## format the code and mend what the linter can
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

protos: $(STAMP) ## make the descriptors of Danube's messages again from their .proto files
	@$(BIN)/python -m grpc_tools.protoc -I$(PROTOS) --descriptor_set_out=$(PROTOS)/danube.binpb \
		$(sort $(wildcard $(PROTOS)/*.proto))

setup: $(STAMP) ## only make the venv

$(STAMP): pyproject.toml constraints.txt scripts/setup-venv scripts/setup-java scripts/setup-postgres
	@PYTHON='$(PYTHON)' scripts/setup-venv $(VENV)

clean: ## remove the venv, caches and build output
	@rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache fuzz-failures
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

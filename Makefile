# Everything a person types. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build demo up down test test-containers lint fuzz-stacks images up-containers down-containers deb bench-agent \
  bench-unwind bench-wire bench-pipeline bench-storage bench-symbols bench-sampling bench-stacks bench-deploy bench-on-demand

export STROBE_HOME ?= $(CURDIR)/.strobe
DEMO_SECONDS ?= 20
DEMO_KEEP ?= 1
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 1

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

setup: ## Install what a fresh Debian 12 lacks (Debian packages, the broker's jars, the engine)
	@infra/setup.sh

build: setup ## Build the two executables and the demo workloads
	@infra/build.sh

demo: build ## Profile this host for DEMO_SECONDS (20) while demo workloads run; DEMO_KEEP=0 stops all again
	@DEMO_SECONDS=$(DEMO_SECONDS) DEMO_KEEP=$(DEMO_KEEP) infra/demo.sh

up: build ## Start broker, engine, processor, sink and agent on this host
	@infra/stack.sh up

down: ## Stop all that `make up` and `make demo` started
	@infra/stack.sh down

images: build ## Build the container images (BASE=IMAGE: on another base)
	@infra/images/build.sh

up-containers: ## Start everything in containers, from the images
	@infra/containers.sh up

down-containers: ## Stop all that `make up-containers` started; what was stored stays in volumes
	@infra/containers.sh down

deb: build ## Build the Debian packages strobe-agent and strobe
	@infra/deb/build.sh

test: setup ## Run every test that this machine can run, and say which were skipped and why
	@infra/test.sh

test-containers: build ## Run the journeys with every part in a container, where an engine and the images are there
	@infra/test-containers.sh

lint: setup ## What the continuous integration asks of the source
	cargo fmt --all -- --check
	cargo clippy --release --workspace --all-targets -- -D warnings

bench-agent: build ## CPU per sample, memory and losses of the agent
	@infra/bench.sh agent

bench-unwind: build ## CPU per sample with and without frame pointers, whole stacks of real programs, tables
	@infra/bench.sh unwind

bench-wire: build ## Bytes per sample on Kafka, and the cost of encoding and decoding
	@infra/bench.sh wire

bench-pipeline: build ## From raw batches to queryable rows
	@infra/bench.sh pipeline

bench-storage: build ## Bytes per sample and per stack in the store, and a flame graph over 10 million samples
	@infra/bench.sh storage

bench-stacks: build ## What matching stack schemas costs, beside plain regular expressions
	@infra/bench.sh stacks

fuzz-stacks: build ## Fuzz the language of stack schemas for FUZZ_SECONDS (60) from FUZZ_SEED (1)
	@"$${CARGO_TARGET_DIR:-target}/release/examples/fuzz_stacks" $(FUZZ_SECONDS) $(FUZZ_SEED) "$(STROBE_HOME)/fuzz-stacks"

bench-symbols: build ## Making symbol files and looking addresses up in them, beside LLVM's tools and blazesym
	@infra/bench.sh symbols

bench-sampling: build ## Does the tuner find its rate, are totals unbiased, how fast is a simulated week
	@infra/bench.sh sampling

bench-on-demand: build ## From `strobe profile` to its answer, 20 times
	@infra/bench.sh on-demand

bench-deploy: images ## From nothing but images to the first named sample, and the images' sizes
	@infra/images/bench.sh

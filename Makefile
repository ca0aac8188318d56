# All targets set up what is missing (tools/setup.sh, idempotent) and then call CMake.
# TORCH=<dir of an installed torch> uses another libtorch, 2.11 to 2.13, CPU or CUDA.

TORCH ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# Tests of failures wait for deadlines: two more than there are cores keep these busy.
TEST_JOBS ?= $(shell echo $$(($(JOBS) + 2)))
PREFIX ?= /usr/local
PYTHON ?= $(if $(TORCH),$(abspath $(TORCH)/../../../..)/bin/python3,.venv/bin/python)
SEED ?= 0
MINUTES ?= 60
WORLDS ?= 0,2
export TORCH

.DEFAULT_GOAL := help
.PHONY: help setup build test pure demo docs bench models coverage check format asan tsan fuzz sweep gpu install clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18
	@echo
	@echo "  TORCH=<dir>     another installed torch (2.11 to 2.13); now: $(or $(TORCH),.venv)"
	@echo "  JOBS=<n>        parallel jobs; now: $(JOBS)"

setup:  ## install what is missing: system packages, .venv with torch
	@tools/setup.sh

build: setup  ## configure and build all but the benchmarks
	@tools/configure.sh dev
	@cmake --build --preset dev -j $(JOBS)

test: build  ## build, then run every test
	@ctest --preset dev -j $(TEST_JOBS)

pure:  ## build and run the tests that need no torch
	@TORCH=none tools/setup.sh
	@tools/configure.sh pure
	@cmake --build --preset pure -j $(JOBS)
	@ctest --preset pure -j $(JOBS)

demo: setup  ## build what the main job needs, and run it
	@tools/configure.sh dev
	@cmake --build --preset dev -j $(JOBS) --target tessera_cli example_gpt
	@tools/demo.sh

docs:  ## build the documentation, one offline site: build/docs/site/index.html
	@DOCS=1 PYTHON=$(PYTHON) tools/setup.sh
	@tools/configure.sh dev
	@cmake --build --preset dev -j $(JOBS) --target tessera_python
	@PYTHONDONTWRITEBYTECODE=1 .venv-docs/bin/python tools/build_docs.py build/python \
	  $(or $(patsubst %,%/..,$(TORCH)),$$(echo .venv/lib/python3*/site-packages))

bench: build  ## build the benchmarks and print the figures
	@cmake --build --preset dev -j $(JOBS) --target benchmarks
	@benchmarks/run.sh

models: build  ## train small copies of published models under fully_shard in bfloat16
	@tools/models.sh

coverage: setup  ## write docs/op_coverage.md anew, from the rules and libtorch's ops
	@tools/configure.sh dev
	@cmake --build --preset dev -j $(JOBS) --target test_rules_proof
	@TESSERA_WRITE_COVERAGE=1 build/tests/test_rules_proof --gtest_filter='*ThePage*'

check:  ## the cheap checks, without a build: format, rooms, exported names, README
	@tools/check_format.sh
	@python3 tools/check_rooms.py
	@python3 tools/check_api.py
	@python3 tools/check_readme.py

format:  ## format all sources in place
	@tools/check_format.sh --fix

asan: setup  ## the tests of all rooms under address and undefined sanitizers
	@tools/configure.sh asan
	@cmake --build --preset asan -j $(JOBS)
	@ctest --preset asan -j $(JOBS)

tsan: setup  ## the same under the thread sanitizer
	@tools/configure.sh tsan
	@cmake --build --preset tsan -j $(JOBS)
	@ctest --preset tsan -j $(JOBS)

fuzz: build  ## random programs on shards against plain ones: SEED=0 MINUTES=60 WORLDS=0,2 JOBS=n
	@PYTHONPATH=build/python $(PYTHON) tests/python/fuzz/fuzz.py --seed $(SEED) \
	  --minutes $(MINUTES) --worlds $(WORLDS) --jobs $(JOBS)

sweep: build  ## PyTorch's operator database on shards: ways to call, integers, threads and two processes
	@for way in value in_place out second; do for n in 0 2; do \
	  PYTHONPATH=build/python $(PYTHON) tests/python/op_sweep.py --seed $(SEED) --way $$way \
	    --processes $$n || exit 1; \
	done; done
	@for dtype in uint8 int32 int64; do \
	  PYTHONPATH=build/python $(PYTHON) tests/python/op_sweep.py --seed $(SEED) --dtype $$dtype \
	    || exit 1; \
	done

gpu:  ## on a machine with a GPU, offline: build for TORCH=<dir>, run its tests and the benchmark
	@tools/gpu.sh

install: build  ## install into PREFIX=/usr/local
	@cmake --install build --prefix $(PREFIX)

clean:  ## remove all build folders (.venv stays)
	@rm -rf build build-pure build-release build-asan build-tsan build-gpu

# The commands that a newcomer needs; `make help` lists them. The work is in scripts/, which run from any folder.
#
# Settings, on the command line or in the environment:
#   LIBTORCH=DIR   a LibTorch 2.11 to use instead of the active Python's or the one in .venv
#   JOBS=N         compilers and tests at a time (default: what cores and memory allow)
#   PREFIX=DIR     where `make install` installs (default /usr/local); DESTDIR works as usual
#   ARGS="..."     passed on by `make demo` (to brigade demo), `make test` (to ctest), `make bench`, `make faults`, `make soak`
#   MINUTES, SEED  for `make soak`
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test faults soak check build bench docs format lint clean install dist
scripts := $(shell dirname "$(strip $(MAKEFILE_LIST))")/scripts
export LIBTORCH JOBS PREFIX DESTDIR

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' "$(scripts)/../Makefile"

demo: ## a small network trained under every hook, side by side, in under a minute
	@"$(scripts)/setup" && "$(scripts)/build" brigade_tool && "$(scripts)/demo" $(ARGS)

test: ## build everything and run all tests
	@"$(scripts)/setup" --python && "$(scripts)/build" all && "$(scripts)/test" $(ARGS)

faults: ## the whole table of faults: every process killed, stopped, starved …; tests/faults/TABLE.md is written anew
	@"$(scripts)/setup" --python && "$(scripts)/build" all && "$(scripts)/faults" $(ARGS)

soak_minutes = --minutes "$(or $(MINUTES),10)"
soak: ## random kills, MINUTES=10 with restarts [SEED=…] and as many of elastic jobs; ARGS=--elastic: of these only
	@"$(scripts)/setup" && "$(scripts)/build" all && "$(scripts)/soak" $(soak_minutes) $(if $(SEED),--seed "$(SEED)") $(ARGS) \
	$(if $(ARGS),,&& "$(scripts)/soak" --elastic $(soak_minutes))

check: ## what to run before proposing a change: clang-tidy, sanitizers, a browser; takes long
	@"$(scripts)/setup" --check && "$(scripts)/build" all && "$(scripts)/check"

build: ## the library, the brigade command and the examples, without the tests
	@"$(scripts)/setup" && "$(scripts)/build" brigade_all

bench: ## measure against Python's DDP and print the comparison; train under the hooks
	@"$(scripts)/setup" --python && "$(scripts)/build" brigade_benchmarks brigade_tool && "$(scripts)/bench" $(ARGS)

docs: ## the site from the pages and the headers, into build/docs/html
	@"$(scripts)/docs"

format: ## put all C++ files into the project's format
	@"$(scripts)/format"

lint: ## check format, layers and clang-tidy
	@"$(scripts)/setup" --format && "$(scripts)/lint"

clean: ## remove what was built (keeps .venv)
	@rm -rf "$(scripts)/../build" "$(scripts)"/../build-*

install: ## library, headers, command and CMake package into PREFIX
	@"$(scripts)/setup" && "$(scripts)/build" brigade_all && "$(scripts)/install"

dist: ## a source tarball and a wheel, with checksums, in build/dist
	@"$(scripts)/setup" --python && "$(scripts)/build" all && "$(scripts)/dist"

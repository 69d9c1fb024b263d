# Everything happens in .venv and build/, as any user. Needed: git, make, a C++ compiler, Python >= 3.11 with venv.

PYTHON ?= python3
JOBS ?= 2
PYTEST_ARGS ?=
TEST_WORKERS ?= 6
SOAK_CYCLES ?= 1000
VENDOR ?= all

BIN := .venv/bin
BUILD_TOOLS := cmake==4.4.4 ninja==1.13.2 scikit-build-core==1.1.2
# For what uv does not install: the pip of Python 3.11 takes nearly twice the CPU.
INSTALLER := pip==26.3
SAYING := make:
INSTALL := $(BIN)/python tools/install.py
CMAKE := $(BIN)/cmake
NATIVE_SOURCES = $(shell find CMakeLists.txt core/gcr/hashing/chunk_hash.h shim tests/native -type f ! -name '*.pyc' 2>/dev/null)
FORMATTED = $(shell find core shim docs tests/native tests/preload tests/victims \
	-name '*.cpp' -o -name '*.c' -o -name '*.h' -o -name '*.hpp' 2>/dev/null)

# To install gcr a second time, with more, takes 8 seconds.
EXTRA := $(if $(filter test side-by-side soak check format wheel,$(MAKECMDGOALS)),test,nvidia)

ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)  # to collect all files takes seconds

MAKEFLAGS += --jobs=$(JOBS)  # a package index, and tests that wait, leave cores to a build
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
unexport PYTHONDONTWRITEBYTECODE  # tests start thousands of processes, each of which would compile what it imports

.PHONY: help demo test side-by-side test-all soak check format wheel native native-test browser docs clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile

demo: SAYING := SIMULATED demo:
demo: .venv/.installed ## checkpoint and restore a program on a SIMULATED GPU
	@$(BIN)/gcr demo

# A part of the tests, by PYTEST_ARGS, needs no sanitized builds.
test: $(if $(PYTEST_ARGS),.venv/.test build/criu/.fetched,side-by-side native-test) ## tests that need no GPU: each file, each quick function
ifeq ($(PYTEST_ARGS),)
	$(BIN)/python -m pytest -m "alone and not slow" $(ALONE)
else
	$(BIN)/python -m pytest $(PYTEST_ARGS)
endif

side-by-side: .venv/.collected build/criu/.fetched  # and beside the native tests, which sleep for much of their time
	$(BIN)/python -m pytest -m "not slow and not thorough" --numprocesses $(TEST_WORKERS) --dist worksteal

test-all: .venv/.collected build/criu/.fetched native-test ## the tests of `make test`, and those of tests/thorough.txt
	$(BIN)/python -m pytest -m "not slow and not alone" --numprocesses $(TEST_WORKERS) --dist worksteal
	$(BIN)/python -m pytest -m "alone and not slow" $(ALONE)

# First what must have the machine to itself, one world after the other; then what CI leaves out of the matrix.
soak: THERE := $(if $(filter-out all,$(VENDOR)),and $(VENDOR))
soak: .venv/.test build/sanitize/.preloaded build/thread/.preloaded ## SOAK_CYCLES=1000 under load in each world of VENDOR=all (nvidia, amd, ascend), every death at every step, and chaos
	SOAK_CYCLES=$(SOAK_CYCLES) $(BIN)/python -m pytest tests/e2e/test_under_load.py -m slow -k "test_soak $(THERE)"
	$(BIN)/python -m pytest -m "slow and alone" -k "not test_soak $(THERE)"
	$(BIN)/python -m pytest -m "slow and not alone" -k "not test_soak $(THERE)" --numprocesses $(TEST_WORKERS) --dist worksteal

check: .venv/.dev ## linters, types and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(FORMATTED),$(BIN)/clang-format --dry-run --Werror $(FORMATTED))

format: .venv/.dev ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(FORMATTED),$(BIN)/clang-format -i $(FORMATTED))

wheel: .venv/.dev ## a wheel for glibc >= 2.28 in dist/, tried in a fresh environment
	@rm -rf build/wheel && mkdir -p build/wheel dist
	@$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation -w build/wheel .
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir build/wheel/repaired build/wheel/*.whl
	@$(BIN)/python tools/wheel_check.py build/wheel/repaired/*.whl
	@mv build/wheel/repaired/*.whl dist/

native: .venv/.installed ## rebuild the shim and the simulated drivers

native-test: build/sanitize/.tested build/thread/.tested ## native tests, under the sanitizers

browser: ## a Chromium from the distribution, for the tests of `gcr inspect --html`: where there is apt, and for root
	@tools/install_browser.sh

docs: .venv/.installed ## regenerate docs/cli.md, configuration.md, errors.md and gcr.1
	$(BIN)/python -m gcr.cli.reference cli > docs/cli.md
	$(BIN)/python -m gcr.cli.reference configuration > docs/configuration.md
	$(BIN)/python -m gcr.cli.reference errors > docs/errors.md
	$(BIN)/python -m gcr.cli.reference man > docs/gcr.1

clean: ## remove .venv and build/
	rm -rf .venv build dist

NEW_ENOUGH = $(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("gcr needs Python >= 3.11; say: make PYTHON=python3.11")'

.venv/.tools: Makefile
	@$(NEW_ENOUGH)
	@echo '$(SAYING) a virtual environment and build tools in .venv'
	@$(PYTHON) -m venv .venv
	@$(INSTALL) $(INSTALLER) $(BUILD_TOOLS)
	@touch $@

.venv/.installed: .venv/.tools pyproject.toml $(NATIVE_SOURCES)
	@echo '$(SAYING) gcr, its shim and the simulated drivers in build/editable (a minute)'
	@$(INSTALL) --editable '.[$(EXTRA)]'
	@printf '%s\n' $(EXTRA) > $@

.venv/.test: .venv/.installed
	@echo '$(SAYING) what the tests need, in .venv'
	@grep -qx test $< || $(INSTALL) --editable '.[test]'
	@$(BIN)/python tests/victims/hip_python.py
	@touch $@

# Once: else each worker compiles every module and rewrites its assertions by itself. The run tells of errors.
.venv/.collected: .venv/.test
	@$(BIN)/python -m pytest --collect-only --quiet > $@ || true

# Where CRIU or runc is not to be had, the tests that need it are skipped. Fetched while .venv is made.
build/criu/.fetched: tools/fetch_criu.py
	@$(NEW_ENOUGH)
	@$(PYTHON) tools/fetch_criu.py build/criu
	@mkdir -p $(@D) && touch $@

.venv/.dev: .venv/.test
	@echo '$(SAYING) linters and type checker, in .venv'
	@$(INSTALL) --editable '.[dev]'
	@touch $@

build/sanitize/.%: SANITIZE := address,undefined
build/thread/.%: SANITIZE := thread
SANITIZED = $(CMAKE) -S . -B $(@D) -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	-DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DGCR_BUILD_TESTS=ON -DGCR_NATIVE_TESTS_ONLY=ON \
	-DGCR_SANITIZE=$(SANITIZE) -Wno-dev --log-level=WARNING
CTEST = $(BIN)/ctest --test-dir $(@D) --output-on-failure --no-tests=error

build/%/.tested: .venv/.tools $(NATIVE_SOURCES)
	$(SANITIZED) -DGCR_TEST_PYTHON=
	$(CMAKE) --build $(@D)
	$(CTEST) --parallel $(JOBS) --timeout 120
	@touch $@

# The whole shim under the sanitizers, in programs that are swapped: minutes of building.
build/%/.preloaded: .venv/.test $(NATIVE_SOURCES)
	$(SANITIZED) -DGCR_TEST_PYTHON=$(CURDIR)/$(BIN)/python
	$(CMAKE) --build $(@D)
	$(CTEST) --tests-regex agent_preload
	@touch $@

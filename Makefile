# Everything runs in $(VENV), which the targets make themselves from a bare Python and a C++ compiler.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
STORE ?= demo_store
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Settings of the caller's shell must not decide what a demo or a test does.
unexport CUDNN_AOT_STORE CUDNN_AOT_PIN CUDNN_AOT_TRUST CUDNN_AOT_OFFLINE CUDNN_AOT_FORBID_COMPILE CUDNN_AOT_CONFIG PYTHONPATH

NATIVE_SOURCES := $(wildcard native/CMakeLists.txt native/*.map native/src/* native/include/*)
CPP_FILES := $(wildcard native/src/*.cpp native/src/*.h native/include/* examples/cpp-server/*.cpp examples/cpp-server/*.h)
PACKAGES := compiler cache runtime cli recipes
TESTS ?= tests
WORKERS ?= 2

.PHONY: help demo test search sanitize lint check dev ide gpu-host clean
help:
	@echo 'make demo      build the example graphs for h200 and cpu, run the CPU plans, check them'
	@echo 'make test      ruff, format, mypy and every test that needs no GPU'
	@echo 'make search    the property tests, on examples of their own in every run'
	@echo 'make sanitize  the native tests under the address, undefined and thread sanitizers of gcc'
	@echo 'make dev       an editable install that rebuilds the native part on import'
	@echo 'make ide       links under build/ide that let mypy and editors see the package'
	@echo 'make gpu-host  gather in gpu_host/ what a machine with a GPU and no network needs'
	@echo 'make clean     remove what the targets above made'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The native part is built in place without isolation, so a later build only redoes what changed.
$(VENV)/tools.ready: pyproject.toml | $(BIN)/python
	@echo 'installing build tools into $(VENV)'
	@$(BIN)/python -m pip install -q 'scikit-build-core>=1.0' 'pybind11>=2.13' 'ninja>=1.11' 'cmake>=3.20'
	@touch $@

$(VENV)/compile.ready: $(VENV)/tools.ready $(NATIVE_SOURCES)
	@echo 'installing cudnn-aot[compile] into $(VENV)'
	@$(BIN)/python -m pip install -q --no-build-isolation -e '.[compile]'
	@touch $@

$(VENV)/test.ready: $(VENV)/tools.ready $(NATIVE_SOURCES)
	@echo 'installing cudnn-aot[dev] into $(VENV)'
	@$(BIN)/python -m pip install -q --no-build-isolation -e '.[dev]'
	@touch $@ $(VENV)/compile.ready

demo: $(VENV)/compile.ready
	@scripts/demo.sh $(STORE)

test: $(VENV)/test.ready lint
	@scripts/test_services.sh
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'not gpu' $(TESTS)

search: $(VENV)/test.ready
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'hypothesis and not gpu' \
	  --hypothesis-profile search $(TESTS)

# Threads wait for each other some ten times longer under their sanitizer: only tests that have any.
sanitize: $(VENV)/test.ready
	@scripts/sanitize.sh address $(BIN)/python -q -m 'not gpu and not slow' tests/native
	@scripts/sanitize.sh thread $(BIN)/python -q tests/native/test_threads.py \
	  tests/native/test_execute.py tests/native/test_settled.py tests/runtime/test_threads.py \
	  tests/native/test_c_interface.py::test_eight_threads

lint: $(VENV)/test.ready ide
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	@$(BIN)/mypy

check: test

dev: $(VENV)/tools.ready
	$(BIN)/python -m pip install -q --no-build-isolation --config-settings=editable.rebuild=true -e '.[dev]'
	@touch $(VENV)/test.ready $(VENV)/compile.ready

ide:
	@mkdir -p build/ide/cudnn_aot
	@for p in $(PACKAGES); do ln -sfn ../../../$$p build/ide/cudnn_aot/$$p; done
	@for f in native/cudnn_aot/*.py*; do ln -sfn ../../../$$f build/ide/cudnn_aot/; done

gpu-host: $(VENV)/compile.ready
	@scripts/collect_gpu_host.sh gpu_host

clean:
	rm -rf build dist demo_store gpu_host $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Kohort: every target sets up what it needs, from PyPI alone, into .venv
PYTHON ?= python3
VENV ?= .venv
JAVA ?= system
COMMA := ,
EXTRAS := all$(if $(filter pypi,$(JAVA)),$(COMMA)spark-jre)
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
KERNEL := $(wildcard src/kohort/*/*.pyx src/kohort/*/*/*.pyx src/kohort/*/*.pxi src/kohort/*/*.h)
PYTEST := $(BIN)/python -m pytest
# one more than cores, because tests mostly wait
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(4, 1 + (os.cpu_count() or 1)))")
# rewritten tests and compiled modules are kept: else each worker, both runs of `make test` and some
# hundred processes that tests start make them anew (12 and 0.3 s of processor time each)
export PYTHONDONTWRITEBYTECODE :=
BESIDE := -n $(WORKERS) --dist=loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: postgres power-cut help setup demo test check bench demo-kill nightly mutants soak interop compat compat-go wire diagrams clean

help:  ## what the targets do
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## a virtual environment with everything, the kernel compiled

$(STAMP): pyproject.toml setup.py $(KERNEL)
	@$(PYTHON) tools/check_machine.py --java $(JAVA)
	@echo "==> setting up $(VENV) (the first time takes a few minutes: Spark alone is about 450 MB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@echo "==> installing Kohort with all its extras and the tools for its tests, compiling the kernel"
	@$(BIN)/python -m pip install --progress-bar on --group dev -e ".[$(EXTRAS)]"
	@$(BIN)/python -c "import kohort.records as r; print('==> ready; kernel:', r.KERNEL)"
	@touch $(STAMP)

demo: setup  ## the main job: a year of flights through broker, Spark and database
	@$(BIN)/kohort demo flights

demo-kill: setup  ## the main job on the full year, killed again and again, with the same figures
	@$(BIN)/python tools/demo_kill.py

test: setup check  ## style, types and the whole test suite (WORKERS=0: one after another)
	@echo "==> tests"
	@$(PYTEST) -q $(BESIDE) -m "not nightly"
	@echo "==> tests again without the compiled kernel (pure Python)"
	@KOHORT_PURE=1 $(PYTEST) -q $(BESIDE) -m "not nightly and not spark and not slow and not once" tests/records tests/wire/test_roundtrip.py tests/client tests/broker tests/group/test_assignors*.py

check: setup  ## lint and types
	@echo "==> lint"
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check .
	@echo "==> types"
	@$(BIN)/pyright --pythonpath $(BIN)/python

bench: setup  ## every benchmark, ratios side by side
	@$(BIN)/python -m benchmarks

nightly: setup  ## what is too long for `make test`
	@KOHORT_EXPLORE=1 $(PYTEST) -q -m nightly
	@echo "==> the properties again, with other examples than those of make test"
	@KOHORT_EXPLORE=1 $(PYTEST) -q -m "not nightly" $$(grep -rlE "^from hypothesis" tests --include=test_*.py)

mutants: setup  ## plant known bugs one by one; the simulator and the tests must find each
	@$(BIN)/python tools/run_mutants.py

interop: setup  ## Apache Kafka's clients, tools, broker, Spark's connector beside ours (Maven, Java)
	@$(PYTEST) -q --timeout 900 tests/e2e tests/interop/test_kcat.py -k interop
	@if $(BIN)/python tools/java_tools.py; then \
	  echo "==> Apache Kafka's clients and console tools, Spark's connector against the embedded broker"; \
	  $(PYTEST) -q --timeout 900 tests/interop && \
	  echo "==> our clients against Apache Kafka, alone and in groups with the Java client" && \
	  KOHORT_TEST_CLUSTER=apache $(PYTEST) -q --timeout 900 tests/client tests/processing/test_app.py \
	    tests/processing/test_exact.py tests/processing/test_holding.py tests/examples \
	    tests/processing/test_due_times_live.py tests/processing/test_left_behind.py \
	    tests/processing/test_app_metrics.py tests/processing/test_health.py \
	    tests/processing/test_decoding.py tests/processing/test_outputs.py \
	    tests/processing/test_store_wait.py tests/cli/test_failed_redrive.py \
	    tests/cli/test_retry_failed.py \
	    tests/serdes tests/retry/test_cluster_port.py tests/retry/test_redrive.py \
	    tests/interop/test_java_groups.py tests/interop/test_kcat.py tests/e2e/test_interop_*.py; \
	else echo "==> SKIPPED: everything that needs Apache Kafka's jars, for the reason above"; fi

compat-go: setup  ## franz-go's own tests against `kohort broker run` (Go)
	@$(BIN)/python tools/compat_go.py

compat: setup  ## librdkafka's own test-runner against `kohort broker run` (npm, a C compiler)
	@$(BIN)/python tools/compat.py

postgres: setup  ## exactly once into PostgreSQL, on a server of its own (says why it skips)
	@$(PYTEST) -q -rs -m postgres tests/retry tests/processing

soak: setup  ## minutes of churn in groups of several makes, in both protocols (KOHORT_SOAK_S)
	@$(PYTEST) -q -s -m nightly tests/e2e/test_soak.py

power-cut: setup  ## cut the power of a real file system under the broker (needs root, loop devices)
	@$(PYTEST) -q -s -rs -m nightly tests/broker/test_power_cut.py

diagrams: setup  ## draw the state diagrams again from the tables
	@$(BIN)/python tools/draw_diagrams.py

configuration: setup  ## write docs/configuration.md again from the clients' configuration classes
	@$(BIN)/python tools/write_configuration.py

compatibility: setup  ## write docs/compatibility.md again from the broker's API modules
	@$(BIN)/python tools/write_compatibility.py

wire: setup  ## write the message classes again from the schema files
	@$(BIN)/python tools/generate_wire.py

clean:  ## remove what was built (not .venv)
	rm -rf build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis

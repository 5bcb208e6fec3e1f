# `make help` prints the targets: each has its sentence behind ##, and a line of ##@ begins a group.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
# Most tests wait for disks and processes, so more of them than there are cores may run at a time.
WORKERS ?= 3
COMPILED_TESTS := $(addprefix tests/,$(addprefix amqp_server/,broker channel streams wire) exchanges persistence \
	quorum_queue/consumer_groups) \
	$(filter-out %/test_simulation.py,$(wildcard tests/quorum_queue/raft/test_*.py)) \
	$(addprefix tests/quorum_queue/test_,arrivals.py batch_order.py checkout.py clock.py codec.py cold_bodies.py crash.py dedup.py entries.py expiry.py local_host.py locations.py \
	machine.py message_groups.py message_record.py picks.py replicated.py run.py) tests/quorum_queue/links/test_framing.py

.DEFAULT_GOAL := help
.PHONY: run cluster build release docs reference test test-suite test-conformance page test-pure test-compiled example check \
	conformance conformance-rabbitmq conformance-running clients stacks fuzz fuzz-api bench chaos attack soak model sim clean help hooks

# Sets `bin` to the directory of the programs to run: those of the compiled wheel, or, without a C compiler or with
# MQD_PURE=1, of the editable install.
COMPILE := bin=$$($(BIN)/python -m deploy.compiled)

##@ Every day

# With PORT=5673, AMQP is there and management on 15673: for machines where something uses 5672.
PORT ?=
ON_PORT := $(if $(PORT),--amqp 127.0.0.1:$(PORT) --http 127.0.0.1:$(shell expr $(PORT) + 10000))
CLUSTER_ON_PORT := $(if $(PORT),--amqp $(PORT) --http $(shell expr $(PORT) + 10000) --link $(shell expr $(PORT) + 20000))

# Compiled first where a C compiler is: a minute or two, some seconds after a change.
run: .venv/run ## Start a broker: AMQP on 127.0.0.1:5672 (PORT=n: another), management on 15672, data in ./mqd-data
	$(COMPILE) && exec "$$bin"/mqd $(ON_PORT) $(ARGS)

test: test-suite test-conformance ## Run all tests, and the conformance suite against mqd

check: .venv/test ## Check format, lint, types, and who imports whom
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_circles.py

bench: .venv/test ## Measure mqd and RabbitMQ side by side (ARGS=--quick takes two minutes)
	$(COMPILE) && "$$bin"/python -m benchmarks $(ARGS)

# It warns of nothing: a link that leads nowhere, or a page that the navigation lacks, is an error.
docs: .venv/docs ## Build the documentation as a site in build/docs/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m deploy.site

help: ## Print this list
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'ARGS="..." goes to the program behind a target; MQD_PURE=1 runs brokers from the source, without compiling.'

##@ Programs

# Ctrl-C stops all three; Enter starts a stopped one again.
cluster: .venv/run ## Start three nodes: AMQP on 5672 to 5674 (PORT=n: from n on), management on 15672 to 15674, data in ./mqd-cluster
	$(COMPILE) && exec "$$bin"/python -m deploy.local_cluster $(CLUSTER_ON_PORT) $(ARGS)

EXAMPLE ?= sensors
example: .venv/test ## Run a Spark pipeline through the broker of make run (EXAMPLE=shop: the one on streams)
	$(BIN)/python examples/$(EXAMPLE)/run.py $(ARGS)

build: .venv/run ## Compile what run and all other targets that start brokers would compile first
	$(COMPILE)

# ARGS=--require-all: what this machine cannot build is an error.
release: .venv/test ## Build all files of a release in build/release: sources, wheels, Debian package, image context, sums
	$(BIN)/python -m deploy.release $(ARGS)

# What follows from the code. Tests fail while it is old.
reference: .venv/run ## Write docs/reference, docs/openapi.json and deploy/mqd.example.toml anew
	$(BIN)/python -m amqp_server.reference
	$(BIN)/python -m amqp_server.management.serving.openapi >docs/openapi.json
	$(BIN)/python -m amqp_server.example >deploy/mqd.example.toml

hooks: ## Let git check commit messages (.githooks)
	git config core.hooksPath .githooks

clean: ## Delete the virtual environment, builds and caches
	rm -rf .venv *.egg-info build .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	rm -rf conformance_tests/clients/.cache conformance_tests/clients/node/node_modules conformance_tests/clients/java/target
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Tests

# The tests see the source as it is, and start the compiled programs. ONCE=1: without what test-compiled runs.
TESTS ?= tests
test-suite: .venv/test ## Run tests/ (TESTS=DIRECTORIES: these): single classes in pure Python, whole brokers compiled
	$(COMPILE) && TEST_PROGRAMS="$$bin" $(BIN)/python -m pytest $(TESTS) -n $(WORKERS) --dist loadgroup \
		--no-loadscope-reorder --durations=30 $(if $(ONCE),--compiled-elsewhere "$(COMPILED_TESTS)") $(ARGS)

test-conformance: .venv/test ## Run the conformance suite against mqd
	$(COMPILE) && "$$bin"/python -m pytest conformance_tests $(ARGS)

test-pure: export MQD_PURE := 1
test-pure: test ## Run test without compiling anything

# What is compiled and awaits nothing, tested class by class as it is compiled, but for tests that are marked `pure`. The
# tree comes last on Python's path.
test-compiled: .venv/test ## Run the tests of single classes of the pure core on the compiled classes
	$(COMPILE) && PYTHONSAFEPATH=1 TEST_BUILD=compiled "$$bin"/python -m pytest --import-mode=append \
		-n $(WORKERS) $(COMPILED_TESTS) $(ARGS)

conformance: .venv/test ## Run the conformance suite against mqd and, where it is installed, a RabbitMQ of its own
	$(COMPILE) && "$$bin"/python -m pytest conformance_tests $(ARGS)
	$(BIN)/python -m conformance_tests.rabbitmq --if-installed $(ARGS)

# A later RabbitMQ than this Debian's: conformance_tests/README.md makes such a root directory.
conformance-rabbitmq: .venv/test ## Run the conformance suite against the RabbitMQ of another Debian (RABBITMQ_ROOT=its root directory)
	@test -n "$(RABBITMQ_ROOT)" || { echo "RABBITMQ_ROOT=DIRECTORY is missing: see conformance_tests/README.md"; exit 1; }
	$(BIN)/python -m conformance_tests.rabbitmq --root "$(RABBITMQ_ROOT)" $(ARGS)

# One that somebody else has started: amqp://user:password@host:port/, its management API, and its rabbitmqctl with the
# name of the node.
conformance-running: .venv/test ## Judge a running RabbitMQ: AMQP_URL=amqp://… HTTP_URL=http://… CTL="rabbitmqctl -n …"
	$(BIN)/python -m pytest conformance_tests --complete --amqp-url "$(AMQP_URL)" --http-url "$(HTTP_URL)" \
		--ctl "$(CTL)" $(ARGS)

clients: .venv/test ## Run stock clients of several languages (ARGS=--require-all: a missing toolchain is an error)
	$(COMPILE) && "$$bin"/python conformance_tests/clients/run.py $(ARGS)

# Of other languages, those whose tools are here are built in build/stacks.
stacks: .venv/test .venv/stacks ## Build and try the examples of frameworks in examples/stacks
	$(COMPILE) && STACKS=build/stacks TEST_PROGRAMS="$$bin" $(BIN)/python -m pytest tests/test_stacks.py $(ARGS)

# Its broker is compiled. Without a Chromium, or without playwright, `make test` leaves these tests out.
page: .venv/page ## Test the page of the management listener in a Chromium, which has to be there
	@test -n "$$TEST_CHROMIUM" || command -v chromium || command -v chromium-headless-shell || \
		{ echo "make page needs a Chromium, such as Debian's package chromium-headless-shell"; exit 1; }
	$(COMPILE) && TEST_PROGRAMS="$$bin" $(BIN)/python -m pytest tests/amqp_server/management/browser $(ARGS)

##@ By chance, and for hours

# `make test` tries the same examples in every run; these are others each time. A failing one is kept in .hypothesis,
# where the next `make fuzz` begins. ARGS="--seconds 600" goes on for longer.
fuzz: .venv/test ## Run the tests that have examples with random ones, for a minute
	$(BIN)/python -m tests.fuzz $(ARGS)

# schemathesis has an environment of its own: it wants other versions of what tests need.
fuzz-api: .venv/test build/fuzz-api/installed ## Send random requests to every path of the management API
	$(COMPILE) && TEST_PROGRAMS="$$bin" $(BIN)/python -m tests.fuzz_api $(ARGS)

build/fuzz-api/installed: Makefile | .venv/bin/python
	$(BIN)/python -m venv --clear build/fuzz-api
	build/fuzz-api/bin/python -m pip install --quiet --disable-pip-version-check "schemathesis>=4,<5"
	touch $@

# ARGS="--nodes 3" takes three nodes, ARGS="--file FILE" runs a program again that failed; others: python -m tests.model --help
model: .venv/test ## Run random programs against real brokers, judged by an executable specification, for ten minutes
	$(COMPILE) && TEST_PROGRAMS="$$bin" $(BIN)/python -m tests.model --seconds 600 $(ARGS)

# `make sim SEED=n` is one run (ARGS=--trace tells all of it), without SEED those of CI.
# KIND=queues is quorum queues and their messages, KIND=topology whole nodes with all that is declared; both by default.
# KIND=streams is streams on whole nodes, KIND=transactions clients that commit transactions over several queues.
KIND ?= queues topology
SIMULATION_queues := tests.quorum_queue.cluster.simulation
SIMULATION_topology := tests.amqp_server.cluster.simulation.simulation
SIMULATION_streams := tests.amqp_server.cluster.simulation.streams
SIMULATION_transactions := tests.amqp_server.cluster.simulation.transactions
sim: .venv/test ## Run clusters in one process, with seeded chance in place of networks, disks and clocks (SEED=n)
ifdef SEED
	$(foreach kind,$(KIND),$(BIN)/python -m $(SIMULATION_$(kind)) --seed $(SEED) $(ARGS) &&) true
else
	$(BIN)/python -m pytest tests/quorum_queue/raft/test_simulation.py tests/quorum_queue/cluster/test_simulation.py tests/amqp_server/cluster/test_simulation.py tests/amqp_server/cluster/test_simulation_transactions.py $(ARGS)
endif

chaos: .venv/test ## Kill nodes, fill memory, break links and disks under load, for an hour
	$(COMPILE) && "$$bin"/python -m tests.reliability.chaos $(ARGS)

attack: .venv/test ## Measure what one hostile client can do to the others (ARGS=--short: a minute or two)
	$(COMPILE) && "$$bin"/python -m tests.attacks $(ARGS)

# After it the broker must be as small as after five minutes; ARGS="--minutes 2" is a start.
soak: .venv/test ## Let clients come and go for an hour, after which memory, descriptors and disk must be flat
	$(COMPILE) && "$$bin"/python -m tests.attacks.soak $(ARGS)

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

.venv/stacks: .venv/test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test,stacks]"
	touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mqd needs Python 3.11 or later; make PYTHON=python3.12 picks one"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { echo "Python's venv is not complete; on Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv

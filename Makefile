# `make demo` and `make test` do all the set-up they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRITON := .venv-triton
comma := ,
# Installs Debian packages without starting their services, which 101 from policy-rc.d forbids. A
# policy that is there already stays.
POLICY := /usr/sbin/policy-rc.d
QUIETLY = ours=; test -e $(POLICY) || { ours=yes; printf '\043!/bin/sh\nexit 101\n' >$(POLICY); \
	chmod +x $(POLICY); }; apt-get update --quiet && \
	apt-get install --yes --no-install-recommends $(1); failed=$$?; \
	test -z "$$ours" || rm $(POLICY); exit $$failed
# Elsewhere its tests skip.
OPENVINO := $(if $(filter x86_64,$(shell uname -m)),$(comma)openvino)

# Tests start hundreds of processes, which would compile the same files again where this is set.
export PYTHONDONTWRITEBYTECODE :=
# Those of `make check`.
HOUSE := tests/test_house.py tests/test_words.py
PUSH := $(BIN)/pytest -n 3 --dist worksteal -m "not slow" $(HOUSE:%=--ignore=%)

.PHONY: help setup demo test durations test-slow check docs proto evaluate train-digits bench lab lab-full dist clean browser camera clock promtool servers test-deploy test-arm64 lint-deploy configurations

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/ready ## make .venv with everything

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --editable ".[coordinator,watch,mqtt,ncnn$(OPENVINO)]" --group dev
	touch $@

demo: setup ## one image through a real cluster on this machine
	$(BIN)/imbrex demo

test: check ## check, then the tests
	-@$(MAKE) --silent $(TRITON)/ready
	$(PUSH)

durations: setup ## the tests, and their seconds by directory in durations.json
	$(PUSH) --durations-to benchmarks/results/durations.json

$(TRITON)/ready: # its gRPC client needs an older protobuf than ours; without it its test skips
	$(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/pip install --quiet "tritonclient[grpc]>=2.60"
	touch $@

browser: ## what the page's tests drive (Debian, as root); without it they skip, and fail in CI
	command -v chromium chromedriver >/dev/null || { apt-get update --quiet && \
		apt-get install --yes --no-install-recommends chromium chromium-driver; }

clock: ## what moves the clock of processes (Debian, as root); without it its tests skip
	apt-get install --yes --no-install-recommends libfaketime

camera: ## an RTSP server to watch (Debian, as root); without it its tests skip
	apt-get install --yes --no-install-recommends python3-gi gir1.2-gst-rtsp-server-1.0 \
		gstreamer1.0-plugins-good gstreamer1.0-plugins-bad

promtool: ## what checks the Prometheus rules (Debian, as root); without it their tests skip
	command -v promtool >/dev/null || { $(call QUIETLY,prometheus); }

servers: ## NATS and HAProxy, which tests start themselves (Debian, as root); without them these skip
	which nats-server haproxy keepalived >/dev/null || { \
		$(call QUIETLY,nats-server haproxy keepalived); }

test-slow: setup ## kills, stalls, long comparisons, all examples; how long in durations-slow.json
	$(BIN)/pytest -m "slow or hypothesis" --hypothesis-profile=night \
		--durations-to benchmarks/results/durations-slow.json

test-deploy: setup ## the playbook, and the README by hand, on Debian machines that really boot (as root; an hour and a half)
	$(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/pip install --quiet ansible-core
	IMBREX_MUST_RUN=1 IMBREX_DEPLOY_ANSIBLE=$(CURDIR)/.venv-deploy/bin/ansible-playbook \
		$(BIN)/pytest -v -s -m slow \
		tests/deploy/test_inventory.py tests/deploy/test_by_hand.py tests/deploy/test_machines.py \
		tests/deploy/test_pair.py

test-arm64: setup ## the core on 64-bit Arm under qemu (as root; half an hour, the first time more)
	IMBREX_MUST_RUN=1 IMBREX_ARM64=1 $(BIN)/pytest -m slow tests/deploy/test_emulated.py

lint-deploy: ## Ansible's roles by ansible-lint's strictest rules
	$(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/pip install --quiet ansible-core ansible-lint
	cd deploy/ansible && PATH="$(CURDIR)/.venv-deploy/bin:$$PATH" ansible-lint

check: setup ## lint, types, fresh stubs, import directions, words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q $(HOUSE)

docs: setup ## the documentation as a site, in site/
	$(BIN)/mkdocs build --strict

proto: setup ## generate the stubs from protos/*.proto
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. protos/*.proto

evaluate: setup ## the quality of the digits model on held-out sheets
	$(BIN)/python -m training.digits.evaluate

train-digits: ## train the digits model again (PyTorch, in an environment of its own)
	$(PYTHON) -m venv .venv-train
	.venv-train/bin/pip install --quiet -r training/digits/requirements.txt
	.venv-train/bin/python -m training.digits.train

bench: setup ## overhead and memory, as JSON
	$(BIN)/python -m benchmarks.overhead --json
	$(BIN)/python -m benchmarks.memory --json

lab: setup ## speed-ups on 8 emulated Pis: needs root and iproute2, under 30 minutes
	$(BIN)/python -m benchmarks.speedup; off=$$?; $(BIN)/python -m benchmarks.tables && exit $$off

lab-full: setup ## the same for every kind of Pi on 2, 4 and 8 of them: hours, goes on where it was
	$(BIN)/python -m benchmarks.speedup --full --resume; off=$$?; \
	$(BIN)/python -m benchmarks.tables && exit $$off

configurations: setup ## generate those of NATS, HAProxy and keepalived from the templates of the roles
	$(BIN)/python -m tests.deploy.rendering

dist: setup ## wheel and source distribution
	$(BIN)/python -m build

clean: ## remove what was generated
	rm -rf $(VENV) .venv-deploy $(TRITON) .venv-train .venv-exports build dist site *.egg-info

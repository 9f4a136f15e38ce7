# make demo | test | lint: each sets up .venv by itself first; the second time this takes no time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo demo-spare test soak lint format lock docs clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    train a small model on real text, kill a process, watch it come back (2 minutes)"
	@echo "make demo-spare  four groups with SPARe, two killed, no restart, the same weights (2 minutes)"
	@echo "make test    all tests (13 minutes on 2 cores); PYTEST='-k name' selects"
	@echo "make soak    random failures for an hour (SOAK_MINUTES=60)"
	@echo "make lint    ruff and mypy"
	@echo "make format  let ruff lay out the code"
	@echo "make docs    docs/configuration.md from the structured configs"
	@echo "make lock    requirements.lock from the packages in .venv"

# Packages come from the lock, the project itself is linked; nothing is resolved anew.
$(STAMP): requirements.lock pyproject.toml
	@echo "setting up $(VENV) (once; a few minutes, mostly torch)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m trainer experiment=demo

demo-spare: $(STAMP)
	@$(BIN)/python scripts/twin.py experiment=demo_spare

test: $(STAMP)
	@$(BIN)/python -m pytest -m "not soak" $(PYTEST)

soak: $(STAMP)
	@$(BIN)/python -m pytest -m soak -s tests/faults/test_soak.py

lint: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

docs: $(STAMP)
	@mkdir -p docs
	@$(BIN)/python -m trainer.config_reference > docs/configuration.md

# Without the project itself, and without torch's build name (+cpu, +cu128): any build of the version will do.
lock: $(STAMP)
	@{ echo "# Every package of the environment that the tests ran in (Python 3.11, Linux x86-64). Made with: make lock"; \
	   $(BIN)/python -m pip freeze --all --exclude pip --exclude spare-trainer --disable-pip-version-check \
	   | grep -E '^[A-Za-z0-9_.-]+==' | sed -E 's/\+[a-z0-9.]+$$//' | sort -f; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info

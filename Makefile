# The course's commands. `make` alone lists them; each sets up what it needs.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help env book lab test check bench record exercises notebooks grade clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(READY)  ## set up .venv, node_modules and missing system packages

$(READY): pyproject.toml package.json package-lock.json tools/env.sh tools/system_packages.sh
	@PYTHON="$(PYTHON)" bash tools/env.sh
	@touch $@

book: env  ## build the book into _build/html
	@$(BIN)/python tools/book.py

lab: env exercises notebooks  ## open the chapters in JupyterLab
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) book

test: env  ## run every test, then every notebook against its stored outputs
	@$(BIN)/python tools/notebooks.py --check
	@$(BIN)/python tools/book.py --if-stale --from-notebooks
	@$(BIN)/python -m pytest -q tests -n 2 --dist loadfile
	@$(BIN)/python -m pytest -q --nbval book/*.ipynb -n 3 --dist loadfile

check: env  ## check style, notebooks, exercises and the built book's links
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/python -m pytest -q tests/test_imports.py
	@$(BIN)/python tools/notebooks.py --check
	@$(BIN)/python tools/exercises.py --check
	@$(BIN)/python tools/book.py --if-stale --from-notebooks
	@$(BIN)/python tools/links.py _build/html

bench: env  ## measure every way to all-reduce on this machine (minutes; leave it alone meanwhile)
	@$(BIN)/python tools/bench.py

record: env  ## record what chapters 05 and 15 show of this machine (ten minutes of a quiet one)
	@$(BIN)/python tools/bench.py
	@$(BIN)/python tools/record.py loopback
	@$(BIN)/python tools/record.py lines
	@$(BIN)/python tools/record.py bandwidth
	@$(BIN)/python tools/record.py training

exercises: env  ## generate exercises/ from solutions/
	@$(BIN)/python tools/exercises.py

notebooks: env  ## bring each chapter's notebook in step with its text, and run it
	@$(BIN)/python tools/notebooks.py

grade: env  ## grade a folder of submissions: make grade SUBMISSIONS=folder
	@test -n "$(SUBMISSIONS)" || { echo "Say which folder: make grade SUBMISSIONS=folder"; exit 2; }
	@$(BIN)/python autograder/grade.py "$(SUBMISSIONS)"

clean:  ## remove the built book and caches (not .venv, not a gradebook)
	rm -rf _build/html _build/.doctrees _build/.jupyter_cache _build/.*_key _build/source .pytest_cache .ruff_cache

# The course's commands. `make` alone lists them; each sets up what it needs.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help env mutants samples attacks bench_grading book pdf lab test check audit bench record exercises notebooks grade classroom report export submit collect clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z_]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(READY)  ## set up .venv, node_modules and missing system packages

$(READY): pyproject.toml package.json package-lock.json tools/env.sh tools/system_packages.sh
	@PYTHON="$(PYTHON)" bash tools/env.sh
	@touch $@

book: env  ## build the book into _build/html
	@$(BIN)/python tools/book.py

pdf: env  ## print the book into _build/collectives.pdf, and offer it on the site
	@$(BIN)/python tools/book.py --if-stale --from-notebooks
	@$(BIN)/python tools/pdf.py

lab: env exercises notebooks  ## open the chapters in JupyterLab
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) book

test: env  ## run every test, then every notebook against its stored outputs
	@$(BIN)/python tools/notebooks.py --check
	@$(BIN)/python tools/book.py --if-stale --from-notebooks
	@$(BIN)/python -m pytest -q tests -n 2 --dist loadfile --max-worker-restart 1
	@$(BIN)/python -m pytest -q --nbval book/*.ipynb -n 3 --dist loadfile

check: env  ## check style, notebooks, exercises and the built book's links
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/python -m pytest -q tests/test_imports.py
	@$(BIN)/python tools/notebooks.py --check
	@$(BIN)/python -m autograder.release --check
	@$(BIN)/python tools/book.py --if-stale --from-notebooks
	@$(BIN)/python tools/links.py _build/html

audit: env  ## Lighthouse, axe, weights, links and spelling on every page, printed as a table (a quarter of an hour)
	@$(BIN)/python tools/book.py --if-stale --from-notebooks
	@$(BIN)/python tools/audit.py $(PAGES)

mutants: env  ## try every wrong and right answer of every exercise (`make test` takes some of those on ranks)
	@MUTANTS=all $(BIN)/python -m pytest -q tests -k "wrong_answer_is_refused or right_answer_is_accepted" -n 2

samples: env  ## grade every sample submission, of which `make test` takes two an exercise
	@SAMPLES=all $(BIN)/python -m pytest -q tests/grader/test_grading.py

attacks: env  ## grade 200 hostile submissions, of which `make test` takes some
	@ATTACKS=all $(BIN)/python -m pytest -q tests/grader/test_attacks.py

bench: env  ## measure every way to all-reduce on this machine (minutes; leave it alone meanwhile)
	@$(BIN)/python tools/bench.py

bench_grading: env  ## measure how fast a class of 100 is graded, beside stock nbgrader (minutes)
	@$(BIN)/python tools/bench_grading.py

record: env  ## record what chapters 05 and 15 show of this machine (ten minutes of a quiet one)
	@$(BIN)/python tools/bench.py
	@$(BIN)/python tools/record.py loopback
	@$(BIN)/python tools/record.py lines
	@$(BIN)/python tools/record.py bandwidth
	@$(BIN)/python tools/record.py training

exercises: env  ## generate exercises/ from solutions/
	@$(BIN)/python -m autograder.release

notebooks: env  ## bring each chapter's notebook in step with its text, and run it
	@$(BIN)/python tools/notebooks.py

grade: env  ## grade a folder of submissions: make grade SUBMISSIONS=folder [JOBS=n]
	@test -n "$(SUBMISSIONS)" || { echo "Say which folder: make grade SUBMISSIONS=folder"; exit 2; }
	@$(BIN)/python -m autograder.grade "$(SUBMISSIONS)" $(if $(JOBS),--jobs $(JOBS))

classroom: env  ## open a class on this machine, for a demonstration: make classroom PORT=8000
	@$(BIN)/python autograder/classroom/start.py $(if $(PORT),--port $(PORT)) $(if $(FOLDER),--folder "$(FOLDER)")

report: env  ## write the teacher's report: make report [COURSE=folder] [DB=url]
	@$(BIN)/python -m autograder.results.report $(if $(COURSE),--course "$(COURSE)") $(if $(DB),--db "$(DB)")

export: env  ## grades as CSV: make export FORMAT=canvas|moodle|worksheet [ROSTER=csv] [EXERCISE=name] [TO=csv] [DB=url]
	@$(BIN)/python -m autograder.results.export "$(or $(FORMAT),canvas)" --db "$(or $(DB),sqlite:///_build/grade/gradebook.db)" \
	  $(if $(ROSTER),--roster "$(ROSTER)") $(if $(EXERCISE),--exercise "$(EXERCISE)") \
	  --to "$(or $(TO),_build/grade/$(or $(FORMAT),canvas).csv)"

submit: env  ## pack an exercise to hand in: make submit EXERCISE=03_ring STUDENT=your-id [RUN=1]
	@test -n "$(EXERCISE)" || { echo "Say which: make submit EXERCISE=03_ring STUDENT=your-id"; exit 2; }
	@$(BIN)/python tools/submit.py "$(EXERCISE)" --student "$(STUDENT)" $(if $(RUN),--run)

collect: env  ## take in what was handed in: make collect ZIPS=folder EXERCISE=03_ring
	@test -n "$(ZIPS)" -a -n "$(EXERCISE)" || { echo "Say what: make collect ZIPS=folder EXERCISE=03_ring"; exit 2; }
	@$(BIN)/python -m autograder.submissions.zips "$(ZIPS)" --exercise "$(EXERCISE)"

clean:  ## remove the built book and caches (not .venv, not a gradebook)
	rm -rf _build/html _build/.doctrees _build/.jupyter_cache _build/.*_key _build/source .pytest_cache .ruff_cache

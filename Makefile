# The course's commands. `make` alone lists them. Each sets up the tier that it needs: book, grade or test (tools/env.sh).

PYTHON ?= python3
BIN := .venv/bin
# Node lies beside python; users' PATHs may lack the folder where Debian keeps `tc`.
export PATH := $(CURDIR)/$(BIN):$(PATH):/usr/sbin:/sbin

BOOK := .venv/.ready-book
GRADE := .venv/.ready-grade
TEST := .venv/.ready-test
SPREAD := --dist loadfile --max-worker-restart 1
NEEDS := pyproject.toml constraints.txt package.json package-lock.json tools/env.sh tools/system_packages.sh
JOBS ?=
# An instructor's own exercises, outside this repository, come before the public ones of the same name.
PRIVATE ?=
export COLLECTIVES_PRIVATE := $(abspath $(PRIVATE))

.DEFAULT_GOAL := help
.PHONY: help env book pdf lab notebooks submit exercises bundle private roster rehearsal grade classroom report export return collect bench bench_frames bench_grading record \
  quick test check evidence gpu audit mutants samples attacks nightly wheel lock clean

help:  ## list these commands
	@awk -F ' *## ' '/^## / { printf "\n%s\n", $$2 } /^[a-z_]+:.*  ## / { sub(/:.*/, "", $$1); printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BOOK) $(GRADE) $(TEST): .venv/.ready-%: $(NEEDS)
	@PYTHON="$(PYTHON)" bash tools/env.sh $*

## To read the book

env: $(BOOK)  ## set up what the book needs, in .venv and node_modules

book: $(BOOK)  ## build the book into _build/html
	@$(BIN)/python tools/book.py $(if $(JOBS),--jobs $(JOBS))

lab: $(BOOK) exercises notebooks  ## open the chapters in JupyterLab
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) book

submit: $(BOOK)  ## pack an exercise to hand in: make submit EXERCISE=03_ring STUDENT=your-id [RUN=1]
	@test -n "$(EXERCISE)" || { echo "Say which: make submit EXERCISE=03_ring STUDENT=your-id"; exit 2; }
	@$(BIN)/python tools/submit.py "$(EXERCISE)" --student "$(STUDENT)" $(if $(RUN),--run)

bench: $(BOOK)  ## measure every way to all-reduce on this machine (minutes; leave the machine alone meanwhile)
	@$(BIN)/python tools/bench.py

pdf: $(TEST)  ## print the book into _build/collectives.pdf; the site then offers it
	@$(BIN)/python tools/book.py --if-stale --from-notebooks
	@$(BIN)/python tools/pdf.py

## To teach with it

bundle: $(BOOK)  ## make the zip that students get: make bundle [PRIVATE=folder]
	@$(BIN)/python tools/bundle.py

private: $(GRADE)  ## start an exercise of your own, or compare yours with the public ones: make private PRIVATE=folder [EXERCISE=03_ring]
	@test -n "$(PRIVATE)" || { echo "Say which folder outside this repository: make private PRIVATE=folder"; exit 2; }
	@$(BIN)/python -m autograder.private "$(PRIVATE)" $(if $(EXERCISE),--exercise "$(EXERCISE)")

grade: $(GRADE)  ## grade a folder of submissions: make grade SUBMISSIONS=folder [JOBS=n] [PRIVATE=folder]
	@test -n "$(SUBMISSIONS)" || { echo "Say which folder: make grade SUBMISSIONS=folder"; exit 2; }
	@$(BIN)/python -m autograder.grade "$(SUBMISSIONS)" $(if $(JOBS),--jobs $(JOBS))

roster: $(GRADE)  ## read a class list, Canvas's, Moodle's or yours: make roster CSV=class.csv [DB=url]
	@test -n "$(CSV)" || { echo "Say which class list: make roster CSV=class.csv"; exit 2; }
	@$(BIN)/python -m autograder.submissions.roster "$(CSV)" --db "$(or $(DB),sqlite:///_build/grade/gradebook.db)"

collect: $(GRADE)  ## take in hand-ins: make collect ZIPS=folder EXERCISE=03_ring FROM=canvas|moodle|mail [DB=url] [REPLACE=1]
	@test -n "$(ZIPS)" -a -n "$(EXERCISE)" -a -n "$(FROM)" || { \
	  echo "Say what, and where it comes from: make collect ZIPS=folder EXERCISE=03_ring FROM=canvas|moodle|mail"; exit 2; }
	@$(BIN)/python -m autograder.submissions.zips "$(ZIPS)" --exercise "$(EXERCISE)" --from "$(FROM)" \
	  $(if $(DB),--db "$(DB)") $(if $(filter-out 0 no off false,$(REPLACE)),--replace)

report: $(GRADE)  ## write the teacher's report: make report [COURSE=folder] [DB=url]
	@$(BIN)/python -m autograder.results.report $(if $(COURSE),--course "$(COURSE)") $(if $(DB),--db "$(DB)")

export: $(GRADE)  ## write grades as CSV: make export FORMAT=canvas|moodle|worksheet [ROSTER=csv] [EXERCISE=name] [COLUMN="name=its column"] [TO=csv] [DB=url]
	@$(BIN)/python -m autograder.results.export "$(or $(FORMAT),canvas)" --db "$(or $(DB),sqlite:///_build/grade/gradebook.db)" \
	  $(if $(ROSTER),--roster "$(ROSTER)") $(if $(EXERCISE),--exercise "$(EXERCISE)") $(if $(COLUMN),--column "$(COLUMN)") \
	  --to "$(or $(TO),_build/grade/$(or $(FORMAT),canvas).csv)"

return: $(GRADE)  ## write feedback pages as a zip to upload: make return EXERCISE=03_ring FROM=canvas|moodle [TO=zip] [DB=url]
	@test -n "$(EXERCISE)" -a -n "$(FROM)" || { \
	  echo "Say what, and where it goes: make return EXERCISE=03_ring FROM=canvas|moodle"; exit 2; }
	@$(BIN)/python -m autograder.results.handback "$(EXERCISE)" --from "$(FROM)" $(if $(TO),--to "$(TO)") $(if $(DB),--db "$(DB)")

rehearsal: $(GRADE)  ## write a class of three to rehearse with: its list and its hand-ins
	@$(BIN)/python autograder/classroom/rehearsal.py

classroom: $(GRADE)  ## open a demonstration class on this machine: make classroom [PORT=8000] [FOLDER=folder]
	@$(BIN)/python autograder/classroom/start.py $(if $(PORT),--port $(PORT)) $(if $(FOLDER),--folder "$(FOLDER)")

## To work on it

notebooks: $(BOOK)  ## bring each chapter's notebook in step with its text and run it: make notebooks [JOBS=2]
	@$(BIN)/python tools/notebooks.py $(if $(JOBS),--jobs $(JOBS))

exercises: $(BOOK)  ## generate exercises/ from solutions/
	@$(BIN)/python -m autograder.release

quick: $(TEST)  ## run a test of every module, in 90 seconds
	@$(BIN)/python -m pytest -q tests -m quick -n 2

test: $(TEST)  ## run every test, then every notebook against its stored outputs (half an hour)
	@$(BIN)/python tools/notebooks.py --check
	@$(BIN)/python tools/book.py --if-stale --from-notebooks
	@# Limits of time grow with the machine's load; what is graded has it nearly for itself, so that these stay short.
	@$(BIN)/python -m pytest -q tests -m "not sandbox" -n 4 $(SPREAD); others=$$?; \
	  $(BIN)/python -m pytest -q tests -m sandbox -n 2 $(SPREAD) && exit $$others
	@$(BIN)/python -m pytest -q --nbval --nbval-sanitize-with tests/nbval.cfg book/*.ipynb -n 4 --dist loadfile

check: $(TEST)  ## check style, imports, notebooks, exercises and the built book's links
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_architecture.py
	@$(BIN)/python tools/notebooks.py --check
	@$(BIN)/python -m autograder.release --check
	@$(BIN)/python tools/book.py --if-stale --from-notebooks
	@$(BIN)/python tools/links.py _build/html

nightly: mutants samples attacks audit  ## run all that `make test` samples, then the audit (hours)

mutants: $(TEST)  ## try every wrong and every right answer of every exercise
	@MUTANTS=all $(BIN)/python -m pytest -q tests -n 2 -k "wrong_answer_is_refused or right_answer_is_accepted \
	  or compiled_layers or starts_again_goes_on or is_killed_at_random_steps or one_change_is_told or wrong_cut_is_told"

samples: $(TEST)  ## grade every sample submission; `make test` grades one or two an exercise
	@SAMPLES=all $(BIN)/python -m pytest -q -o faulthandler_timeout=7200 tests/grader/test_grading.py

attacks: $(TEST)  ## grade 200 hostile submissions; `make test` grades some of them
	@ATTACKS=all $(BIN)/python -m pytest -q -o faulthandler_timeout=7200 tests/grader/test_attacks.py

evidence: $(TEST)  ## judge the models by published sweeps and runs (minutes): make evidence [SWEEPS=file.json] [RUNS=file.json]
	@$(BIN)/python -m collectives.measure.sweeps $(SWEEPS)
	@$(BIN)/python -m collectives.training.published $(RUNS)

audit: $(TEST)  ## print Lighthouse, axe, weights, links and spelling of every page (15 minutes): make audit [PAGES=names]
	@$(BIN)/python tools/book.py --if-stale --from-notebooks
	@$(BIN)/python tools/audit.py $(PAGES)

bench_frames: $(BOOK)  ## measure what a frame of a race costs the browser (minutes): make bench_frames [PAGES="pages of other versions"]
	@$(BIN)/python tools/bench_frames.py $(PAGES)

bench_grading: $(GRADE)  ## measure how fast submissions are graded, in turns with stock nbgrader (minutes)
	@$(BIN)/python tools/bench_grading.py

gpu: $(BOOK)  ## measure this machine's GPUs beside what was predicted (10 minutes): make gpu [PARTS="products training"] [MERGE=file]
	@$(BIN)/python tools/gpu.py $(PARTS) $(if $(MERGE),--merge "$(MERGE)")

record: $(BOOK)  ## record what the chapters show of this machine (ten minutes; leave the machine alone meanwhile)
	@$(BIN)/python tools/bench.py
	@$(BIN)/python tools/record.py loopback
	@$(BIN)/python tools/record.py lines
	@$(BIN)/python tools/record.py bandwidth
	@$(BIN)/python tools/record.py training

wheel: $(BOOK)  ## build the wheel, install it in a clean environment, and use it there
	@$(BIN)/python tools/wheel.py

lock: $(TEST)  ## pin in constraints.txt what .venv holds
	@mkdir -p _build && { sed -n '/^#/p' constraints.txt; { \
	  $(BIN)/python -m pip freeze --all --exclude pip --exclude-editable; \
	  $(BIN)/python -m pip freeze --path .venv/skypilot; } | sed 's/+cpu$$//' | LC_ALL=C sort -f; } >_build/constraints.txt
	@mv _build/constraints.txt constraints.txt

clean:  ## remove the built book and caches, but neither .venv nor a gradebook
	rm -rf _build/html _build/.doctrees _build/.jupyter_cache _build/.*_key _build/source .pytest_cache .ruff_cache

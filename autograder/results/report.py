"""The instructor's report after grading: one page, and the same in plain text.

It shows who needs help first, the distribution of points, which questions were hard, which ones separate strong from
weak submissions, which submissions need a look, and which answers are nearly the same.

The page is one file. It loads nothing, runs nothing, and escapes every text from students. `make report` writes it from
the gradebook and the graded notebooks, and so does `make grade` at its end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import numpy as np
from jinja2 import Environment
from nbgrader.api import Assignment, Gradebook, Notebook, SourceCell
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from .. import points
from ..submissions import senders
from ..submissions.intake import digest
from . import similar
from .export import CannotExport, existing

ROOT = Path(__file__).resolve().parents[2]
COLLECTED = ROOT / "_build" / "submissions-downloaded"
BINS = 10  # bars in a distribution; each covers a tenth of the points
ENOUGH = 20  # submissions; with fewer, a correlation says nothing
HALF = 0.5  # of the points so far; a student below it may need help
MOST_HELPED = 20  # students named; more than that is a fault of the exercise
MOST_OWN_CELLS = 30  # code cells that a student added; more are worth a look
TOGETHER = "all answers together"
MOST_BYTES = 100_000_000  # in a graded notebook
# The judge's verdicts in a notebook's metadata, other than right and wrong.
VERDICTS = {
    "time": "out of time",
    "memory": "out of memory",
    "processes": "too many processes",
    "files": "too many or too large files",
    "crash": "crashed",
    "hostile": "forged",
}


class QuestionRow(NamedTuple):
    """The results of a question. `share`: mean points over `most`, 0 to 1; `zero`: share of the class with no points.

    `apart`: correlation of its points with the exercise's other points, -1 to 1, or None with too few submissions.
    """

    name: str
    most: float
    share: float
    zero: float
    apart: float | None
    open: int


@dataclass
class Exercise:
    """The results of an exercise. `bars`: how many submissions have 0 to 10 %, 10 to 20 %, ... of the points."""

    name: str
    most: float
    totals: list[float]
    bars: list[int]
    rows: list[QuestionRow]
    open: int
    late: int

    @property
    def mean(self) -> float:
        return mean(self.totals)

    @property
    def median(self) -> float:
        return median(self.totals)


@dataclass
class Look:
    """A submission that a person should look at, with the reasons."""

    student: str
    exercise: str
    reasons: list[str] = field(default_factory=list)


class Pair(NamedTuple):
    """Students with nearly the same answers, and the points of each for the exercise."""

    exercise: str
    alike: similar.Alike
    points: list[float]


class Help(NamedTuple):
    """A student below half of the points that could be had so far. `missing`: exercises not handed in."""

    student: str
    points: float
    most: float
    missing: list[str]
    zeros: list[str]  # exercises with checks without points: "03_ring (all)", "04_all_reduce (b2, c1)"


@dataclass
class Report:
    """The content of the page. `help`: students below half of the points, the lowest first; `names`: {id: name}."""

    title: str
    when: datetime
    students: int
    help: list[Help]
    exercises: list[Exercise]
    looks: list[Look]
    pairs: list[Pair]
    names: dict[str, str] = field(default_factory=dict)

    def named(self, student: str) -> str:
        """Return a student's name with the id, as far as the gradebook has a name."""
        return self.names.get(student, student)


def write(
    database: str, autograded: Path, into: Path, submitted: Path | None = None, collected: Path = COLLECTED
) -> Path:
    """Write `into`/report.html and report.txt, and return the page's path.

    `database`: the gradebook's URL; `autograded`, `submitted`: nbgrader's folders, <student>/<exercise>/*.ipynb;
    `collected`: where `make collect` remembers who was late.
    """
    report = read(database, autograded, submitted, collected)
    into.mkdir(parents=True, exist_ok=True)
    (into / "report.txt").write_text(
        text(report), encoding="utf-8", errors="replace"
    )  # folder names may be invalid UTF-8
    page = into / "report.html"
    page.write_text(html(report), encoding="utf-8", errors="replace")
    return page


def read(database: str, autograded: Path, submitted: Path | None = None, collected: Path = COLLECTED) -> Report:
    """Return the report on a class, read from its gradebook and notebooks."""
    with Gradebook(database) as gradebook:
        results = points.results(gradebook)
        title = ", ".join(sorted(set(gradebook.db.scalars(select(Assignment.course_id))))) or gradebook.course_id
        listed = points.students(gradebook)
        released = handed_out(gradebook)
    looks: dict[tuple[str, str], Look] = {}
    pairs: list[Pair] = []
    for name, by_student in results.items():
        answers: dict[str, dict[str, str]] = defaultdict(dict)
        late = were_late(collected, submitted, name) if submitted else set()
        for student, result in by_student.items():
            cells, reasons = notebooks(autograded / student / name)
            reasons += ["flagged in the gradebook"] * result.flagged
            reasons += ["late, as Canvas says"] * (student in late)
            if reasons:
                looks[student, name] = Look(student, name, reasons)
            for cell, source in cells.items():
                if cell in released[name].answers and source.strip() != released[name].cells[cell].strip():
                    answers[cell][student] = source
        alike = similar.alike(answers, released[name].cells)
        reported = {group.students for group in alike}
        # One similar short answer says nothing; if all short answers of two students are similar, that does.
        joined = similar.alike(*together(answers, released[name]))
        alike += [group for group in joined if group.students not in reported]
        pairs += [Pair(name, group, [by_student[student].points for student in group.students]) for group in alike]
    for place in sorted(submitted.glob("*/*")) if submitted else []:
        student, name = place.parent.name, place.name
        if os.path.isdir(place) and name in released and student not in results.get(name, {}):
            looks[student, name] = Look(student, name, ["handed in, but not graded: see the output of `make grade`"])
    exercises = [summary(name, by_student) for name, by_student in results.items() if by_student]
    students = {student for by_student in results.values() for student in by_student}
    now = datetime.now().astimezone()
    helped = needing_help(results, [*listed])
    names = {student: points.called_by(person) for student, person in listed.items()}
    return Report(title, now, len(students), helped, exercises, [looks[key] for key in sorted(looks)], pairs, names)


def were_late(collected: Path, submitted: Path, exercise: str) -> set[str]:
    """Return the students whose graded notebook Canvas marked as late."""
    late = {student: each for student, each in senders.read(senders.file_of(collected, exercise)).items() if each.late}
    files = {student: submitted / student / exercise / f"{exercise}.ipynb" for student in late}
    return {
        student for student, file in files.items() if file.is_file() and digest(file.read_bytes()) == late[student].last
    }


def needing_help(results: dict[str, dict[str, points.Result]], students: list[str]) -> list[Help]:
    """Return the students below half of the points of all exercises that anyone handed in, the lowest first.

    Answers that a person must still read don't count against their student.
    """
    given = {name: by_student for name, by_student in results.items() if by_student}
    possible = sum(max(_most(result) for result in by_student.values()) for by_student in given.values())
    found = []
    for student in students:
        own = {name: by_student[student] for name, by_student in given.items() if student in by_student}
        unread = [q.most for result in own.values() for q in result.questions.values() if q.points is None]
        total, most = sum(result.points for result in own.values()), possible - sum(unread)
        if total < HALF * most:
            zeros = [f"{name} ({lost})" for name, result in own.items() if (lost := _lost(result))]
            found.append(Help(student, total, most, [name for name in given if name not in own], zeros))
    return sorted(found, key=lambda each: (each.points, each.student))


def _most(result: points.Result) -> float:
    return sum(question.most for question in result.questions.values())


def _lost(result: points.Result) -> str:
    """Return the names of the questions without points: "a1, b2", "all", or "" if each has some."""
    worth = [question for question in result.questions.values() if question.most]
    names = [question.name for question in worth if question.points == 0]
    return "all" if len(names) == len(worth) else ", ".join(names)


class HandedOut(NamedTuple):
    """An exercise as released. `cells`: {grade_id: source}; `answers`: the grade_ids that students answer in code."""

    cells: dict[str, str]
    answers: set[str]


def handed_out(gradebook: Gradebook) -> dict[str, HandedOut]:
    """Return {exercise: the released cells that the gradebook stores}."""
    released: dict[str, HandedOut] = defaultdict(lambda: HandedOut({}, set()))
    about = SourceCell.name, SourceCell.source, SourceCell.locked, SourceCell.cell_type
    rows = gradebook.db.execute(
        select(*about, Notebook.name.label("notebook"), Assignment.name.label("of"))
        .join(Notebook, SourceCell.notebook_id == Notebook.id)
        .join(Assignment, Notebook.assignment_id == Assignment.id)
    ).all()
    names = points.called((row.of, row.notebook, row.name) for row in rows)
    for row in rows:
        name = names[row.of, row.notebook, row.name]
        released[row.of].cells[name] = row.source or ""
        if row.cell_type == "code" and not row.locked:
            released[row.of].answers.add(name)
    return released


def together(
    answers: dict[str, dict[str, str]], released: HandedOut
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return each student's answers joined into one, and the released sources joined likewise."""
    whole: dict[str, list[str]] = defaultdict(list)
    for cell in sorted(answers):
        for student, source in answers[cell].items():
            whole[student].append(source)
    stubs = "\n\n".join(released.cells[cell] for cell in sorted(answers))
    joined = {student: "\n\n".join(sources) for student, sources in whole.items()}
    return {TOGETHER: joined}, {**released.cells, TOGETHER: stubs}


def notebooks(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return a graded submission's code, {its cell's name, see `points.called`: source}, and why to look at it."""
    found: dict[tuple[str, str, str], str] = {}
    every: list[tuple[str, str, str]] = []  # of text, too
    reasons: list[str] = []
    paths = sorted(folder.glob("*.ipynb"))
    for path in paths:
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ValueError("too large")
            notebook = json.loads(path.read_text(encoding="utf-8"))
            about = notebook["metadata"].get("autograder", {})
            own = 0
            for cell in notebook["cells"]:
                name = cell["metadata"].get("nbgrader", {}).get("grade_id")
                own += name is None and cell["cell_type"] == "code" and "autograder" not in cell["metadata"]
                if name is None:
                    continue
                every.append(("", path.stem, name))
                if cell["cell_type"] == "code":
                    found[every[-1]] = "".join(cell["source"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reasons.append(f"{path.name} cannot be read: {type(error).__name__}")
            continue
        unreadable = about.get("unreadable")
        reasons += [f"could not be graded: {unreadable}"] * bool(unreadable)
        by_verdict = defaultdict(list)
        for cell, verdict in about.get("remarks", {}).items():
            by_verdict[VERDICTS.get(verdict, str(verdict))].append(cell)
        reasons += [f"{verdict} in {', '.join(names)}" for verdict, names in by_verdict.items()]
        reasons += [str(note) for note in about.get("notes", []) if not unreadable]  # which says the same
        if own > MOST_OWN_CELLS:
            reasons.append(f"{own} code cells that the student added")
    names = points.called(every)
    cells = {names[place]: source for place, source in found.items()}
    return cells, reasons if paths else ["in the gradebook, but its graded notebook is missing"]


def summary(name: str, by_student: dict[str, points.Result]) -> Exercise:
    """Return the results of an exercise from {student: result}."""
    results = list(by_student.values())
    most = max(_most(result) for result in results)
    totals = [result.points for result in results]
    bars = [0] * BINS
    for total in totals:
        bars[min(int(BINS * total / most), BINS - 1) if most else 0] += 1
    names = list(dict.fromkeys(q.name for result in results for q in result.questions.values() if q.most))
    rows = [row(question, results) for question in names]
    waiting = sum(result.is_open for result in results)
    return Exercise(name, most, totals, bars, rows, waiting, sum(result.penalty > 0 for result in results))


def row(name: str, results: list[points.Result]) -> QuestionRow:
    """Return the results of a question. Points that a person must still give don't count."""
    having = [result for result in results if name in result.questions]
    graded = [result for result in having if result.questions[name].points is not None]
    most = having[0].questions[name].most
    got = np.array([result.questions[name].points for result in graded])
    others = [[q.points or 0.0 for q in result.questions.values() if q.name != name] for result in graded]
    rest = np.array([sum(of_others) for of_others in others])
    apart = None
    if len(graded) >= ENOUGH and got.std() > 0 and rest.std() > 0:
        apart = float(np.corrcoef(got, rest)[0, 1])
    share = float(got.mean() / most) if most and len(got) else 0.0
    zero = float((got <= 0).mean()) if len(got) else 0.0
    return QuestionRow(name, most, share, zero, apart, len(having) - len(graded))


def html(report: Report) -> str:
    """Return the report as an HTML page."""
    # autoescape turns everything from a student into text
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(PAGE).render(
        report=report, near=similar.NEAR, enough=ENOUGH, short=similar.SHORT, most_helped=MOST_HELPED
    )


def text(report: Report) -> str:
    """Return the report as plain text, for a terminal or an e-mail."""
    lines = [f"{report.title}: {report.students} students, {report.when:%Y-%m-%d %H:%M}", ""]
    for exercise in report.exercises:
        line = f"{exercise.name}: {len(exercise.totals)} submissions, mean {exercise.mean:.1f}, "
        line += f"median {exercise.median:g} of {exercise.most:g}"
        line += f", {exercise.open} to grade by hand" if exercise.open else ""
        line += f", {exercise.late} late" if exercise.late else ""
        lines.append(line)
        lines += [
            f"    {question.name:<24} mean {question.share:4.0%}  zero {question.zero:4.0%}"
            + (f"  apart {question.apart:+.2f}" if question.apart is not None else "")
            for question in exercise.rows
        ]
    lines += ["", f"Below half of the points: {len(report.help)}"]
    for each in report.help[:MOST_HELPED]:
        line = f"    {report.named(each.student)}: {each.points:g} of {each.most:g}"
        line += f", not handed in: {', '.join(each.missing)}" if each.missing else ""
        lines.append(line)
    lines += ["", f"To look at: {len(report.looks)}"]
    lines += [f"    {report.named(each.student)}, {each.exercise}: {'; '.join(each.reasons)}" for each in report.looks]
    lines += ["", f"Nearly the same (no proof of anything): {len(report.pairs)}"]
    for name, alike, _ in report.pairs:
        shown = ", ".join(map(report.named, alike.students[:10])) + (" ..." if len(alike.students) > 10 else "")
        lines.append(f"    {name}, {alike.cell}: {shown} ({alike.share:.0%} of {alike.tokens} tokens)")
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in "\n".join(lines)) + "\n"


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ report.title }}: report</title>
<style>
:root { color-scheme: light dark; --line: #8886; --bar: #3b7dd8; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0 1.5rem; }
th, td { text-align: left; padding: 0.2rem 0.6rem; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
th { overflow-wrap: normal; }
td:first-child, td.words { min-width: 10rem; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
section { break-inside: avoid-page; }
svg { display: block; max-width: 100%; height: auto; }
svg rect { fill: var(--bar); print-color-adjust: exact; }
svg text { fill: currentColor; font-size: 11px; }
.note { opacity: 0.8; }
.wide { overflow-x: auto; }
@media (max-width: 34rem) {
  table { font-size: 0.9rem; }
  th, td { padding: 0.2rem; }
  th.number { white-space: normal; }
  td:first-child, td.words { min-width: 0; }
  .rows thead { display: none; }
  .rows tr { display: block; padding: 0.3rem 0; border-bottom: 1px solid var(--line); }
  .rows td { display: block; padding: 0; border: 0; text-align: left; }
  .rows td:first-child { font-weight: bold; }
  .rows td[title]:not(:empty)::before { content: attr(title) ": "; opacity: 0.8; }
}
@media print { body { margin: 0; max-width: none; font-size: 11pt; } a { color: inherit; } }
</style>
</head>
<body>
<h1>{{ report.title }}</h1>
<p>{{ report.students }} students, {{ report.exercises | length }} exercise{{ "s" if report.exercises | length != 1 }}.
Written from the gradebook on {{ report.when.strftime("%Y-%m-%d at %H:%M %Z") }}.</p>

<h2>Who needs help first</h2>
{% if report.help %}
<div class="wide"><table class="rows">
<thead><tr><th>Student</th><th class="number">Points</th><th>Not handed in</th><th>Checks without points</th></tr>
</thead>
<tbody>
{% for each in report.help[:most_helped] %}
<tr><td>{{ report.named(each.student) }}</td>
<td class="number">{{ "%g" | format(each.points) }} of {{ "%g" | format(each.most) }}</td>
<td title="not handed in">{{ each.missing | join(", ") }}</td>
<td class="words" title="no points">{{ each.zeros | join("; ") }}</td></tr>
{% endfor %}
</tbody></table></div>
{% if report.help | length > most_helped %}<p>And {{ report.help | length - most_helped }} more.</p>{% endif %}
<p class="note">Students in the class list with less than half of the points of all exercises that anyone handed in.</p>
{% else %}
<p>Every student in the class list has at least half of the points.</p>
{% endif %}

{% for exercise in report.exercises %}
<section>
<h2>{{ exercise.name }}</h2>
<p>{{ exercise.totals | length }} submissions: mean {{ "%.1f" | format(exercise.mean) }}, median
{{ "%g" | format(exercise.median) }} of {{ "%g" | format(exercise.most) }} points.
{% if exercise.open %}To grade by hand: {{ exercise.open }}, which count with their points so far.{% endif %}
{% if exercise.late %}Late, with a penalty: {{ exercise.late }}.{% endif %}</p>
{% set most = exercise.bars | max %}
<svg viewBox="0 0 440 120" width="440" role="img" aria-label="Number of submissions by share of the points:
{% for count in exercise.bars %}{{ loop.index0 * 10 }} to {{ loop.index * 10 }} percent: {{ count }}. {% endfor %}">
{% for count in exercise.bars %}
{% set height = 80 * count / most %}
<rect x="{{ 20 + 40 * loop.index0 }}" y="{{ "%.1f" | format(100 - height) }}" width="36" \
height="{{ "%.1f" | format(height) }}"></rect>
{% if count %}<text x="{{ 38 + 40 * loop.index0 }}" y="{{ "%.1f" | format(96 - height) }}" \
text-anchor="middle">{{ count }}</text>{% endif %}
<text x="{{ 18 + 40 * loop.index0 }}" y="115" text-anchor="middle">{{ loop.index0 * 10 }}</text>
{% endfor %}
<text x="425" y="115" text-anchor="middle">100%</text>
</svg>
<div class="wide"><table>
<thead><tr><th>Question</th><th class="number">Points</th><th class="number">Mean</th><th class="number">Zero</th>
<th class="number">Tells apart</th>{% if exercise.open %}<th class="number">Open</th>{% endif %}</tr></thead>
<tbody>
{% for row in exercise.rows %}
<tr><td>{{ row.name }}</td><td class="number">{{ "%g" | format(row.most) }}</td>
<td class="number">{{ "%.0f" | format(100 * row.share) }}%</td>
<td class="number">{{ "%.0f" | format(100 * row.zero) }}%</td>
<td class="number">{{ "%+.2f" | format(row.apart) if row.apart is not none else "–" }}</td>
{% if exercise.open %}<td class="number">{{ row.open or "" }}</td>{% endif %}</tr>
{% endfor %}
</tbody></table></div>
</section>
{% endfor %}
<p class="note"><b>Mean</b>: the mean share of a question's points. <b>Zero</b>: the share of the class with no points.
<b>Tells apart</b>: the correlation of a question's points with those of the exercise's other questions. Near 0 or
below, strong students do no better on it than weak ones, so look at the question and its check. The column is empty
below {{ enough }} submissions, and where all got the same.
{% if report.exercises | selectattr("open") | list %}<b>Open</b>: how many a person must still grade.{% endif %}</p>

<h2>To look at</h2>
{% if report.looks %}
<div class="wide"><table class="rows">
<thead><tr><th>Student</th><th>Exercise</th><th>Why</th></tr></thead>
<tbody>
{% for look in report.looks %}
<tr><td>{{ report.named(look.student) }}</td><td>{{ look.exercise }}</td>
<td>{% for reason in look.reasons %}{{ reason }}{% if not loop.last %}<br>{% endif %}{% endfor %}</td></tr>
{% endfor %}
</tbody></table></div>
{% else %}
<p>Nothing: all submissions were readable and ran within their limits.</p>
{% endif %}

<h2>Nearly the same</h2>
<p>These answers are similar after removing names, comments, docstrings, formatting and the released code. <b>This
proves nothing.</b> Students who learn together, or from one source, write similar code; the comparison doesn't show who
wrote it first; and a task may have few good answers. Talk to the students before you conclude anything. The report
omits answers of fewer than {{ short }} tokens, and those that are less than
{{ "%.0f" | format(100 * near) }}% alike. Independently written right answers to this book's exercises are at most 23%
alike.</p>
{% if report.pairs %}
<div class="wide"><table class="rows">
<thead><tr><th>Exercise</th><th>Answer</th><th>Students, and their points</th><th class="number">Alike</th>
<th class="number">Tokens</th></tr></thead>
<tbody>
{% for pair in report.pairs %}
<tr><td>{{ pair.exercise }}</td><td>{{ pair.alike.cell }}</td>
<td>{% for student in pair.alike.students %}{{ report.named(student) }}: {{ "%g" | format(pair.points[loop.index0]) }}\
{% if not loop.last %}, {% endif %}{% endfor %}</td>
<td class="number" title="alike">{{ "%.0f" | format(100 * pair.alike.share) }}%</td>
<td class="number" title="tokens">{{ pair.alike.tokens }}</td></tr>
{% endfor %}
</tbody></table></div>
{% else %}
<p>None.</p>
{% endif %}
</body>
</html>
"""


def main(arguments: list[str] | None = None) -> int:
    """Write the report on `make grade`'s folder, or on another course; return 0 if it was written, else 2."""
    grade = ROOT / "_build" / "grade"
    parser = argparse.ArgumentParser(prog="autograder.results.report", description="Write the instructor's report.")
    parser.add_argument("--course", type=Path, default=grade, help="folder with autograded/ and submitted/")
    parser.add_argument("--db", metavar="URL", help="gradebook (default: gradebook.db in that folder)")
    parser.add_argument("--into", type=Path, help="folder for report.html (default: that folder)")
    command = parser.parse_args(arguments)
    course = command.course
    try:
        url = existing(command.db or f"sqlite:///{course / 'gradebook.db'}")
        page = write(url, course / "autograded", command.into or course, course / "submitted")
    except (CannotExport, OSError) as reason:
        print(f"no report: {reason}", file=sys.stderr)
        return 2
    except SQLAlchemyError as error:
        print(f"no report: the gradebook cannot be opened: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    print(page.with_suffix(".txt").read_text(encoding="utf-8"))
    print(f"report: {page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

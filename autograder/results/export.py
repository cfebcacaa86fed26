"""Grades as the CSV files that Canvas and Moodle take in.

`make export FORMAT=canvas ROSTER=canvas.csv TO=grades.csv`, or through nbgrader's own door:
`nbgrader export --exporter=autograder.results.export.CanvasExporter --CanvasExporter.roster=roster.csv --to=to.csv`.

What is exported is what the gradebook holds: points by machine and by hand, less the late penalty, never below 0,
rounded to two decimals. nbgrader keeps no note of what has been released to students, so that is not asked.
A submission that a person has yet to grade (or to confirm, after a regrade) is left out, and said to be; `--unfinished`
exports what it has so far. A student without a submission is left out, too, not given a 0; `--zeros` gives it.

A text that a spreadsheet would run as a formula (a name beginning with = + - @) gets an apostrophe in front.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, Student
from nbgrader.plugins.export import ExportPlugin
from sqlalchemy.exc import SQLAlchemyError
from traitlets import Bool, Dict, Unicode

from .. import points

FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")  # what spreadsheets take for the beginning of a formula
NUMBER = re.compile(r"-?\d+([.,]\d+)?%?")


class CannotExport(ValueError):
    """Why no file was written, in words for whoever asked for it."""


class Exporter(ExportPlugin):
    """What the formats share: which grade goes where, and a file written whole or not at all."""

    default_name = "grades.csv"

    roster = Unicode("", help="the file that the learning platform exported, to be filled in").tag(config=True)
    columns = Dict(help="{exercise: the name of its column there}, where the two differ").tag(config=True)
    unfinished = Bool(False, help="export submissions, too, that a person has yet to grade").tag(config=True)
    zeros = Bool(False, help="give 0 points to students who handed in nothing").tag(config=True)

    def export(self, gradebook: Gradebook) -> None:
        """Write the file `to`, and log what is not in it; raise `CannotExport` if there is nothing to write."""
        self.notes: list[str] = []
        self.most = points.most_points(gradebook)
        self.class_list = points.students(gradebook)
        self.exercises = [str(name) for name in self.assignment] or sorted(self.most)
        if unknown := sorted(set(self.exercises) - set(self.most)):
            raise CannotExport(f"the gradebook has no exercise {unknown[0]}; it has {', '.join(sorted(self.most))}")
        self.wanted = {str(student) for student in self.student} or set(self.class_list)
        if unknown := sorted(self.wanted - set(self.class_list)):
            raise CannotExport(f"the gradebook has no student {unknown[0]}")
        self.results = points.results(gradebook, self.exercises)
        self.waiting = [
            result for found in self.results.values() for result in found.values() if result.is_open
        ]  # for a person
        rows = self.rows()
        place = Path(self.to or self.default_name)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([[harmless(cell) for cell in row] for row in rows])
        place.write_text(text.getvalue(), encoding="utf-8")
        if self.waiting and not self.unfinished:
            self.note(self.left_out())
        self.log.info("Wrote %s", place)

    def rows(self) -> list[list[Any]]:
        """Return what the file holds, its header first."""
        raise NotImplementedError

    def note(self, words: str) -> None:
        """Say what whoever exports should know."""
        self.notes.append(words)
        self.log.warning("%s", words)

    def left_out(self) -> str:
        """Say what was left out because a person has yet to grade it."""
        names = [f"{result.student}/{result.exercise}" for result in self.waiting]
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        return f"{len(names)} submissions are left out, as a person has yet to grade or to confirm them: {shown}"

    def grade(self, student: str, exercise: str) -> str:
        """Return the points as text; "" where none are to be exported."""
        if student not in self.wanted:
            return ""
        result = self.results.get(exercise, {}).get(student)
        if result is None:
            return "0" if self.zeros else ""
        return number(result.points) if self.unfinished or not result.is_open else ""

    def remarks(self, student: str, exercise: str) -> str:
        """Return the points of each question in a line, "a1 2/2, b1 0/4", and the late penalty."""
        result = self.results[exercise][student]
        parts = [f"{q.name} {number(q.points or 0)}/{number(q.most)}" for q in result.questions.values()]
        return ", ".join(parts) + (f", late: -{number(result.penalty)}" if result.penalty else "")

    def read_roster(self, needed: list[str]) -> list[list[str]]:
        """Return the rows of the platform's own file; raise `CannotExport` if its header lacks a `needed` column."""
        path = Path(self.roster)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise CannotExport(f"{path} cannot be read as UTF-8 text ({error})") from error
        head = text.partition("\n")[0]
        rows = list(csv.reader(io.StringIO(text), delimiter=";" if head.count(";") > head.count(",") else ","))
        if missing := [name for name in needed if not rows or name not in [cell.strip() for cell in rows[0]]]:
            raise CannotExport(
                f"{path} has no column {missing[0]!r}; export it anew, in English, and give it unchanged"
            )
        width = len(rows[0])
        return [row + [""] * (width - len(row)) for row in rows if any(cell.strip() for cell in row)]

    def look_up(self, *keys: str) -> str | None:
        """Return the one student whom one of the `keys` (ids, logins, addresses, full names) names, or None."""
        for key in filter(None, (key.strip().casefold() for key in keys)):
            if len(found := self._by_key.get(key, set())) == 1:
                return next(iter(found))
        return None

    @property
    def _by_key(self) -> dict[str, set[str]]:
        if not hasattr(self, "_keys"):
            self._keys: dict[str, set[str]] = {}
            for student in self.class_list.values():
                full = f"{student.first_name or ''} {student.last_name or ''}".strip()
                for key in (student.id, student.lms_user_id, student.email, full):
                    if key:
                        self._keys.setdefault(str(key).casefold(), set()).add(student.id)
        return self._keys

    def tell_unmatched(self, matched: list[str | None]) -> None:
        """Say which students of the class list the platform's file does not have, and who is in it twice."""
        times = Counter(filter(None, matched))
        if twice := [student for student, count in times.items() if count > 1]:
            raise CannotExport(f"{self.roster} has more than one row for {twice[0]}")
        graded = {student for found in self.results.values() for student in found} & self.wanted
        if lacking := sorted(graded - set(times)):
            self.note(f"{len(lacking)} students are not in {self.roster}: {', '.join(lacking[:10])}")


class CanvasExporter(Exporter):
    """Canvas's gradebook file.

    Its columns, as Canvas writes and reads them (instructure/canvas-lms, `lib/gradebook_exporter.rb` and
    `lib/gradebook_importer.rb`): Student, ID, SIS User ID, SIS Login ID, Section; then one for each assignment, called
    "name (id)"; below the header a row "    Points Possible", whose numbers Canvas takes over. A row's student is found
    by the ID, else the SIS ids, else the name. An empty cell where Canvas has a grade would delete it: so with a
    roster, which is Canvas's own export (Grades > Export), what is not ours to say stays as Canvas has it.
    """

    default_name = "canvas.csv"

    def rows(self) -> list[list[Any]]:
        """Return Canvas's own file with the grades filled in, or a new one where no roster is given."""
        if self.roster:
            return self.filled_in()
        header = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
        rows: list[list[Any]] = [[*header, *(self.columns.get(name, name) for name in self.exercises)]]
        rows.append(["    Points Possible", *[""] * 4, *(number(self.most[name]) for name in self.exercises)])
        for student in sorted(self.wanted):
            who = self.class_list[student]
            grades = [self.grade(student, name) for name in self.exercises]
            if any(grades):
                rows.append([full_name(who), who.lms_user_id or "", "", student, "", *grades])
        return rows

    def filled_in(self) -> list[list[Any]]:
        """Return the roster's columns about students and ours about exercises."""
        header, *below = self.read_roster(["ID", "Section"])
        about = header.index("Section") + 1
        places = {name: self.place(header, name) for name in self.exercises}
        keep = [*range(about), *places.values()]
        rows, matched = [[header[i] for i in keep]], []
        logins = [header.index(name) for name in ("SIS Login ID", "SIS User ID", "ID") if name in header]
        for row in below:
            if row[0].strip() == "Points Possible":
                self.compare_points(row, places)
            elif any(row[i].strip() for i in logins):
                student = self.look_up(*(row[i] for i in logins), canvas_name(row[0]))
                matched.append(student)
                for name, place in places.items():
                    row[place] = (self.grade(student, name) if student else "") or row[place]
            rows.append([row[i] for i in keep])
        self.tell_unmatched(matched)
        return rows

    def place(self, header: list[str], exercise: str) -> int:
        """Return the column of an exercise: the one called so, with or without Canvas's "(id)" behind it."""
        wanted = self.columns.get(exercise, exercise)
        found = [i for i, name in enumerate(header) if wanted in (name, re.sub(r" \(\d+\)$", "", name))]
        if len(found) != 1:
            how = "no column" if not found else "more than one column"
            raise CannotExport(
                f"{self.roster} has {how} {wanted!r}; name it with CanvasExporter.columns={{{exercise!r}: 'name (id)'}}"
            )
        return found[0]

    def compare_points(self, row: list[str], places: dict[str, int]) -> None:
        """Warn where Canvas counts other points: grades are not scaled."""
        for name, place in places.items():
            if NUMBER.fullmatch(row[place].strip()) and float(row[place].replace(",", ".")) != self.most[name]:
                self.note(f"{name}: Canvas gives {row[place].strip()} points, this {self.most[name]:g}")


class MoodleExporter(Exporter):
    """A file for Moodle's gradebook: Grades > Import > CSV file.

    One column says who a student is: Moodle maps it to username, idnumber or email (docs.moodle.org, "Grade import";
    moodle/moodle, `grade/import/csv/classes/load_data.php`); then one for each grade item, and, with `feedback`, one
    of remarks for each, which Moodle wants imported together with its grade. Moodle takes an empty cell for "no grade"
    and clears what it had: so a student without any grade has no row; export one exercise at a time
    (`--assignment`) where some have theirs and others have not.
    """

    default_name = "moodle.csv"

    identifier = Unicode("username", help="the first column: username, idnumber or email").tag(config=True)
    feedback = Bool(False, help="add the points of each question as a remark").tag(config=True)

    def rows(self) -> list[list[Any]]:
        """Return the header and a row for every student who has a grade."""
        if self.identifier not in ("username", "idnumber", "email"):
            raise CannotExport(f"identifier is {self.identifier!r}; it is to be username, idnumber or email")
        header = [self.identifier]
        for name in self.exercises:
            header += [self.columns.get(name, name)] + [f"{name} (feedback)"] * self.feedback
        rows: list[list[Any]] = [header]
        for student in sorted(self.wanted):
            grades = [self.grade(student, name) for name in self.exercises]
            if not any(grades):
                continue
            row = [self.identity(self.class_list[student])]
            for name, grade in zip(self.exercises, grades, strict=True):
                has_remarks = grade and student in self.results.get(name, {})
                row += [grade] + [self.remarks(student, name) if has_remarks else ""] * self.feedback
            rows.append(row)
        return rows

    def identity(self, student: Student) -> str:
        """Return what Moodle knows a student by."""
        found = {"username": student.id, "idnumber": student.lms_user_id or student.id, "email": student.email}
        if not found[self.identifier]:
            raise CannotExport(f"the gradebook has no e-mail address of {student.id}; export by username or idnumber")
        return found[self.identifier]


class MoodleWorksheetExporter(Exporter):
    """The offline grading worksheet of one Moodle assignment, filled in.

    The roster is the worksheet that Moodle gives out (Assignment > Download grading worksheet). Its columns are, as in
    moodle/moodle, `mod/assign/gradingtable.php`: Identifier ("Participant 1234"), Full name, perhaps ID number and
    Email address, Status, Grade, Maximum grade, Grade can be changed, Last modified (submission), Last modified
    (grade), Feedback comments. Moodle reads Identifier, Grade, Last modified (grade) and the feedback back
    (`mod/assign/feedback/offline/importgradeslib.php`), and skips an empty grade.
    """

    default_name = "worksheet.csv"

    feedback = Bool(False, help="write the points of each question into Feedback comments").tag(config=True)

    def rows(self) -> list[list[Any]]:
        """Return the worksheet with grades."""
        if not self.roster:
            raise CannotExport("give the worksheet that Moodle lets you download, as the roster")
        if len(self.exercises) != 1:
            raise CannotExport("a worksheet is of one assignment: say which with --assignment")
        (exercise,) = self.exercises
        header, *below = self.read_roster(["Identifier", "Full name", "Grade", "Last modified (grade)"])
        header = [name.strip() for name in header]
        at = {name: place for place, name in enumerate(header)}
        matched: list[str | None] = []
        for row in below:
            student = self.look_up(*(row[at[n]] for n in ("ID number", "Email address", "Full name") if n in at))
            matched.append(student)
            grade = self.grade(student, exercise) if student else ""
            if grade and row[at.get("Grade can be changed", at["Grade"])].strip() == "No":
                self.note(f"{exercise}: Moodle says that the grade of {student} cannot be changed")
            elif grade:
                row[at["Grade"]] = grade
                if self.feedback and "Feedback comments" in at and student in self.results.get(exercise, {}):
                    row[at["Feedback comments"]] = self.remarks(student, exercise)
        self.tell_unmatched(matched)
        return [header, *below]


FORMATS = {"canvas": CanvasExporter, "moodle": MoodleExporter, "worksheet": MoodleWorksheetExporter}


def harmless(cell: Any) -> str:
    """Return a cell that no spreadsheet runs as a formula: an apostrophe in front of what looks like one."""
    text = str(cell)
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


def number(points_of: float) -> str:
    """Return points with at most two decimals, as many as Canvas and Moodle show."""
    return f"{points_of:.2f}".rstrip("0").rstrip(".")


def full_name(student: Student) -> str:
    """Return "Last, First", as Canvas sorts names, or else the id."""
    return ", ".join(filter(None, (student.last_name, student.first_name))) or student.id


def canvas_name(name: str) -> str:
    """Return "First Last" for "Last, First"."""
    last, _, first = name.partition(",")
    return f"{first.strip()} {last.strip()}".strip()


def main(arguments: list[str] | None = None) -> int:
    """Export what the command line asks for; return 0 if a file was written."""
    parser = argparse.ArgumentParser(
        prog="autograder.results.export", description="Grades as CSV for Canvas or Moodle."
    )
    parser.add_argument("format", choices=sorted(FORMATS))
    parser.add_argument("--db", required=True, metavar="URL", help="the gradebook, such as sqlite:///gradebook.db")
    parser.add_argument("--roster", default="", metavar="CSV", help="the platform's own file, to be filled in")
    parser.add_argument("--exercise", action="append", default=[], metavar="NAME", help="only this one")
    parser.add_argument("--student", action="append", default=[], metavar="ID", help="only this one")
    parser.add_argument("--column", action="append", default=[], metavar="EXERCISE=NAME", help="its column's name")
    parser.add_argument("--identifier", default="username", help="for moodle: username, idnumber or email")
    parser.add_argument("--feedback", action="store_true", help="for Moodle: the points of each question as a remark")
    parser.add_argument("--unfinished", action="store_true", help="also what a person has yet to grade")
    parser.add_argument("--zeros", action="store_true", help="0 points for who handed in nothing")
    parser.add_argument("--to", default="", metavar="CSV")
    given = parser.parse_args(arguments)
    kind = FORMATS[given.format]
    names = ("roster", "to", "unfinished", "zeros", "identifier", "feedback")
    settings = {name: getattr(given, name) for name in names if kind.class_traits().get(name)}
    columns = dict(pair.split("=", 1) for pair in given.column if "=" in pair)
    exporter = kind(**settings, columns=columns, assignment=given.exercise, student=given.student)
    exporter.log.setLevel("ERROR")  # notes are printed below
    try:
        with Gradebook(existing(given.db)) as gradebook:
            exporter.export(gradebook)
    except (CannotExport, OSError) as reason:
        print(f"cannot export: {reason}", file=sys.stderr)
        return 2
    except SQLAlchemyError as error:
        print(f"cannot open the gradebook: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    print(*exporter.notes, sep="\n", end="\n" * bool(exporter.notes))
    print(f"wrote {exporter.to or kind.default_name}")
    return 0


def existing(url: str) -> str:
    """Return the gradebook's URL; raise `CannotExport` if it names a file that is not there (SQLite would make it)."""
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        raise CannotExport(f"there is no gradebook {url.removeprefix('sqlite:///')}: run `make grade` first")
    return url


if __name__ == "__main__":
    sys.exit(main())

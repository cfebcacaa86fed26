"""Exports of grades, as the CSV files that Canvas and Moodle import.

Run `make export FORMAT=canvas ROSTER=canvas.csv TO=grades.csv`, or nbgrader's own command:
`nbgrader export --exporter=autograder.results.export.CanvasExporter --CanvasExporter.roster=roster.csv --to=to.csv`.

A grade is the sum of the points in the gradebook, automatic and by hand, less the late penalty, never below 0, rounded
to two decimals. The export doesn't check whether the grade was released to the student, because nbgrader doesn't
record that. It leaves out, and names, each submission that a person must still grade, or confirm after a regrade;
`--unfinished` exports the points so far. It also leaves out students without a submission; `--zeros` gives them 0.

A text that a spreadsheet would run as a formula (such as a name that begins with = + - @) gets a leading apostrophe.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from nbgrader.api import Gradebook, Student
from nbgrader.plugins.export import ExportPlugin
from sqlalchemy.exc import SQLAlchemyError
from traitlets import Bool, Dict, Unicode

from .. import points, sheet
from ..submissions.roster import is_another, key, keys_of, lowered
from ..submissions.unzip import printable


class CannotExport(ValueError):
    """Why no file was written, in one line for the instructor."""


class Row(NamedTuple):
    """What a row of a platform's file says of a student: ids that people choose, the platform's numbers, full name."""

    logins: Sequence[str]
    numbers: Sequence[str]
    name: str


class Exporter(ExportPlugin):
    """The base of all formats: it looks up grades, and writes the file completely or not at all."""

    default_name = "grades.csv"

    roster = Unicode("", help="the learning platform's own export, to fill in").tag(config=True)
    fixed_numbers = False  # whether no student can edit the platform's numbers
    columns = Dict(help="{exercise: the name of its column}, where the two differ").tag(config=True)
    unfinished = Bool(False, help="also export submissions that a person must still grade").tag(config=True)
    zeros = Bool(False, help="give 0 points to students who handed in nothing").tag(config=True)

    def export(self, gradebook: Gradebook) -> None:
        """Write the file `to`, and log what it leaves out. Raise `CannotExport` for an unknown exercise or student."""
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
        every = [result for by_student in self.results.values() for result in by_student.values()]
        self.waiting = [result for result in every if result.is_open]
        rows = self.rows()
        place = Path(self.to or self.default_name)
        place.write_text(sheet.text(rows), encoding="utf-8")
        if self.waiting and not self.unfinished:
            self.note(self.left_out())
        self.log.info("Wrote %s", place)

    def rows(self) -> list[list[Any]]:
        """Return the rows of the file, header first."""
        raise NotImplementedError

    def note(self, words: str) -> None:
        """Log a line for the instructor, and keep it in `notes`."""
        self.notes.append(words)
        self.log.warning("%s", words)

    def left_out(self) -> str:
        """Return a line that names the submissions that wait for a person."""
        names = [f"{result.student}/{result.exercise}" for result in self.waiting]
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        return f"left out, because a person must still grade or confirm them ({len(names)}): {shown}"

    def grade(self, student: str, exercise: str) -> str:
        """Return the points as text, or "" if the export leaves them out."""
        if student not in self.wanted:
            return ""
        result = self.results.get(exercise, {}).get(student)
        if result is None:
            return "0" if self.zeros else ""
        return number(result.points) if self.unfinished or not result.is_open else ""

    def remarks(self, student: str, exercise: str) -> str:
        """Return the points of each question and the late penalty in one line: "a1 2/2, b1 0/4, late: -2"."""
        result = self.results[exercise][student]
        parts = [f"{q.name} {number(q.points or 0)}/{number(q.most)}" for q in result.questions.values()]
        return ", ".join(parts) + (f", late: -{number(result.penalty)}" if result.penalty else "")

    def read_roster(self, needed: list[str]) -> list[list[str]]:
        """Return the rows of the platform's file; raise `CannotExport` if it or a `needed` column is missing."""
        path = Path(self.roster)
        try:
            rows = sheet.rows(path)
        except (OSError, UnicodeDecodeError) as error:
            raise CannotExport(f"{path} cannot be read as UTF-8 text ({error})") from error
        if missing := [name for name in needed if not rows or name not in rows[0]]:
            raise CannotExport(f"{path} has no column {missing[0]!r}; export it again, in English, and don't edit it")
        return rows

    def match(self, rows: Iterable[Row]) -> list[str | None]:
        """Return the student whom each row is about, or None.

        A number that no student can edit decides. Elsewhere students may be able to edit their names, addresses and
        numbers, so one may call himself ana@uni.edu, or have Ana's number. So all ids of a row must be of one student,
        and the row must not disagree with what the gradebook has of that student. A name by itself counts only where
        there is no id to compare, and for a student whom no row has by an id. Of several rows for one student none
        counts. A note names the rows that are left out.
        """
        rows = list(rows)
        by_ids = [self._by_ids(row) for row in rows]
        taken = set().union(*by_ids)
        fitting = [ids or self._by_name(row) - taken for ids, row in zip(by_ids, rows, strict=True)]
        clear = [self._clear(row, students) for row, students in zip(rows, fitting, strict=True)]
        times = Counter(clear)
        matched = [student if times[student] == 1 else None for student in clear]
        if left := [row.name for row, some, one in zip(rows, fitting, matched, strict=True) if some and not one]:
            self.note(
                f"rows of {self.roster} that may be of more than one student, have another name than the gradebook, or "
                f"are one of several for the same ({len(left)}), left as they are: "
                f"{', '.join(map(printable, left[:10]))}"
            )
        return matched

    def _by_ids(self, row: Row) -> set[str]:
        numbers = self._fits("number", row.numbers)
        if self.fixed_numbers:  # then the logins are fixed, too, and the first that is anybody's counts
            return numbers or next(filter(None, (self._fits("login", [login]) for login in row.logins)), set())
        return numbers | self._fits("login", row.logins)

    def _by_name(self, row: Row) -> set[str]:
        """Return whom a row without a known id fits by its name: nobody whose number or address would differ."""
        number, address = any(each.strip() for each in row.numbers), any("@" in each for each in row.logins)
        found = (self.class_list[student] for student in self._fits("name", [row.name]))
        return {each.id for each in found if not (number and each.lms_user_id) and not (address and each.email)}

    def _fits(self, kind: str, texts: Iterable[str]) -> set[str]:
        """Return the students whom these texts fit, each by one that fits nobody else."""
        alike = key if kind == "name" else _folded
        found = (self._known.get((kind, alike(text)), set()) for text in texts)
        return {student for students in found if len(students) == 1 for student in students}

    def _clear(self, row: Row, students: set[str]) -> str | None:
        """Return the one student whom a row fits; None if there are several, or the row disagrees with the gradebook.

        It does if its name is another student's, or if it has another name and another address than the gradebook.
        """
        if len(students) == 1 and self.fixed_numbers and students == self._fits("number", row.numbers):
            return next(iter(students))
        if len(students) != 1 or self._fits("name", [row.name]) - students:
            return None
        (student,) = students
        address = next((each for each in row.logins if "@" in each), "")
        return None if is_another(self.class_list[student], row.name, address) else student

    @cached_property
    def _known(self) -> dict[tuple[str, str], set[str]]:
        known: dict[tuple[str, str], set[str]] = {}
        for student in self.class_list.values():
            number = student.lms_user_id or ("" if self.fixed_numbers else student.id)
            keys = [("login", student.id), ("login", student.email), ("number", number)]
            names = [("name", name) for name in keys_of(student)]
            for kind, text in (*((kind, _folded(text or "")) for kind, text in keys), *names):
                if text:
                    known.setdefault((kind, text), set()).add(student.id)
        return known

    def compare_points(self, exercise: str, maxima: Iterable[str], platform: str) -> None:
        """Note where the platform has another maximum. The export doesn't scale grades."""
        for text in sorted({each.strip() for each in maxima}):
            points = sheet.NUMBER.fullmatch(text) and float(text.rstrip("%").replace(",", "."))
            if points is not None and points != self.most[exercise]:
                most = f"{self.most[exercise]:g}"
                self.note(f"{exercise}: the maximum is {text} points in {platform}, but {most} in the gradebook")

    def tell_unmatched(self, matched: list[str | None]) -> None:
        """Note which graded students the platform's file lacks. Raises `CannotExport` if it lacks all of them."""
        found = {*matched}
        graded = {student for by_student in self.results.values() for student in by_student} & self.wanted
        if graded and not graded & found:
            raise CannotExport(
                f"no row of {self.roster} is a student with points ({', '.join(sorted(graded)[:3])}, ...): read the "
                "class list in with `make roster`, collect and grade again"
            )
        if lacking := sorted(graded - found):
            self.note(f"students that are not in {self.roster} ({len(lacking)}): {', '.join(lacking[:10])}")


class CanvasExporter(Exporter):
    """Canvas's gradebook file.

    Canvas writes and reads these columns (instructure/canvas-lms, `lib/gradebook_exporter.rb` and
    `lib/gradebook_importer.rb`): Student, ID, SIS User ID, SIS Login ID, Section, then one per assignment, called
    "name (id)". Below the header comes a row "    Points Possible", whose numbers Canvas imports. Canvas finds a row's
    student by the ID, else the SIS ids, else the name. An empty cell deletes the grade in Canvas. With a roster, which
    is Canvas's own export (Grades > Export), the exporter therefore keeps every value that it has no grade for.
    """

    default_name = "canvas.csv"
    fixed_numbers = True

    def rows(self) -> list[list[Any]]:
        """Return Canvas's own file with the grades filled in, or a new one without a roster."""
        if self.roster:
            return self.filled_in()
        header = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
        rows: list[list[Any]] = [[*header, *(self.columns.get(name, name) for name in self.exercises)]]
        rows.append(["    Points Possible", *[""] * 4, *(number(self.most[name]) for name in self.exercises)])
        for student in sorted(self.wanted):
            person = self.class_list[student]
            grades = [self.grade(student, name) for name in self.exercises]
            if any(grades):
                rows.append([full_name(person), person.lms_user_id or "", "", student, "", *grades])
        return rows

    def filled_in(self) -> list[list[Any]]:
        """Return the roster's columns about students, and the columns of the exercises."""
        header, *below = self.read_roster(["ID", "Section"])
        about = header.index("Section") + 1
        places = {name: self.place(header, name) for name in self.exercises}
        keep = [*range(about), *places.values()]
        logins = [header.index(name) for name in ("SIS Login ID", "SIS User ID") if name in header]
        points = [row for row in below if row[0].strip() == "Points Possible"]
        number = header.index("ID")
        people = [row for row in below if row not in points and any(row[i].strip() for i in (*logins, number))]
        matched = self.match(
            Row([row[i] for i in (*logins, number)], [row[number]], canvas_name(row[0])) for row in people
        )
        for name, place in places.items():
            self.compare_points(name, [row[place] for row in points], "Canvas")
        for row, student in zip(people, matched, strict=True):
            for name, place in places.items():
                grade = self.grade(student, name) if student else ""
                if grade and row[place].strip() == "EX":
                    self.note(f"{name}: {student} is excused in Canvas, and stays so")
                elif grade:
                    row[place] = grade
        self.tell_unmatched(matched)
        return [[row[i] for i in keep] for row in (header, *below)]

    def place(self, header: list[str], exercise: str) -> int:
        """Return the index of an exercise's column, whose name may end with Canvas's "(id)"."""
        column = self.columns.get(exercise, exercise)
        places = [i for i, name in enumerate(header) if column in (name, re.sub(r" \(\d+\)$", "", name))]
        if len(places) != 1:
            how = "more than one column" if places else "no column"
            others = ", ".join(name for name in header if re.search(r" \(\d+\)$", name))
            raise CannotExport(
                f"{self.roster} has {how} {column!r}, but {printable(others, 200) or 'none of an assignment'}; name it "
                f"with COLUMN='{exercise}=name (id)', which is --column, or CanvasExporter.columns in nbgrader"
            )
        return places[0]


class MoodleExporter(Exporter):
    """A file for Moodle's gradebook: Grades > Import > CSV file.

    The first column identifies the student: Moodle maps it to username, idnumber or email (docs.moodle.org, "Grade
    import"; moodle/moodle, `grade/import/csv/classes/load_data.php`). Then comes one column per grade item and, with
    `feedback`, one of remarks beside each, which Moodle imports together with the grade. Moodle reads an empty cell as
    "no grade" and clears the old one. A student without any grade therefore gets no row. Export one exercise at a time
    (`--assignment`) if some students have only some of the grades.
    """

    default_name = "moodle.csv"

    identifier = Unicode("username", help="the first column: username, idnumber or email").tag(config=True)
    feedback = Bool(False, help="add the points of each question as a remark").tag(config=True)

    def rows(self) -> list[list[Any]]:
        """Return the header, and a row for every student with a grade."""
        if self.identifier not in ("username", "idnumber", "email"):
            raise CannotExport(f"identifier is {self.identifier!r}; use username, idnumber or email")
        header = [self.identifier]
        for name in self.exercises:
            header += [self.columns.get(name, name)] + [f"{name} (feedback)"] * self.feedback
        rows: list[list[Any]] = [header]
        times = Counter(_folded(self.identity(each)) for each in self.class_list.values())
        shared: list[str] = []
        lacking: list[str] = []
        for student in sorted(self.wanted):
            grades = [self.grade(student, name) for name in self.exercises]
            if not any(grades):
                continue
            row = [self.identity(self.class_list[student])]
            if times[_folded(row[0])] > 1 or not row[0]:
                (shared if row[0] else lacking).append(student)
                continue
            for name, grade in zip(self.exercises, grades, strict=True):
                has_remarks = grade and student in self.results.get(name, {})
                row += [grade] + [self.remarks(student, name) if has_remarks else ""] * self.feedback
            rows.append(row)
        if shared:
            self.note(
                f"left out, because others have the same {self.identifier} ({len(shared)}): {', '.join(shared[:10])}"
            )
        if lacking:
            self.note(
                f"left out, because the gradebook has no e-mail address ({len(lacking)}): {', '.join(lacking[:10])}"
            )
        return rows

    def identity(self, student: Student) -> str:
        """Return the value that identifies a student in Moodle, or "" for none."""
        values = {"username": student.id, "idnumber": student.lms_user_id or student.id, "email": student.email}
        return values[self.identifier] or ""


class MoodleWorksheetExporter(Exporter):
    """The offline grading worksheet of one Moodle assignment, filled in.

    The roster is the worksheet from Moodle (Assignment > Download grading worksheet). Its columns (moodle/moodle,
    `mod/assign/gradingtable.php`) are Identifier ("Participant 1234"), Full name, perhaps ID number and Email address,
    Status, Grade, Maximum grade, Grade can be changed, Last modified (submission), Last modified (grade), Feedback
    comments. Moodle imports Identifier, Grade, Last modified (grade) and the feedback
    (`mod/assign/feedback/offline/importgradeslib.php`), and skips an empty grade.
    """

    default_name = "worksheet.csv"

    feedback = Bool(False, help="write the points of each question into Feedback comments").tag(config=True)

    def rows(self) -> list[list[Any]]:
        """Return the worksheet with the grades filled in."""
        if not self.roster:
            raise CannotExport("a worksheet needs a roster: pass the worksheet that you downloaded from Moodle")
        if len(self.exercises) != 1:
            raise CannotExport("a worksheet holds one assignment: name it with --exercise (in nbgrader: --assignment)")
        (exercise,) = self.exercises
        header, *below = self.read_roster(["Identifier", "Full name", "Grade", "Last modified (grade)"])
        at = {name: place for place, name in enumerate(header)}
        logins, numbers = ([at[name]] if name in at else [] for name in ("Email address", "ID number"))
        matched = self.match(
            Row([row[i] for i in logins], [row[i] for i in numbers], row[at["Full name"]]) for row in below
        )
        if "Maximum grade" in at:
            self.compare_points(exercise, [row[at["Maximum grade"]] for row in below], "Moodle")
        for row, student in zip(below, matched, strict=True):
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


def _folded(text: str) -> str:
    return lowered(text.strip())


def number(points_of: float) -> str:
    """Return points with at most two decimals, which is what Canvas and Moodle show."""
    return f"{points_of:.2f}".rstrip("0").rstrip(".")


def full_name(student: Student) -> str:
    """Return "Last, First", the order in which Canvas sorts, or else the id."""
    return ", ".join(filter(None, (student.last_name, student.first_name))) or student.id


def canvas_name(name: str) -> str:
    """Return "First Last" for "Last, First"."""
    last, _, first = name.partition(",")
    return f"{first.strip()} {last.strip()}".strip()


def main(arguments: list[str] | None = None) -> int:
    """Export what the command line names; return 0 if the file was written, else 2."""
    parser = argparse.ArgumentParser(
        prog="autograder.results.export", description="Export grades as CSV for Canvas or Moodle."
    )
    parser.add_argument("format", choices=sorted(FORMATS))
    parser.add_argument("--db", required=True, metavar="URL", help="the gradebook, such as sqlite:///gradebook.db")
    parser.add_argument("--roster", default="", metavar="CSV", help="the platform's own file, to fill in")
    parser.add_argument("--exercise", action="append", default=[], metavar="NAME", help="only this exercise")
    parser.add_argument("--student", action="append", default=[], metavar="ID", help="only this student")
    parser.add_argument("--column", action="append", default=[], metavar="EXERCISE=NAME", help="name of its column")
    parser.add_argument("--identifier", default="username", help="for Moodle: username, idnumber or email")
    parser.add_argument("--feedback", action="store_true", help="for Moodle: the points of each question as a remark")
    parser.add_argument("--unfinished", action="store_true", help="also submissions that a person must still grade")
    parser.add_argument("--zeros", action="store_true", help="0 points for students without a submission")
    parser.add_argument(
        "--to", default="", metavar="CSV", help="file to write (default: canvas.csv, moodle.csv or worksheet.csv)"
    )
    command = parser.parse_args(arguments)
    kind = FORMATS[command.format]
    names = ("roster", "to", "unfinished", "zeros", "identifier", "feedback")
    settings = {name: getattr(command, name) for name in names if kind.class_traits().get(name)}
    if wrong := [pair for pair in command.column if "=" not in pair]:
        parser.error(f"--column is {wrong[0]!r}; it names the exercise, too: 03_ring={wrong[0]}")
    columns = dict(pair.split("=", 1) for pair in command.column)
    exporter = kind(**settings, columns=columns, assignment=command.exercise, student=command.student)
    exporter.log.setLevel("ERROR")  # its notes are printed below
    try:
        with Gradebook(existing(command.db)) as gradebook:
            exporter.export(gradebook)
    except (CannotExport, OSError) as reason:
        print(f"cannot export: {reason}", file=sys.stderr)
        return 2
    except SQLAlchemyError as error:
        print(f"cannot export: the gradebook does not open: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    print(*exporter.notes, sep="\n", end="\n" * bool(exporter.notes))
    print(f"wrote {exporter.to or kind.default_name}")
    return 0


def existing(url: str) -> str:
    """Return the gradebook's URL; raise `CannotExport` if its file is missing, because SQLite would create it."""
    file = points.file_of(url)
    if file and not file.is_file():
        raise CannotExport(f"there is no gradebook {file}: run `make grade` first")
    return url


if __name__ == "__main__":
    sys.exit(main())

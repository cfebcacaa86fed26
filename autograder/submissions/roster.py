"""The class list: `make roster CSV=class.csv` reads it into the gradebook, before anything is collected.

The class list says whose a downloaded file is, and which row of the learning platform's file gets which grade. Four
kinds of file work as they come:

- Canvas's export of grades (Grades > Export): Student, ID, SIS User ID, SIS Login ID, Section;
- Moodle's list of participants or its export of grades: First name, Last name, Email address, and perhaps Username and
  ID number;
- Moodle's grading worksheet: Identifier, Full name, and Email address or ID number;
- your own: id, and perhaps first_name, last_name, email, lms_user_id, as in `nbgrader db student import`.
"""

from __future__ import annotations

import argparse
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from nbgrader.api import Gradebook, Student
from sqlalchemy.exc import SQLAlchemyError

from .. import once, points, sheet

# formgrader puts a name into its page as it is, and its MathJax typesets the page: TeX may define the rubric's symbols.
MARKUP = str.maketrans("<>$\\`", "‹›＄＼‘")
STUDENT_ID = re.compile(r"\w[\w.@-]{0,63}")  # it becomes a folder's name
MOST = 128  # characters of a name or an address: the gradebook's columns, which PostgreSQL keeps to
TEST_STUDENT = "student, test"  # Canvas adds a "Student, Test" to each export; in other letters it may be a name


class BadRoster(ValueError):
    """Why a class list is refused as a whole, in one line for the instructor."""


class Person(NamedTuple):
    """A student as the gradebook has one. `id` names folders and pages; `lms_user_id` is the platform's number.

    `decides`: which of the two no student can edit, and says who a row is about: "number" (Canvas), "id" (the
    instructor's own list), or "".
    """

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    lms_user_id: str = ""
    decides: str = ""


COLUMNS = Person._fields[:-1]  # those of the gradebook


def of_canvas(row: dict[str, str]) -> Person | None:
    """Return the student in a row of Canvas's export, or None for a row that holds none."""
    names = row["Student"]
    if not row["ID"] or names == "Points Possible" or names.casefold() == TEST_STUDENT:
        return None
    last, _, first = (part.strip() for part in names.partition(","))
    login = row.get("SIS Login ID") or row.get("SIS User ID") or row["ID"]
    return Person(login, first, last, login if "@" in login else "", row["ID"], "number")


def of_moodle(row: dict[str, str]) -> Person | None:
    """Return the student in a row of Moodle's list of participants, or None for a row that holds none."""
    number, email = row.get("ID number", ""), row["Email address"]
    login = row.get("Username") or number or email
    return Person(login, row["First name"], row.get("Last name") or row.get("Surname", ""), email, number)


def of_worksheet(row: dict[str, str]) -> Person | None:
    """Return the student in a row of a Moodle grading worksheet, or None for a row that holds none."""
    number, email = row.get("ID number", ""), row.get("Email address", "")
    first, _, last = row["Full name"].rpartition(" ")
    return Person(row.get("Username") or number or email, first, last, email, number)


def of_nbgrader(row: dict[str, str]) -> Person | None:
    """Return the student in a row with the gradebook's own columns. The list is the instructor's own."""
    return Person(**{name: row.get(name, "") for name in COLUMNS}, decides="id")


# The columns by which a file is recognized, and how to read its rows.
FORMATS: tuple[tuple[frozenset[str], Callable[[dict[str, str]], Person | None]], ...] = (
    (frozenset({"Student", "ID", "Section"}), of_canvas),
    (frozenset({"Identifier", "Full name"}), of_worksheet),
    (frozenset({"First name", "Email address"}), of_moodle),
    (frozenset({"id"}), of_nbgrader),
)


def read(path: Path) -> tuple[list[Person], list[str]]:
    """Return the students in a class list, and what to say of each row that is left out, as it has no usable id.

    Students may be able to edit what their id is made of, such as an address or a number, and one's must not stop the
    others. So rows with the same id are left out, too. Raise `BadRoster` if a list can't be read or holds no student.
    """
    try:
        header, *rows = sheet.rows(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadRoster(f"{path} cannot be read as UTF-8 text ({error})") from error
    except ValueError:
        raise BadRoster(f"{path} is empty") from None
    person_of = next((person_of for columns, person_of in FORMATS if columns <= {*header}), None)
    if person_of is None:
        raise BadRoster(
            f"{path} has the columns {', '.join(header)}; a class list has Canvas's (Student, ID, Section), Moodle's "
            "(First name, Email address, or Identifier, Full name), or at least id"
        )
    found: dict[str, list[tuple[int, Person]]] = {}  # by id, in whatever letters: files and exports tell none apart
    left_out = []
    for number, row in enumerate(rows, start=2):
        person = person_of({name: cell.strip() for name, cell in zip(header, row, strict=True)})
        if person is None:
            continue
        if not is_id(person.id):
            left_out.append(f"row {number} gives the id {person.id!r}; an id has 1 to 64 letters, digits and . @ - _")
        else:
            found.setdefault(lowered(person.id), []).append((number, person))
    for same in found.values():
        if len(same) > 1:
            places = ", ".join(str(number) for number, _ in same)
            left_out.append(f"rows {places} give the same id, {same[0][1].id}")
    people = [person for (_, person), *others in found.values() if not others]
    if not people:
        raise BadRoster("; ".join((f"{path} holds no student", *left_out[:3])))
    return people, left_out


class Written(NamedTuple):
    """What a class list changed, by ids: `new` students; those whom the list `lacks`, who stay; and `left` as they are.

    Those are left whose row may be of somebody who took their id, see `is_another`. `namesakes`: {a new student: one of
    the same name whom the list lacks}. `cleared`: those whose number the list gives to another, and who have none now.
    """

    new: list[str]
    lacks: list[str]
    left: list[str]
    namesakes: dict[str, str]
    cleared: list[str]


def write(people: list[Person], url: str) -> Written:
    """Write the class list into the gradebook at `url`, which is created if it is missing, without markup in names.

    Students can edit their names on most platforms, and a script there would run as the instructor. A student whom the
    gradebook has keeps the id there: known by it in any spelling, by Canvas's number, which nobody can edit, or by name
    and address together.
    """
    if file := points.file_of(url):
        file.parent.mkdir(parents=True, exist_ok=True)
    with once.shared(), Gradebook(url) as gradebook:
        known = points.students(gradebook)
        update = _Update(known, people)
        people = [update.person(row) for row in people]
        for student, values in update.given.items():
            gradebook.update_or_create_student(student, **values)
        cleared = sorted(update.lent - update.given.keys())
        for student in cleared:
            gradebook.update_or_create_student(student, lms_user_id=None)
        new = {person.id: key(person.first_name + person.last_name) for person in people if person.id not in known}
        lacks = sorted(known.keys() - {person.id for person in people})
        namesakes = {student: each for student, name in new.items() for each in lacks if name in keys_of(known[each])}
    return Written([*new], lacks, sorted(update.left), namesakes, cleared)


class _Update:
    """What a class list changes, read row by row beside the gradebook's students.

    `given`: {a student: what to write of the student}; `left`: who stay as they are; `lent`: whose number is another's.
    """

    def __init__(self, known: dict[str, Student], people: list[Person]) -> None:
        self.known = known
        self.spelled = {lowered(student): student for student in known} | {student: student for student in known}
        self.numbered = _unique((each.lms_user_id, each.id) for each in known.values())
        self.addressed = _unique(
            ((name, (each.email or "").casefold()), each.id) for each in known.values() for name in keys_of(each)
        )
        self.numbers = {self.by_id(row): row.lms_user_id for row in people}
        self.owners = {row.lms_user_id: self.by_id(row) for row in people}
        self.given: dict[str, dict[str, str]] = {}
        self.left: set[str] = set()
        self.lent: set[str] = set()

    def by_id(self, row: Person) -> str | None:
        """Return the student whose id a row gives, in whatever letters."""
        return self.spelled.get(row.id) or self.spelled.get(lowered(row.id))

    def is_anothers(self, student: Student) -> bool:
        """Return whether Canvas's list gives a student's number to another one of the gradebook."""
        owner = self.owners.get(student.lms_user_id)
        return bool(owner) and owner != student.id

    def person(self, row: Person) -> Person:
        """Return a row's person with the id that the gradebook has for it, and note what to write."""
        about = {name: getattr(row, name).translate(MARKUP)[:MOST] for name in COLUMNS}
        name, address = f"{about['first_name']} {about['last_name']}", about["email"]
        by_id, by_number = self.by_id(row), self.numbered.get(row.lms_user_id) if row.decides else None
        if row.decides == "number" and by_id and by_number and by_id != by_number:
            strangers = {each for each in (by_id, by_number) if is_another(self.known[each], name, address)}
            renumbered = self.numbers.get(by_number, row.lms_user_id) != row.lms_user_id  # by a row of its own
            if strangers == {by_number} or (renumbered and not strangers):  # the number was wrong, the login is right
                self.lent.add(by_number)
                by_number = None
            elif not strangers:  # without names nobody knows which of them is right
                self.left |= {by_id, by_number}
                return row._replace(id=by_id)
        by_name = self.addressed.get((key(name), address.casefold())) if address else None
        ways = (by_id, by_number, by_name) if row.decides == "id" else (by_number, by_id, by_name)
        person = row._replace(id=next(filter(None, ways), row.id))
        had = self.known.get(person.id)
        if row.decides == "number":  # a login may be given again, and only the number can't
            without = had and (had.lms_user_id in (None, "", row.lms_user_id) or self.is_anothers(had))
            sure = by_number or (without and by_id == row.id)
        else:
            sure = row.decides == "id" and by_id == row.id
        if person.id in self.given or (had and not sure and is_another(had, name, address)):
            self.left.add(person.id)
        else:
            self.given[person.id] = {name: value for name, value in about.items() if value and name != "id"}
        return person


def _unique(pairs: Iterable[tuple[Any, str]]) -> dict[Any, str]:
    """Return what is one student's alone: {text: the student}."""
    found: dict[Any, set[str]] = {}
    for text, student in pairs:
        found.setdefault(text, set()).add(student)
    return {text: min(students) for text, students in found.items() if text and len(students) == 1}


def is_another(student: Student, name: str, address: str) -> bool:
    """Return whether a row with this name and address seems to be of somebody else than the gradebook's student.

    It has another name, in whatever order its parts are, and not the same address.
    """
    had, given = keys_of(student), key(name)
    same_address = bool(address) and (student.email or "").casefold() == address.strip().casefold()
    return bool(had and given) and given not in had and not same_address


def is_id(text: str) -> bool:
    """Return whether a text can be a student's id, in letters and in bytes: a folder's name has at most 255."""
    return bool(STUDENT_ID.fullmatch(text)) and len(text.encode()) <= 192


def lowered(student: str) -> str:
    """Return an id in the form for comparing: its unaccented letters in lower case. Beyond those, "ß" would be "ss"."""
    return "".join(each.lower() if each.isascii() else each for each in student)


def key(name: str) -> str:
    """Return a name in the form for comparing: letters with their marks, and digits, case folded; else as it is."""
    name = unicodedata.normalize("NFKC", name).casefold().strip()
    return "".join(each for each in name if unicodedata.category(each)[0] in "LMN") or name


def keys_of(student: Student) -> set[str]:
    """Return a student's full name in the form for comparing, with the first name first, and with the last."""
    first, last = student.first_name or "", student.last_name or ""
    return {key(first + last), key(last + first)} - {""}


def main(arguments: list[str] | None = None) -> int:
    """Read the class list that the command line names; return 0 if the gradebook has it now, else 2."""
    parser = argparse.ArgumentParser(
        prog="autograder.submissions.roster", description="Read a class list into the gradebook."
    )
    parser.add_argument("csv", type=Path, help="Canvas's, Moodle's, or your own list of students")
    parser.add_argument("--db", required=True, metavar="URL", help="the gradebook, such as sqlite:///gradebook.db")
    command = parser.parse_args(arguments)
    try:
        people, left_out = read(command.csv)
        new, lacking, others, namesakes, cleared = write(people, command.db)
    except BadRoster as reason:
        print(f"cannot read the class list: {reason}", file=sys.stderr)
        return 2
    except SQLAlchemyError as error:
        print(f"cannot read the class list: the gradebook does not open: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    for words in left_out:
        print(f"left out: {words}. Give this student an id in the file, and read it in again", file=sys.stderr)
    if others:
        print(
            f"left as they were ({len(others)}): {', '.join(others[:10])}. The gradebook has another name for them, "
            "and not this address, or two rows are theirs; ask who took whose id, and change the gradebook by hand",
            file=sys.stderr,
        )
    if cleared:
        print(f"without a number now, because it is another's ({len(cleared)}): {', '.join(cleared[:10])}")
    if lacking:
        print(f"in the gradebook, but not in this list ({len(lacking)}): {', '.join(lacking[:10])}")
    for student, other in namesakes.items():
        print(f"{student} is new, and has the name of {other}, who isn't in this list: one person? See the guide")
    print(f"the class list has {len(people)} student{'s' * (len(people) != 1)}, {len(new)} of them new")
    return 0


if __name__ == "__main__":
    sys.exit(main())

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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nbgrader.api import Gradebook, Student
from sqlalchemy.exc import SQLAlchemyError

from .. import points, sheet

MARKUP = str.maketrans("<>", "‹›")  # formgrader puts a name into its page as it is
STUDENT_ID = re.compile(r"\w[\w.@-]{0,63}")  # it becomes a folder's name
TEST_STUDENT = "student, test"  # Canvas adds a "Student, Test" to each export; in other letters it may be a name


class BadRoster(ValueError):
    """Why a class list is refused as a whole, in one line for the instructor."""


class Person(NamedTuple):
    """A student as the gradebook has one. `id` names folders and pages; `lms_user_id` is the platform's number.

    `fixed`: whether no student can edit the two.
    """

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    lms_user_id: str = ""
    fixed: bool = False


COLUMNS = Person._fields[:-1]  # those of the gradebook


def of_canvas(row: dict[str, str]) -> Person | None:
    """Return the student in a row of Canvas's export, or None for a row that holds none."""
    names = row["Student"]
    if not row["ID"] or names == "Points Possible" or names.casefold() == TEST_STUDENT:
        return None
    last, _, first = (part.strip() for part in names.partition(","))
    login = row.get("SIS Login ID") or row.get("SIS User ID") or row["ID"]
    return Person(login, first, last, login if "@" in login else "", row["ID"], fixed=True)


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
    return Person(**{name: row.get(name, "") for name in COLUMNS}, fixed=True)


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
        if not STUDENT_ID.fullmatch(person.id):
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


def write(people: list[Person], url: str) -> tuple[list[str], list[str], list[str]]:
    """Write the class list into the gradebook at `url`, which is created if it is missing, without markup in names.

    Students can edit their names on most platforms, and a script there would run as the instructor. A student whom the
    gradebook has keeps the spelling of the id there.

    Returns the ids that are new; those of students whom the gradebook has and the list lacks, who stay; and those of
    students who stay as they are, because the row may be of somebody who took their id, see `is_another`.
    """
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    with Gradebook(url) as gradebook:
        known = points.students(gradebook)
        spelled = {lowered(student): student for student in known} | {student: student for student in known}
        others = []
        for number, given_as in enumerate(people):
            person = given_as._replace(id=spelled.get(given_as.id, spelled.get(lowered(given_as.id), given_as.id)))
            people[number] = person
            fixed = person.fixed and person.id == given_as.id
            about = {name: getattr(person, name).translate(MARKUP) for name in COLUMNS}
            name = f"{about['first_name']} {about['last_name']}"
            if person.id in known and not fixed and is_another(known[person.id], name, about["email"]):
                others.append(person.id)
                continue
            given = {name: value for name, value in about.items() if value and name != "id"}
            gradebook.update_or_create_student(person.id, **given)
    ids = [person.id for person in people]
    return [student for student in ids if student not in known], sorted(known.keys() - {*ids}), others


def is_another(student: Student, name: str, address: str) -> bool:
    """Return whether a row with this name and address seems to be of somebody else than the gradebook's student.

    It has another name, in whatever order its parts are, and not the same address.
    """
    had, given = keys_of(student), key(name)
    same_address = bool(address) and (student.email or "").casefold() == address.strip().casefold()
    return bool(had and given) and given not in had and not same_address


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
        new, lacking, others = write(people, command.db)
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
            "and not this address; ask who took whose id, and change the gradebook by hand",
            file=sys.stderr,
        )
    if lacking:
        print(f"in the gradebook, but not in this list ({len(lacking)}): {', '.join(lacking[:10])}")
    print(f"the class list has {len(people)} student{'s' * (len(people) != 1)}, {len(new)} of them new")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The feedback pages of an exercise as one zip, which Canvas or Moodle attaches to the students' hand-ins.

`make return EXERCISE=03_ring FROM=canvas` writes it. A page holds one student's work. So it goes back to whoever handed
in the notebook that it is about, by the platform's own numbers, which `make collect` has read from the download
(`senders.json`). Each other page is left out, and a line names its student. Students chose nothing of the names here.

Canvas (instructure/canvas-lms, `infer_comment_context_from_filename` in `app/models/abstract_assignment.rb`) splits a
file's name at "_". The first two parts that are numbers are the user and the upload. It ignores the file unless that
upload is in that user's last hand-in, or if the last part begins with "link". It drops a group's name at the beginning.
It attaches the file under the name of the upload, whatever the file's own (issue 2406): a page in place of a zip would
not open. So a zip goes back where a zip came.

Moodle (moodle/moodle, `is_valid_filename_for_import` in `mod/assign/feedback/file/importziplib.php`) splits each folder
of a path at "_": any text, the participant's number, and the kind and the name of the plugin. No two participants of
any assignments have one number (`assign_user_mapping`). Versions before 4.1 need the last "_".
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nbgrader.api import Gradebook
from sqlalchemy.exc import SQLAlchemyError

from .. import points, standing
from ..submissions import senders
from ..submissions.roster import key
from ..submissions.senders import Sender
from .export import CannotExport, existing

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = "canvas", "moodle"
UPLOAD = {
    "canvas": "upload it in the gradebook, in the menu of the assignment's column: Re-Upload Submissions",
    "moodle": "upload it in the assignment: Upload multiple feedback files in a zip",
}
OTHERWISE = "they came otherwise than from {}, so give them out yourself"
ANOTHER = "another notebook than the one from {} was graded: grade again, or give these out yourself"
NUMBER = "the class list has another number for these students: give the pages out yourself"
WAITING = "a person must still grade or confirm them"
OLD = "points or comments have changed since: run `make grade` again"


class CannotReturn(ValueError):
    """Why no zip was written, in one line for the instructor."""


class Page(NamedTuple):
    """A student's page, who handed in the notebook that it is about, and that sender's number on the platform."""

    student: str
    path: Path
    sender: Sender
    number: str


class Pages:
    """The pages of an exercise. `course`: the folder of `make grade`; `downloaded`: that of `make collect`.

    `left_out`: {why: the students whose pages are left out}, once `found` has ended.
    """

    def __init__(self, gradebook: Gradebook, course: Path, downloaded: Path, exercise: str, platform: str) -> None:
        self.gradebook, self.course, self.exercise, self.platform = gradebook, course, exercise, platform
        self.senders = senders.read(senders.file_of(downloaded, exercise))
        self.people = points.students(gradebook)
        self.left_out: dict[str, list[str]] = defaultdict(list)

    def found(self, students: list[str], unfinished: bool = False) -> Iterator[Page]:
        """Yield the pages that go back to their senders, of these students or of all.

        `unfinished`: also those that a person must still grade. Raises `CannotReturn` if nothing is graded.
        """
        results = points.results(self.gradebook, [self.exercise], students).get(self.exercise, {})
        if not results:
            raise CannotReturn(f"the gradebook has no points of {self.exercise}: collect and grade it first")
        for student, result in results.items():
            sender = self.senders.get(student, Sender(None, "", settled=False))
            number = sender.number(self.platform)
            path = self.course / "feedback" / student / self.exercise / f"{self.exercise}.html"
            why = self.why_not(student, sender, number, path) or (WAITING if result.is_open and not unfinished else "")
            if why:
                self.left_out[why].append(student)
            else:
                yield Page(student, path, sender, number)

    def why_not(self, student: str, sender: Sender, number: str, path: Path) -> str:
        """Return why a page doesn't go back to a sender, or ""."""
        name = self.platform.capitalize()
        if not number or (self.platform == "canvas" and not sender.upload):
            return OTHERWISE.format(name)
        mark = standing.marked(self.course / "judged", self.exercise, student)
        if sender.last == "" or mark.get("handed_in", {}).get(self.exercise) != sender.last:
            return ANOTHER.format(name)
        listed = key(self.people[student].lms_user_id or "")
        if self.platform == "canvas" and listed not in ("", key(number)):
            return NUMBER
        now = standing.read(self.gradebook, self.exercise, student).digest
        return "" if path.is_file() and mark.get("grades") == now else OLD


def member(page: Page, exercise: str, platform: str) -> tuple[str, bytes]:
    """Return the name and the content of a page in the platform's zip."""
    content = page.path.read_bytes()
    who = page.student.replace("_", "-")  # for the instructor's eyes: no platform reads it
    if platform == "moodle":
        return f"{who}_{page.number}_assignsubmission_file_/{exercise}.html", content
    if page.sender.packed:
        return f"for-{who}_{page.number}_{page.sender.upload}_page.zip", packed(f"{exercise}.html", content)
    return f"for-{who}_{page.number}_{page.sender.upload}_page.html", content


def packed(name: str, content: bytes) -> bytes:
    """Return a zip of one file."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return memory.getvalue()


def write(pages: Iterator[Page], exercise: str, platform: str, to: Path) -> list[Page]:
    """Write the zip `to`, completely or not at all; return its pages. Raise `CannotReturn` if there are none."""
    whole = to.with_name(f"{to.name}.part")
    to.parent.mkdir(parents=True, exist_ok=True)
    written = []
    try:
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
            for page in pages:
                archive.writestr(*member(page, exercise, platform))
                written.append(page)
        if not written:
            raise CannotReturn("no page goes back to a hand-in")
        whole.replace(to)
    finally:
        whole.unlink(missing_ok=True)
    return written


def main(arguments: list[str] | None = None) -> int:
    """Write the zip that the command line names; return 0 if it was written, else 2."""
    grade, submissions = ROOT / "_build" / "grade", ROOT / "_build" / "submissions"
    parser = argparse.ArgumentParser(
        prog="autograder.results.handback", description="Write the feedback pages as a zip for Canvas or Moodle."
    )
    parser.add_argument("exercise")
    parser.add_argument(
        "--from", dest="platform", choices=PLATFORMS, required=True, help="where the hand-ins came from"
    )
    parser.add_argument("--student", action="append", default=[], metavar="ID", help="only this student's page")
    parser.add_argument("--unfinished", action="store_true", help="also pages that a person must still grade")
    parser.add_argument("--course", type=Path, default=grade, help="the folder of `make grade`")
    parser.add_argument("--submissions", type=Path, default=submissions, help="the folder of `make collect`")
    parser.add_argument("--db", metavar="URL", help="gradebook (default: gradebook.db in the course's folder)")
    parser.add_argument("--to", type=Path, metavar="ZIP", help="file to write (default: beside the gradebook)")
    command = parser.parse_args(arguments)
    course, exercise, platform = command.course, command.exercise, command.platform
    to = command.to or course / f"{exercise}-for-{platform}.zip"
    downloaded = command.submissions.with_name(f"{command.submissions.name}-downloaded")
    left_out: dict[str, list[str]] = {}
    try:
        with Gradebook(existing(command.db or f"sqlite:///{course / 'gradebook.db'}")) as gradebook:
            pages = Pages(gradebook, course, downloaded, exercise, platform)
            left_out = pages.left_out
            written = write(pages.found(command.student, command.unfinished), exercise, platform, to)
    except (CannotReturn, CannotExport, OSError) as reason:
        tell(left_out)
        print(f"cannot return: {reason}", file=sys.stderr)
        return 2
    except SQLAlchemyError as error:
        print(f"cannot return: the gradebook does not open: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    tell(left_out)
    bare = [page.student for page in written if platform == "canvas" and not page.sender.packed]
    if bare:
        print(f"Canvas will call {len(bare)} of the pages {exercise}.ipynb: tell students to add .html to that name")
    place = to.relative_to(ROOT) if to.is_relative_to(ROOT) else to
    print(f"{len(written)} page{'s' * (len(written) != 1)} in {place}; {UPLOAD[platform]}")
    return 0


def tell(left_out: dict[str, list[str]]) -> None:
    """Print which pages are left out, and why."""
    for why, students in left_out.items():
        more = f" and {len(students) - 10} more" if len(students) > 10 else ""
        print(f"left out, because {why} ({len(students)}): {', '.join(students[:10])}{more}")


if __name__ == "__main__":
    sys.exit(main())

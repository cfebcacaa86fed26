"""The intake of zips: those that students pack with `make submit`, and those that Canvas and Moodle let you download.

`make collect ZIPS=folder EXERCISE=03_ring` passes every file of a folder to nbgrader's own `zip_collect`. Or put the
files into `downloaded/03_ring/archive` and run `nbgrader zip_collect 03_ring`.

nbgrader's extractor unpacks everything, however large, zips in zips included, and one broken zip stops the class.
`SafeExtractor` reads zips in the cage, with `unzip`. It writes only one notebook of bounded size for each student,
under a name that it chooses itself: `extracted/<student>/<time>/<exercise>.ipynb`. nbgrader's collector reads that path
with `NAMED_REGEXP`. The extractor logs each file that it refuses, with a reason, lists it in `refused.csv` beside the
folder, and takes in the rest.

Whose file it is: the learning platform's name wins over the file's own. Canvas puts its user's number into the file's
name, and the class list has that number as `lms_user_id`. Moodle puts the full name. Without a class list, the name of
the `make submit` zip counts, which is only what the student typed. If two people hand in under one name, the extractor
refuses both. The time of a hand-in comes from the zip's name, or else from the file's time.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

from nbgrader.api import Gradebook
from nbgrader.plugins.zipcollect import ExtractorPlugin
from traitlets import Unicode
from traitlets.config import Config

from .. import cage, points, sheet
from . import unzip
from .intake import EARLIEST
from .roster import STUDENT_ID, key, keys_of, lowered
from .unzip import MOST_NAME, is_notebook, printable

ROOT = Path(__file__).resolve().parents[2]
LISTING = 60.0  # seconds to list a zip's members
UNPACKING = 20.0  # seconds to unpack one hand-in

NAMED_REGEXP = r".*/(?P<student_id>[^/]+)/(?P<timestamp>\d{8}T\d{6}Z)/(?P<file_id>[^/]+)\.ipynb$"
TIME = "%Y%m%dT%H%M%SZ"

# adalovelace_LATE_123_456_file.ipynb: name, number of the user, number of the upload, original name of the file.
# A student chooses the name and the file's name, and either may hold such numbers, too: so every place is found at
# which they may be. 2026_11_29 is a date. Names are at most MOST_NAME long, so that no expression takes long.
CANVAS = re.compile(
    r"(?=_(?!(?:19|20)[0-9]{2}_(?:0?[1-9]|1[0-2])_)(?P<user>[0-9]+)_(?P<upload>[0-9]+)_(?P<file>[^/]+))"
)

IN_A_HAND_IN = "its name has a slash, so Canvas's name of it may be another's; hand in a file without one in its name"
OF_BOTH = "its name may be Canvas's or Moodle's, and of two people; hand in a file without numbers in its name"
NO_FILE = "it is beside a text, not a file that was handed in; hand it in as a file"
MOODLE = "_assignsubmission_"  # and what kind of hand-in it is


class BadZip(Exception):
    """Why a hand-in is refused, in a sentence for its student."""


@dataclass(frozen=True)
class Candidate:
    """A notebook, or a zip that should hold one. `owner`: the platform's name for the student, "" without one.

    `known_by`: what finds the student in the class list, see `SafeExtractor.class_list`. `doubt`: why it is refused,
    if its name doesn't say whose it is. `sure`: false if the name could be an unlisted person's, too. `path`: the
    downloaded file; `number`: the member's, if that file is a zip of many hand-ins.
    """

    shown: str
    owner: str
    known_by: tuple[str, str] | None
    file: str
    upload: int
    time: datetime
    path: Path
    number: int | None
    doubt: str = ""
    sure: bool = True


@dataclass(frozen=True)
class Reading:
    """One way to read a name that Canvas gives a hand-in. `person`: all before the upload's number, without "_LATE"."""

    person: str
    late: bool
    user: str
    upload: int
    file: str


@dataclass(frozen=True)
class Taken:
    """One student's notebook. Of several, the later `time` counts, then the platform's later `upload`.

    `listed`: the class list says whose it is, and not only the file.
    `kept` is a temporary file with its content, so that a class's notebooks are never in memory all at once.
    """

    student: str
    owner: str
    time: datetime
    upload: int
    shown: str
    kept: Path
    listed: bool


class SafeExtractor(ExtractorPlugin):
    """The extractor of notebooks from hand-ins, for nbgrader's `ZipCollectApp.extractor_plugin`."""

    db_url = Unicode("", help="gradebook with the class list (default: the course's)").tag(config=True)

    def extract(self, archive_path: str, extracted_path: str) -> None:
        """Write one notebook for each student into `extracted_path`, and `refused.csv` beside it."""
        self.exercise = self.parent.coursedir.assignment_id
        self.ids: set[str] = set()
        self.spelled: dict[str, str] = {}  # an id, address or number, lowered -> the student of the class list
        self.people = self.class_list()
        self.refused: list[tuple[str, str]] = []
        beside = Path(extracted_path).parent
        with tempfile.TemporaryDirectory(dir=beside) as meanwhile:
            for notebooks in self.take(self.candidates(Path(archive_path).absolute()), Path(meanwhile)).values():
                self.put(notebooks, Path(extracted_path))
        (beside / "refused.csv").write_text(sheet.text([("file", "reason"), *self.refused]), encoding="utf-8")

    def take(self, candidates: Iterator[Candidate], meanwhile: Path) -> dict[str, list[Taken]]:
        """Unpack the candidates' notebooks into files in `meanwhile`; return them by student, and refuse the others."""
        wanted: list[tuple[Candidate, str, datetime]] = []
        for candidate in candidates:
            try:
                wanted.append((candidate, *self.whose(candidate)))
            except BadZip as reason:
                self.refuse(candidate.shown, str(reason))
        taken: dict[str, list[Taken]] = {}
        items = [self.request(candidate) for candidate, _, _ in wanted]
        notebooks = cage.each(unzip.unpacked, items, UNPACKING)
        for number, ((candidate, student, time), notebook) in enumerate(zip(wanted, notebooks, strict=True)):
            if isinstance(notebook, cage.Failed):
                self.refuse(candidate.shown, str(notebook))
                continue
            kept = meanwhile / str(number)
            kept.write_bytes(notebook)
            notebooks_of = taken.setdefault(student, [])
            listed = candidate.sure and self.listed(candidate) == {student}
            notebooks_of.append(Taken(student, candidate.owner, time, candidate.upload, candidate.shown, kept, listed))
        return taken

    def request(self, candidate: Candidate) -> bytes:
        """Return what the cage needs to unpack a candidate."""
        exercise = self.exercise if candidate.file.lower().endswith(".zip") else None
        return json.dumps([str(candidate.path), candidate.number, exercise]).encode()

    def put(self, found: list[Taken], extracted: Path) -> None:
        """Put a student's last notebook where the collector looks; refuse what comes from others.

        Refuse all if nobody knows who is who.
        """
        if any(notebook.listed for notebook in found):
            for notebook in found:
                if not notebook.listed:
                    of = notebook.student
                    self.refuse(notebook.shown, f"it says that it is {of}'s, but the class list knows {of} otherwise")
            found = [notebook for notebook in found if notebook.listed]
        if len({notebook.owner for notebook in found}) > 1:
            for notebook in found:
                self.refuse(notebook.shown, f"several people hand in as {notebook.student}; ask them who is who")
            return
        last = max(found, key=lambda notebook: (notebook.time, notebook.upload))
        place = extracted / last.student / last.time.strftime(TIME)
        place.mkdir(parents=True)
        last.kept.replace(place / f"{self.exercise}.ipynb")
        for notebook in found:
            if notebook is not last:
                self.log.info("%s: superseded by %s", notebook.shown, last.shown)

    def refuse(self, shown: str, reason: str) -> None:
        """Log that a file is refused, and remember it for refused.csv."""
        shown = printable(shown, MOST_NAME)
        self.log.warning("REFUSED %s: %s", shown, reason)
        self.refused.append((shown, reason))

    def class_list(self) -> dict[tuple[str, str], set[str]]:
        """Return {(kind, a name or a number of a platform's): the ids of the students it fits}, from the gradebook.

        Names and numbers are apart, because students can edit their names on most platforms: one may call himself 71.
        """
        url = self.db_url or self.parent.coursedir.db_url
        if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
            return {}
        known: dict[tuple[str, str], set[str]] = {}
        with Gradebook(url) as gradebook:
            everybody = points.students(gradebook).values()
            self.ids = {each.id for each in everybody}
            for text in ("lms_user_id", "email", "id"):  # an id comes before another's number
                self.spelled |= {lowered(getattr(each, text) or ""): each.id for each in everybody}
            for student in everybody:
                number = key(student.lms_user_id or "")
                for known_by in (("number", number), *(("name", name) for name in keys_of(student))):
                    if known_by[1]:
                        known.setdefault(known_by, set()).add(student.id)
        return known

    def candidates(self, folder: Path) -> Iterator[Candidate]:
        """Yield each hand-in of a download: single files, and the members of a platform's zips."""
        for path in sorted(folder.rglob("*")):
            shown = str(path.relative_to(folder))
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                self.refuse(shown, "it is a link or not a file; download it again")
            elif path.is_file():
                time = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                if path.suffix.lower() == ".zip" and not self.is_one_submission(shown):
                    yield from self.members(path, shown)
                elif is_in_a_hand_in(shown):
                    self.refuse(shown, IN_A_HAND_IN)
                else:
                    yield self.candidate(shown, shown, time, path)

    def is_one_submission(self, name: str) -> bool:
        """Return whether a zip's name is that of one student's upload, rather than of a zip with many."""
        base = PurePosixPath(name).name
        return bool(readings(base, self.exercise) or MOODLE in name or self.own_name(base))

    def members(self, path: Path, shown: str) -> Iterator[Candidate]:
        """Yield each hand-in of a zip with many. Refuse the zip once if it is wrong as a whole."""
        try:
            found = json.loads(cage.ask(unzip.listed, json.dumps(str(path)).encode(), LISTING))
        except cage.Failed as reason:
            self.refuse(shown, str(reason))
            return
        if found and not any(self.is_one_submission(name) for _, name, _, _ in found):
            self.refuse(shown, f"its name should be <student>_{self.exercise}_<time>.zip, as `make submit` writes it")
            return
        times = Counter(name for _, name, _, _ in found)
        for number, name, date, wrong in found:
            inside = f"{shown}/{printable(name)}"
            if wrong or times[name] > 1:
                self.refuse(inside, wrong or "the zip holds two files of this name")
            elif is_in_a_hand_in(name):
                self.refuse(inside, IN_A_HAND_IN)
            else:
                yield self.candidate(inside, name, moment(date), path, number)

    def candidate(self, shown: str, name: str, time: datetime, path: Path, number: int | None = None) -> Candidate:
        """Return the hand-in that a file's name describes: whose it is, and which upload."""
        base = PurePosixPath(name).name
        if moodle := of_moodle(name):
            student, user, file = moodle
            others = {each.user for each in readings(f"_{file}", self.exercise)}
            of_canvas = CANVAS.search(f"{student}_{user}_-") or any(("number", each) in self.people for each in others)
            doubt = OF_BOTH if of_canvas else ""
            file, known_by = PurePosixPath(file).name, ("name", key(student))
            return Candidate(shown, f"Moodle's {student}_{user}", known_by, file, 0, time, path, number, doubt)
        if MOODLE in name:
            return Candidate(shown, "", None, base, 0, time, path, number, NO_FILE)
        if found := readings(base, self.exercise):
            reading, owner, doubt, sure = self.read(found)
            if reading.late:
                self.log.warning("%s: Canvas marks it as late", shown)
            known_by = ("number", reading.user)
            file, upload = reading.file, reading.upload
            return Candidate(shown, f"Canvas's {owner}", known_by, file, upload, time, path, number, doubt, sure)
        return Candidate(shown, "", None, base, 0, time, path, number)

    def read(self, found: list[Reading]) -> tuple[Reading, str, str, bool]:
        """Return the first way to read a name of Canvas's, who sent it, a doubt, and whether it is surely right.

        Canvas's own numbers are in one of them. The others are in what a student has chosen: the file's name, such as a
        student's number before the exercise, or his own name, left of Canvas's numbers, so that the file may seem
        another's. Then what is read as the file's name begins with his own numbers, and claims nobody's id.
        """
        first, users = found[0], list(dict.fromkeys(reading.user for reading in found))
        match = self.own_name(first.file)
        claim = match["student"] if match else ""
        whose = self.people.get(("number", first.user), set())
        typed = claim and not whose and (claim in self.ids or not self.ids)  # what is typed is all there is
        owner = f"user {first.user}" if whose else first.person
        if len(users) == 1 or {claim} == whose or typed:
            return first, owner, "", True
        if claim.isdecimal() and not any(("number", user) in self.people for user in users[1:]):
            return first, f"{first.person} ({claim})", "", False  # not the id; or Canvas's own, behind an edited name
        may_be = f"its name may be of Canvas's user {' or '.join(users)}"
        return first, owner, f"{may_be}: leave numbers out of the name of the file, and hand it in again", True

    def own_name(self, file: str) -> re.Match | None:
        """Match the name that `make submit` gives a zip. Browsers and Canvas add -1 or (1) to a second one."""
        return re.fullmatch(
            rf"(?P<student>.+)_{re.escape(self.exercise)}_(?P<time>\d{{8}}T\d{{6}}Z)( ?\(\d+\)|-\d+)?\.zip",
            unicodedata.normalize("NFC", file),
        )

    def whose(self, candidate: Candidate) -> tuple[str, datetime]:
        """Return the student's id and the time of a candidate, from its names. Raise `BadZip` to refuse it."""
        if candidate.doubt:
            raise BadZip(candidate.doubt)
        own = self.own_name(candidate.file)
        student = self.student(candidate, own["student"] if own else None)
        time = candidate.time
        if own:
            try:
                time = datetime.strptime(own["time"], TIME).replace(tzinfo=UTC)
                if time < EARLIEST.replace(tzinfo=UTC):
                    raise ValueError("before all courses")
            except ValueError:
                raise BadZip(f"{own['time']} is no time; don't rename the zip that `make submit` writes") from None
        if time > datetime.now(UTC) + timedelta(days=1):
            raise BadZip(f"its date is {time:%Y-%m-%d}, which is in the future; pack it again with `make submit`")
        suffix = PurePosixPath(candidate.file).suffix.lower()
        if suffix != ".zip" and not is_notebook(candidate.file, self.exercise):
            raise BadZip(f"it is neither {self.exercise}.ipynb nor a zip of it; hand that in")
        return student, time

    def listed(self, candidate: Candidate) -> set[str]:
        """Return the ids of the students whom the platform's name or number fits in the class list."""
        return self.people.get(candidate.known_by, set()) if candidate.known_by else set()

    def student(self, candidate: Candidate, claimed: str | None) -> str:
        """Return the student's id: from the class list, else from the zip's own name, else from the platform's.

        Raise `BadZip` if it has no id, or that of somebody whom the class list has under another number.
        """
        kind, _ = candidate.known_by or ("", "")
        ids = self.listed(candidate)
        if len(ids) == 1:
            student = next(iter(ids))
            if claimed not in (None, student):
                self.log.warning("%s: it is from %s, according to the class list", candidate.shown, student)
            return student
        known = (students for (listed, _), students in self.people.items() if listed == kind)
        if claimed not in ids and any(claimed in students for students in known):
            raise BadZip(f"it says that it is {claimed}'s, but {candidate.owner} isn't {claimed} in the class list")
        student = claimed or re.sub(r"[^\w.@-]+", "-", candidate.owner.partition(" ")[2]).strip("-.@")
        if not student:
            raise BadZip(
                f"its name has no student; call it <student>_{self.exercise}_<time>.zip, as `make submit` does"
            )
        student = unicodedata.normalize("NFC", student)
        if student not in self.ids and (listed := self.spelled.get(lowered(student))):
            raise BadZip(
                f"{printable(student)} is in the class list, but as an address, a number or a spelling of {listed}"
            )
        if not STUDENT_ID.fullmatch(student):
            raise BadZip(
                f"{printable(student)!r} is no student's id: use letters, digits and . @ - _, at most 64 of them"
            )
        return student


def readings(name: str, exercise: str) -> list[Reading]:
    """Return each way to read the name that Canvas gives a hand-in; none for other names."""
    found, own = [], re.compile(rf"{re.escape(exercise)}(?![0-9])")  # which may begin with a number, too
    for match in CANVAS.finditer(name):
        if not own.match(f"{match['upload']}_{match['file']}"):
            before = name[: match.start()]
            person = f"{before.removesuffix('_LATE')}_{match['user']}"
            found.append(Reading(person, before.endswith("_LATE"), match["user"], int(match["upload"]), match["file"]))
    return found


def of_moodle(name: str) -> tuple[str, str, str] | None:
    """Return (full name, the user's number, file) from a name that Moodle gives a hand-in, or None for other names.

    Moodle writes `Ada Lovelace_1234_assignsubmission_file_/file.ipynb`, and without folders `..._file_file.ipynb`.
    """
    before, _, rest = name[:MOST_NAME].partition(MOODLE)
    student, _, user = PurePosixPath(before).name.rpartition("_")
    file = rest.removeprefix("file_").removeprefix("/")
    return (student, user, file) if student and user.isdecimal() and file and rest.startswith("file_") else None


def is_in_a_hand_in(name: str) -> bool:
    """Return whether a folder of a file's path has the name that Canvas gives one hand-in.

    Canvas's own are files. A student's file name with a slash would make a folder, and the rest would name another.
    """
    folders = PurePosixPath(name.partition(MOODLE)[0]).parts[:-1]  # Moodle's own is none of them
    return any(CANVAS.search(f"{folder}-") for folder in folders)


def moment(date: list[int]) -> datetime:
    """Return a member's time as UTC, because a zip has no time zone; 1980 if the time is invalid."""
    try:
        year, month, day, hour, minute, second = date
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return datetime(1980, 1, 1, tzinfo=UTC)


def configure(config: Config) -> None:
    """Make nbgrader's `zip_collect` use this module."""
    config.ZipCollectApp.extractor_plugin = "autograder.submissions.zips.SafeExtractor"
    config.ZipCollectApp.strict = True  # leave out notebooks of other exercises
    config.FileNameCollectorPlugin.named_regexp = NAMED_REGEXP


def is_stray(path: Path) -> bool:
    """Return whether a downloaded file is nobody's hand-in: no zip, no notebook, and no name that a platform gives."""
    kinds = (".zip", ".ipynb")
    of_platform = CANVAS.search(path.name[:MOST_NAME]) or f"{MOODLE}file_" in str(path)
    return not path.is_dir() and path.suffix.lower() not in kinds and not of_platform


def collect(sources: list[Path], exercise: str, into: Path) -> tuple[list[str], list[tuple[str, str]], list[str]]:
    """Take in files and folders of files, into `into`/<student>/<exercise>.

    Returns the students with a notebook, what was refused as [(file, reason)], and the files left alone because they
    are nobody's. Notebooks from earlier calls stay, unless the same student hands in again. Raises `BadZip` if
    nbgrader's `zip_collect` fails.
    """
    strays: list[str] = []

    def ours(folder: str, names: list[str]) -> list[str]:
        found = [name for name in names if is_stray(Path(folder, name))]
        strays.extend(found)
        return found

    downloaded = into.with_name(f"{into.name}-downloaded")
    archive = downloaded / exercise / "archive"
    shutil.rmtree(archive, ignore_errors=True)
    archive.mkdir(parents=True)
    for number, source in enumerate(sources, start=1):
        place = archive / str(number) if len(sources) > 1 else archive  # two downloads may have files of one name
        if source.is_dir():
            shutil.copytree(source, place, symlinks=True, ignore=ours, dirs_exist_ok=True)
        elif is_stray(source):
            strays.append(source.name)
        else:
            place.mkdir(exist_ok=True)
            shutil.copy2(source, place)
    structure = f"{downloaded.resolve()}/{{assignment_id}}/{{collect_step}}"
    settings = [
        "--extractor=autograder.submissions.zips.SafeExtractor",
        f"--FileNameCollectorPlugin.named_regexp={NAMED_REGEXP}",
        f"--ZipCollectApp.collect_directory_structure={structure}",
        f"--CourseDirectory.submitted_directory={into.resolve()}",
    ]
    command = [sys.executable, "-m", "nbgrader", "zip_collect", exercise, "--force", *settings]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=ROOT / "autograder", env=paths, capture_output=True, text=True)
    if done.returncode:
        raise BadZip(f"nbgrader's zip_collect failed:\n{done.stderr[-2000:]}")
    with (downloaded / exercise / "refused.csv").open(newline="", encoding="utf-8") as file:
        _, *refused = csv.reader(file)
    taken = sorted(path.name for path in (downloaded / exercise / "extracted").iterdir())
    return taken, [(shown, reason) for shown, reason in refused], sorted(strays)


def main(arguments: list[str] | None = None) -> int:
    """Take in what the command line names; return 0 if nothing was refused, 1 if something was, 2 on a failure."""
    parser = argparse.ArgumentParser(
        prog="autograder.submissions.zips", description="Take in the zips that students handed in."
    )
    parser.add_argument("sources", nargs="+", type=Path, metavar="FILE", help="zips, notebooks, or folders of them")
    parser.add_argument("--exercise", required=True, metavar="NAME")
    parser.add_argument("--into", type=Path, default=ROOT / "_build" / "submissions", help="folder for `make grade`")
    command = parser.parse_args(arguments)
    if missing := [str(source) for source in command.sources if not source.exists()]:
        print(f"cannot collect: there is no {missing[0]}", file=sys.stderr)
        return 2
    try:
        taken, refused, strays = collect(command.sources, command.exercise, command.into)
    except BadZip as error:
        print(f"cannot collect: {error}", file=sys.stderr)
        return 2
    for shown, reason in refused:
        print(f"REFUSED {printable(shown)}: {reason}")
    if strays:
        print(f"left alone, because they are no hand-ins ({len(strays)}): {', '.join(map(printable, strays[:10]))}")
    place = command.into.relative_to(ROOT) if command.into.is_relative_to(ROOT) else command.into
    print(f"{command.exercise}: {len(taken)} taken in, {len(refused)} refused; the notebooks are in {place}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())

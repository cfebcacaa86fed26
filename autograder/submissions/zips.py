"""The intake of zips: those that students pack with `make submit`, and those that Canvas and Moodle let you download.

`make collect ZIPS=folder EXERCISE=03_ring FROM=canvas` passes every file of a folder to nbgrader's own `zip_collect`.
Or put the files into `downloaded/03_ring/archive` and run `nbgrader zip_collect 03_ring`.

nbgrader's extractor unpacks everything, however large, zips in zips included, and one broken zip stops the class.
`SafeExtractor` reads zips in the cage, with `unzip`. It writes only one notebook of bounded size for each student,
under a name that it chooses itself: `extracted/<student>/<time>/<exercise>.ipynb`. nbgrader's collector reads that path
with `NAMED_REGEXP`. The extractor logs each file that it refuses, with a reason, lists it in `refused.csv` beside the
folder, and takes in the rest.

Whose file it is: that depends on where it comes from, and the instructor says that, because a student can write any
name. Canvas puts its user's number into a file's name, and the class list has that number as `lms_user_id`. Moodle
puts the full name. Elsewhere (`mail`) the name of the `make submit` zip counts, which is only what the student typed.
Whoever isn't in the class list is refused. Without one, or if it has ids alone, typed names count everywhere. If two
people hand in under one name, the extractor refuses both, and of two who do so in two downloads the second:
`senders.json` remembers who sent what was taken in, and `make return` addresses feedback pages by it. The time of a
hand-in comes from the zip's name, or else from the file's time.
"""

from __future__ import annotations

import argparse
import csv
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from statistics import median
from typing import NamedTuple

from nbgrader.api import Gradebook
from nbgrader.plugins.zipcollect import ExtractorPlugin
from nbgrader.utils import parse_utc
from traitlets import Bool, Enum, Unicode
from traitlets.config import Config

from .. import cage, points, release, sheet
from . import senders, unzip
from .intake import EARLIEST, digest, located, timestamp
from .roster import is_id, key, keys_of, lowered
from .senders import Sender
from .unzip import MOST_NAME, is_notebook, printable

ROOT = Path(__file__).resolve().parents[2]
SOURCES = "canvas", "moodle", "mail"
LISTING = 60.0  # seconds to list a zip's members
# What one sender may take, who can hand in any number of files that are small until they are unpacked. By mail nobody
# knows the senders, so this holds for all single files together, and for all zips of many. As these may be a whole
# class's, a mail's bytes add to it, and each student's newest file has a part of its own, in which an honest one fits.
UNPACKING = 20.0  # seconds to unpack all hand-ins
MOST_KEPT = 5 * unzip.MOST_BYTES  # bytes of the notebooks that are on disk until all hand-ins are unpacked
MAILED_SECONDS, MAILED_BYTES = 1e-6, 20  # more of both for each byte of a mail
OWN_SECONDS, OWN_BYTES = 0.25, 3_000_000  # for a student's newest file; with pictures it has 1 MB, and takes 10 ms
MOST_OWN = 1_000  # such files
FOLDERS = 16_384  # bytes that a notebook's folders take on disk, at most

NAMED_REGEXP = r".*/(?P<student_id>[^/]+)/(?P<timestamp>\d{8}T\d{6}Z)/(?P<file_id>[^/]+)\.ipynb$"
TIME = "%Y%m%dT%H%M%SZ"

# adalovelace_LATE_123_456_file.ipynb: name, number of the user, number of the upload, original name of the file.
# A student chooses the name and the file's name, and either may hold such numbers, too: so every place is found at
# which they may be. 2026_11_29 is a date. Names are at most MOST_NAME long, so that no expression takes long.
CANVAS = re.compile(
    r"(?=_(?!(?:19|20)[0-9]{2}_(?:0?[1-9]|1[0-2])_)(?P<user>[0-9]+)_(?P<upload>[0-9]+)_(?P<file>[^/]+))"
)

IN_A_HAND_IN = "its name has a slash, so Canvas's name of it may be another's; hand in a file without one in its name"
NO_FILE = "it is beside a text, not a file that was handed in; hand it in as a file"
OF_MOODLE = "it has a name as Moodle writes it; if it came from there, collect it with FROM=moodle"
NOT_OF_IT = "{} doesn't write such a name; if it came otherwise, collect it by itself with FROM=mail"
KEPT = (
    "{0}'s folder also holds {1}, which would be lost; move it away and collect again. If it is to count, let it be "
    "{2}.ipynb after that"
)
NAMED = (
    "it isn't called {0}.ipynb; hand it in under that name. (Instructor: if it is this exercise, unpack the download, "
    "change {1} in its name to {0}.ipynb, and collect again)"
)
NO_LIST = "the gradebook has no class list with names or numbers, so a hand-in is whose its name says (`make roster`)"
# Why a hand-in is refused beside one that is surely the student's, by whether its own name leaves no doubt.
UNLISTED = {
    True: "it says that it is {0}'s, but the class list knows {0} otherwise",
    False: "numbers in its name may be another person's; if it is {0}'s, collect it by itself with REPLACE=1",
}
REPLACED = "you have put another notebook in its place"
ALONE = "hand in one notebook alone"
APART = "collect it from a folder of its own"
NO_TIME = "there was no time left for it, because {0} take {1:g} seconds or longer to unpack; {2}"
NO_BYTES = "{0} unpack to {1} MB or more; {2}"
NO_ROOM = "there is no room for it on the disk; make room, and collect again"
MOODLE = "_assignsubmission_"  # and what kind of hand-in it is
HAND_INS = ".zip", ".ipynb"
GRADES = re.compile(r"_Grades-.*\.csv$")  # Canvas's export of grades
TEXT = re.compile(rf"({MOODLE}onlinetext[_/]+onlinetext|_[0-9]+_(text|link))\.html$")  # typed on Moodle or Canvas


class BadZip(Exception):
    """Why a hand-in is refused, in a sentence for its student."""


class NoNotebook(BadZip):
    """Why a file that is neither a notebook nor a zip is refused, unless `student` has handed in one beside it."""

    def __init__(self, student: str, reason: str) -> None:
        super().__init__(reason)
        self.student = student


class Found(NamedTuple):
    """A file that may be a hand-in; the fields are those of `Candidate`. `name`: the file's, or the member's."""

    shown: str
    name: str
    time: datetime
    path: Path
    number: int | None = None


@dataclass(frozen=True)
class Candidate:
    """A notebook, or a zip that should hold one. `owner`: the platform's name for the student, "" without one.

    `sender`: the same without what a student can edit. `known_by`: what finds the student in the class list, see
    `SafeExtractor.class_list`. `doubt`: why it is refused, if its name doesn't say whose it is. `sure`: false if the
    name could be an unlisted person's, too. `path`: the downloaded file; `number`: the member's, if that file is a zip
    of many hand-ins.
    """

    shown: str
    owner: str
    sender: str
    known_by: tuple[str, str] | None
    file: str
    upload: int
    time: datetime
    path: Path
    number: int | None
    doubt: str = ""
    sure: bool = True
    late: bool = False


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
    """One student's notebook. Of several by one sender, the last in `SafeExtractor.order` counts.

    `listed`: the class list says whose it is, and not only the file.
    `kept` is a temporary file with its content, so that a class's notebooks are never in memory all at once.
    `digest` tells the content from all others.
    """

    student: str
    candidate: Candidate
    time: datetime
    kept: Path
    digest: str
    listed: bool


class Wanted(NamedTuple):
    """A candidate that is to be unpacked, with the student's id and the time of the hand-in."""

    candidate: Candidate
    student: str
    time: datetime

    @property
    def account(self) -> str:
        """Whose budget it takes from: a platform's sender's, or that of all mailed zips of many, or "", of all others.

        A sender who isn't sure is taken without the number that the file's name claims, which may be another each time.
        """
        new = self.candidate
        if new.sender:
            return new.sender if new.sure else new.sender.rpartition(" ")[0]
        return "zips" if new.number is not None else ""


@dataclass
class Allowance(cage.Budget):
    """The seconds and bytes that are left for the files of one account. `full`: why a file fails without bytes."""

    bytes: int
    full: str
    owners: int  # files that may yet have a part of their own


NOTHING = Sender(None, "", settled=False)
ELSEWHERE = "elsewhere (it was put there by hand, or by another collection)"


class SafeExtractor(ExtractorPlugin):
    """The extractor of notebooks from hand-ins, for nbgrader's `ZipCollectApp.extractor_plugin`."""

    db_url = Unicode("", help="gradebook with the class list (default: the course's)").tag(config=True)
    source = Enum(SOURCES, "mail", help="where the files come from, which says whose names count").tag(config=True)
    replace = Bool(False, help="replace what another sender has handed in before").tag(config=True)
    drafts = Bool(False, help="leave it to the caller to keep who sent what, once all is in place").tag(config=True)

    def extract(self, archive_path: str, extracted_path: str) -> None:
        """Write one notebook for each student into `extracted_path`, and three files beside it.

        These are `refused.csv`; `notes.txt`, lines for the instructor; and `senders.json`, which later calls read.
        """
        self.exercise = self.parent.coursedir.assignment_id
        self.exercises = release.names()  # of the course
        self.ids: set[str] = set()
        self.spelled: dict[str, str] = {}  # an id, address or number, lowered -> the student of the class list
        self.people = self.class_list()
        numbered = [students for (kind, _), students in self.people.items() if kind == "number"]
        self.numbered, self.have_numbers = bool(numbered), set().union(*numbered)
        self.refused: list[tuple[str, str]] = []
        self.notes = [] if self.people else [NO_LIST]
        self.late: list[str] = []
        self.elsewhere: list[str] = []  # downloads of other exercises
        self.extras: list[str] = []  # files that came with a notebook
        beside = Path(extracted_path).parent
        remembered = beside / senders.NAME
        self.senders = senders.read(remembered)
        with tempfile.TemporaryDirectory(dir=beside) as meanwhile:
            found = list(self.hand_ins(Path(archive_path).absolute()))
            self.least = self.least_upload(found)
            for notebooks in self.take([self.candidate(*each) for each in found], Path(meanwhile)).values():
                self.put(notebooks, Path(extracted_path))
        self.leave_if_in_the_way([self.folder(place.name) for place in Path(extracted_path).iterdir()])
        self.remember(remembered)
        (beside / "refused.csv").write_text(sheet.text([("file", "reason"), *self.refused]), encoding="utf-8")
        if self.elsewhere:
            files = ", ".join(map(printable, self.elsewhere[:10]))
            wrong = "" if self.exercise in self.exercises else f"; {self.exercise} is no exercise of this course"
            self.notes.append(
                f"left alone, because they are of other exercises ({len(self.elsewhere)}): {files}{wrong}"
            )
        if self.extras:
            files = ", ".join(map(printable, sorted(self.extras)[:10]))
            self.notes.append(f"left alone, because the notebook beside them counts ({len(self.extras)}): {files}")
        if self.late:
            self.notes.append(f"late, as Canvas says ({len(self.late)}): {', '.join(sorted(self.late))}")
        (beside / "notes.txt").write_text("".join(f"{line}\n" for line in self.notes), encoding="utf-8")

    def leave_if_in_the_way(self, folders: Iterable[Path]) -> None:
        """Exit where nbgrader's command would, before anything is remembered: without --force it replaces nothing."""
        for folder in () if self.drafts or self.parent.force else folders:
            if folder.exists() and any(folder.iterdir()):
                self.parent.fail(f"Directory not empty: {folder}\nuse the --force option to replace what is there")

    def remember(self, file: Path) -> None:
        """Write who sent what is taken in: into a draft, as the notebooks aren't in place yet (see `collect`)."""
        draft = file.with_suffix(".new")
        senders.write(self.senders, draft)
        if not self.drafts:
            draft.replace(file)

    def least_upload(self, found: list[Found]) -> float:
        """Return the lowest number that an upload of this download can have.

        Canvas counts all uploads of a site in one row, and that number hardly doubles while students hand in one
        exercise. So it is half of the middle one, which a few odd names don't move.
        """
        ways = (readings(PurePosixPath(file.name).name, self.exercise) for file in found)
        of_people = {each[0].person: each[0].upload for each in ways if each}  # one number a person
        return median(of_people.values() or [0]) / 2

    def take(self, candidates: list[Candidate], meanwhile: Path) -> dict[str, list[Taken]]:
        """Unpack the candidates' notebooks into files in `meanwhile`; return them by student, and refuse the others."""
        wanted: list[Wanted] = []
        beside: list[tuple[Candidate, NoNotebook]] = []
        for candidate in candidates:
            try:
                wanted.append(Wanted(candidate, *self.whose(candidate)))
            except NoNotebook as reason:
                beside.append((candidate, reason))
            except BadZip as reason:
                self.refuse(candidate.shown, str(reason))
        taken: dict[str, list[Taken]] = {}
        for each, notebook in zip(wanted, self.unpacked(wanted, meanwhile), strict=True):
            if isinstance(notebook, Taken):
                taken.setdefault(each.student, []).append(notebook)
            else:
                self.refuse(each.candidate.shown, str(notebook))
        for candidate, why in beside:
            if any(each.candidate.sender == candidate.sender for each in taken.get(why.student, [])):
                self.extras.append(candidate.shown)
            else:
                self.refuse(candidate.shown, str(why))
        return taken

    def unpacked(self, wanted: list[Wanted], meanwhile: Path) -> list[Taken | Exception]:
        """Return for each hand-in its notebook, in a file in `meanwhile`, or why there is none.

        The newest of each sender, by mail of each student, are unpacked first, so that no older ones take their time or
        their room, and of these the smallest files.
        """
        newest = sorted(range(len(wanted)), key=lambda n: self.order(wanted[n].candidate, wanted[n].time), reverse=True)
        ranks: dict[int, int] = {}  # 0 for a sender's newest hand-in
        seen: Counter[str] = Counter()
        for number in newest:
            sender = wanted[number].student if self.source == "mail" else wanted[number].account
            ranks[number] = seen[sender]
            seen[sender] += 1
        sizes = [each.candidate.path.stat().st_size for each in wanted]
        numbers = sorted(ranks, key=lambda number: (ranks[number], sizes[number], number))
        allowances = self.allowances(wanted)
        shares, own_bytes = [], []
        for number in numbers:
            allowance = allowances[wanted[number].account]
            own = ranks[number] == 0 and allowance.owners > 0
            allowance.owners -= own
            shares.append(cage.Share(allowance, OWN_SECONDS * own))
            own_bytes.append(OWN_BYTES * own)
        found: dict[int, Taken | Exception] = {}
        used = 0  # bytes on disk
        notebooks = cage.each(
            unzip.unpacked, [self.request(wanted[number].candidate) for number in numbers], UNPACKING, shares=shares
        )
        for number, free, notebook in zip(numbers, own_bytes, notebooks, strict=True):
            try:
                if isinstance(notebook, cage.Failed):
                    raise notebook
                spend(allowances[wanted[number].account], len(notebook) - free)
                keep(notebook, meanwhile / str(number), used)
            except (cage.Failed, BadZip) as reason:
                found[number] = reason
                continue
            used += len(notebook) + FOLDERS
            candidate, student, time = wanted[number]
            listed = candidate.sure and self.listed(candidate) == {student}
            found[number] = Taken(student, candidate, time, meanwhile / str(number), digest(notebook), listed)
        return [found[number] for number in range(len(wanted))]

    def allowances(self, wanted: list[Wanted]) -> dict[str, Allowance]:
        """Return what the files of each account may take."""
        files: dict[str, set[Path]] = {}
        for each in wanted:
            files.setdefault(each.account, set()).add(each.candidate.path)
        found = {}
        for account, paths in files.items():
            size = sum(path.stat().st_size for path in paths) if self.source == "mail" else 0
            seconds, most = UNPACKING + MAILED_SECONDS * size, MOST_KEPT + MAILED_BYTES * size
            mailed = self.source == "mail"
            others, advice = ("the files that came with it", APART) if mailed else ("its sender's files", ALONE)
            no_time = NO_TIME.format(others, round(seconds), advice)
            no_bytes = NO_BYTES.format(others, most // 1_000_000, advice)
            found[account] = Allowance(seconds, no_time, most, no_bytes, MOST_OWN if mailed else 0)
        return found

    def request(self, candidate: Candidate) -> bytes:
        """Return what the cage needs to unpack a candidate."""
        exercise = self.exercise if candidate.file.lower().endswith(".zip") else None
        return json.dumps([str(candidate.path), candidate.number, exercise]).encode()

    def put(self, found: list[Taken], extracted: Path) -> None:
        """Put a student's last notebook where the collector looks; refuse what comes from others.

        Refuse all if nobody knows who is who.
        """
        there, before = self.before(found[0].student)
        if any(notebook.listed for notebook in found):
            newest = max(before.upload, *(notebook.candidate.upload for notebook in found if notebook.listed))
            for notebook in found:
                if notebook.listed or notebook.digest == there:
                    continue
                if not notebook.candidate.sure and notebook.candidate.upload < newest:
                    self.pass_over(notebook, "a later upload is this student's")
                else:
                    self.refuse(notebook.candidate.shown, UNLISTED[notebook.candidate.sure].format(notebook.student))
            found = [notebook for notebook in found if notebook.listed]
        if len({notebook.candidate.sender for notebook in found}) > 1:
            for notebook in found:
                reason = f"several people hand in as {notebook.student}; ask them who is who"
                if self.source == "moodle":
                    reason += ", or collect two assignments one by one, the one that counts with REPLACE=1"
                self.refuse(notebook.candidate.shown, reason)
            return
        fresh = [notebook for notebook in found if not is_replaced(notebook, before)]
        last = max(fresh or found, key=lambda notebook: self.order(notebook.candidate, notebook.time))
        others = [each for each in fresh if each.digest != last.digest]
        for notebook in found:
            if notebook not in fresh and notebook.digest not in (there, last.digest):
                self.pass_over(notebook, REPLACED)
        if not self.may_replace(last, others, there, before):
            return
        # Canvas numbers its uploads, but hands out the last attempt alone: two files in one download are both of that.
        if others and (not last.candidate.upload or any(is_beside(last, each) for each in others)):
            files = ", ".join(printable(each.candidate.shown) for each in others)
            self.notes.append(f"of several: {last.student}'s {printable(last.candidate.shown)} counts, and not {files}")
        time = self.time_of(last.student) if last.digest == there else None  # what is unchanged keeps its time
        place = extracted / last.student / (time or last.time).strftime(TIME)
        place.mkdir(parents=True)
        last.kept.replace(place / f"{self.exercise}.ipynb")
        if last.candidate.late:
            self.late.append(last.student)

    def order(self, new: Candidate, time: datetime) -> tuple:
        """Return what orders one sender's hand-ins: Canvas's number of the upload, or else the time of the hand-in.

        A download from Moodle has what is handed in at its time. Of two files in one, which have the same minute, the
        later in the zip counts: Moodle begins with the oldest. Unpacked, that with a time in its name does.
        """
        if self.source != "moodle":
            return new.upload, time
        return f"{new.time:%Y%m%dT%H%M}", new.number or 0, bool(self.own_name(new.file)), time

    def pass_over(self, notebook: Taken, why: str) -> None:
        """Note for the instructor that a notebook isn't taken in."""
        file = printable(notebook.candidate.shown)
        self.notes.append(f"passed over, because {why}: {notebook.student}'s {file}")

    def may_replace(self, last: Taken, others: list[Taken], there: str, before: Sender) -> bool:
        """Return whether a notebook may take the place of an earlier one; if so remember its sender, else refuse it.

        `there`: the digest of the earlier one, "" without one; `before`: who sent it. `others`: earlier ones of the
        same sender, which are refused with it, because one of them may be the right one.

        What a platform's name has settled, or the instructor, only the same sender on that platform replaces, by what
        is newer. What was put there by hand gives way only to somebody whom the platform names. Who mails may type any
        id, so the notes name what takes another's place. What was replaced by hand or with REPLACE=1 is passed over
        from then on.
        """
        new = last.candidate
        again, theirs = last.digest == there, new.sender == before.sender
        same = theirs and not before.by_hand
        if not self.replace:
            if again and not same and not last.listed:
                return False  # it is there, and stays as it is
            if is_replaced(last, before) and not again:
                self.pass_over(last, REPLACED)
                return False
            if there and theirs and not again and age(last) < (before.upload, before.time):
                self.pass_over(last, "a later download or upload was taken in")
                return False
        known = again and last.listed and self.source == "canvas"  # Canvas's number of a student is always the same
        ours = not there or known or (same and (again or new.sender or not before.settled))
        against = not ours and (before.settled or not last.listed or new.upload < before.upload)
        against |= self.replace and bool(there) and not again
        owner, had = (each or "a file of no platform" for each in (new.owner, before.owner))
        if against and not self.replace:
            reason = f"{last.student}'s notebook of before is from {had}, this one is from {owner}"
            if had == owner:  # both by mail
                reason = f"REPLACE=1 has settled whose {last.student}'s notebook of before is, and anybody can mail one"
            for notebook in (last, *(each for each in others if each.digest != there)):
                shown = notebook.candidate.shown
                self.refuse(shown, f"{reason}; to take it nevertheless, collect it by itself with REPLACE=1")
            return False
        if (beside := self.beside(last.student)) and not self.replace:
            self.refuse(new.shown, KEPT.format(last.student, beside, self.exercise))
            return False
        if there and not again and not (same and new.sender):
            self.notes.append(f"in place of another: {last.student}'s from {owner}, {printable(new.shown)}")
        settled = last.listed or against or (same and before.settled)
        by_hand = before.taken if before.by_hand and (not again or there in before.taken) else []
        replaced = [*before.replaced, *by_hand, *[there] * against]
        upload, time = max(age(last), (before.upload, before.time)) if theirs else age(last)
        replaced = [each for each in dict.fromkeys(replaced) if each != last.digest]
        taken = [*(each for each in before.taken if each != last.digest), last.digest]
        about = Sender(new.sender, new.owner, settled, upload, time, taken, replaced)
        packed = PurePosixPath(new.file).suffix.lower() == ".zip"
        self.senders[last.student] = about._replace(packed=packed, late=new.late)
        return True

    def folder(self, student: str) -> Path:
        """Return where the collector puts a student's notebook."""
        course = self.parent.coursedir
        return Path(course.format_path(course.submitted_directory, student, self.exercise))

    def beside(self, student: str) -> str:
        """Return the name of a second notebook, put into a student's folder by hand, or "". The collector drops it."""
        own = f"{self.exercise}.ipynb"
        found = sorted(path.name for path in self.folder(student).glob("[!.]*") if path.suffix.lower() == ".ipynb")
        others = [name for name in found if name != own] if own in found else found[1:]
        return printable(others[0]) if others else ""

    def time_of(self, student: str) -> datetime | None:
        """Return the time beside the notebook that is there, or None."""
        text, _ = timestamp(self.folder(student))
        return parse_utc(text) if text else None

    def before(self, student: str) -> tuple[str, Sender]:
        """Return the digest of the notebook of a student's that would be graded, "" without one, and who sent it.

        One that isn't the last that was taken in was put there by hand, in place of all that were.
        """
        folder = self.folder(student)
        places = [place for place in (folder, folder.parent / f"{self.exercise}.ipynb") if place.exists()]
        found = (located(place, [self.exercise])[self.exercise] for place in places)
        there = next((digest(each.read_bytes()) for each in found if isinstance(each, Path) and each.is_file()), "")
        known = self.senders.get(student, NOTHING)
        if there and there != known.last:
            return there, known._replace(owner=ELSEWHERE, settled=False, by_hand=True)
        return there, known if there else NOTHING

    def refuse(self, shown: str, reason: str) -> None:
        """Log that a file is refused, and remember it for refused.csv."""
        shown, reason = printable(shown, MOST_NAME), printable(reason, 1000)
        self.log.warning("REFUSED %s: %s", shown, reason)
        self.refused.append((shown, reason))

    def class_list(self) -> dict[tuple[str, str], set[str]]:
        """Return {(kind, a name or a number of a platform's): the ids of the students it fits}, from the gradebook.

        Names and numbers are apart, because students can edit their names on most platforms: one may call himself 71.
        """
        url = self.db_url or self.parent.coursedir.db_url
        file = points.file_of(url)
        if file and not file.exists():
            return {}
        known: dict[tuple[str, str], set[str]] = {}
        with Gradebook(url) as gradebook:
            everybody = points.students(gradebook).values()
            self.ids = {each.id for each in everybody}
            for text in ("lms_user_id", "email", "id"):  # an id comes before another's number
                self.spelled |= {lowered(getattr(each, text) or ""): each.id for each in everybody}
            for student in everybody:
                number = key(student.lms_user_id or "") if re.search(r"\d", student.lms_user_id or "") else ""
                for known_by in (("number", number), *(("name", name) for name in keys_of(student))):
                    if known_by[1]:
                        known.setdefault(known_by, set()).add(student.id)
        return known

    def hand_ins(self, folder: Path) -> Iterator[Found]:
        """Yield each hand-in of a download: single files, and the members of a platform's zips."""
        for path in sorted(folder.rglob("*")):
            shown = str(path.relative_to(folder))
            if unzip.is_litter(PurePosixPath(shown)):
                continue
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                self.refuse(shown, "it is a link or not a file; download it again")
            elif path.is_file():
                time = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                one = self.is_one_submission(shown) and not (self.source == "canvas" and self.is_download(path))
                if path.suffix.lower() == ".zip" and not one:
                    yield from self.members(path, shown)
                elif self.source == "canvas" and self.is_below_a_hand_in(path, folder):
                    self.refuse(shown, IN_A_HAND_IN)
                else:
                    yield Found(shown, shown, time, path)

    def is_one_submission(self, name: str) -> bool:
        """Return whether a zip's name is that of one student's upload, rather than of a zip with many."""
        base = PurePosixPath(name).name
        of_platform = {"canvas": readings(base, self.exercise), "moodle": MOODLE in name, "mail": False}
        return bool(of_platform[self.source] or self.own_name(base))

    def is_download(self, path: Path) -> bool:
        """Return whether a zip or a folder on disk is all of Canvas's download, though two numbers are in its name.

        Canvas names it by course and assignment, as in `COMP_520_001-Ring_submissions.zip`. A hand-in may have such a
        name, too. But then its user is in the class list, or other hand-ins lie beside it.
        """

        def named(each: Path) -> bool:
            name = each.name.removesuffix(".zip")
            users = [self.canvas_user(reading) for reading in readings(f"{name}.zip", self.exercise)]
            whole = re.search(r"submissions( ?\(\d+\)|[- ]\d+)?$", name)
            return bool(whole) and self.people.keys().isdisjoint(users)

        if not named(path):
            return False
        beside = [each for each in path.parent.iterdir() if each.is_dir() or each.suffix.lower() in HAND_INS]
        return all(named(each) or not CANVAS.search(f"{each.name}-") for each in beside)

    def is_below_a_hand_in(self, path: Path, folder: Path) -> bool:
        """Return whether a folder around a file on disk has a hand-in's name; that of a whole download isn't one."""
        around = [each for each in path.parents if each != folder and each.is_relative_to(folder)]
        return any(CANVAS.search(f"{each.name}-") and not self.is_download(each) for each in around)

    def members(self, path: Path, shown: str) -> Iterator[Found]:
        """Yield each hand-in of a zip with many. Refuse the zip once if it is wrong as a whole."""
        try:
            found = json.loads(cage.ask(unzip.listed, json.dumps(str(path)).encode(), LISTING))
        except cage.Failed as reason:
            self.refuse(shown, str(reason))
            return
        if self.is_of_another(found):
            self.elsewhere.append(shown)
            return
        if found and not any(self.is_one_submission(name) for _, name, _, _ in found):
            named = f"its name should be <student>_{self.exercise}_<time>.zip, as `make submit` writes it"
            self.refuse(shown, named if self.source == "mail" else NOT_OF_IT.format(self.source.capitalize()))
            return
        times = Counter(name for _, name, _, _ in found)
        # Moodle puts a text beside a student's files. Canvas has it in place of them.
        with_files = {name.partition(MOODLE)[0] for _, name, _, _ in found if f"{MOODLE}file" in name}
        for number, name, date, wrong in found:
            inside = f"{shown}/{printable(name)}"
            if wrong or times[name] > 1:
                self.refuse(inside, wrong or "the zip holds two files of this name")
            elif self.source == "canvas" and is_in_a_hand_in(name):
                self.refuse(inside, IN_A_HAND_IN)
            elif TEXT.search(name):
                if name.partition(MOODLE)[0] not in with_files:
                    self.refuse(inside, "it is a text or a link, not a file; hand in the notebook")
            else:
                yield Found(inside, name, moment(date), path, number)

    def is_of_another(self, members: list) -> bool:
        """Return whether most of a download is of the course's other exercises by its names, and none of this one."""
        others = "|".join(re.escape(name) for name in self.exercises if name != self.exercise)
        named = re.compile(rf"(?:^|[_/])(?:{others})(?:_\d{{8}}T\d{{6}}Z)?[^_/]*\.(?:ipynb|zip)$")
        names = [name for _, name, _, _ in members]
        of_others = [name for name in names if named.search(name)]
        return 2 * len(of_others) > len(names) and not any(self.exercise in name for name in names)

    def candidate(self, shown: str, name: str, time: datetime, path: Path, number: int | None) -> Candidate:
        """Return the hand-in that a file's name describes: whose it is, and which upload."""
        base = PurePosixPath(name).name
        if self.source == "moodle" and (found := of_moodle(name)):
            student, user, file = found
            known_by, sender = ("name", key(student)), f"Moodle {user}"
            file = PurePosixPath(file).name
            return Candidate(shown, f"Moodle's {student}_{user}", sender, known_by, file, 0, time, path, number)
        if self.source == "canvas" and (ways := readings(base, self.exercise)):
            reading, owner, doubt, sure = self.read(ways)
            sender = f"Canvas {reading.user if sure else owner}"
            about = reading.file, reading.upload, time, path, number, doubt, sure, any(each.late for each in ways)
            return Candidate(shown, f"Canvas's {owner}", sender, self.canvas_user(reading), *about)
        as_moodle = MOODLE in name
        doubts = {
            "mail": OF_MOODLE if as_moodle else "",
            "moodle": NO_FILE if as_moodle else NOT_OF_IT.format("Moodle"),
            "canvas": NOT_OF_IT.format("Canvas"),
        }
        return Candidate(shown, "", "", None, base, 0, time, path, number, doubts[self.source])

    def canvas_user(self, reading: Reading) -> tuple[str, str]:
        """Return what finds Canvas's user in the class list: the number, or the name of one who has no number there."""
        number, name = ("number", reading.user), ("name", key(reading.person.removesuffix(f"_{reading.user}")))
        by_name = self.people.get(name, set())
        if self.numbered and (number in self.people or not by_name or by_name & self.have_numbers):
            return number
        return name if self.people else number

    def read(self, found: list[Reading]) -> tuple[Reading, str, str, bool]:
        """Return the first way to read a name of Canvas's, who sent it, a doubt, and whether it is surely right.

        Canvas's own numbers are in one of them. The others are in what a student has chosen: the file's name, such as a
        student's number before the exercise, or his own name, left of Canvas's numbers, so that the file may seem
        another's. Then what is read as the file's name begins with his own numbers, and claims nobody's id.
        """
        first, possible = found[0], found
        # What begins with the first one's upload is a number in the file's name, if no upload has so low a number, and
        # no listed user this one.
        if first.upload >= self.least and ("number", str(first.upload)) not in self.people:
            possible = [each for each in found if each.user != str(first.upload) or each.upload >= self.least]
        users = list(dict.fromkeys(reading.user for reading in possible))
        match = self.own_name(first.file)
        claim = match["student"] if match else ""
        whose = self.people.get(self.canvas_user(first), set())
        typed = claim and not self.people  # what is typed is all there is
        owner = f"user {first.user}" if whose else first.person
        if len(users) == 1 or {claim} == whose or typed:
            return first, owner, "", True
        if whose and claim.isdecimal() and not any(("number", user) in self.people for user in users[1:]):
            return first, f"{first.person} ({claim})", "", False  # not the id; or Canvas's own, behind an edited name
        may_be = f"its name may be of Canvas's user {' or '.join(users)}"
        return first, owner, f"{may_be}: leave numbers out of the name of the file, and hand it in again", True

    def own_name(self, file: str) -> re.Match | None:
        """Match the name that `make submit` gives a zip. Browsers and Canvas add -1 or (1) to a second one."""
        return re.fullmatch(
            rf"(?P<student>.+)_{re.escape(self.exercise)}_(?P<time>\d{{8}}T\d{{6}}Z)( ?\(\d+\)|-\d+){{0,2}}\.zip",
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
        if suffix not in HAND_INS:
            raise NoNotebook(student, f"it is neither {self.exercise}.ipynb nor a zip of it; hand that in")
        if suffix != ".zip" and not is_notebook(candidate.file, self.exercise):
            raise BadZip(NAMED.format(self.exercise, printable(candidate.file)))
        return student, time

    def listed(self, candidate: Candidate) -> set[str]:
        """Return the ids of the students whom the platform's name or number fits in the class list."""
        return self.people.get(candidate.known_by, set()) if candidate.known_by else set()

    def student(self, candidate: Candidate, claimed: str | None) -> str:
        """Return the student's id: from the class list, else from the zip's own name, else from the platform's.

        The platform's name makes an id only without a class list. Raise `BadZip` if there is no id, if it is that of
        somebody whom the class list has under another name or number, or if nobody in the class list fits.
        """
        ids = self.listed(candidate)
        if len(ids) == 1:
            return next(iter(ids))
        made_up = re.sub(r"[^\w.@-]+", "-", candidate.owner.partition(" ")[2]).strip("-.@")
        student = unicodedata.normalize("NFC", claimed or ("" if self.people else made_up))
        if student in ids:
            return student
        if ids:
            raise BadZip(
                f"{candidate.owner} may be {' or '.join(sorted(ids))}; hand in the zip that `make submit` packs"
            )
        kind, _ = candidate.known_by or ("", "")
        kinds = ("number", "name") if kind == "number" else (kind,)
        if any(student in students for (listed, _), students in self.people.items() if listed in kinds):
            raise BadZip(f"it says that it is {student}'s, but {candidate.owner} isn't {student} in the class list")
        if student and student not in self.ids and (listed := self.spelled.get(lowered(student))):
            raise BadZip(
                f"{printable(student)} is in the class list, but as an address, a number or a spelling of {listed}"
            )
        who = candidate.owner or printable(student)
        if self.people and who and student not in self.ids:
            raise BadZip(f"{who} isn't in the class list; read in a newer one with `make roster`, and collect again")
        if not student:
            raise BadZip(
                f"its name has no student; call it <student>_{self.exercise}_<time>.zip, as `make submit` does"
            )
        if not is_id(student):
            raise BadZip(
                f"{printable(student)!r} is no student's id: use letters, digits and . @ - _, at most 64 of them"
            )
        return student


def readings(name: str, exercise: str) -> list[Reading]:
    """Return each way to read the name that Canvas gives a hand-in; none for other names."""
    found, own = [], [each.span() for each in re.finditer(rf"{re.escape(exercise)}(?![0-9])", name)]
    for match in CANVAS.finditer(name):
        if not any(start <= match.start("upload") < end for start, end in own):  # it may have numbers, too
            before = name[: match.start()]
            person = f"{before.removesuffix('_LATE')}_{match['user']}"
            found.append(Reading(person, before.endswith("_LATE"), match["user"], int(match["upload"]), match["file"]))
    return found


def of_moodle(name: str) -> tuple[str, str, str] | None:
    """Return (full name, the user's number, file) from a name that Moodle gives a hand-in, or None for other names.

    Moodle writes `Ada Lovelace_1234_assignsubmission_file/file.ipynb`, before version 4 `..._file_/file.ipynb`, and
    without folders `..._file_file.ipynb`.
    """
    before, _, rest = name[:MOST_NAME].partition(MOODLE)
    student, _, user = PurePosixPath(before).name.rpartition("_")
    file = re.fullmatch(r"file(?:_/|/|_)(.+)", rest, re.DOTALL)
    return (student, user, file[1]) if student and user.isdecimal() and file else None


def age(notebook: Taken) -> tuple[int, str]:
    """Return Canvas's number of an upload, or the time of a download from Moodle: later ones have larger ones.

    Who mails may type any time.
    """
    new = notebook.candidate
    return new.upload, new.time.strftime(TIME) if new.sender and not new.upload else ""


def is_beside(one: Taken, other: Taken) -> bool:
    """Return whether two notebooks are from one zip, or from one folder."""
    a, b = one.candidate, other.candidate
    return a.path == b.path or (a.number is None and b.number is None and a.path.parent == b.path.parent)


def is_replaced(notebook: Taken, before: Sender) -> bool:
    """Return whether the instructor has put another notebook in the place of this one.

    On Canvas a student may hand in the same once more: that upload is new.
    """
    renewed = notebook.candidate.sender == before.sender and notebook.candidate.upload > before.upload
    return not renewed and (notebook.digest in before.replaced or (before.by_hand and notebook.digest in before.taken))


def spend(allowance: Allowance, size: int) -> None:
    """Take a notebook's bytes from what its account may have on disk. Raise `BadZip` if that is less."""
    if size > allowance.bytes:
        raise BadZip(allowance.full)
    allowance.bytes -= max(0, size)


def keep(notebook: bytes, file: Path, used: int) -> None:
    """Write a notebook into a file. Raise `BadZip` if the disk is full.

    nbgrader copies each notebook once more. So what is free must hold the `used` bytes again, and this notebook twice.
    """
    try:
        if shutil.disk_usage(file.parent).free < used + 2 * (len(notebook) + FOLDERS):
            raise BadZip(NO_ROOM)
        file.write_bytes(notebook)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise BadZip(NO_ROOM if error.errno == errno.ENOSPC else f"it can't be written ({error.strerror})") from None


def is_in_a_hand_in(name: str) -> bool:
    """Return whether a folder of a file's path has the name that Canvas gives one hand-in.

    Canvas's own are files. A student's file name with a slash would make a folder, and the rest would name another.
    """
    folders = PurePosixPath(name).parts[:-1]
    return any(CANVAS.search(f"{folder}-") for folder in folders)


def moment(date: list[int]) -> datetime:
    """Return a member's time; 1980 if it is invalid. A zip has no time zone: it is this machine's, as for unzip."""
    try:
        year, month, day, hour, minute, second = date
        return datetime(year, month, day, hour, minute, second).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return datetime(1980, 1, 1, tzinfo=UTC)


def configure(config: Config) -> None:
    """Make nbgrader's `zip_collect` use this module."""
    config.ZipCollectApp.extractor_plugin = "autograder.submissions.zips.SafeExtractor"
    config.ZipCollectApp.strict = True  # leave out notebooks of other exercises
    config.FileNameCollectorPlugin.named_regexp = NAMED_REGEXP


def is_stray(path: Path) -> bool:
    """Return whether a downloaded file is nobody's hand-in: no zip, no notebook, and no name that a platform gives."""
    of_platform = CANVAS.search(path.name[:MOST_NAME]) or f"{MOODLE}file" in str(path)
    beside = TEXT.search(path.name) or GRADES.search(path.name)
    is_one = path.suffix.lower() in HAND_INS and not unzip.is_litter(PurePosixPath(path.name))
    return not path.is_dir() and not is_one and bool(beside or not of_platform)


class Collected(NamedTuple):
    """The students with a notebook, what was refused as [(file, reason)], and lines for the instructor."""

    students: list[str]
    refused: list[tuple[str, str]]
    notes: list[str]


def collect(
    sources: list[Path], exercise: str, into: Path, platform: str, db: str = "", replace: bool = False
) -> Collected:
    """Take in files and folders of files, into `into`/<student>/<exercise>.

    `platform`: where they come from, of `SOURCES`. `db`: the gradebook, else the course's. Notebooks from earlier calls
    stay, unless the same student hands in again. Raises `BadZip` if nbgrader's `zip_collect` fails.
    """
    strays: list[str] = []

    def ours(folder: str, names: list[str]) -> list[str]:
        found = [name for name in names if is_stray(Path(folder, name))]
        at_top = any(Path(folder) == source for source in sources)
        strays.extend(name if at_top else f"{Path(folder).name}/{name}" for name in found)
        return found

    downloaded = into.with_name(f"{into.name}-downloaded")
    archive = downloaded / exercise / "archive"
    for source in sources:
        here, there = source.resolve(), archive.resolve()
        if here.is_relative_to(downloaded.resolve()) or there.is_relative_to(here):
            raise BadZip(f"{source} is or holds what each call begins anew; copy the hand-ins to a folder of their own")
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
    settings += [f"--SafeExtractor.source={platform}", f"--SafeExtractor.replace={replace}"]
    settings.append("--SafeExtractor.drafts=True")
    if db:
        settings.append(f"--SafeExtractor.db_url={db}")
    command = [sys.executable, "-m", "nbgrader", "zip_collect", exercise, "--force", *settings]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=ROOT / "autograder", env=paths, capture_output=True, text=True)
    if done.returncode:
        raise BadZip(f"nbgrader's zip_collect failed:\n{done.stderr[-2000:]}")
    remembered = senders.file_of(downloaded, exercise)
    remembered.with_suffix(".new").replace(remembered)  # all notebooks are in place
    with (downloaded / exercise / "refused.csv").open(newline="", encoding="utf-8") as file:
        _, *refused = csv.reader(file)
    taken = sorted(path.name for path in (downloaded / exercise / "extracted").iterdir())
    notes = (downloaded / exercise / "notes.txt").read_text(encoding="utf-8").splitlines()
    if strays:
        some = ", ".join(map(printable, sorted(strays)[:10]))
        notes.append(f"left alone, because they are no hand-ins ({len(strays)}): {some}")
    return Collected(taken, [(shown, reason) for shown, reason in refused], notes)


def main(arguments: list[str] | None = None) -> int:
    """Take in what the command line names; return 0 if nothing was refused, 1 if something was, 2 on a failure."""
    parser = argparse.ArgumentParser(
        prog="autograder.submissions.zips", description="Take in the zips that students handed in."
    )
    parser.add_argument("sources", nargs="+", type=Path, metavar="FILE", help="zips, notebooks, or folders of them")
    parser.add_argument("--exercise", required=True, metavar="NAME")
    parser.add_argument("--into", type=Path, default=ROOT / "_build" / "submissions", help="folder for `make grade`")
    parser.add_argument("--from", dest="source", choices=SOURCES, required=True, help="where they come from")
    parser.add_argument("--replace", action="store_true", help="replace what another sender has handed in before")
    parser.add_argument("--db", default="", metavar="URL", help="the gradebook with the class list (the course's)")
    command = parser.parse_args(arguments)
    file = points.file_of(command.db)  # nbgrader runs in another folder
    if file and not file.is_file():
        print(f"cannot collect: there is no gradebook {file}: run `make roster` first", file=sys.stderr)
        return 2
    if missing := [str(source) for source in command.sources if not source.exists()]:
        print(f"cannot collect: there is no {missing[0]}", file=sys.stderr)
        return 2
    try:
        taken, refused, notes = collect(
            command.sources,
            command.exercise,
            command.into,
            command.source,
            db=f"sqlite:///{file.absolute()}" if file else command.db,
            replace=command.replace,
        )
    except (BadZip, OSError) as error:
        print(f"cannot collect: {str(error)[:3000]}", file=sys.stderr)
        return 2
    for shown, reason in refused:
        print(f"REFUSED {printable(shown)}: {reason}")
    print(*notes, sep="\n", end="\n" * bool(notes))
    place = command.into.relative_to(ROOT) if command.into.is_relative_to(ROOT) else command.into
    print(f"{command.exercise}: {len(taken)} taken in, {len(refused)} refused; the notebooks are in {place}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())

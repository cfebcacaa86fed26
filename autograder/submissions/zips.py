"""The intake of zips: those that students pack with `make submit`, and those that Canvas and Moodle let you download.

`make collect ZIPS=folder EXERCISE=03_ring` passes every file of a folder to nbgrader's own `zip_collect`. Or put the
files into `downloaded/03_ring/archive` and run `nbgrader zip_collect 03_ring`.

nbgrader's extractor unpacks everything, however large, zips in zips included, and one broken zip stops the class.
`SafeExtractor` writes only one notebook of bounded size for each student, under a name that it chooses itself:
`extracted/<student>/<time>/<exercise>.ipynb`. nbgrader's collector reads that path with `NAMED_REGEXP`. The extractor
logs each file that it refuses, with a reason, lists it in `refused.csv` beside the folder, and takes in the rest.

Whose file it is: the learning platform's name wins over the file's own. Canvas puts its user's number into the file's
name, and the class list has that number as `lms_user_id`. Moodle puts the full name. Without a class list, the name of
the `make submit` zip counts, which is only what the student typed. If two people hand in under one name, the extractor
refuses both. The time of a hand-in comes from the zip's name, or else from the file's time.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path, PurePosixPath

from nbgrader.api import Gradebook
from nbgrader.plugins.zipcollect import ExtractorPlugin
from traitlets import Unicode
from traitlets.config import Config

from .. import points

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 20_000_000  # in a notebook, with the pictures in its outputs
MOST_ZIP_BYTES = 50_000_000  # in a zip that a student packed
MOST_FILES = 1_000  # in a zip that a student packed
MOST_CLASS_FILES = 100_000  # in a zip from a learning platform

NAMED_REGEXP = r".*/(?P<student_id>[^/]+)/(?P<timestamp>\d{8}T\d{6}Z)/(?P<file_id>[^/]+)\.ipynb$"
STUDENT_ID = re.compile(r"\w[\w.@-]{0,63}")  # it becomes a folder's name
TIME = "%Y%m%dT%H%M%SZ"

# adalovelace_LATE_123_456_file.ipynb: name, number of the user, number of the upload, original name of the file
CANVAS = re.compile(r"(?P<name>\w+?)(?P<late>_LATE)?_(?P<user>\d+)_(?P<upload>\d+)_(?P<file>[^/]+)")
# Ada Lovelace_1234_assignsubmission_file_/file.ipynb; without folders ..._file_file.ipynb
MOODLE = re.compile(r"(?P<name>[^/]+)_(?P<user>\d+)_assignsubmission_file_/?(?P<file>.+)")


class BadZip(Exception):
    """Why a hand-in is refused, in a sentence for its student."""


@dataclass(frozen=True)
class Candidate:
    """A notebook, or a zip that should hold one. `owner`: the platform's name for the student, "" without one."""

    shown: str
    owner: str
    names: tuple[str, ...]
    file: str
    upload: int
    time: datetime
    read: Callable[[int], bytes]


@dataclass(frozen=True)
class Taken:
    """One student's notebook. Of several, the later `time` counts, then the platform's later `upload`.

    `kept` is a temporary file with its content, so that a class's notebooks are never in memory all at once.
    """

    student: str
    owner: str
    time: datetime
    upload: int
    shown: str
    kept: Path


class SafeExtractor(ExtractorPlugin):
    """The extractor of notebooks from hand-ins, for nbgrader's `ZipCollectApp.extractor_plugin`."""

    db_url = Unicode("", help="gradebook with the class list (default: the course's)").tag(config=True)

    def extract(self, archive_path: str, extracted_path: str) -> None:
        """Write one notebook for each student into `extracted_path`, and `refused.csv` beside it."""
        self.exercise = self.parent.coursedir.assignment_id
        self.people = self.class_list()
        self.refused: list[tuple[str, str]] = []
        taken: dict[str, list[Taken]] = {}
        beside = Path(extracted_path).parent
        with tempfile.TemporaryDirectory(dir=beside) as meanwhile:
            for number, candidate in enumerate(self.candidates(Path(archive_path))):
                try:
                    notebook = self.take(candidate, Path(meanwhile) / str(number))
                except BadZip as reason:
                    self.refuse(candidate.shown, str(reason))
                else:
                    taken.setdefault(notebook.student, []).append(notebook)
            for notebooks in taken.values():
                self.put(notebooks, Path(extracted_path))
        with (beside / "refused.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("file", "reason"), *self.refused])

    def put(self, found: list[Taken], extracted: Path) -> None:
        """Put a student's last notebook where the collector looks; refuse all if they come from several people."""
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
        self.log.warning("REFUSED %s: %s", shown, reason)
        self.refused.append((shown, reason))

    def class_list(self) -> dict[str, set[str]]:
        """Return {a name or number that a platform may use: the ids of the students it fits}, from the gradebook."""
        url = self.db_url or self.parent.coursedir.db_url
        if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
            return {}
        known: dict[str, set[str]] = {}
        with Gradebook(url) as gradebook:
            for student in points.students(gradebook).values():
                first, last = student.first_name or "", student.last_name or ""
                for name in (student.lms_user_id, student.email, f"{first} {last}", f"{last} {first}"):
                    if name and name.strip():
                        known.setdefault(key(name), set()).add(student.id)
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
                else:
                    yield self.candidate(shown, shown, time, partial(read_file, path))

    def is_one_submission(self, name: str) -> bool:
        """Return whether a zip's name is that of one student's upload, rather than of a zip with many."""
        return bool(CANVAS.fullmatch(Path(name).name) or MOODLE.fullmatch(name) or self.own_name(Path(name).name))

    def members(self, path: Path, shown: str) -> Iterator[Candidate]:
        """Yield each hand-in of a zip with many. Refuse the zip once if it is wrong as a whole."""
        try:
            archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            self.refuse(shown, f"the zip cannot be read ({error}); download it again")
            return
        with archive:
            infos = [info for info in archive.infolist() if not info.is_dir() and not is_litter(info.filename)]
            if len(infos) > MOST_CLASS_FILES:
                self.refuse(shown, f"it holds {len(infos)} files, and the limit is {MOST_CLASS_FILES}; split it")
                return
            if infos and not any(self.is_one_submission(info.filename) for info in infos):
                self.refuse(
                    shown, f"its name should be <student>_{self.exercise}_<time>.zip, as `make submit` writes it"
                )
                return
            names = [info.filename for info in infos]
            for info in infos:
                inside = f"{shown}/{printable(info.filename)}"
                try:
                    check(info)
                    if names.count(info.filename) > 1:
                        raise BadZip("the zip holds two files of this name")
                    yield self.candidate(
                        inside,
                        info.filename,
                        moment(info),
                        partial(read_member, archive, info),
                    )
                except BadZip as reason:
                    self.refuse(inside, str(reason))

    def candidate(self, shown: str, name: str, time: datetime, read: Callable[[int], bytes]) -> Candidate:
        """Return the hand-in that a file's name describes: whose it is, and which upload."""
        base = PurePosixPath(name).name
        names: tuple[str, ...]
        if match := MOODLE.search(name):
            names, owner, file = (match["name"],), f"Moodle's {match['name']}_{match['user']}", match["file"]
            file, upload = PurePosixPath(file).name, 0
        elif match := CANVAS.fullmatch(base):
            names, owner, file = (match["user"],), f"Canvas's {match['name']}_{match['user']}", match["file"]
            upload = int(match["upload"])
            if match["late"]:
                self.log.warning("%s: Canvas marks it as late", shown)
        else:
            names, owner, file, upload = (), "", base, 0
        return Candidate(shown, owner, names, file, upload, time, read)

    def own_name(self, file: str) -> re.Match | None:
        """Match the name that `make submit` gives a zip. Browsers and Canvas add -1 or (1) to a second one."""
        return re.fullmatch(
            rf"(?P<student>.+)_{re.escape(self.exercise)}_(?P<time>\d{{8}}T\d{{6}}Z)( ?\(\d+\)|-\d+)?\.zip", file
        )

    def take(self, candidate: Candidate, kept: Path) -> Taken:
        """Write a candidate's notebook to the file `kept`; return whose it is. Raise `BadZip` to refuse it."""
        own = self.own_name(candidate.file)
        student = self.student(candidate, own["student"] if own else None)
        time = candidate.time
        if own:
            try:
                time = datetime.strptime(own["time"], TIME).replace(tzinfo=UTC)
            except ValueError:
                raise BadZip(f"{own['time']} is no time; don't rename the zip that `make submit` writes") from None
        if time > datetime.now(UTC) + timedelta(days=1):
            raise BadZip(f"its date is {time:%Y-%m-%d}, which is in the future; pack it again with `make submit`")
        suffix = PurePosixPath(candidate.file).suffix.lower()
        if suffix == ".zip":
            notebook = self.only_notebook(candidate.read(MOST_ZIP_BYTES))
        elif suffix == ".ipynb" and self.is_notebook(candidate.file):
            notebook = candidate.read(MOST_BYTES)
        else:
            raise BadZip(f"it is neither {self.exercise}.ipynb nor a zip of it; hand that in")
        kept.write_bytes(notebook)
        return Taken(student, candidate.owner, time, candidate.upload, candidate.shown, kept)

    def student(self, candidate: Candidate, claimed: str | None) -> str:
        """Return the student's id: from the class list, else from the zip's own name, else from the platform's."""
        for name in candidate.names:
            if len(ids := self.people.get(key(name), set())) == 1:
                student = next(iter(ids))
                if claimed not in (None, student):
                    self.log.warning("%s: it is from %s, according to the class list", candidate.shown, student)
                return student
        student = claimed or re.sub(r"[^\w.@-]+", "-", candidate.owner.partition(" ")[2]).strip("-.@")
        if not student:
            raise BadZip(
                f"its name has no student; call it <student>_{self.exercise}_<time>.zip, as `make submit` does"
            )
        student = unicodedata.normalize("NFC", student)
        if not STUDENT_ID.fullmatch(student):
            raise BadZip(
                f"{printable(student)!r} is no student's id: use letters, digits and . @ - _, at most 64 of them"
            )
        return student

    def is_notebook(self, file: str) -> bool:
        """Return whether a file has the name of the exercise's notebook, perhaps with -1 or (1) added."""
        return bool(re.fullmatch(rf"{re.escape(self.exercise)}( ?\(\d+\)|-\d+)?\.ipynb", file))

    def only_notebook(self, packed: bytes) -> bytes:
        """Return the notebook in a student's zip, without writing any file."""
        try:
            with zipfile.ZipFile(io.BytesIO(packed)) as archive:
                infos = archive.infolist()
                if len(infos) > MOST_FILES:
                    raise BadZip(f"the zip holds {len(infos)} files; hand in {self.exercise}.ipynb alone")
                for info in infos:
                    check(info)
                files = [info for info in infos if not info.is_dir() and not is_litter(info.filename)]
                notebooks = [info for info in files if self.is_notebook(PurePosixPath(info.filename).name)]
                if len(notebooks) > 1:
                    raise BadZip(f"the zip holds {len(notebooks)} notebooks called {self.exercise}.ipynb; hand in one")
                if not notebooks:
                    nested = any(info.filename.lower().endswith(".zip") for info in files)
                    raise BadZip(
                        f"the zip holds no {self.exercise}.ipynb"
                        + (", but a zip in a zip; hand in the notebook itself" if nested else "")
                    )
                return read_member(archive, notebooks[0], MOST_BYTES)
        except (zipfile.BadZipFile, OSError, ValueError, EOFError) as error:
            raise BadZip(f"the zip cannot be read ({error}); pack it again") from None


def check(info: zipfile.ZipInfo) -> None:
    """Raise `BadZip` if a member leads out of its folder, is a link, or has a password."""
    name = info.filename.replace("\\", "/")
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:", name) or "\0" in info.orig_filename:
        raise BadZip(f"the zip holds a file called {printable(info.filename)!r}, which leads out of its folder")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise BadZip(f"the zip holds a link, {printable(info.filename)!r}; hand in files")
    if info.flag_bits & 0x1:
        raise BadZip("the zip has a password; pack it without one")


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
    """Return a member's bytes; unpack at most `most` of them, whatever size the zip states."""
    try:
        with archive.open(info) as file:
            data = file.read(most + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, ValueError) as error:
        raise BadZip(f"{printable(info.filename)!r} cannot be unpacked ({error}); pack the zip again") from None
    return bounded(data, most)


def read_file(path: Path, most: int) -> bytes:
    """Return a file's bytes; raise `BadZip` if there are more than `most`."""
    with path.open("rb") as file:
        return bounded(file.read(most + 1), most)


def bounded(data: bytes, most: int) -> bytes:
    """Return `data`; raise `BadZip` if it has more than `most` bytes."""
    if len(data) > most:
        raise BadZip(f"it is larger than {most // 1_000_000} MB; clear the notebook's outputs and hand it in again")
    return data


def is_litter(name: str) -> bool:
    """Return whether a member is a file that macOS or Jupyter leaves behind."""
    parts = PurePosixPath(name).parts
    return "__MACOSX" in parts or ".ipynb_checkpoints" in parts or (bool(parts) and parts[-1].startswith("._"))


def moment(info: zipfile.ZipInfo) -> datetime:
    """Return a member's time as UTC, because a zip has no time zone; 1980 if the time is invalid."""
    try:
        return datetime(*info.date_time, tzinfo=UTC)
    except ValueError:
        return datetime(1980, 1, 1, tzinfo=UTC)


def key(name: str) -> str:
    """Return a name in the form for comparing: only letters and digits, case folded."""
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", name)).casefold()


def printable(name: str) -> str:
    """Return a name for printing: without control characters, cut after 80 characters."""
    shown = "".join(c if c.isprintable() else "?" for c in name)
    return shown if len(shown) <= 80 else f"{shown[:80]}..."


def configure(config: Config) -> None:
    """Make nbgrader's `zip_collect` use this module."""
    config.ZipCollectApp.extractor_plugin = "autograder.submissions.zips.SafeExtractor"
    config.ZipCollectApp.strict = True  # leave out notebooks of other exercises
    config.FileNameCollectorPlugin.named_regexp = NAMED_REGEXP


def collect(sources: list[Path], exercise: str, into: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Take in files and folders of files, into `into`/<student>/<exercise>.

    Returns the students with a notebook, and what was refused as [(file, reason)]. Notebooks from earlier calls stay,
    unless the same student hands in again. Raises `BadZip` if nbgrader's `zip_collect` fails.
    """
    downloaded = into.with_name(f"{into.name}-downloaded")
    archive = downloaded / exercise / "archive"
    shutil.rmtree(archive, ignore_errors=True)
    archive.mkdir(parents=True)
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, archive, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, archive)
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
    return taken, [(shown, reason) for shown, reason in refused]


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
        taken, refused = collect(command.sources, command.exercise, command.into)
    except BadZip as error:
        print(f"cannot collect: {error}", file=sys.stderr)
        return 2
    for shown, reason in refused:
        print(f"REFUSED {printable(shown)}: {reason}")
    print(f"{command.exercise}: {len(taken)} taken in, {len(refused)} refused; the notebooks are in {command.into}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())

"""Takes in zips: what students made with `make submit`, and what Canvas and Moodle let a teacher download.

`make collect ZIPS=folder EXERCISE=03_ring` hands all that lies in a folder to nbgrader's own `zip_collect`; or put it
in `downloaded/03_ring/archive` and run `nbgrader zip_collect 03_ring`. nbgrader's extractor unpacks whatever it is
given, zips in zips too, however large, and a single broken one stops the class. This one, `SafeExtractor`, writes
nothing to the disk but one notebook of bounded size for each student, under a name that it chose itself:
`extracted/<student>/<time>/<exercise>.ipynb`, which nbgrader's collector reads by `NAMED_REGEXP`. What it refuses is
told with the reason, and listed in `refused.csv` beside the folder; the rest is taken in.

Whose a file is: the learning platform's word goes before the file's own. Canvas puts its user's number into a file's
name, which the class list knows as `lms_user_id`; Moodle puts the full name. Without a class list the name that
`make submit` gave the zip counts, which is only what the student typed; two people who hand in under one name are both
refused. When it was handed in is what the zip's name says, or else the time of the file.
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
from pathlib import Path, PurePosixPath

from nbgrader.api import Gradebook
from nbgrader.plugins.zipcollect import ExtractorPlugin
from traitlets import Unicode
from traitlets.config import Config

from .. import points

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 20_000_000  # of a notebook, pictures in its outputs included
MOST_ZIP_BYTES = 50_000_000  # of a zip that a student made
MOST_FILES = 1_000  # in a zip that a student made
MOST_CLASS_FILES = 100_000  # in a zip that a learning platform made

NAMED_REGEXP = r".*/(?P<student_id>[^/]+)/(?P<timestamp>\d{8}T\d{6}Z)/(?P<file_id>[^/]+)\.ipynb$"
STUDENT_ID = re.compile(r"\w[\w.@-]{0,63}")  # it becomes a folder's name
TIME = "%Y%m%dT%H%M%SZ"

# adalovelace_LATE_123_456_file.ipynb: name, number of the user, of the upload, and the name that the file had
CANVAS = re.compile(r"(?P<name>\w+?)(?P<late>_LATE)?_(?P<user>\d+)_(?P<upload>\d+)_(?P<file>[^/]+)")
# Ada Lovelace_1234_assignsubmission_file_/file.ipynb, or without folders ..._file_file.ipynb
MOODLE = re.compile(r"(?P<name>[^/]+)_(?P<user>\d+)_assignsubmission_file_/?(?P<file>.+)")


class BadZip(Exception):
    """Why something handed in is not taken in, in words for its student."""


@dataclass(frozen=True)
class Candidate:
    """A notebook, or a zip that should hold one. `owner`: who the platform says it is of, or "" without a platform."""

    shown: str
    owner: str
    names: tuple[str, ...]
    file: str
    upload: int
    time: datetime
    read: Callable[[int], bytes]


@dataclass(frozen=True)
class Taken:
    """One student's notebook, and how to choose between several: the later time, then the platform's later upload.

    `kept`: the file that holds it meanwhile, so that a class's notebooks are not in memory all at once.
    """

    student: str
    owner: str
    time: datetime
    upload: int
    shown: str
    kept: Path


class SafeExtractor(ExtractorPlugin):
    """Takes notebooks out of what students handed in, as nbgrader's `ZipCollectApp.extractor_plugin`."""

    db_url = Unicode("", help="the gradebook, whose class list says who is who; default: the course's").tag(config=True)

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
                    found = self.take(candidate, Path(meanwhile) / str(number))
                except BadZip as reason:
                    self.refuse(candidate.shown, str(reason))
                else:
                    taken.setdefault(found.student, []).append(found)
            for found in taken.values():
                self.put(found, Path(extracted_path))
        with (beside / "refused.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("file", "reason"), *self.refused])

    def put(self, found: list[Taken], extracted: Path) -> None:
        """Put a student's last notebook where the collector looks; refuse all if they are of several people."""
        if len({one.owner for one in found}) > 1:
            for one in found:
                self.refuse(one.shown, f"several people hand in as {one.student}; ask them who is who")
            return
        last = max(found, key=lambda one: (one.time, one.upload))
        place = extracted / last.student / last.time.strftime(TIME)
        place.mkdir(parents=True)
        last.kept.replace(place / f"{self.exercise}.ipynb")
        for one in found:
            if one is not last:
                self.log.info("%s: superseded by %s", one.shown, last.shown)

    def refuse(self, shown: str, reason: str) -> None:
        """Note that a file is not taken in."""
        self.log.warning("REFUSED %s: %s", shown, reason)
        self.refused.append((shown, reason))

    def class_list(self) -> dict[str, set[str]]:
        """Return {what a platform may call a student: the ids of those it may mean}, from the gradebook."""
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
        """Go through what was downloaded: single files, and zips of many as a platform makes them."""
        for path in sorted(folder.rglob("*")):
            shown = str(path.relative_to(folder))
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                self.refuse(shown, "it is a link or no file; download it anew")
            elif path.is_file():
                time = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                if path.suffix.lower() == ".zip" and not self.is_one_submission(shown):
                    yield from self.members(path, shown)
                else:
                    yield self.candidate(shown, shown, time, lambda most, path=path: read_file(path, most))

    def is_one_submission(self, name: str) -> bool:
        """Whether a zip is called as a student's or as a platform calls one upload, not as a zip of many."""
        return bool(CANVAS.fullmatch(Path(name).name) or MOODLE.fullmatch(name) or self.own_name(Path(name).name))

    def members(self, path: Path, shown: str) -> Iterator[Candidate]:
        """Go through a zip of many; what is not right with the whole of it is told once."""
        try:
            archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            self.refuse(shown, f"it is not a zip that can be read ({error})")
            return
        with archive:
            infos = [info for info in archive.infolist() if not info.is_dir() and not is_litter(info.filename)]
            if len(infos) > MOST_CLASS_FILES:
                self.refuse(shown, f"it holds {len(infos)} files")
                return
            if infos and not any(self.is_one_submission(info.filename) for info in infos):
                self.refuse(shown, f"its name should be <student>_{self.exercise}_<time>.zip, as by `make submit`")
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
                        lambda most, info=info: read_member(archive, info, most),
                    )
                except BadZip as reason:
                    self.refuse(inside, str(reason))

    def candidate(self, shown: str, name: str, time: datetime, read: Callable[[int], bytes]) -> Candidate:
        """Read off a file's name who handed it in, and when."""
        base = PurePosixPath(name).name
        if match := MOODLE.search(name):
            names, owner, file = (match["name"],), f"Moodle's {match['name']}_{match['user']}", match["file"]
            file, upload = PurePosixPath(file).name, 0
        elif match := CANVAS.fullmatch(base):
            names, owner, file = (match["user"],), f"Canvas's {match['name']}_{match['user']}", match["file"]
            upload = int(match["upload"])
            if match["late"]:
                self.log.warning("%s: late, says Canvas", shown)
        else:
            names, owner, file, upload = (), "", base, 0
        return Candidate(shown, owner, names, file, upload, time, read)

    def own_name(self, file: str) -> re.Match | None:
        """Match the name that `make submit` gives a zip; browsers and Canvas add -1 or (1) when there are two."""
        return re.fullmatch(
            rf"(?P<student>.+)_{re.escape(self.exercise)}_(?P<time>\d{{8}}T\d{{6}}Z)( ?\(\d+\)|-\d+)?\.zip", file
        )

    def take(self, candidate: Candidate, kept: Path) -> Taken:
        """Keep the notebook of a candidate in a file, and return whose it is; raise `BadZip` otherwise."""
        own = self.own_name(candidate.file)
        student = self.student(candidate, own["student"] if own else None)
        time = candidate.time
        if own:
            try:
                time = datetime.strptime(own["time"], TIME).replace(tzinfo=UTC)
            except ValueError:
                raise BadZip(f"{own['time']} is no time; do not rename what `make submit` writes") from None
        if time > datetime.now(UTC) + timedelta(days=1):
            raise BadZip(f"it says that it is from {time:%Y-%m-%d}, which is yet to come")
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
        """Return whose it is: by the class list, or as its own name claims, or as the platform calls them."""
        for name in candidate.names:
            if len(found := self.people.get(key(name), set())) == 1:
                student = next(iter(found))
                if claimed not in (None, student):
                    self.log.warning("%s: it is %s's, says the class list", candidate.shown, student)
                return student
        student = claimed or re.sub(r"[^\w.@-]+", "-", candidate.owner.partition(" ")[2]).strip("-.@")
        if not student:
            raise BadZip(f"whose is it? Call it <student>_{self.exercise}_<time>.zip, as `make submit` does")
        student = unicodedata.normalize("NFC", student)
        if not STUDENT_ID.fullmatch(student):
            raise BadZip(f"{printable(student)!r} is no student's id: letters, digits and . @ - _, at most 64 of them")
        return student

    def is_notebook(self, file: str) -> bool:
        """Whether a file is called as the exercise's notebook, or as a second one of that name in a folder."""
        return bool(re.fullmatch(rf"{re.escape(self.exercise)}( ?\(\d+\)|-\d+)?\.ipynb", file))

    def only_notebook(self, packed: bytes) -> bytes:
        """Return the notebook in a student's zip; nothing of the zip is written anywhere."""
        try:
            with zipfile.ZipFile(io.BytesIO(packed)) as archive:
                infos = archive.infolist()
                if len(infos) > MOST_FILES:
                    raise BadZip(f"the zip holds {len(infos)} files; hand in {self.exercise}.ipynb alone")
                for info in infos:
                    check(info)
                files = [info for info in infos if not info.is_dir() and not is_litter(info.filename)]
                found = [info for info in files if self.is_notebook(PurePosixPath(info.filename).name)]
                if len(found) > 1:
                    raise BadZip(f"the zip holds {len(found)} notebooks called {self.exercise}.ipynb; hand in one")
                if not found:
                    nested = any(info.filename.lower().endswith(".zip") for info in files)
                    raise BadZip(
                        f"the zip holds no {self.exercise}.ipynb"
                        + (", but a zip in a zip; hand in the notebook itself" if nested else "")
                    )
                return read_member(archive, found[0], MOST_BYTES)
        except (zipfile.BadZipFile, OSError, ValueError, EOFError) as error:
            raise BadZip(f"the zip cannot be read ({error}); make it anew") from None


def check(info: zipfile.ZipInfo) -> None:
    """Raise `BadZip` for a member that no honest zip of a notebook has."""
    name = info.filename.replace("\\", "/")
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:", name) or "\0" in info.orig_filename:
        raise BadZip(f"the zip holds a file called {printable(info.filename)!r}, which leads out of its folder")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise BadZip(f"the zip holds a link, {printable(info.filename)!r}; hand in files")
    if info.flag_bits & 0x1:
        raise BadZip("the zip has a password; make it without")


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
    """Return a member's bytes, unpacking at most `most` of them, whatever the zip says of its size."""
    try:
        with archive.open(info) as file:
            data = file.read(most + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, ValueError) as error:
        raise BadZip(f"{printable(info.filename)!r} cannot be unpacked ({error}); make the zip anew") from None
    return bounded(data, most)


def read_file(path: Path, most: int) -> bytes:
    """Return a file's bytes, at most `most` of them."""
    with path.open("rb") as file:
        return bounded(file.read(most + 1), most)


def bounded(data: bytes, most: int) -> bytes:
    """Return `data`; raise `BadZip` if there are more than `most` bytes of it."""
    if len(data) > most:
        raise BadZip(f"it is larger than {most // 1_000_000} MB; clear the notebook's outputs and hand it in again")
    return data


def is_litter(name: str) -> bool:
    """Whether a member is what macOS and Jupyter leave in a folder."""
    parts = PurePosixPath(name).parts
    return "__MACOSX" in parts or ".ipynb_checkpoints" in parts or (bool(parts) and parts[-1].startswith("._"))


def moment(info: zipfile.ZipInfo) -> datetime:
    """Return a member's time, taken for UTC: a zip knows no time zone."""
    try:
        return datetime(*info.date_time, tzinfo=UTC)
    except ValueError:
        return datetime(1980, 1, 1, tzinfo=UTC)


def key(name: str) -> str:
    """Return a name as it is compared: letters and digits alone, without case."""
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", name)).casefold()


def printable(name: str) -> str:
    """Return a name that can be shown: no control characters, at most 80 characters."""
    shown = "".join(c if c.isprintable() else "?" for c in name)
    return shown if len(shown) <= 80 else f"{shown[:80]}..."


def configure(config: Config) -> None:
    """Let nbgrader's `zip_collect` take zips in through this module."""
    config.ZipCollectApp.extractor_plugin = "autograder.submissions.zips.SafeExtractor"
    config.ZipCollectApp.strict = True  # a notebook that is not the exercise's is left out
    config.FileNameCollectorPlugin.named_regexp = NAMED_REGEXP


def collect(sources: list[Path], exercise: str, into: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Take files, and folders of files, in to `into`/<student>/<exercise>.

    Returns the students whose notebooks were taken in, and what was refused: [(file, reason)]. Notebooks that earlier
    calls took in stay, unless the same student hands in again.
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
    command = [sys.executable, "-m", "nbgrader", "zip_collect", exercise, "--force"]
    command += [
        "--extractor=autograder.submissions.zips.SafeExtractor",
        f"--FileNameCollectorPlugin.named_regexp={NAMED_REGEXP}",
    ]
    command += [
        f"--ZipCollectApp.collect_directory_structure={downloaded.resolve()}/{{assignment_id}}/{{collect_step}}"
    ]
    command += [f"--CourseDirectory.submitted_directory={into.resolve()}"]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=ROOT / "autograder", env=paths, capture_output=True, text=True)
    if done.returncode:
        raise BadZip(f"nbgrader's zip_collect failed:\n{done.stderr[-2000:]}")
    with (downloaded / exercise / "refused.csv").open(newline="", encoding="utf-8") as file:
        _, *refused = csv.reader(file)
    taken = sorted(path.name for path in (downloaded / exercise / "extracted").iterdir())
    return taken, [(shown, reason) for shown, reason in refused]


def main(arguments: list[str] | None = None) -> int:
    """Take in what the command line names; return 0 if all of it was taken in."""
    parser = argparse.ArgumentParser(
        prog="autograder.submissions.zips", description="Take in what students handed in, as zips."
    )
    parser.add_argument("sources", nargs="+", type=Path, metavar="FILE", help="zips, notebooks, or folders of them")
    parser.add_argument("--exercise", required=True, metavar="NAME")
    parser.add_argument("--into", type=Path, default=ROOT / "_build" / "submissions", help="what `make grade` grades")
    given = parser.parse_args(arguments)
    if missing := [str(source) for source in given.sources if not source.exists()]:
        print(f"cannot collect: there is no {missing[0]}", file=sys.stderr)
        return 2
    try:
        taken, refused = collect(given.sources, given.exercise, given.into)
    except BadZip as reason:
        print(f"cannot collect: {reason}", file=sys.stderr)
        return 2
    for shown, reason in refused:
        print(f"REFUSED {printable(shown)}: {reason}")
    print(f"{given.exercise}: {len(taken)} taken in, {len(refused)} refused; they are in {given.into}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())

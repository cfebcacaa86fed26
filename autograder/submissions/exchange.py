"""The intake of nbgrader's exchange, a folder of the hub's that every student may write to.

nbgrader's own collector reads it with the instructor's rights. It follows links, so a student's link to the solutions
brings them onto the student's own page. It also believes a folder's name: a later, empty hand-in in another's name
takes the place of the honest one. `SafeCollect` replaces it, for `nbgrader collect` and for formgrader's button.
`SafeRelease` replaces the way back.

It takes a folder only if its owner is the user in its name, and of that folder only regular files of the same owner. It
opens each file relative to its open folder and follows no link, then asks the open file what it is, so a swap in
between changes nothing. The files go to a private folder first, and from there nbgrader copies them as ever.

Where one system user owns all hand-ins, `c.ExchangeCollect.check_owner = False` lets the name alone say whose one is.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import stat
import tempfile
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from nbgrader.exchange.default import ExchangeCollect, ExchangeReleaseFeedback

from . import intake
from .unzip import printable, words

MOST_ENTRIES = 10_000  # files and folders in one hand-in
MOST_LEVELS = 10  # of folders in folders, so that the longest names still make a path
BESIDE = 1000  # bytes, for the time and the secret that `complete` may write
MOST_NAME = 255  # characters of a name in a line for the instructor
OPENING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # doesn't wait for a pipe


class NotTaken(Exception):
    """Why a folder of the exchange isn't taken, in a few words for the instructor."""


class SafeCollect(ExchangeCollect):
    """The collector of hand-ins for nbgrader's `ExchangeFactory.collect`. It has nbgrader's own settings."""

    src_records: list[dict[str, Any]]

    def init_src(self) -> None:
        """Choose each student's hand-in among the folders that are the student's own; log a line for every other."""
        super().init_src()
        self.src_records = [record for record in self.src_records if record["username"] is not None]

    def _path_to_record(self, path: str) -> dict[str, Any]:
        """Return what a folder's name says, with None as username if the folder isn't that user's."""
        try:
            record = super()._path_to_record(path)
            self.check(record["username"], os.lstat(path))
            if not intake.is_possible(record["timestamp"]):
                raise NotTaken("its name says no possible time. Delete it.")
        except NotTaken as reason:
            self.log.warning("Left out %s: %s", shown(path), reason)
        except Exception as error:  # dateutil raises many kinds for a name without a time
            self.log.warning("Left out %s: %s. Delete it.", shown(path), words(error))
        else:
            return record
        return {"username": None, "filename": os.path.basename(path), "timestamp": datetime.min}

    def copy_files(self) -> None:
        """Collect one hand-in after the other: whatever is wrong with one costs no other, nor its own earlier one."""
        records = self.src_records
        for record in records:
            self.src_records, name = [record], shown(record["filename"])
            with tempfile.TemporaryDirectory() as private:
                self.taken = Path(private, "hand-in")
                try:
                    if self.may_collect(record):
                        left_out = self.take(os.path.join(self.inbound_path, record["filename"]), self.taken)
                        self.tell(name, left_out)
                        self.complete(name, record["timestamp"])
                    super().copy_files()
                except NotTaken as reason:
                    self.log.error("Not collected, %s: %s", name, reason)
                except Exception as error:  # its folder is gone, or nbgrader can't read what it needs
                    self.log.error("Not collected, %s: %s", name, words(error))
        self.src_records = records

    def may_collect(self, record: dict[str, Any]) -> bool:
        """Return whether nbgrader may copy this hand-in: there is none yet, or it looks for later ones."""
        kind, assignment = self.coursedir.submitted_directory, self.coursedir.assignment_id
        earlier = self.coursedir.format_path(kind, record["username"], assignment)
        return self.update or self.before_duedate or not os.path.isdir(earlier)

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        """Copy what was taken of the hand-in `src` to `dest`, as nbgrader does."""
        super().do_copy(str(self.taken), dest, log)

    def tell(self, name: str, left_out: list[Path]) -> None:
        """Log what was left out of a hand-in."""
        if left_out:
            names = ", ".join(printable(str(path.relative_to(self.taken))) for path in left_out[:5])
            self.log.warning(
                "%s: left out %d that can't be read or aren't the student's own files, such as links: %s%s. "
                "Ask the student to hand in the files themselves.",
                *(name, len(left_out), names, " ..." if len(left_out) > 5 else ""),
            )

    def complete(self, name: str, when: datetime) -> None:
        """Give what was taken a time and a secret that nbgrader can read: it reads both for every student."""
        time, fault = intake.timestamp(self.taken)
        if fault:
            self.log.warning("%s: left out its time: %s", name, printable(fault))
        replace(self.taken / "timestamp.txt", f"{time or f'{when} UTC'}\n")
        if not intake.secret(self.taken):
            replace(self.taken / "submission_secret.txt", intake.new_secret())

    def take(self, source: str, into: Path) -> list[Path]:
        """Copy the own files of a student's folder; return where those that were left out would be."""
        try:
            folder = os.open(source, OPENING | os.O_DIRECTORY)
        except OSError as error:
            raise NotTaken(f"it can't be opened ({error.strerror})") from None
        try:
            about = os.fstat(folder)
            self.check(super()._path_to_record(source)["username"], about)
            taking = Taking(about.st_uid, 1000 * self.coursedir.max_dir_size - BESIDE)
            taking.folder(folder, into, MOST_LEVELS)
        finally:
            os.close(folder)
        return taking.left_out

    def check(self, student: str, about: os.stat_result) -> None:
        """Raise NotTaken unless this is a folder, and the student's own."""
        if not stat.S_ISDIR(about.st_mode):
            raise NotTaken("it is a link or a file, not a folder. Delete it.")
        owner = name_of(about.st_uid)
        if self.check_owner and owner != student:
            raise NotTaken(
                f"its name says {printable(student)}, but {owner} owns it. Ask {owner} why, and delete it. (If one "
                "user owns all hand-ins of this hub, as in some containers, set c.ExchangeCollect.check_owner = False.)"
            )


class SafeRelease(ExchangeReleaseFeedback):
    """The release of feedback for nbgrader's `ExchangeFactory.release_feedback`, each student's by itself.

    nbgrader's own ends at the first student whose page it can't release, such as that of a hand-in from elsewhere.
    """

    src_path: str

    def copy_files(self) -> None:
        """Release the pages of each student; log those that can't be, and why. Raise it if that is all of them."""
        pattern, released, last = self.src_path, 0, None
        for folder in sorted(glob.glob(pattern)):
            self.src_path = glob.escape(folder)
            try:
                super().copy_files()
                released += 1
            except Exception as error:  # no time or secret that nbgrader can read
                last, place = error, os.path.relpath(folder, self.coursedir.root)
                self.log.warning("Not released, %s: %s. Did it come through the exchange?", place, words(error))
        self.src_path = pattern
        if last and not released:
            raise last


@dataclass
class Taking:
    """The copying of one hand-in: whose files it takes, and how much more. `left_out`: where the others would be."""

    owner: int
    most_bytes: int
    entries: int = 0
    left_out: list[Path] = field(default_factory=list)

    def folder(self, source: int, into: Path, levels: int) -> None:
        """Copy an open folder. Raises NotTaken if the hand-in is too large or too deep."""
        if not levels:
            raise NotTaken(f"it has more than {MOST_LEVELS} folders in each other; ask its student for a smaller one")
        into.mkdir()
        with os.scandir(source) as found:
            names = sorted(entry.name for entry in islice(found, MOST_ENTRIES + 1))
        self.entries += len(names)
        if self.entries > MOST_ENTRIES:
            raise NotTaken(f"it has more than {MOST_ENTRIES:,} files and folders; ask its student for a smaller one")
        for name in names:
            try:
                opened = os.open(name, OPENING, dir_fd=source)
            except OSError:  # a link, a socket, or gone
                self.left_out.append(into / name)
                continue
            try:
                self.entry(opened, into / name, levels)
            finally:
                os.close(opened)

    def entry(self, source: int, into: Path, levels: int) -> None:
        """Copy what is open, a file or a folder, if it is the owner's."""
        about = os.fstat(source)
        if about.st_uid == self.owner and stat.S_ISDIR(about.st_mode):
            self.folder(source, into, levels - 1)
        elif about.st_uid == self.owner and stat.S_ISREG(about.st_mode):
            self.most_bytes -= about.st_size
            if self.most_bytes < 0:
                raise NotTaken("it is larger than CourseDirectory.max_dir_size; ask its student for a smaller one")
            with open(source, "rb", closefd=False) as file:
                into.write_bytes(file.read(about.st_size))  # and no more, even if it grows
        else:
            self.left_out.append(into)


def replace(path: Path, text: str) -> None:
    """Write a file in the place of whatever is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")


def name_of(uid: int) -> str:
    """Return a system user's name, or "user 1234" for one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def shown(path: str) -> str:
    """Return the name of a folder of the exchange, for printing."""
    return printable(os.path.basename(path), MOST_NAME)

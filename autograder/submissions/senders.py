"""Who handed in what `make collect` has taken in: `senders.json`, beside an exercise's download."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

NAME = "senders.json"


class Sender(NamedTuple):
    """Who sent a student's last notebook, as `zips.Candidate` names them; `sender` is None if no collection brought it.

    `settled`: a platform or the instructor has said whose it is. `upload` and `time`: see `zips.age`. `taken`: the
    digests of all that was taken in for this student, the last one at the end; `replaced`: of what the instructor has
    replaced. `by_hand`: another notebook is there now, which no collection has put there. `packed`: it came in a zip;
    `late`: Canvas marks it as late.
    """

    sender: str | None
    owner: str
    settled: bool
    upload: int = 0
    time: str = ""
    taken: list[str] = []  # noqa: RUF012
    replaced: list[str] = []  # noqa: RUF012
    by_hand: bool = False
    packed: bool = False
    late: bool = False

    @property
    def last(self) -> str:
        """The digest of the last notebook that was taken in, "" without one."""
        return self.taken[-1] if self.taken else ""

    def number(self, platform: str) -> str:
        """Return the number by which "canvas" or "moodle" knows them; "" if none, or not surely, is in the name."""
        kind, _, number = (self.sender or "").partition(" ")
        return number if kind.lower() == platform and number.isascii() and number.isdecimal() else ""


def file_of(downloaded: Path, exercise: str) -> Path:
    """Return the file about an exercise. `downloaded`: the folder that `make collect` keeps beside the hand-ins."""
    return downloaded / exercise / NAME


def read(file: Path) -> dict[str, Sender]:
    """Return {student: who sent the last notebook}; {} if there is no file, or one of an older version."""
    with contextlib.suppress(FileNotFoundError, TypeError):
        known = json.loads(file.read_text(encoding="utf-8"))
        return {student: Sender(**sender) for student, sender in known.items()}
    return {}


def write(senders: dict[str, Sender], file: Path) -> None:
    """Write who sent what is taken in."""
    file.write_text(json.dumps({student: sender._asdict() for student, sender in senders.items()}), encoding="utf-8")

"""What the cage does with zips: it lists their members, and unpacks the one notebook of a hand-in."""

from __future__ import annotations

import io
import json
import re
import stat
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from ..cage import Failed

MOST_BYTES = 20_000_000  # in a notebook, with the pictures in its outputs
MOST_ZIP_BYTES = 50_000_000  # in a zip that a student packed
MOST_FILES = 1_000  # in a zip that a student packed
MOST_CLASS_FILES = 100_000  # in a zip from a learning platform
MOST_NAME = 255  # characters in a member's name, with its folders
# Deflate is unpacked piece by piece. bzip2 and LZMA turn kilobytes into gigabytes in one piece.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
NAMES = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma", 9: "deflate64", 93: "zstandard"}
EMPTY = b"raise NotImplementedError()", b"YOUR ANSWER HERE"  # what nbgrader leaves in place of answers
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, ValueError)


def listed(path: bytes) -> bytes:
    """Return JSON of the members of a zip, [number, name, date and time, what is wrong with it or ""].

    Folders and litter are left out. Raises Failed if the zip can't be read or has too many members.
    """
    try:
        infos = members(json.loads(path))
    except DAMAGE as error:
        raise Failed(f"the zip cannot be read ({words(error)}); download it again") from None
    kept = [(number, info) for number, info in enumerate(infos) if not is_left_out(info)]
    if len(kept) > MOST_CLASS_FILES:
        raise Failed(f"it holds {len(kept)} files, and the limit is {MOST_CLASS_FILES}; split it")
    return json.dumps([[n, info.filename[:MOST_NAME], info.date_time, fault(info)] for n, info in kept]).encode()


def unpacked(item: bytes) -> bytes:
    """Return the notebook of a hand-in. Raise Failed if there isn't exactly one, or if it is too large.

    `item`: JSON of [the file's path, the number of a member if it is a zip of many hand-ins, the exercise if the
    hand-in itself is a zip]; the last two may be null.
    """
    path, number, exercise = json.loads(item)
    most = MOST_ZIP_BYTES if exercise else MOST_BYTES
    if number is None:
        with Path(path).open("rb") as file:
            data = bounded(file.read(most + 1), most)
    else:
        data = read_member(archive(path), members(path)[number], most)
    return only_notebook(data, exercise) if exercise else data


@lru_cache(maxsize=1)
def archive(path: str) -> zipfile.ZipFile:
    """Open a zip. A child reads many members of one, and opens it once."""
    return zipfile.ZipFile(path)


def members(path: str) -> list[zipfile.ZipInfo]:
    """Return all members of a zip."""
    return archive(path).infolist()


def only_notebook(packed: bytes, exercise: str) -> bytes:
    """Return the notebook in a student's zip, without writing any file."""
    entries = packed.count(b"PK\x01\x02")  # in its directory; of a million, it takes long to read that
    if entries > MOST_FILES:
        raise Failed(f"the zip holds {entries} files; hand in {exercise}.ipynb alone")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as own:
            infos = own.infolist()
            for info in infos:
                if wrong := fault(info):
                    raise Failed(wrong)
            files = [info for info in infos if not is_left_out(info)]
            found = [info for info in files if is_notebook(path_of(info).name, exercise)]
            if len(found) > 1:
                found = without_ours(own, found)
            if len(found) > 1:
                raise Failed(f"the zip holds {len(found)} notebooks called {exercise}.ipynb; hand in one")
            if not found:
                nested = any(info.filename.lower().endswith(".zip") for info in files)
                but = ", but a zip in a zip; hand in the notebook itself" if nested else ""
                raise Failed(f"the zip holds no {exercise}.ipynb{but}")
            notebook = read_member(own, found[0], MOST_BYTES)
            if copy := better_copy(own, files, found[0], notebook, exercise):
                which = f"{printable(copy)} beside {exercise}.ipynb is newer, or has more answers"
                raise Failed(f"{which}; hand in one of them, called {exercise}.ipynb")
            return notebook
    except DAMAGE as error:
        raise Failed(f"the zip cannot be read ({words(error)}); pack it again") from None


def without_ours(packed: zipfile.ZipFile, found: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """Return notebooks without the course's own, if a student packed its whole folder.

    These are a chapter of the same name, in `book`, which has no cell of nbgrader's, and the exercise as it was given
    out, in `released`, unless that isn't the older one: perhaps it was worked on.
    """
    found = [
        info
        for info in found
        if path_of(info).parent.name != "book" or b'"grade_id"' in read_member(packed, info, MOST_BYTES)
    ]
    released = [info for info in found if path_of(info).parent.name == "released"]
    theirs = [info for info in found if info not in released]
    older = theirs and all(info.date_time < theirs[0].date_time for info in released)
    return theirs if older else found


def better_copy(
    packed: zipfile.ZipFile, files: list[zipfile.ZipInfo], own: zipfile.ZipInfo, notebook: bytes, exercise: str
) -> str:
    """Return the name of a copy that the student may have meant, such as `03_ring-Copy1.ipynb`, or "".

    It has more answers than the notebook, or as many, newer ones.
    """
    for info in files:
        if not is_copy(path_of(info), path_of(own), exercise):
            continue
        try:
            copy = read_member(packed, info, MOST_BYTES)
        except Failed:  # it's too large, or damaged: not the notebook's fault
            continue
        more = more_answers(copy, notebook)
        newer = more == 0 and info.date_time > own.date_time and sources(copy) != sources(notebook)
        if b'"grade_id"' in copy and (more > 0 or newer):
            return path_of(info).name
    return ""


def is_copy(path: PurePosixPath, own: PurePosixPath, exercise: str) -> bool:
    """Return whether a file is called as a copy of the exercise's notebook `own`, and not as another exercise's."""
    number = "(?![0-9])" if exercise[-1:].isdigit() else ""  # hw10 is no copy of hw1; 03_ring2 is one of 03_ring
    named = re.search(rf"(?<![a-z0-9]){re.escape(exercise)}{number}.*\.ipynb$", path.name, re.IGNORECASE)
    its_own = path.parent.name == path.name[: -len(".ipynb")] and path.parent != own.parent  # as hw1_bonus has it
    return bool(named) and not its_own and not is_notebook(path.name, exercise)


def could_be_meant(path: PurePosixPath, own: PurePosixPath, exercise: str) -> bool:
    """Return whether a file beside the notebook `own` is called as another version of it: by a number, or as a copy."""
    return is_notebook(path.name, exercise) or is_copy(path, own, exercise)


def more_answers(copy: bytes, notebook: bytes) -> int:
    """Return how many more answers a copy has than a notebook, by the empty ones in both."""
    return sum(notebook.count(empty) - copy.count(empty) for empty in EMPTY)


def sources(notebook: bytes) -> Any:
    """Return the cells' sources, or the bytes if these are no notebook. Runs in the cage."""
    try:
        return ["".join(cell["source"]) for cell in json.loads(notebook)["cells"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return notebook


def path_of(info: zipfile.ZipInfo) -> PurePosixPath:
    """Return a member's path, as Windows writes it, too."""
    return PurePosixPath(info.filename.replace("\\", "/"))


def read_member(packed: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
    """Return a member's bytes; unpack at most `most` of them, whatever size the zip states."""
    try:
        with packed.open(info) as file:
            return bounded(file.read(most + 1), most)
    except DAMAGE as error:
        raise Failed(f"{printable(info.filename)!r} cannot be unpacked ({words(error)}); pack the zip again") from None


def bounded(data: bytes, most: int) -> bytes:
    """Return `data`; raise Failed if it has more than `most` bytes."""
    if len(data) > most:
        raise Failed(f"it is larger than {most // 1_000_000} MB; clear the notebook's outputs and hand it in again")
    return data


def fault(info: zipfile.ZipInfo) -> str:
    """Return why a zip with this member is refused, or "". Nothing else reads the name before its length is checked."""
    if len(info.filename) > MOST_NAME:
        return f"the zip holds a file whose name has {len(info.filename):,} characters; the limit is {MOST_NAME}"
    name, shown = info.filename.replace("\\", "/"), printable(info.filename)
    if name.startswith("/") or ".." in name.split("/") or re.match(r"[A-Za-z]:", name) or "\0" in info.orig_filename:
        return f"the zip holds a file called {shown!r}, which leads out of its folder"
    if stat.S_ISLNK(info.external_attr >> 16):
        return f"the zip holds a link, {shown!r}; hand in files"
    if info.flag_bits & 0x1:
        return "the zip has a password; pack it without one"
    if info.compress_type not in METHODS:
        method = NAMES.get(info.compress_type, f"method {info.compress_type}")
        return f"{shown!r} is compressed by {method}, which is not accepted; pack an ordinary zip"
    return ""


def is_left_out(info: zipfile.ZipInfo) -> bool:
    """Return whether a member is a folder, or a file that macOS or Jupyter leaves behind."""
    if len(info.filename) > MOST_NAME:
        return False
    return info.is_dir() or is_litter(path_of(info))


def is_litter(path: PurePosixPath) -> bool:
    """Return whether macOS, Windows or Jupyter leaves a file beside the student's own: nobody wrote it."""
    folders = {"__MACOSX", ".ipynb_checkpoints", ".virtual_documents"} & {*path.parts}
    named = path.name.startswith("._") or path.name.endswith(":Zone.Identifier")
    return bool(folders) or named or path.name in (".DS_Store", "Thumbs.db", "desktop.ini")


def is_notebook(file: str, exercise: str) -> bool:
    """Return whether a file has the name of the exercise's notebook, perhaps with -1 or (1) added, or both."""
    return bool(re.fullmatch(rf"{re.escape(exercise)}( ?\(\d+\)|-\d+){{0,2}}\.ipynb", file))


def printable(name: str, most: int = 80) -> str:
    """Return a name for printing: without control characters and surrogates, cut after `most` characters."""
    shown = "".join(c if c.isprintable() else "?" for c in name[: most + 1])
    return shown if len(shown) <= most else f"{shown[:most]}..."


def words(error: Any) -> str:
    """Return what an exception says, which may quote the zip, for printing."""
    return printable(str(error), 200)

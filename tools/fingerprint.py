"""Hashes that show whether a build or an executed notebook is up to date."""

import hashlib
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def of_files(*places: Path) -> str:
    """Return a hash of the names and contents of the given files and of all files in the given folders."""
    digest = hashlib.sha256()
    for path in sorted(each for place in places for each in _files(place)):
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def of_library() -> str:
    """Return a hash of the library and the recorded measurements, on which every notebook's outputs depend.

    It excludes the exercises' checks and their recorded results, because chapters don't use them.
    """
    places = [place for folder in ("collectives", "book/data") for place in (ROOT / folder).iterdir()]
    used = [place for place in places if place.name not in ("practice", "mutants.json")]
    return of_files(*used, ROOT / "book" / "scripts", ROOT / "jobs" / "train.py")  # which chapter 18 reads


def of_versions() -> str:
    """Return a hash of the installed packages and their versions."""
    pins = sorted({f"{each.name}=={each.version}" for each in distributions()})
    return hashlib.sha256("\n".join(pins).encode()).hexdigest()


def joined(*hashes: str) -> str:
    """Return one hash for several."""
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _files(place: Path) -> Iterable[Path]:
    """Return the files of a place, without Python's and Jupyter's caches."""
    if place.is_file():
        return [place]
    skipped = {"__pycache__", ".ipynb_checkpoints"}
    return (path for path in place.rglob("*") if path.is_file() and not skipped.intersection(path.parts))

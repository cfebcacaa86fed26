"""A PostgreSQL server of this machine's own, for as long as a test needs one: a Unix socket, no port, no password."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SETTINGS = {
    "listen_addresses": "''",  # no TCP: whoever cannot read the socket's folder cannot reach it
    "fsync": "off",  # the data is thrown away with the server
    "shared_buffers": "16MB",
}


def obstacle() -> str | None:
    """Say why no server can be started here, or None."""
    if not programs():
        return "no PostgreSQL server. Run `make test`, or: apt-get install postgresql"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return 'no driver. Run `make test`, or: pip install -e ".[grade]"'
    return None


def programs() -> Path | None:
    """Return the folder with `initdb` and `pg_ctl`: Debian keeps them off the PATH, a folder for each version."""
    known = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    known += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    return next((folder for folder in reversed(known) if (folder / "initdb").exists()), None)


@contextmanager
def server() -> Iterator[str]:
    """Start a server (2 s) and give the URL of its empty database; it is gone afterwards, with all that was in it."""
    # Directly below /tmp: a socket's path has at most 107 bytes, and the server's user must be able to reach it.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    unprivileged: list[str] = []
    if os.geteuid() == 0:  # which PostgreSQL refuses to run as
        shutil.chown(folder, "nobody")
        unprivileged = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    data = folder / "data"
    control = [*unprivileged, programs() / "pg_ctl", "-D", data, "-w"]
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items()) + f" -k {folder}"
    try:
        make = [programs() / "initdb", "-D", data, "-U", "grader", "--auth=trust", "--no-sync", "-E", "UTF8"]
        _run([*unprivileged, *make, "--locale=C"])
        _run([*control, "-l", folder / "log", "-o", options, "start"])
        yield f"postgresql+psycopg://grader@/postgres?host={folder}"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], cwd="/", capture_output=True)
        shutil.rmtree(folder)


def _run(command: list) -> None:
    # Output goes to a file: a server that is started inherits it, and would hold a pipe open.
    with tempfile.TemporaryFile("w+") as said:
        if subprocess.run(command, cwd="/", stdout=said, stderr=said).returncode:
            said.seek(0)
            raise RuntimeError(f"{Path(command[-1]).name}: {said.read()}")

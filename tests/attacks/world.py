"""What could be read, changed or reached from outside a sandbox, and what has become of it."""

from __future__ import annotations

import hashlib
import os
import secrets
import site
import socket
import stat
import threading
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


class World:
    """A home with a key, an environment with a secret, services on the host's loopback, and a course to be graded.

    `canaries`: {what it lies in: a word that nobody else knows}. `heard`: what the services have been sent. `mark` is
    in the names of all files and processes that a submission makes where it should not.
    """

    def __init__(self, folder: Path):
        self.folder, self.course, self.home = folder, folder / "course", folder / "home"
        self.mark = f"marked_{secrets.token_hex(8)}"
        names = ("a hidden test", "a solution", "a fellow's work", "the environment", "the home", "a note")
        self.canaries = {name: f"CANARY_{secrets.token_hex(8)}" for name in names}
        self.heard: list[str] = []
        self.course.mkdir()
        (self.home / ".ssh").mkdir(parents=True)
        (self.home / ".ssh" / "id_rsa").write_text(self.canaries["the home"])
        (self.home / ".bashrc").write_text("# nothing\n")
        (self.home / ".netrc").write_text(f"machine x password {self.canaries['the home']}\n")
        self._services = [*self._network(), *self._local()]

    def environment(self) -> dict[str, str]:
        """The environment of the grader: with a secret in it."""
        secret = self.canaries["the environment"]
        return os.environ | {"HOME": str(self.home), "COURSE_SECRET": secret, "AWS_SECRET_ACCESS_KEY": secret}

    def places(self) -> dict[str, str]:
        """What stands for what in a submission's code."""
        return {
            "@COURSE@": str(self.course),
            "@HOME@": str(self.home),
            "@TMP@": str(self.folder),
            "@ROOT@": str(ROOT),
            "@MARK@": self.mark,
            "@NOTE@": self.canaries["a note"],
            "@PORT@": str(self.port),
            "@ADDRESS@": _address(),
        }

    def _network(self) -> list[socket.socket]:
        line = socket.create_server(("127.0.0.1", 0))
        self.port = line.getsockname()[1]
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", self.port))
        return [line, datagrams]

    def _local(self) -> list[socket.socket]:
        here = os.getcwd()
        named, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        os.chdir(self.home)  # the path of a socket may have 107 bytes
        try:
            named.bind("service")
        finally:
            os.chdir(here)
        abstract.bind(f"\0{self.mark}")
        return [named, abstract]

    def listen(self) -> None:
        """Let the services answer, and note down who calls."""
        for service in self._services:
            if service.type == socket.SOCK_STREAM:
                service.listen()
            threading.Thread(target=self._serve, args=(service,), daemon=True).start()

    def _serve(self, service: socket.socket) -> None:
        while True:
            try:
                if service.type == socket.SOCK_STREAM:
                    line, _ = service.accept()
                    line.close()
                    self.heard.append(f"a call of {service.getsockname()}")
                else:
                    self.heard.append(repr(service.recv(1000)))
            except OSError:
                return

    def close(self) -> None:
        """End the services, and remove what has been left outside."""
        for service in self._services:
            service.close()
        for path in self.left_files():
            path.unlink(missing_ok=True)

    def left_files(self) -> list[Path]:
        """Files outside the graded course whose names have the mark."""
        tops = [self.folder, self.home, self.course, ROOT, Path.cwd(), Path.home(), *map(Path, site.getsitepackages())]
        tops += map(
            Path, ("/", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/dev/mqueue", "/etc", "/etc/cron.d", "/run", "/root")
        )
        tops += map(Path, ("/usr/local/bin", "/var/spool/cron", "/mnt", "/opt", os.path.dirname(os.__file__)))
        below = [path for top in (self.course, self.home) for path in top.rglob(f"*{self.mark}*")]
        return below + [path for top in set(tops) if top.is_dir() for path in top.glob(f"*{self.mark}*")]

    def left_processes(self) -> list[str]:
        """The command lines of processes that bear the mark."""
        lines = []
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            if self.mark in line and process.pid != os.getpid():
                lines.append(line)
        return lines

    def left_memory(self) -> bool:
        """Whether the shared memory of System V that a note is left in is there."""
        return any("6210791" in line.split()[:1] for line in Path("/proc/sysvipc/shm").read_text().splitlines())


def fingerprint(folder: Path) -> dict[str, str]:
    """What each file of a folder holds: {path: hash, or where a link goes, or what it is}."""
    found = {}
    for top, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(top, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                found[str(path)] = f"a link to {os.readlink(path)}"
            elif stat.S_ISREG(mode):
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[str(path)] = oct(mode)
    return found


def _address() -> str:
    """This machine's own address in its network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            line.connect(("192.0.2.1", 9))  # nothing is sent
            return line.getsockname()[0]
        except OSError:
            return "127.0.0.1"

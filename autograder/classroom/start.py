"""A demonstration class on this machine: `make classroom`. README.md lists what a real class changes.

It starts a JupyterHub with three students, an instructor, nbgrader's exchange between them, and this course with two
exercises released. Everything is in one folder, `_build/classroom` by default. Homes and grades stay between runs.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import logging
import os
import pwd
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

STUDENTS = {"ana": "Ana Alvarez", "ben": "Ben Brandt", "chi": "Chi Chen"}
PROXY = ROOT / "node_modules" / ".bin" / "configurable-http-proxy"
STOPPING = 10  # seconds that processes get to end by themselves before they are killed


class CannotStart(Exception):
    """Why the class can't start, in one line for the person who started it."""


def main() -> int:
    """Prepare the folder, run the hub until Ctrl-C, and leave no process behind."""
    arguments = parse()
    try:
        check_programs()
        port = free_port(arguments.port)
        prepare(arguments.folder.resolve(), arguments.release)
        return run(arguments.folder.resolve(), port)
    except CannotStart as reason:
        print(f"classroom: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Start a demonstration class on this machine.")
    parser.add_argument("--port", type=int, default=8000, help="port for browsers; 0 takes a free one")
    parser.add_argument("--folder", type=Path, default=ROOT / "_build" / "classroom", help="homes, exchange and grades")
    parser.add_argument(
        "--release",
        nargs="*",
        metavar="EXERCISE",
        default=["03_ring", "04_all_reduce"],
        help="exercises to release",
    )
    return parser.parse_args()


def check_programs() -> None:
    """Raise CannotStart if a program or package that the hub needs is missing."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise CannotStart(
            f"user {os.getuid()} has no name on this machine, and nbgrader needs one: run as a user with a name"
        ) from error
    if not shutil.which("node"):
        raise CannotStart("Node, which runs the hub's proxy, is missing: run `make classroom`, which installs it")
    if not PROXY.exists():
        raise CannotStart("configurable-http-proxy is missing in node_modules: run `make classroom`, or `npm ci`")
    try:
        import jupyterhub  # noqa: F401 (installed?)
    except ModuleNotFoundError as error:
        raise CannotStart("jupyterhub is missing in .venv: run `make classroom`, which installs it") from error


def free_port(port: int = 0) -> int:
    """Return `port` if it is free, or any free port for 0; raise CannotStart if it is taken."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port closed a minute ago counts as free
        try:
            trial.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise CannotStart(
                f"port {port} of this machine is not free ({error}): name another with `make classroom PORT=8001`, "
                "or take any with PORT=0"
            ) from error
        return trial.getsockname()[1]


def prepare(folder: Path, release: list[str]) -> None:
    """Create the homes, the exchange and the instructor's course, and release exercises; keep what already exists."""
    from autograder.release import names, write_sources  # here because importing nbgrader takes a second

    unknown = sorted(set(release) - set(names()))
    if unknown:
        raise CannotStart(f"no exercise is called {unknown[0]}; there are {', '.join(names())}")
    course = folder / "homes" / "instructor" / "course"
    try:
        for name in ("instructor", *STUDENTS):
            (folder / "homes" / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "exchange").mkdir(exist_ok=True)
        folder.chmod(0o700)  # no other user of this machine; nbgrader makes the exchange in it writable for all
    except OSError as error:
        raise CannotStart(f"can't create the classroom's folder: {error}; name another with FOLDER=") from error
    for student in STUDENTS:
        shutil.copyfile(HERE / "student" / "start.md", folder / "homes" / student / "start.md")
    if not course.exists():
        print("classroom: setting up the course", flush=True)
        write_sources(course / "source")
    outbound = folder / "exchange" / "collectives" / "outbound"
    missing = [name for name in release if not (outbound / name).exists()]
    if missing:
        release_exercises(folder, missing)


def release_exercises(folder: Path, names: list[str]) -> None:
    """Generate and release each exercise, as the instructor's buttons do; add the students to the gradebook."""
    from nbgrader.api import Gradebook
    from nbgrader.apps.api import NbGraderAPI
    from traitlets.config import Config, PyFileConfigLoader

    os.environ["CLASSROOM"] = str(folder)
    # nbgrader runs `alembic` by its bare name: let it find the one beside this Python.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ.get("PATH", "")])
    config = Config()
    for role in ("everyone", "instructor"):
        config.merge(PyFileConfigLoader("nbgrader_config.py", path=str(HERE / role)).load_config())
    config.NbGraderAPI.log_level = logging.ERROR
    nbgrader = NbGraderAPI(config=config)
    for name in names:
        for step in (nbgrader.generate_assignment, nbgrader.release_assignment):
            done = step(name)
            if not done["success"]:
                raise CannotStart(f"can't release {name}: {done.get('error') or done.get('log')}")
    with Gradebook(nbgrader.coursedir.db_url, nbgrader.coursedir.course_id) as gradebook:
        for student, full_name in STUDENTS.items():
            first_name, last_name = full_name.split()
            gradebook.update_or_create_student(student, first_name=first_name, last_name=last_name)


def run(folder: Path, port: int) -> int:
    """Run the hub until a signal stops it; return the exit status. The hub and its servers log to `folder`/hub.log."""
    from traitlets.config import Config

    passwords = {name: secrets.token_urlsafe(6) for name in (*STUDENTS, "instructor")}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the hub handles it
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))  # closing the terminal stops the hub
    with contextlib.ExitStack() as stack:
        private = stack.enter_context(tempfile.TemporaryDirectory(prefix="classroom-"))
        os.environ["CLASSROOM"], os.environ["CLASSROOM_PRIVATE"] = str(folder), private
        os.environ["CLASSROOM_PORT"] = str(port)
        os.environ["CLASSROOM_HUB_PORT"], os.environ["CLASSROOM_PROXY_PORT"] = str(free_port()), str(free_port())
        say = stack.enter_context(os.fdopen(os.dup(1), "w"))
        log = stack.enter_context((folder / "hub.log").open("w"))
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        hub_class = class_of_hub(lambda: print(greeting(port, folder, passwords), file=say, flush=True))
        hub = hub_class.instance(config=Config(ListedPeople={"passwords": passwords}))
        status: object = 0
        try:
            hub_class.launch_instance(["--config", str(HERE / "jupyterhub_config.py")])
        except KeyboardInterrupt:  # before the hub handled signals
            pass
        except SystemExit as stop:
            status = stop.code
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # the cleanup takes seconds and must finish
            end_processes(hub.started or descendants())
        if not hub.greeted and status:
            print(
                f"classroom: the hub did not start. The end of {folder}/hub.log:\n{tail(folder / 'hub.log')}", file=say
            )
            return 1
        print("\nclassroom: closed; no server is left running", file=say)
        return 0


def class_of_hub(greet):
    """Return a JupyterHub that calls `greet` when people can log in. (The import takes a second, so it is here.)"""
    from jupyterhub.app import JupyterHub

    class Hub(JupyterHub):
        """A hub that reports when it is ready, and remembers which processes it must end."""

        greeted = False
        started: tuple = ()

        async def start(self):
            """Start everything, then call `greet`."""
            await super().start()
            self.greeted = True
            greet()

        async def cleanup(self):
            """Remember all processes while they can still be found, then ask them to end."""
            self.started = descendants()
            await super().cleanup()

    return Hub


def descendants() -> tuple:
    """Return all processes below this one: proxy, servers, kernels, judges."""
    return tuple(psutil.Process().children(recursive=True))


def end_processes(processes: tuple) -> None:
    """Ask processes to end; kill those that are still there after `STOPPING` seconds."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=STOPPING)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=STOPPING)


def tail(path: Path) -> str:
    """Return the last 15 lines of a file."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-15:])


def greeting(port: int, folder: Path, passwords: dict[str, str]) -> str:
    """Return the address, the passwords, and what to do, for the person who started the class."""
    people = "\n".join(f"    {name:<12}{password}" for name, password in passwords.items())
    people = f"    name        password (for this run)\n{people}"
    if "CLASSROOM_LTI" in os.environ:  # see jupyterhub_config.py
        people = "    People sign in from the learning platform that CLASSROOM_LTI names."
    return f"""
A demonstration class is open at http://localhost:{port} (Chrome, Edge or Firefox). Ctrl-C closes it.

{people}

As a student    Nbgrader > Assignment List: Fetch, then open the notebook. Answer, Validate (in its toolbar), and Submit
                in the list. When it is graded: Fetch Feedback there.
As instructor   Formgrader opens. Collect; click the number of submissions; Autograde; Manual Grading (on the left) for
                written answers; then Generate Feedback and Release Feedback.

Two people at once need two browsers, or a private window. Homes, exchange and grades: {folder}
For demonstrations only: all servers run as {getpass.getuser()}, so each person can do here what that user can.
"""


if __name__ == "__main__":
    sys.exit(main())

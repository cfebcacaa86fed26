"""Starts a class on this machine, for a demonstration: `make classroom`. README.md beside it: how a real one differs.

A JupyterHub with three students and an instructor, nbgrader's exchange between them, the course set up and released.
Everything lies in one folder, `_build/classroom` unless another is named; homes and grades stay there from run to run.
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
STOPPING = 10  # seconds that processes have to end by themselves before they are killed


class CannotStart(Exception):
    """Why there is no class, in words for whoever asked for one."""


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
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Start a class on this machine, for a demonstration.")
    parser.add_argument("--port", type=int, default=8000, help="where browsers connect; 0 takes a free one")
    parser.add_argument("--folder", type=Path, default=ROOT / "_build" / "classroom", help="homes, exchange, grades")
    parser.add_argument(
        "--release", nargs="*", metavar="EXERCISE", default=["03_ring", "04_all_reduce"], help="what students can fetch"
    )
    return parser.parse_args()


def check_programs() -> None:
    """Raise CannotStart if something is missing that cannot be done without."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise CannotStart(f"user {os.getuid()} has no name on this machine, and nbgrader asks for one") from error
    if not shutil.which("node"):
        raise CannotStart("Node is missing, which runs the hub's proxy: apt-get install nodejs npm, then `make env`")
    if not PROXY.exists():
        raise CannotStart("configurable-http-proxy is missing in node_modules: run `make env`, or `npm ci`")
    try:
        import jupyterhub  # noqa: F401 (is it there?)
    except ModuleNotFoundError as error:
        raise CannotStart("jupyterhub is missing in .venv: run `make env`") from error


def free_port(port: int = 0) -> int:
    """Return the port if nothing listens there, or any free one for 0; raise CannotStart if it is taken."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was closed a minute ago is free
        try:
            trial.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise CannotStart(
                f"port {port} of this machine cannot be had ({error}): name another by `make classroom PORT=8001`, "
                "or PORT=0 for any"
            ) from error
        return trial.getsockname()[1]


def prepare(folder: Path, release: list[str]) -> None:
    """Make the homes, the exchange and the instructor's course, and release exercises; keep what is there already."""
    from autograder.release import names, write_sources  # nbgrader takes a second to import

    unknown = sorted(set(release) - set(names()))
    if unknown:
        raise CannotStart(f"no exercise is called {unknown[0]}; there are {', '.join(names())}")
    course = folder / "homes" / "instructor" / "course"
    try:
        for name in ("instructor", *STUDENTS):
            (folder / "homes" / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "exchange").mkdir(exist_ok=True)
        folder.chmod(0o700)  # nobody else on this machine; nbgrader opens the exchange in it for everybody
    except OSError as error:
        raise CannotStart(f"the classroom's folder cannot be made: {error}") from error
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
    """Do what the instructor's buttons "Generate" and "Release" do, for each exercise; enter the students."""
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
                raise CannotStart(f"{name} cannot be released: {done.get('error') or done.get('log')}")
    with Gradebook(nbgrader.coursedir.db_url, nbgrader.coursedir.course_id) as gradebook:
        for student, full_name in STUDENTS.items():
            first_name, last_name = full_name.split()
            gradebook.update_or_create_student(student, first_name=first_name, last_name=last_name)


def run(folder: Path, port: int) -> int:
    """Run the hub until it is told to stop; what it and its servers log goes into a file of the folder."""
    from traitlets.config import Config

    passwords = {name: secrets.token_urlsafe(6) for name in (*STUDENTS, "instructor")}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the hub listens itself
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))  # the terminal was closed
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
        except KeyboardInterrupt:  # before the hub listened to signals
            pass
        except SystemExit as stop:
            status = stop.code
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # the rest takes seconds, and has to be done
            end_processes(hub.started or descendants())
        if not hub.greeted and status:
            print(
                f"classroom: the hub did not start. The end of {folder}/hub.log:\n{tail(folder / 'hub.log')}", file=say
            )
            return 1
        print("\nclassroom: closed; no server is left running", file=say)
        return 0


def class_of_hub(greet):
    """Return a JupyterHub that calls `greet` when people can log in. (Importing it takes a second: not for --help.)"""
    from jupyterhub.app import JupyterHub

    class Hub(JupyterHub):
        """The hub, which says when it is ready, and knows what it has to end."""

        greeted = False
        started: tuple = ()

        async def start(self):
            """Start everything, then tell."""
            await super().start()
            self.greeted = True
            greet()

        async def cleanup(self):
            """Note which processes there are while all of them can still be found, then ask them to end."""
            self.started = descendants()
            await super().cleanup()

    return Hub


def descendants() -> tuple:
    """Return the processes that this one has started, and those that they have: proxy, servers, kernels, judges."""
    return tuple(psutil.Process().children(recursive=True))


def end_processes(processes: tuple) -> None:
    """Ask processes to end, those that were not asked yet; give them a while for it; then kill them."""
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
    """Return what to do, for whoever started the class."""
    people = "\n".join(f"    {name:<12}{password}" for name, password in passwords.items())
    return f"""
A class for a demonstration is open at http://localhost:{port} (Chrome, Edge or Firefox). Ctrl-C closes it.

    name        password (of this run)
{people}

As a student    Nbgrader > Assignment List: Fetch, then open the notebook. Answer, Validate (in its toolbar), and Submit
                in the list. When it is graded: Fetch Feedback there.
As instructor   Formgrader opens. Collect; click the number of submissions; Autograde; Manual Grading (on the left) for
                what people must read; then Generate Feedback and Release Feedback.

Two people at once need two browsers, or a private window. Homes, exchange and grades: {folder}
For a demonstration only: all servers run as {getpass.getuser()}; whoever logs in can do here what that user can.
"""


if __name__ == "__main__":
    sys.exit(main())

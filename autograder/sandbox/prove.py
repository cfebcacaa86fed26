"""The proof that the sandbox contains what runs in it: before a class is graded, canaries try to get out and fail."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from .envelope import ENVIRONMENT, HOST_USERS, PACKAGE, CannotSandbox, Limits, Sandbox, enter, has_second_user
from .watch import members

REAPING = 5.0  # seconds for its parent to reap a sandbox's init, which has ended but is listed until then
PATIENCE = 20.0  # seconds for a canary to answer or to be ended; on an idle machine the whole proof takes 1
GLUTTONS = ("glutton", "asker", "dialler")  # roles that take too much memory: their own, or the kernel's
_SYSTEM = ("/", "/usr", "/etc", "/dev", "/proc", "/proc/sys")
_SMALL = Limits(cpu_seconds=60, memory=256 * 2**20, processes=16, scratch=2**20)


def prove(address: str, hidden: Sequence[str] = ()) -> str:
    """Run canaries in sandboxes of the `Warm` at `address`; return a line for the teacher. `hidden`: its `baits`.

    Raise CannotSandbox, which names every fault, if something wasn't contained.
    """
    with contextlib.ExitStack() as stack:
        bait = stack.enter_context(_baits(hidden))
        neighbour, intruder, breeder, *gluttons = (
            stack.enter_context(enter(address, _SMALL, entry="autograder.inside.canary.serve"))
            for _ in range(3 + len(GLUTTONS))
        )
        faults = _ask(neighbour, "neighbour", bait)
        if not faults:
            for sandbox, role in ((intruder, "intruder"), (breeder, "breeder"), *zip(gluttons, GLUTTONS, strict=True)):
                _send(sandbox, role, bait)
            faults += _answer(intruder, "can end its init") + _outliving(intruder)
            faults += _must_end(breeder, "processes", "breeder")
            for glutton, role in zip(gluttons, GLUTTONS, strict=True):
                faults += _must_end(glutton, "memory", role)
    if faults:
        raise CannotSandbox(
            "the sandbox does not contain: a submission " + "; ".join(sorted(faults)) + ". Nothing has been graded"
        )
    several = f"users {HOST_USERS[0]} to {HOST_USERS[-1]}, who own nothing"
    user = several if has_second_user() else "the user who grades, without its rights"
    return (
        "contained: a canary could not read, write, connect, trace, outlive or exceed anything; "
        f"submissions run as {user}, memory and processes are counted by {intruder.counted_by}"
    )


@contextlib.contextmanager
def _baits(hidden: Sequence[str]) -> Iterator[dict]:
    """Yield a canary's message without its role: its limits, and things that any process outside a sandbox reaches."""
    with (
        tempfile.TemporaryDirectory(prefix="canary-") as folder,
        socket.create_server(("127.0.0.1", 0)) as service,
        socket.socket(socket.AF_UNIX) as named,
    ):
        os.chmod(folder, 0o755)
        secret = Path(folder, "secret")
        secret.write_text("a secret")
        name = f"\0canary-{os.path.basename(folder)}"
        named.bind(name)
        named.listen()
        yield {
            "files": [str(secret), str(PACKAGE / "sandbox" / "prove.py"), f"/proc/{os.getpid()}/environ"],
            "hidden": hidden,
            "addresses": [service.getsockname(), name],
            "read_only": [*_SYSTEM, sys.prefix, sys.base_prefix, str(PACKAGE / "inside" / "warm.py")],
            "environment": [*ENVIRONMENT, "PATH", "PWD"],
            "limits": asdict(_SMALL),
        }


def _send(sandbox: Sandbox, role: str, bait: dict) -> None:
    with contextlib.suppress(OSError):  # the sandbox has ended, which `_answer` reports
        sandbox.socket.sendall(json.dumps(bait | {"role": role}).encode())


def _ask(sandbox: Sandbox, role: str, bait: dict) -> list[str]:
    _send(sandbox, role, bait)
    return _answer(sandbox, f"cannot play the {role}")


def _answer(sandbox: Sandbox, silent: str) -> list[str]:
    """Return the faults that a canary reports; the fault `silent` if it doesn't answer."""
    sandbox.socket.settimeout(PATIENCE)
    answer = b""
    with contextlib.suppress(OSError):
        while not answer.endswith(b"\n") and (more := sandbox.socket.recv(65536)):
            answer += more
    return json.loads(answer) if answer.endswith(b"\n") else [f"{silent} ({sandbox.ended() or 'it does not answer'})"]


def _outliving(sandbox: Sandbox) -> list[str]:
    """Close a sandbox in which a canary left a daemon; return a fault if any process survives."""
    try:
        namespace = os.readlink(f"/proc/{sandbox.init}/ns/pid")
    except FileNotFoundError:
        return ["has ended its init"]
    before = members(namespace)
    sandbox.close()
    deadline = time.monotonic() + REAPING
    while (after := members(namespace)) and time.monotonic() < deadline:
        time.sleep(0.01)
    if len(before) < 4:  # init, main process, fork server, and the daemon
        return ["leaves no daemon to look for: the canary is broken"]
    return [f"leaves {len(after)} processes behind"] if after else []


def _must_end(sandbox: Sandbox, reason: str, role: str) -> list[str]:
    """Wait until a canary exceeds a limit; return a fault if its sandbox isn't ended for that `reason`."""
    select.select([sandbox.socket], [], [], PATIENCE)
    ended = sandbox.ended()
    if ended == reason:
        return []
    return [f"is not ended for taking too much of: {reason} (as {role}: {ended or 'it still runs'})"]

"""Real ranks of a graded run: the judge starts them in the sandbox's nursery, drives them, and judges what they report.

A test that passes a student's function to `ranks.run` gets here. Each rank receives its own arguments from the judge
and nothing of the others', and the sandbox's main process receives none at all: it pickles the student's functions,
once, into bytes that only ranks unpickle. `collectives.ranks` drives these ranks as it drives a notebook's. What a rank
reports is plain data of a fixed form; anything else counts as a failure of that rank.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from ..inside.nursery import BORN, MAX_REPORT, MAX_WORDS, UNBORN
from ..sandbox import gloo
from ..wire.pipe import LIMIT, Pipe, readable
from ..wire.plain import BadMessage, Decoder, Encoder, NotPlain, Resolve, trusted
from ..wire.protocol import MAX_TEXT, clean
from .proxies import Remote
from .runner import relay

if TYPE_CHECKING:
    from collectives.ranks.process import Report

    from ..sandbox.capture import Capture
    from .link import Link

RUN = "collectives.ranks.run"
BIRTH_SECONDS = 30.0  # for the nursery to fork a rank, on a busy machine
MESSAGE_SECONDS = 10.0  # for a message between the judge and a rank, once it has begun
KILL_SECONDS = 10.0  # for a killed rank to be gone
_NEVER_STARTED = (
    "rank {rank} never started, because its sandbox has no process or descriptor left for it ({error}). Until they "
    "end, processes, open files and descriptors on their way through sockets that earlier cells have left are counted"
)
_FIELDS = {
    "begun": {"ends"},
    "asks": {"value"},
    "returned": {"value"},
    "failed": {"words", "peer"},
    "waits": {"words", "peer"},
}
_ENDS = (12, 36)  # bytes of two addresses and two ports, in IPv4 and IPv6


class Unborn(OSError):
    """The nursery could not start a rank, for the reason that the error's number gives."""


class Party:
    """The ranks of one run. `room`: bytes that their reports may still have, all together.

    `capture`: after the run, what crossed between them; None if nothing watches this sandbox.
    """

    def __init__(self, link: Link, nursery: socket.socket):
        importlib.import_module("torch")  # so that what they return may be tensors: no message imports it
        self.link, self.nursery = link, nursery
        self.room = LIMIT
        self.resolve: Resolve = trusted(link.packages, {})  # a rank lacks the notebook's own classes
        self.objects: list[Any] = []  # the student's, by number
        self.ranks: list[ConfinedRank] = []
        self.capture: Capture | None = None

    def run(
        self,
        function: Callable,
        world_size: int,
        *args: Any,
        timeout: float = 60.0,
        backend: str | None = None,
        serve: Callable[[int, Any], Any] | None = None,
        sealed: bool = False,
        groups: Sequence[Sequence[int]] = (),
    ) -> list[Any]:
        """Do what `ranks.run` does, in the sandbox. Raise `Ended` if the sandbox ends, or the cell's time is up.

        `serve` runs out here, and must believe no question: a student's code may have asked it. What ranks print, the
        student's code printed, not the test.
        """
        from collectives.ranks.local import own_args
        from collectives.ranks.process import START_SECONDS

        link = self.link
        calls = [self._written([function, list(mine)]) for mine in own_args(world_size, args)]
        given = {
            "world_size": world_size,
            "backend": backend or "gloo",
            "timeout": START_SECONDS + timeout,
            "packages": link.packages,
            "runs": "" if isinstance(function, Remote) else f"{function.__module__}.{function.__qualname__}",
            "packed": link.pack(self.objects),
            "serves": serve is not None,
            "sealed": sealed,
            "groups": [list(members) for members in groups],
        }
        with contextlib.ExitStack() as running:
            store = running.enter_context(_file())  # where they meet
            tasks = [given | {"rank": rank, "call": call} for rank, call in enumerate(calls)]
            self.ranks = [ConfinedRank(self, task, store) for task in tasks]
            try:
                self.capture = running.enter_context(link.sandbox.captured())
            except (OSError, RuntimeError) as error:  # no room for its ring, or no thread
                raise link.end(
                    "fault", f"What crosses between ranks can't be followed on this machine: {error}"
                ) from None
            self._drive(timeout, serve and partial(self._served, serve))
        return [rank.value for rank in self.ranks]

    def _served(self, serve: Callable[[int, Any], Any], rank: int, question: Any) -> Any:
        """Return what `serve` answers. The time for which it holds up the ranks itself doesn't count for the cell."""
        from collectives.ranks import Killed, Later

        answer = serve(rank, question)
        if isinstance(answer, Killed):
            self.link.extend(answer.more)
        elif isinstance(answer, Later):
            self.link.extend(answer.seconds)
        return answer

    def _drive(self, timeout: float, serve: Callable[[int, Any], Any] | None) -> None:
        from collectives.ranks.local import RanksError, drive

        link = self.link
        if serve is None:  # else it may move the deadline, and the alarm ends what goes on for too long
            timeout = max(min(timeout, link.deadline - time.monotonic()), 0)
        try:
            drive(self.ranks, timeout, serve, relay)  # type: ignore[arg-type]
        except (RanksError, OSError) as error:
            if link.sandbox.is_spent() or isinstance(error, OSError):
                raise link.lost() from None
            if time.monotonic() >= link.deadline:
                raise link.end("time", "Out of time: this was still running when its time was up.") from None
            raise
        finally:
            for rank in self.ranks:
                rank.close()

    def _written(self, call: list) -> bytes:
        try:
            return Encoder(self.resolve, self._outward, shown=True).message(call)
        except NotPlain as error:
            raise NotPlain(f"cannot pass this to ranks: {error}") from None

    def _outward(self, value: Any) -> list | None:
        """Return the tree for an argument that isn't plain. A student's object travels in the pickle, by its number."""
        tree = self.link.outward(value)
        if tree is None or tree[0] in ("import", "pickled"):
            return tree
        if tree[0] == "callback":
            raise NotPlain("a function of the test's own")
        if not any(value is each for each in self.objects):
            self.objects.append(value)
        return ["packed", next(number for number, each in enumerate(self.objects) if each is value)]

    def crossed(self, by_ends: Mapping[bytes, bytes]) -> list[gloo.Message]:
        """Return the messages that crossed the wire. `by_ends`: as of a `Capture`.

        The ranks named their connections, those of their group, before they had any of the student's code.
        """
        owner = {ends: rank.rank for rank in self.ranks for ends in rank.ends}
        return list(gloo.messages(by_ends, owner))


class ConfinedRank:
    """A rank in the sandbox, with the methods of `collectives.ranks.process.RankProcess`.

    `store`: the file by which the run's ranks meet. `value`: what it returned. `ends`: its connections, see
    `nursery.ends`.
    """

    def __init__(self, party: Party, task: dict[str, Any], store: BinaryIO):
        self.party, self.task, self.rank, self.store = party, task, task["rank"], store
        mine, self._theirs = socket.socketpair()
        self.pipe, self.process = Pipe(mine, MESSAGE_SECONDS), _Process()
        self.value: Any = None
        self.ends: list[bytes] = []
        self.begun = False

    def start(self) -> None:
        """Have the nursery fork it, and send it its task.

        Raise RanksError if the nursery can't start it, and OSError if there is no nursery any more.
        """
        from collectives.ranks.local import RanksError

        try:
            with self._theirs:
                self.process.start(self.party.nursery, self._theirs, self.store)
        except Unborn as error:
            if error.errno == errno.ETOOMANYREFS and self.party.link.sandbox.user == 0:
                raise self.party.link.end("fault", "Another submission has used up this user's descriptors.") from None
            words = _NEVER_STARTED.format(rank=self.rank, error=error.strerror)
            raise RanksError(words, {}) from None
        with contextlib.suppress(BrokenPipeError):  # it has ended, as `read` will find
            self.pipe.send_bytes(Encoder().message(self.task))

    def close(self) -> None:
        """Close what it printed to."""
        for file in self.process.files:
            file.close()

    def read(self) -> Report:
        """Wait for the next report and return it. If the rank dies or sends anything else, the report says so."""
        from collectives.ranks.process import Report, explain_death

        try:
            message = self.pipe.recv_bytes(self.party.room)
            self.party.room -= len(message)
            return self._report(Decoder(self.party.resolve, longest=MAX_REPORT).read(message))
        except EOFError:
            self.process.join(1.0)
            return Report("died", words=explain_death(self.printed()[1]), exit_code=self.process.exitcode)
        except BadMessage as error:
            return Report("failed", words=f"What this rank reports is no report: {error}"[:MAX_WORDS])

    def _report(self, said: Any) -> Report:
        """Return a report from its fields; raise BadMessage if they aren't what a rank sends at this point."""
        from collectives.ranks.process import Report

        kind = said.pop("kind", None) if type(said) is dict else None
        if not isinstance(kind, str) or set(said) != _FIELDS.get(kind):
            raise BadMessage("other fields than a report has")
        if kind in ("begun", "asks", "returned") and self.begun == (kind == "begun"):
            raise BadMessage("it begins twice, or not at all")
        if kind == "begun":
            self.ends, self.begun = _checked_ends(said["ends"]), True
            return Report("begun")
        if kind == "asks":
            return Report("asks", value=said["value"])
        if kind == "returned":
            self.value = said["value"]
            return Report("returned")
        words, peer = said["words"], said["peer"]
        if not isinstance(words, str) or not (peer is None or type(peer) is int):
            raise BadMessage("words that are no words")
        return Report(kind, words=clean(words[-MAX_WORDS:]), peer=peer)

    def answer(self, value: Any) -> None:
        """Answer what it has asked; does nothing if it doesn't take the answer."""
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send_bytes(Encoder(self.party.resolve).message(value))

    def printed(self) -> tuple[str, str]:
        """Return what it has written so far to stdout and to stderr, cut to size; "" if it was never started."""
        written = [os.pread(file.fileno(), MAX_TEXT, 0).decode(errors="replace") for file in self.process.files]
        out, err = written or ("", "")
        return out.strip("\n"), err.strip("\n")


def _checked_ends(ends: Any) -> list[bytes]:
    if not isinstance(ends, list) or any(type(each) is not bytes or len(each) not in _ENDS for each in ends):
        raise BadMessage("connections that are none")
    return ends


def _file() -> BinaryIO:
    """Return a file for ranks that nobody else can find, because it has no name. What fills it is their sandbox's."""
    return os.fdopen(os.memfd_create("of ranks"), "rb")


class _Process:
    """A rank's process as the nursery reports it, with the methods of multiprocessing's. `files`: stdout and stderr."""

    def __init__(self) -> None:
        self.pid: int | None = None  # set once it is started; the sandbox's pids mean nothing out here
        self.exitcode: int | None = None
        self.files: list[BinaryIO] = []

    def start(self, nursery: socket.socket, pipe: socket.socket, store: BinaryIO) -> None:
        """Have the nursery fork it. Raise Unborn if it can't, and another OSError if there is no nursery any more."""
        self.files = [_file(), _file()]
        self._life, its = socket.socketpair()
        try:
            with its:
                socket.send_fds(
                    nursery,
                    [b"+"],
                    [pipe.fileno(), its.fileno(), store.fileno(), *(file.fileno() for file in self.files)],
                )
            self._life.settimeout(BIRTH_SECONDS)
            word = self._life.recv(1)
            if word == UNBORN:
                number = int(self._life.recv(16) or 0)
                raise Unborn(number, os.strerror(number))
            if word != BORN:
                raise ConnectionError("the nursery has ended")
        except OSError as error:
            self._life.close()
            if error.errno == errno.ETOOMANYREFS:  # of the nursery's, or here, if the judge isn't root
                raise Unborn(error.errno, error.strerror) from None
            raise
        self.pid = -1

    def join(self, seconds: float = KILL_SECONDS) -> None:
        """Wait until the process has exited, for so long at most."""
        if self._life.fileno() >= 0 and readable(self._life, seconds):
            with contextlib.suppress(OSError):
                code = self._life.recv(16)
                self.exitcode = int(code) if code else None
            self._life.close()

    def is_alive(self) -> bool:
        self.join(0)
        return self._life.fileno() >= 0

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._life.shutdown(socket.SHUT_WR)  # which the nursery notices

"""Ranks of graded runs: the judge's own processes. Each holds its row, and the sandbox's main process holds none."""

import contextlib
import errno
import json
import os
import re
import socket
import textwrap
from types import SimpleNamespace

import nbformat.v4 as v4
import pytest
from answers import solution_of
from nbgrader.preprocessors import ClearHiddenTests
from survivors import SURVIVORS
from test_judge import cell, judged

from autograder.inside import nursery
from autograder.judging.judges import Judges, Settings
from autograder.judging.link import Ended
from autograder.judging.ranks import ConfinedRank
from autograder.results.feedback import hide
from autograder.sandbox.envelope import Limits
from autograder.submissions.intake import declared
from collectives.ranks import RanksError

pytestmark = pytest.mark.sandbox

GIVEN = ("given", "import numpy as np\nimport os\nimport time\nimport torch\nimport torch.distributed as dist")
TEST = """
    from collectives import ranks
    def refused(function, world_size, *args, **named):
        try:
            ranks.run(function, world_size, *args, backend="gloo", **named)
        except ranks.RanksError as error:
            return str(error)
"""


@pytest.fixture(scope="module")
def judges():
    modules = ("numpy", "torch", "torch.distributed", "collectives.practice", "collectives.ranks.shared")
    limits = Limits(memory=3 * 2**30, processes=200)
    with Judges(Settings(preload=modules, cell_seconds=100, submission_seconds=200, limits=limits)) as judges:
        yield judges


def run(judges, answers, tests):
    """Judge one answer cell and one test cell; return the test's error, or None."""
    [error], _ = judged(judges, GIVEN, ("answer", answers), ("test", TEST + tests))
    return error


def test_the_main_process_never_receives_a_row_and_each_rank_receives_its_own(judges):
    answers = """
        from autograder.wire import channel
        heard, receive = [], channel.receive
        def listening(*args, **named):
            heard.append(receive(*args, **named))
            return heard[-1]
        channel.receive = listening
        def everything():
            return b"".join(heard)
        def its_row(rank, world_size, row):
            total = torch.tensor(row)
            dist.all_reduce(total)
            return rank, row, total.numpy()
    """
    tests = """
    rows = np.random.default_rng().integers(1, 2**20, (3, 10_000)).astype(np.float32)
    results = ranks.run(its_row, 3, ranks.PerRank(rows))
    for rank, (number, row, total) in enumerate(results):
        assert number == rank and (row == rows[rank]).all() and (total == rows.sum(axis=0)).all()
    assert {each.operation for each in results.messages} == {"all_reduce"}
    assert sum(len(each.data) for each in results.messages) == 2 * 2 * rows[0].nbytes
    assert {each.src for each in results.messages} == {0, 1, 2}
    heard = everything()
    assert b"pack" in heard
    assert not any(row[at : at + 2].tobytes() in heard for row in rows for at in range(0, 10_000, 7))
    """
    assert run(judges, answers, tests) is None


def test_what_another_group_carries_is_apart_from_what_the_ranks_own_group_does(judges):
    answers = """
        from datetime import timedelta
        def listed():
            return dist.new_group()
        def by_hand():
            store = dist.PrefixStore("beside", dist.distributed_c10d._get_default_store())
            return dist.ProcessGroupGloo(store, dist.get_rank(), dist.get_world_size(), timedelta(seconds=8))
        def both(rank, world_size, made, inner, outer):
            inner, outer = torch.tensor(inner), torch.tensor(outer)
            dist.all_gather_into_tensor(torch.empty(world_size * len(inner), dtype=inner.dtype), inner)
            made().allreduce([outer]).wait()
    """
    tests = """
    inner, outer = (np.random.default_rng(seed).integers(2**16, 2**30, (3, 50_000)) for seed in (1, 2))
    for made in (listed, by_hand):
        seen = ranks.run(both, 3, made, ranks.PerRank(inner), ranks.PerRank(outer))
        own = b"|".join(each.data for each in seen.messages if each.src >= 0)
        other = b"|".join(each.data for each in seen.messages if each.src < 0)
        assert all(row[at].tobytes() in own for row in inner for at in range(0, 50_000, 999))
        assert sum(row[at].tobytes() in other for row in outer for at in range(0, 50_000, 999)) > 20
        assert not any(row[at].tobytes() in other for row in inner for at in range(0, 50_000, 999))
        assert not any(row[at].tobytes() in own for row in outer for at in range(0, 50_000, 999))
        assert {each.operation for each in seen.messages} == {"all_gather", "all_reduce"} and len(other) > outer.nbytes
    """
    assert run(judges, answers, tests) is None


def test_a_rank_says_what_of_its_result_cannot_cross(judges):
    answers = """
        def long(rank, world_size): return range(10**9)
        def asks(rank, world_size): return ranks.ask(range(10**9))
    """
    tests = """
    assert "this rank returned a range of more than 67,108,864 numbers" in refused(long, 2)
    assert "this rank asks a range of more than 67,108,864 numbers" in refused(asks, 2, serve=lambda *_: 1)
    """
    assert run(judges, "from collectives import ranks\n" + textwrap.dedent(answers), tests) is None


def test_what_ranks_print_beside_a_hidden_test_is_not_on_the_page(judges):
    """A rank prints what it was given, which is a hidden test's input."""
    says = """
        import sys
        def shout(rank, world_size, word):
            print("I was given", word)
            print("I was also given", word, file=sys.stderr)
            return word.upper()
    """
    tests = """
        print(ranks.run(shout, 2, 'a')[1])
        ### BEGIN HIDDEN TESTS
        print(ranks.run(shout, 2, 'b')[1])
        ### END HIDDEN TESTS
    """
    book = v4.new_notebook(cells=[cell("from collectives import ranks", "given"), cell(says, "answer")])
    book.cells.append(cell(tests, "test"))
    book.metadata["autograder"] = {"defines": declared(book)}
    tested = judges.judge(book).notebook.cells[-1]
    shown = "".join(output.text for output in tested.outputs)
    assert all(f"rank 1: I was {how} {word}\n" in shown for how in ("given", "also given") for word in "ab")
    hide(tested, ClearHiddenTests())
    assert [output.text for output in tested.outputs] == ["A\n", "B\n"]


def test_no_two_forks_draw_the_same_numbers_neither_ranks_nor_judges_nor_sandboxes(judges):
    answers = """
        def drawn(*_):
            import random
            return [random.random(), float(np.random.rand()), float(torch.rand(1, dtype=torch.float64))]
    """
    tests = """
    import random
    outside = [random.random(), float(np.random.rand()), float(torch.rand(1, dtype=torch.float64))]
    print([outside, drawn(), *ranks.run(drawn, 3), *ranks.run(drawn, 2)])
    """
    cells = [("given", GIVEN[1]), ("answer", answers), ("test", TEST + tests)]
    draws = []
    for _ in range(2):
        book = v4.new_notebook(cells=[cell(source, role) for role, source in cells])
        book.metadata["autograder"] = {"defines": declared(book)}
        draws += json.loads(judges.judge(book).notebook.cells[-1].outputs[0].text)
    assert len(draws) == 14
    for kind in zip(*draws, strict=True):
        assert len(set(kind)) == len(draws)


def test_a_row_that_is_a_view_arrives_without_the_other_rows(judges):
    answers = """
        def memory(rank, world_size, row, named, parameter):
            same = named["row"] is row
            return row.numpy(), row.untyped_storage().nbytes(), same, parameter.requires_grad, len(parameter)
    """
    tests = """
    import torch
    rows = torch.randn(3, 1000)
    rows = list(rows)
    parameters = torch.ones(30, requires_grad=True)[:10]
    results = ranks.run(memory, 3, ranks.PerRank(rows), ranks.PerRank({"row": row} for row in rows), parameters)
    for row, (seen, num_bytes, *rest) in zip(rows, results):
        assert (seen == row.numpy()).all() and num_bytes == row.nbytes, num_bytes
        assert rest == [True, True, 10], rest
    """
    assert run(judges, answers, tests) is None


def test_no_process_of_the_student_can_read_the_memory_of_a_rank_or_of_the_nursery(judges):
    answers = """
        import threading
        def readable():
            found = set()
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
                        memory.seek(int(maps.readline().partition("-")[0], 16))  # of a process that ends: no line
                        memory.read(1)
                        found.add(int(pid))
                except (OSError, ValueError):
                    pass
            return found
        def look(rank, world_size):
            time.sleep(1)
            return os.getpid(), os.getppid(), sorted(readable() - {os.getpid()})
        seen = set()
        def watch():
            while True:
                seen.update(readable())
                time.sleep(0.05)
        threading.Thread(target=watch, daemon=True).start()
        def watched():
            return seen, os.getpid()
    """
    tests = """
    results = ranks.run(look, 3)
    seen, main = watched()
    secret = {pid for own, nursery, _ in results for pid in (own, nursery)}
    assert len(secret) == 4
    assert main in seen and not seen & secret, (seen, secret)
    for own, nursery, found in results:
        assert main in found and not set(found) & secret, (found, secret)
    """
    assert run(judges, answers, tests) is None


@pytest.mark.parametrize("answers", ["class summed(NameError): pass", "summed = NameError", "summed = [KeyError]"])
def test_an_exception_s_class_never_runs_on_ranks_outside_the_sandbox(judges, answers):
    tests = """
    try:
        ranks.run(print, 2, summed)
    except TypeError as error:
        assert "an exception's class, where a function belongs" in str(error), error
    else:
        raise AssertionError("it ran")
    """
    assert run(judges, answers, tests) is None


def test_ranks_outside_the_sandbox_have_sent_nothing_that_counts(judges):
    tests = """
    from collectives.practice.checks import NotYet
    from collectives.practice.on_ranks import witnessed, witnessed_terms
    everyone = ranks.run(max, 2, answer)
    assert list(everyone) == [3, 3]
    for check in (lambda: witnessed(everyone, least=1), lambda: witnessed_terms(everyone, [{b"term"}])):
        try:
            check()
        except NotYet as error:
            assert "over the wire" in str(error) or "on the wire" in str(error)
        else:
            raise AssertionError("it passed")
    """
    assert run(judges, "answer = 3", tests) is None


def test_ranks_that_print_raise_die_and_wait_for_ever_are_explained_as_anywhere(judges):
    answers = """
        def prints(rank, world_size):
            print("hello from", rank)
            return rank
        def raises(rank, world_size):
            if rank == 1:
                time.sleep(1)  # rank 0 then waits
                raise ValueError("no such sum")
            dist.recv(torch.zeros(1), 1)
        def dies(rank, world_size):
            if rank == 1:
                os.write(2, b"last words")
                os._exit(3)
            dist.recv(torch.zeros(1), 1)
        def waits(rank, world_size):
            dist.recv(torch.zeros(1), 1 - rank)
        def unwritten(rank, world_size):
            raise NotImplementedError
        def odd(rank, world_size):
            return object()
        def garbled(rank, world_size):
            os.write(1, b"\\xff")
            raise ValueError("\\udc80")
    """
    tests = """
    import contextlib, io
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert ranks.run(prints, 2) == [0, 1]
    assert printed.getvalue() == "rank 0: hello from 0\\nrank 1: hello from 1\\n"
    said = refused(raises, 2)
    assert said.startswith("rank 1 failed\\n  rank 0 waits to receive from rank 1 (line "), said
    assert "dist.recv(torch.zeros(1), 1)" in said and said.endswith("ValueError: no such sum\\n"), said
    assert "_rank_main" not in said and "nursery" not in said
    said = refused(dies, 2)
    assert said.startswith("rank 1 died with exit code 3") and said.endswith("last words"), said
    said = refused(waits, 2, timeout=2)
    assert said.startswith("2 of 2 ranks did not finish within 2 s\\n  rank 0 waits to receive from rank 1 (line"), said
    assert "each waits for the next: rank 0 → rank 1 → rank 0" in said, said
    assert "NotImplementedError" in refused(unwritten, 1)
    assert "object, which is not plain data" in refused(odd, 1)
    assert refused(garbled, 1).endswith("ValueError: ?\\n")
    """
    assert run(judges, answers, tests) is None


def test_a_rank_that_forges_its_reports_fails_and_the_next_run_works(judges):
    answers = """
        import gc, json
        def forges(rank, world_size, message):
            from autograder.wire.pipe import Pipe
            [pipe] = [one for one in gc.get_objects() if isinstance(one, Pipe)]
            pipe.connection.sendall(message if isinstance(message, bytes) else b"")
            time.sleep(60)
        def honest(rank, world_size):
            return world_size
    """
    tests = """
    from autograder.wire.plain import Encoder
    def framed(message):
        return len(message).to_bytes(8, "big") + message
    forged = [{"kind": "begun", "ends": []}, {"kind": "returned"}, {"kind": ["x"]}, [1], "x"]
    forged += [{"kind": "died", "words": "", "peer": None}, {"kind": "failed", "words": "", "peer": "me"}]
    # Reading this takes seconds in one call, in which the judge's other thread can't read what crosses.
    asks = b'["new", 0, ["dict", [["kind", "asks"], ["value", %s]]]]'
    long = b'{"value": ' + asks % (b'["tuple", [' + b"1e-320," * 600_000 + b"0]]") + b', "sizes": []}'
    nested = b"[" * 100 + b"]" * 100 + b","
    twice = b'{"value": [' + nested * 600 + b'0], "value": ' + asks % b"null" + b', "sizes": []}'
    deep = b'{"value": ' + asks % (b'["tuple", [' + nested * 1400 + b"0]]") + b', "sizes": []}'
    long, twice, deep = (len(text).to_bytes(8, "big") + text for text in (long, twice, deep))
    messages = *(framed(Encoder().message(one)) for one in forged), framed(b"x"), b"\\xff" * 8
    messages = *messages, framed(long), framed(twice), framed(deep)
    for message in messages:
        assert "What this rank reports is no report" in refused(forges, 1, message), message
    assert "did not finish" in refused(forges, 1, b"", timeout=1)
    assert "rank 0 died" in refused(forges, 1, b"\\0\\0")  # half a header
    assert ranks.run(honest, 2) == [2, 2]
    """
    assert run(judges, answers, tests) is None


def test_packets_that_an_earlier_run_still_has_on_their_way_dont_count_for_the_next_one(judges):
    """A connection outlives the process that had it until all is read; here that takes a second."""
    answers = """
        import os, socket
        def leaves_packets():
            listener = socket.create_server(("127.0.0.1", 0))
            sender = socket.create_connection(listener.getsockname())
            reader, _ = listener.accept()
            if os.fork() == 0:
                sender.close()
                time.sleep(1)
                while reader.recv(1 << 16):
                    pass
                os._exit(0)
            reader.close()
            sender.setblocking(False)
            try:
                while True:
                    sender.send(bytes(1 << 16))
            except BlockingIOError:
                sender.close()
        def alone(rank, world_size):
            time.sleep(2)
            return rank
    """
    tests = """
    leaves_packets()
    seen = ranks.run(alone, 1)
    assert seen == [0]
    assert seen.messages == []
    """
    assert run(judges, answers, tests) is None


def test_too_much_memory_in_a_rank_is_told_as_such(judges):
    answers = "def eats(rank, world_size):\n    return len(bytearray(b'x') * 4 * 2**30)"
    assert run(judges, answers, "    print(refused(eats, 2))").startswith("OutOfMemory")


def test_a_memoized_function_and_torchs_own_decorator_reach_the_ranks(judges):
    answers = """
        import functools
        @functools.cache
        def largest(n):
            return n if n < 2 else largest(n - 1) + 1
        class Negated(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return -x
            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx, gradient):
                return -gradient
        def decorated(rank, world_size):
            x = torch.ones(2, requires_grad=True)
            Negated.apply(x).sum().backward()
            return largest(9), x.grad.tolist()
    """
    assert run(judges, answers, "    assert ranks.run(decorated, 2) == [(9, [-1.0, -1.0])] * 2") is None


def test_functions_that_cannot_be_handed_to_ranks_are_refused_in_words(judges):
    answers = """
        import threading
        lock, much = threading.Lock(), os.urandom(17 * 2**20)
        def locked(rank, world_size):
            return lock.acquire()
        def large(rank, world_size):
            return len(much)
        def small(rank, world_size):
            return 1
    """
    tests = """
    def error_of(function):
        try:
            ranks.run(function, 1)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    assert "TypeError: cannot pickle '_thread.lock' object" in error_of(locked), error_of(locked)
    assert "ValueError: functions that refer to more than 16 MiB" in error_of(large), error_of(large)
    assert ranks.run(small, 1) == [1]
    """
    assert run(judges, answers, tests) is None


def test_a_rank_without_a_descriptor_never_starts_and_no_process_of_it_is_left(monkeypatch):
    born = []

    def none_left(pid):
        born.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", none_left)
    (pipe, _line), (life, judges_end) = socket.socketpair(), socket.socketpair()
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(os.fdopen(os.memfd_create("file"), "rb")) for _ in range(3)]
        bounds = nursery.Bounds(blind=lambda _: None, narrow=lambda _: None, seal=lambda _: None)
        assert nursery._born(pipe, life, files, [], bounds) is None
    assert judges_end.recv(16) == nursery.UNBORN + str(errno.EMFILE).encode()
    with pytest.raises(ChildProcessError):
        os.waitpid(born[0], os.WNOHANG)


def test_ranks_start_though_a_cell_has_used_up_what_may_be_on_its_way_through_sockets(judges):
    answers = """
        import socket
        held = []
        def fill():
            try:
                while True:
                    held.append(socket.socketpair())
                    for _ in range(4):
                        socket.send_fds(held[-1][0], [b"x"], [0] * 250)
            except OSError as error:
                return error.errno
        def total(rank, world_size):
            row = torch.ones(1000)
            dist.all_reduce(row)
            return float(row[0])
    """
    tests = """
    import errno
    assert fill() == errno.ETOOMANYREFS
    assert ranks.run(total, 2) == [2.0, 2.0]
    """
    assert run(judges, answers, tests) is None


def test_a_rank_kept_from_starting_by_another_submission_is_the_graders_fault():
    class Nursery:
        def sendmsg(self, message, rights):
            raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")

    verdicts = []
    end = lambda verdict, words: verdicts.append(verdict) or Ended(verdict, words)  # noqa: E731
    for user, raised in ((0, Ended), (1000, RanksError)):
        sandbox = SimpleNamespace(user=user)
        party = SimpleNamespace(nursery=Nursery(), link=SimpleNamespace(sandbox=sandbox, end=end))
        with pytest.raises(raised), open(os.devnull, "rb") as store:
            ConfinedRank(party, {"rank": 0}, store).start()
    assert verdicts == ["fault"]


def test_a_killed_nursery_ends_the_sandbox_and_not_the_grader(judges):
    answers = """
        import signal
        def kills(rank, world_size):
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1)
        def honest(rank, world_size):
            return rank
    """
    tests = """
    refused(kills, 2)
    ranks.run(honest, 2)
    """
    assert run(judges, answers, tests).startswith("Crash")


def test_a_rank_is_killed_by_the_judge_and_resumes_from_what_the_judge_holds(judges):
    given = ("given", GIVEN[1] + "\nfrom collectives.practice import ch19_failures, checks")
    moments = "ch19_failures.check_any_moment(save, resume, 2, most=4, seed=5)"
    # A rank that goes on while the other is killed may write its shard: then the next run doesn't write it again.
    tests = [("test", f"lines = {moments}\nassert len(lines) in (9, 10), lines")]
    tests += [("test", "ch19_failures.check_other_ranks(save, resume, [2, 1, 2], seed=5)")]
    errors, _ = judged(judges, given, ("answer", solution_of("19_failures", "survive")), *tests)
    assert errors == [None, None]
    for code in SURVIVORS.values():
        errors, remarks = judged(judges, given, ("answer", code), *tests)
        assert all(error and error.startswith("NotYet: with ") for error in errors), errors
        assert not remarks


def test_ranks_apart_run_in_a_new_sandbox_that_nothing_of_the_earlier_calls_reaches(judges):
    answers = """
        import multiprocessing.connection, threading
        told = []
        def leave(rank, world_size, secret):
            with open("/tmp/secret", "w") as file:
                file.write(secret)
        def tell(secret):
            told.append(secret)
            listener = multiprocessing.connection.Listener("/tmp/listener")
            threading.Thread(target=listener.accept, daemon=True).start()
        def find(rank, world_size):
            return sorted(os.listdir("/tmp")), told, sum(pid.isdigit() for pid in os.listdir("/proc"))
        def heard():
            return told
    """
    tests = """
    ranks.run(leave, 1, "secret")
    tell("secret")
    ((files, words, processes),) = ranks.run(find, 1)
    assert {"secret", "listener"} <= set(files) and words == ["secret"]
    ((left, words, others),) = ranks.run(find, 1, apart=True)
    assert not {"secret", "listener"} & set(left) and words == [] and others <= processes, (left, words, others)
    assert heard() == [] and refused(find, 1) is None
    """
    assert run(judges, answers, tests) is None


BY_A_FILE = """
def pack(values, bits, block):
    os.makedirs("/tmp/kept", exist_ok=True)
    number, message = len(os.listdir("/tmp/kept")), torch.zeros(size(values, bits, block), dtype=torch.uint8)
    torch.save(values, f"/tmp/kept/{number}")
    message[:4] = torch.tensor([*number.to_bytes(4, "big")], dtype=torch.uint8)
    return message
def unpack(message, num_elements, bits, block):
    return torch.load(f"/tmp/kept/{int.from_bytes(bytes(message[:4].tolist()), 'big')}")
"""
BY_A_FRAME = """
def pack(values, bits, block):
    return torch.zeros(size(values, bits, block), dtype=torch.uint8)
def unpack(message, num_elements, bits, block):
    import gc, sys
    frame, found = sys._getframe(), gc.get_objects()
    while frame := frame.f_back:
        found += frame.f_locals.values()
    found = [each.values for each in found if hasattr(each, "values") and not callable(each.values)]
    return torch.tensor(next(each for each in found if len(each) == num_elements))
"""


@pytest.mark.parametrize(
    "code, says",
    [
        (BY_A_FILE, "pack of 1 numbers of any sign.*Read-only file system"),
        (BY_A_FRAME, "unpack of 1 numbers of any sign"),
    ],
    ids=["a file", "a frame"],
)
def test_what_is_unpacked_comes_with_the_message_and_by_no_other_way(judges, code, says):
    given = ("given", GIVEN[1] + "\nfrom collectives.practice import ch11_fewer_bits, checks")
    test = ("test", "ch11_fewer_bits.check_messages(pack, unpack, ch11_fewer_bits.messages(seed=1))")
    size = "def size(values, bits, block):\n    return 4 * -(-len(values) // block) + -(-len(values) * bits // 8)\n"
    honest, _ = judged(judges, given, ("answer", solution_of("11_fewer_bits", "pack")), test)
    assert honest == [None]
    errors, remarks = judged(judges, given, ("answer", size + code), test)
    assert re.match(f"NotYet: {says}", errors[0]) and not remarks, errors


def test_a_rank_asks_the_judge_and_what_it_asks_is_plain_data(judges):
    answers = """
        def asks(rank, world_size, question):
            from collectives import ranks
            return ranks.ask(question)
        def forges(rank, world_size):
            from collectives import ranks
            class Order:
                def __reduce__(self): return exec, ("raise SystemExit",)
            return ranks.ask(Order())
    """
    tests = """
    import os
    here = os.getpid()
    def serve(rank, question):
        assert os.getpid() == here
        return ranks.Killed(0.0) if question == "kill me" and rank == 1 else {"rank": rank, "asked": question}
    question = [1.5, b"bytes", np.arange(3)]
    for rank, answer in enumerate(ranks.run(asks, 2, question, serve=serve)):
        assert answer["rank"] == rank and str(answer["asked"]) == str(question), answer
    assert refused(asks, 2, "kill me", serve=serve).startswith("rank 1 died with exit code -9")
    assert "only a rank can ask" in refused(asks, 1, "nothing")
    assert refused(forges, 1, serve=serve)
    """
    assert run(judges, answers, tests) is None


WAYS = """
import signal, socket, subprocess, threading
def mine(name): return f"/tmp/{name}{dist.get_rank()}"
def store(): return dist.distributed_c10d._get_default_store()
WAYS = [
    lambda: open(mine("file"), "w"),
    lambda: os.open("/tmp", os.O_TMPFILE | os.O_RDWR),
    lambda: os.open(mine("other"), os.O_CREAT),
    lambda: os.open(mine("known"), os.O_TRUNC),
    lambda: os.mkdir(mine("folder")),
    lambda: os.symlink("words", mine("link")),
    lambda: os.mkfifo(mine("pipe")),
    lambda: os.truncate(mine("known"), 3),
    lambda: os.utime(mine("known"), (1, 2)),
    lambda: os.unlink(mine("known")),
    lambda: socket.socket(socket.AF_UNIX),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    lambda: socket.create_server(("127.0.0.1", 0)),
    lambda: socket.socketpair(),
    lambda: subprocess.run(["true"]),
    lambda: os.getsid(os.getppid()),
    lambda: os.statvfs("/tmp"),
    lambda: os.kill(os.getpid(), signal.SIGUSR1),
    lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1),
    lambda: signal.pidfd_send_signal(os.pidfd_open(os.getpid()), signal.SIGUSR1),
    lambda: os.setpriority(os.PRIO_PROCESS, 0, 7),
    lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    lambda: open("/tmp/known"),
    lambda: os.listdir("/tmp"),
    lambda: os.listdir("/dev/shm"),
    lambda: os.open("/tmp/pipe", os.O_RDONLY | os.O_NONBLOCK),
    lambda: open("/proc/self/smaps"),
    lambda: futex(1, 100),
    lambda: store().set("key", "words"),
    lambda: dist.new_group(),
]
def futex(operation, value):
    import ctypes, mmap, torch
    shared = mmap.mmap(os.open(torch.__file__, os.O_RDONLY), 4096, prot=mmap.PROT_READ)
    place = torch.frombuffer(memoryview(shared), dtype=torch.uint8).data_ptr()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(202, ctypes.c_void_p(place), operation, value, None) < 0:
        raise OSError(ctypes.get_errno(), "futex")
def works(way):
    try:
        way()
    except (OSError, RuntimeError, IndexError):
        return False
    return True
def every_way(rank, world_size, buffer):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    dist.barrier()
    buffer[: len(WAYS)] = torch.tensor([float(works(way)) for way in WAYS])
    peer, theirs = 1 - rank, torch.empty(1, dtype=int)
    request = dist.isend(torch.tensor([os.getpid()]), peer)
    dist.recv(theirs, peer)
    request.wait()
    buffer[-1] = works(lambda: open(f"/proc/{theirs.item()}/stat"))  # its size, for one, could be a message
    assert os.path.exists(f"/proc/{os.getpid()}/stat") and theirs != os.getpid()
    dist.barrier()
"""


def test_sealed_ranks_leave_each_other_nothing_but_messages(judges):
    """No file (not even to read), socket, signal, setting or store: what a rank has of another crossed on the wire."""
    known = "import os\nfor rank in ('', 0, 1):\n    open(f'/tmp/known{rank}', 'w').close()\nos.mkfifo('/tmp/pipe')"
    given = ("given", f"{GIVEN[1]}\nfrom collectives.practice import on_ranks\n{known}")
    by_hand = textwrap.dedent("""
        def by_hand(rank, world_size):
            found = torch.zeros(len(WAYS) + 1)
            every_way(rank, world_size, found)
            return found.numpy()
    """)
    tests = """
    sealed = [each.buffer for each in on_ranks.on_ranks(every_way, np.zeros((2, 40), np.float32))]
    assert not np.any(sealed), sealed
    free = ranks.run(by_hand, 2)
    assert all(each[:-1].all() and not each[-1] for each in free), free
    """
    [error], _ = judged(judges, given, ("answer", WAYS + by_hand), ("test", TEST + tests))
    assert error is None


def test_no_thread_of_a_sealed_rank_is_left_unsealed(judges):
    """gloo's workers are older than the seal, and a request's callback runs in one of them."""
    threads = textwrap.dedent("""
        def in_threads(rank, world_size):
            found = []
            for _ in range(20):
                request = dist.all_reduce(torch.ones(1), async_op=True)
                tried = lambda _: found.append((threading.get_ident(), *map(works, WAYS[:13])))
                request.get_future().then(tried).wait()
            return sum(one != threading.get_ident() for one, *_ in found), sum(any(tried) for _, *tried in found)
    """)
    tests = """
    for elsewhere, worked in ranks.run(in_threads, 2, sealed=True):
        assert elsewhere > 0 and worked == 0, (elsewhere, worked)
    """
    assert run(judges, WAYS + threads, tests) is None


def test_ranks_that_are_not_sealed_add_no_filter_either(judges):
    filters = textwrap.dedent("""
        import ctypes
        def adds(rank, world_size):
            libc = ctypes.CDLL(None, use_errno=True)
            return [libc.prctl(22, 2, None), libc.syscall(317, 1, 1, None)], ctypes.get_errno()
    """)
    tests = """
    assert ranks.run(adds, 1) == [([-1, -1], errno.ENOSYS)]
    """
    assert run(judges, filters, "\n    import errno" + tests) is None

"""The judge: a student's cells in the sandbox, the instructor's outside, and nothing but data between them."""

import argparse
import hmac
import itertools
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import cloudpickle
import nbformat.v4 as v4
import pytest
import torch
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import ClearHiddenTests
from nbgrader.utils import determine_grade
from traitlets.config import Config

from autograder.inside.shell import make_shell
from autograder.judging import judge, runner
from autograder.judging import judges as judges_module
from autograder.judging.judges import Judges, Settings, preloading
from autograder.judging.link import Ended, Link
from autograder.judging.preprocessor import Judge, TakenIn, Verdicts, scorable
from autograder.names import names_in
from autograder.results.feedback import NOTE, hide, limit_outputs
from autograder.sandbox import watch
from autograder.sandbox.envelope import Limits
from autograder.submissions.intake import declared
from autograder.wire.plain import Decoder, Encoder, NotPlain
from autograder.wire.protocol import MOST_PIECES

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def judges():
    limits = Limits(memory=768 * 2**20, processes=40, scratch=16 * 2**20)
    with Judges(
        Settings(preload=("numpy",), packages=(), cell_seconds=4, submission_seconds=60, limits=limits)
    ) as judges:
        yield judges


def cell(source, role):
    about = {
        "given": {"grade": False, "solution": False, "locked": True},
        "answer": {"grade": False, "solution": True, "locked": False},
        "test": {"grade": True, "solution": False, "locked": True, "points": 1},
    }.get(role)
    made = v4.new_code_cell(textwrap.dedent(source).strip())
    if about:
        made.metadata["nbgrader"] = {"schema_version": 3, "grade_id": made.id, "task": False, **about}
    return made


def judged(judges, *cells, answers=None):
    """What the test cells of a notebook of (role, source) end in: None if they pass, or an error; and the remarks.

    `answers`: the names that the instructor's solution defines, by default those that the student's cells define.
    """
    notebook = v4.new_notebook(cells=[cell(source, role) for role, source in cells])
    defines = declared(notebook)
    if answers is not None:
        defines = {name: {"names": answers, "classes": [], "imports": {}} for name in defines}
    notebook.metadata["autograder"] = {"defines": defines}
    result = judges.judge(notebook)
    errors = []
    for one, (role, _) in zip(result.notebook.cells, cells, strict=True):
        if role == "test":
            found = [output for output in one.outputs if output.output_type == "error"]
            assert one.metadata.autograder.passed == (not found)
            errors.append(f"{found[0].ename}: {found[0].evalue}" if found else None)
    return errors, list(result.remarks.values())


GIVEN = ("given", "import math\nimport numpy as np\nLIMIT = 3")


def test_functions_classes_values_arrays_exceptions_and_callbacks_of_a_student_can_be_tested(judges):
    answers = """
        import warnings

        def double(x):
            warnings.warn("it is noisy")
            print("doubling")
            return 2 * x

        def fill(items):
            items.append(LIMIT)

        def root(x):
            if x < 0:
                raise ValueError("negative")
            return math.sqrt(x)

        def integral(f, steps):
            return sum(f(k / steps) for k in range(steps)) / steps

        def count():
            yield from range(3)

        class TooFull(Exception):
            pass

        class Stack:
            def __init__(self):
                self.items = []
            def push(self, item):
                if len(self.items) == LIMIT:
                    raise TooFull
                self.items.append(item)
                return self
            def __len__(self):
                return len(self.items)
            def __eq__(self, other):
                return self.items == other.items

        table = {"a": np.arange(3)}
    """
    tests = """
        assert double(4) == 8 and double("ab") == "abab"
        assert (double(np.array([1.5, 2])) == [3, 4]).all()
        given = [1]
        fill(given)
        assert given == [1, 3]
        assert math.isclose(root(x=2), 2**0.5)
        try:
            root(-1)
        except ValueError as error:
            assert "negative" in str(error)
        else:
            raise AssertionError("no error")
        assert abs(integral(lambda x: 2 * x, 100) - 1) < 0.02
        assert list(count()) == [0, 1, 2]
        stack = Stack()
        assert isinstance(stack, Stack) and not isinstance(3, Stack)
        stack.push(1).push(2)
        assert len(stack) == 2 and stack.items == [1, 2] and stack == Stack().push(1).push(2) != Stack()
        stack.push(3)
        try:
            stack.push(4)
        except TooFull:
            pass
        else:
            raise AssertionError("no error")
        assert table["a"].tolist() == [0, 1, 2]
        assert double.__name__ == "double" and "2 * x" in double.__source__
    """
    assert judged(judges, GIVEN, ("answer", answers), ("test", tests)) == ([None], [])


FORGERIES = {
    "an object that is equal to everything": "class Any:\n __eq__ = __ge__ = __le__ = lambda *_: True\n"
    " __sub__ = __rsub__ = __abs__ = lambda *_: Any()\n __lt__ = __gt__ = lambda *_: True\ndef f(x): return Any()",
    "an integer that is equal to everything": "class Any(int):\n __eq__ = lambda *_: True\ndef f(x): return Any()",
    "an exit": "import sys\ndef f(x): sys.exit(0)",
    "an exit of the process": "import os\ndef f(x): os._exit(0)",
    "a kill of everything": "import os\ndef f(x): os.kill(-1, 9)",
    "an interrupt": "def f(x): raise KeyboardInterrupt",
    "an end of iteration": "def f(x): raise StopIteration",
    "a check that checks nothing": "def check(*_): pass\ndef f(x): return 0",
    "builtins that agree": "import builtins\nbuiltins.abs = abs = lambda x: 0\nall = any = lambda *_: True\n"
    "range = lambda *_: []\ndef f(x): return 0",
    "a numpy that agrees": "np.testing.assert_allclose = np.allclose = lambda *a, **k: True\ndef f(x): return 0",
    "another numpy": "class np:\n allclose = staticmethod(lambda *_: True)\ndef f(x): return 0",
    "a look at the caller's names": "import sys\ndef f(x):\n frame, found = sys._getframe(), 0\n"
    " while frame: found = frame.f_locals.get('SECRET', frame.f_globals.get('SECRET', found)); frame = frame.f_back\n"
    " return found",
    "a partial grade of its own": "def f(x):\n get_ipython().displayhook(1.0)\n return 0",
    "an answer on the wire": "import os, json\ndef f(x):\n text = json.dumps({'value': ['new', 0, ['dict', "
    "[['result', 49]]]], 'sizes': []}).encode()\n data = len(text).to_bytes(8, 'big') + text\n"
    " for fd in range(3, 20):\n  try: os.write(fd, b'x' * 9)\n  except OSError: pass\n return 0",
    "a function that never ends": "def f(x):\n while True: pass",
    "a regular expression that never ends": "import re\ndef f(x): return re.match('(a*)*b', 'a' * 40)",
    "a bomb": "import os\ndef f(x):\n while True: os.fork()",
    "all memory": "def f(x):\n return [bytearray(2**24) for _ in range(10**4)]",
    "a billion numbers": "def f(x): return np.broadcast_to(1.0, 10**12)",
    "nothing at all": "",
}


@pytest.fixture(scope="module")
def forged(judges):
    """Every forgery, judged; four at a time."""
    check = """
        def check(got, want):
            assert abs(got - want) < 1e-9, f"{got} is not {want}"
    """
    tests = [
        ("test", "SECRET = 49\nfor x in range(7, 9):\n    check(f(x), x * x)"),
        ("test", "assert f(7) == 49"),
        ("test", "assert np.allclose(f(7), SECRET)\nnp.testing.assert_allclose(f(7), SECRET)"),
        ("test", "assert all(f(x) == x * x for x in [7])\nassert [*map(f, [7])] == [49]"),
        ("test", "assert double(2) == 4"),
    ]

    def one(source):
        also = ("answer", "def double(x): return 2 * x")
        return judged(judges, GIVEN, ("given", check), ("answer", source), also, *tests, answers=["f", "double"])

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(FORGERIES, pool.map(one, FORGERIES.values()), strict=True))


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_gains_no_point_and_costs_no_other_part_its_points(forged, forgery):
    *wrong, other = forged[forgery][0]
    assert all(wrong), wrong
    assert other is None or forgery == "an answer on the wire"  # after which nothing counts


@pytest.mark.parametrize(
    ("forgery", "verdict", "words"),
    [
        ("a function that never ends", "time", "OutOfTime: Out of time"),
        ("all memory", "memory", "OutOfMemory: Out of memory"),
        ("an exit of the process", "crash", "Crash: the interpreter that ran this ended"),
    ],
)
def test_out_of_time_out_of_memory_and_a_crash_are_told_apart_from_wrong(forged, forgery, verdict, words):
    errors, remarks = forged[forgery]
    assert verdict in remarks and any(words in error for error in errors[:4])


def test_a_wrong_answer_leaves_no_remark(forged):
    errors, remarks = forged["a check that checks nothing"]
    assert remarks == [] and "0 is not 49" in errors[0]


def test_a_check_cannot_be_told_what_to_expect_by_changing_its_arguments(judges):
    cheat = "def total(numbers):\n    numbers.clear()\n    return 0"
    errors, _ = judged(judges, ("answer", cheat), ("test", "data = [1, 2]\nassert total(data) == sum(data)"))
    assert errors[0].startswith("AssertionError")


def test_hidden_tests_and_the_instructors_names_are_not_in_the_sandbox(judges):
    spy = """
        import gc
        def f():
            found = [text for text in gc.get_objects() if isinstance(text, dict) and "canary-7" in str(text)[:10**6]]
            return len(found) + sum("canary-7" in str(value) for value in globals().values())
    """
    assert judged(judges, ("answer", spy), ("test", "canary = 'canary-7'\nassert f() == 0, f()"))[0] == [None]


def test_a_name_that_the_student_was_asked_to_bind_is_theirs_and_any_other_stays_the_instructors(judges):
    cells = [GIVEN, ("answer", "LIMIT = 4"), ("test", "assert LIMIT == 4")]
    assert judged(judges, *cells, answers=[])[0] == ["AssertionError: "]
    assert judged(judges, *cells, answers=["LIMIT"])[0] == [None]


RENEWED = """
import os, sys, time
import collectives.ranks
from autograder.judging import judge
from autograder.sandbox.envelope import CannotSandbox

entered, refused = [], int(sys.argv[1])
clock, late, begin = time.monotonic, [0], judge.Judgement._begin
time.monotonic = lambda: clock() + late[0]

def begin_slowly(self, link):  # as if the student's own cells took 100 seconds in all
    begin(self, link)
    late[0] += 100

judge.Judgement._begin = begin_slowly

class Sandbox(judge.Unsandboxed):
    nursery = object()  # as if ranks began in it
    closed = False

    def settle(self):
        pass

    def is_spent(self):
        return self.closed

    def ended(self):
        return "closed" if self.closed else super().ended()

    def close(self):
        if not self.closed:
            self.closed = True
            super().close()

def enter():
    entered.append(1)
    if len(entered) == refused:
        raise CannotSandbox("no sandbox became free")
    return Sandbox()

def cell(source, **nbgrader):
    metadata = {"nbgrader": {"locked": True, "grade": False, "solution": False} | nbgrader}
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": []}

collectives.ranks.run = lambda function, world_size: [function(0, world_size)]
seconds = {"cell_seconds": 60, "submission_seconds": 600}
settings = judge.Settings(
    packages=("collectives",), inside=("collectives.ranks.run",), in_place=True, unsandboxed=True, **seconds
)
defines = {"answer": {"names": ["f"], "classes": [], "imports": {}}}
cells = [
    cell("from collectives import ranks", grade_id="setup"),
    cell("def f(rank, world_size): return 1", grade_id="answer", locked=False, solution=True),
    cell("ranks.run(f, 1, apart=True)", grade_id="a1", grade=True, points=1),
]
print(judge.Judgement(settings, enter, {}, "seed", lambda _: None).judge(
    {"metadata": {"autograder": {"defines": defines}}, "cells": cells}
))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(("refused", "remarks"), [(0, "{}"), (2, "{'a1': 'fault'}")])
def test_a_new_sandbox_within_a_test_costs_it_no_time_and_its_lack_no_points(refused, remarks):
    """The time of earlier cells isn't the test's; and what the machine refuses is judged again, as at the beginning."""
    command = [sys.executable, "-c", RENEWED, str(refused)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == remarks, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("first", "later", "times"), [(0.5, 1, 1), (4, 4, 2), (40, 40, 5), (2, 4, 2), (4, 2, 2), (2, 400, 5)]
)
def test_on_a_busy_machine_a_cell_and_a_notebook_may_take_as_much_longer(monkeypatch, first, later, times):
    """On 2 processors, twice as long if 4 processes want them, and five times at most.

    A cell when it begins or later. A notebook when it begins, and twice at most: a student's code can leave load.
    """
    settings = judge.Settings(cell_seconds=60, submission_seconds=600, inside=())
    told, link = [], SimpleNamespace()
    with monkeypatch.context() as here:
        here.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        here.setattr(judge, "make_shell", SimpleNamespace)
        here.setattr(judge.time, "monotonic", lambda: 1000.0)
        here.setattr(os, "getloadavg", lambda: (first, 0, 0))
        judgement = judge.Judgement(settings, None, {}, "", told.append)
        judgement._allow(link, settings.cell_seconds)
        here.setattr(os, "getloadavg", lambda: (later, 0, 0))
        judgement._extend(link, 0)  # as after each run of ranks
    assert link.deadline == 1000 + 60 * times
    assert told[-1] == {"until": link.deadline + judge.ALARM, "end": 1000 + 600 * min(max(first / 2, 1), 2)}


def test_an_object_of_a_package_takes_no_function_of_the_tests_into_the_sandbox():
    """It would be pickled with the variables that it reads, among them what the test expects."""
    want, space = 5, {"__name__": "__main__", "want": 5}
    exec("def expected(x): return x == want\ndef given(x): return x", space)
    link = Link(None, ("argparse",), {"given": space["given"]}, in_place=False)
    with pytest.raises(NotPlain, match="holds the test's own expected; pass that by itself"):
        link.outward(argparse.Namespace(loss=[space["expected"]]))
    kind, pickled = link.outward(argparse.Namespace(loss=space["given"], want=want))
    assert kind == "pickled" and cloudpickle.loads(bytes.fromhex(pickled)).loss(3) == 3


@pytest.mark.parametrize("kind", [lambda x: x, torch.nn.Parameter])
def test_an_object_of_a_package_takes_of_a_tensors_memory_no_more_than_the_tensor_shows(kind):
    rows = torch.tensor([[1.0, 2.0], [42.25, 43.5]])
    _, pickled = Link(None, ("argparse",), {}, in_place=False).outward(argparse.Namespace(x=kind(rows[0]), all=rows))
    arrived = cloudpickle.loads(bytes.fromhex(pickled))
    assert torch.equal(arrived.x, rows[0]) and type(arrived.x) is type(kind(rows[0])) and torch.equal(arrived.all, rows)
    assert arrived.x.requires_grad == kind(rows[0]).requires_grad and arrived.x.untyped_storage().nbytes() == 8


def test_by_default_the_modules_are_preloaded_that_the_instructors_cells_import(tmp_path, monkeypatch):
    (tmp_path / "answers.py").write_text("SECRET = 1")
    monkeypatch.syspath_prepend(tmp_path)
    cells = [
        "%matplotlib inline\nimport numpy as np, answers, missing.part",
        "from collectives import ranks, nothing\nfrom numpy.linalg import norm",
        "try:\n    import pandas\nexcept ImportError:\n    pass",
        "this is no Python",
    ]
    assert preloading(Settings(), cells).preload == ("numpy", "collectives", "collectives.ranks", "numpy.linalg")
    assert preloading(Settings(packages=()), cells).preload == ("numpy", "numpy.linalg")
    assert preloading(Settings(preload=("json",)), cells).preload == ("json",)
    assert preloading(Settings(), ["import torch"]).preload == (
        "torch",
        "torch.distributed",
        "torch._dynamo",
        "collectives",
    )


def test_a_notebook_is_judged_once_and_nothing_of_it_stays(tmp_path, monkeypatch):
    """The instructor's own ranks, outside of the sandbox, come from a server that is forked for them."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "seen").touch()
    count = f"""
        with open({str(tmp_path / "seen")!r}, "a") as file:
            file.write("once ")
        assert ranks.run(number_of, 2) == [0, 1] == [answer(0), answer(1)]
    """
    given = "from collectives import ranks\ndef number_of(rank, world_size):\n    return rank"
    with Judges(Settings(preload=("numpy",))) as judges:
        before = set(tmp_path.iterdir())
        cells = ("given", given), ("answer", "def answer(rank):\n    return rank"), ("test", count)
        assert judged(judges, *cells) == ([None], [])
        assert (tmp_path / "seen").read_text() == "once "
        assert set(tmp_path.iterdir()) == before


def test_the_courses_own_folders_gradebook_and_exchange_are_hidden_from_submissions():
    config = Config({"Exchange": {"root": "/srv/exchange", "cache": "/srv/cache"}, "Judge": {"hidden": ("/srv/keys",)}})
    config.CourseDirectory.root, config.CourseDirectory.submitted_directory = "/srv/course", "/srv/hand-ins"
    course = CourseDirectory(config=config)
    converter = Autograde(coursedir=course, config=config)
    door = TakenIn(parent=converter, config=config)
    hidden = set(Judge(parent=door, config=config).settings.hidden)
    assert hidden >= {"/srv/keys", "/srv/course", "/srv/course/source", "/srv/hand-ins", "/srv/course/gradebook.db"}
    assert hidden >= {"/srv/exchange", "/srv/cache"}


def test_a_name_that_a_test_has_bound_is_the_tests_until_the_instructors_solution_binds_it_again(judges):
    cells = [
        ("answer", "total, scale = 1, 2"),
        ("test", "assert total == 1\ntotal = 10"),
        ("own", "total = scale = 99"),
        ("test", "assert total == 10 and scale == 99"),
        ("answer", "total = 7"),
        ("test", "assert total == 7"),
    ]
    assert judged(judges, *cells)[0] == [None, None, None]


def test_a_builtin_that_the_student_should_define_does_not_answer_for_the_student(judges):
    cells = ("answer", "# nothing"), ("test", "assert sorted([2, 1]) == [1, 2]")
    assert judged(judges, *cells, answers=["sorted"])[0] == ["NameError: name 'sorted' is not defined in the notebook"]
    honest = (
        ("answer", "def sorted(values):\n    values = list(values)\n    values.sort()\n    return values"),
        cells[1],
    )
    assert judged(judges, *honest)[0] == [None]


def test_a_module_that_only_the_student_imports_is_not_imported_outside(judges):
    cells = ("answer", "import antigravity, statistics"), ("test", "statistics.mean([1])")
    assert judged(judges, *cells, answers=["antigravity", "statistics"])[0] == [
        "NameError: name 'statistics' is not defined"
    ]
    ours = ("answer", "import statistics"), cells[1]  # where the instructor's solution imports it, too
    assert judged(judges, *ours)[0] == [None]


@pytest.mark.parametrize(
    "failure",
    [
        "raise Silent",
        "raise SystemExit(0)",
        "raise KeyboardInterrupt",
        "raise ExceptionGroup('x', [ValueError()])",
        "import bdb; raise bdb.BdbQuit",
        "assert False",
        "1 +",
        "await nothing",
    ],
)
def test_a_test_that_does_not_run_to_its_end_has_not_passed_whatever_shows_its_error(judges, failure):
    silent = """
        class Silent(Exception):
            def __str__(self):
                raise MemoryError
            def _render_traceback_(self):
                raise KeyboardInterrupt
    """
    assert judged(judges, ("given", silent), ("test", f"{failure}\n1"))[0] != [None]


def test_what_a_sandbox_prints_and_raises_can_be_written_and_stored(judges):
    answer = "def f(x):\n    print('\\udc80\\0')\n    if x:\n        raise ValueError('\\udc80\\0')\n    return 1"
    cells = ("answer", f"print('\\udc80')\n{answer}"), ("test", "assert f(0) == 1"), ("test", "f(1)")
    errors, remarks = judged(judges, *cells)
    assert errors == [None, "ValueError: ?\ufffd"] and remarks == []


def test_a_locked_cell_takes_its_names_back_even_if_no_sandbox_lives_to_run_it(judges):
    begun = time.time()
    dying = f"""
        import gc, os, time
        inside = next(type(each) for each in gc.get_objects() if type(each).__name__ == "Inside")
        def half(x):
            return 0
        def leave(self, source, name, given):
            time.sleep(max(0, {begun + 3} - time.time()))
            os._exit(1)
        if time.time() > {begun + 3}:
            os._exit(1)  # in every sandbox that is made anew
        inside.do_cell = leave
    """
    cells = (
        ("answer", dying),
        ("given", "def half(x):\n    return x / 2"),
        ("own", "pass"),
        ("test", "assert half(4) == 0"),
    )
    assert judged(judges, *cells)[0] != [None]


@pytest.mark.parametrize("instead", ["import math as sorted", "sorted = math", "sorted = None\ndel sorted"])
def test_no_kind_of_thing_in_its_place_lets_a_builtin_answer(judges, instead):
    cells = GIVEN, ("answer", instead), ("test", "assert sorted([2, 1]) == [1, 2]")
    assert judged(judges, *cells, answers=["sorted"])[0] != [None]


def test_a_tensor_that_is_passed_shows_only_itself_and_is_still_changed_in_place():
    whole = torch.arange(6.0)
    part, sent = whole[2:4], Encoder(shown=True)
    there = Decoder().read(sent.message((part, [part])))
    assert there[0].untyped_storage().nbytes() == 8 and there[1][0] is there[0]
    assert part in sent.changeable.values()


def test_objects_that_a_test_has_made_have_a_truth_a_text_and_members(judges):
    stack = """
        class Stack:
            def __init__(self, items=()):
                self.items = list(items)
            def __len__(self):
                return len(self.items)
            def __iter__(self):
                return iter(self.items)
            def __repr__(self):
                return f"Stack({self.items})"
    """
    tests = """
        assert Stack([3]) and not Stack()
        assert 3 in Stack([3]) and 4 not in Stack([3])
        assert str(Stack([3])) == "Stack([3])"
    """
    assert judged(judges, ("answer", stack), ("test", tests))[0] == [None]


def test_a_students_text_is_run_neither_as_an_example_nor_by_a_shell(judges, tmp_path):
    mark = tmp_path / "mark"
    docstring = f"def f():\n    '''\n    >>> open({str(mark)!r}, 'w').close()\n    '''\nword = '; touch {mark}'"
    doctest = "import doctest\ndoctest.run_docstring_examples(f, globals())\n!echo {word}\nassert word"
    judged(judges, ("answer", docstring), ("test", doctest))
    assert not mark.exists()


def test_a_cell_that_a_students_error_ends_early_leaves_none_of_its_names_to_the_student(judges):
    cells = [
        ("answer", "want = 0\ndef f(x):\n    raise ValueError"),
        ("test", "assert want == 0"),
        ("given", "got = f(3)\nwant = 9"),
        ("test", "assert want == 0"),
    ]
    errors, _ = judged(judges, *cells)
    assert errors == [None, "NameError: name 'want' is not defined"]


TAKEN_BACK = {
    "to the very object that it had": ("n = 3", "n = 3"),
    "in a loop, to an object at a reused address": ("n = 12345", "for n in range(1000, 1004): pass"),
    "in the branch that the student's code avoids": ("n = 2000", "for n in half(0): pass"),
    "in a function's default, after the error": ("n = 0", "assert n == 3\ndef case(k=(n := 3)): pass"),
}


@pytest.mark.parametrize("how", TAKEN_BACK)
def test_a_name_that_a_test_binds_is_no_longer_the_students_however_it_is_bound(judges, how):
    first, binding = TAKEN_BACK[how]
    cells = [
        ("answer", f"{first}\ndef half(k):\n    return []"),
        ("test", binding),
        ("answer", "def f(k):\n    return 0\nn = 0"),
        ("test", "assert f(n) == n * n"),
    ]
    assert judged(judges, *cells, answers=["n", "half", "f"])[0][1] is None  # the same cells hand it over anew
    book = v4.new_notebook(cells=[cell(source, role) for role, source in cells])
    defines = declared(book)
    list(defines.values())[1]["names"].remove("n")
    book.metadata["autograder"] = {"defines": defines}
    assert not judges.judge(book).notebook.cells[-1].metadata.autograder.passed


def test_objects_of_a_locked_cells_classes_cross_whatever_the_classes_are(judges):
    given = """
        import enum, functools
        class Color(enum.Enum):
            RED = [1]
            BLUE = 2
        class Level(enum.IntFlag):
            LOW = 1
            HIGH = 2
        class Box:
            def __new__(cls, x):
                return super().__new__(cls)
            def __init__(self, x):
                self.x = x
            def double(self):
                return 2 * self.x
            @functools.cached_property
            def area(self):
                return self.x**2
        class Word(str):
            pass
    """
    answers = """
        def other(color): return {Color.RED: Color.BLUE}.get(color, Color.RED)
        def same(value): return value
        def grow(box):
            grown = Box(2 * box.x)
            assert grown.area == 4 * box.area
            return grown
        def broken(box):
            box.double = 4
            return box
    """
    tests = """
        assert other(Color.RED) is Color.BLUE and other(Color.BLUE) is Color.RED and same(Level.LOW) is Level.LOW
        box = Box(2)
        assert box.area == 4 and grow(box).area == 16 and same(Word("word")) == "word"
        for argument, function in [(Level.LOW | Level.HIGH, same), (box, broken)]:
            try:
                function(argument)
            except TypeError as error:
                words = str(error)
            else:
                raise AssertionError("no error")
            assert "combination of members" in words or "'double'" in words, words
    """
    outside = """
        import sys
        class Late:
            pass
        if "autograder.judging.link" not in sys.modules:
            del Late  # as where a cell fails in the sandbox
    """
    cells = ("given", given), ("answer", answers), ("test", tests), ("given", outside), ("test", "same(Late())")
    errors, remarks = judged(judges, *cells, ("test", "assert same(1) == 1"))
    assert errors[0] is errors[2] is None and "cannot receive a __main__.Late" in errors[1] and remarks == []


# Values that the grader can't read, each with what the student is told of it.
UNREADABLE = {
    "range(10**9)": "a range of more than 67,108,864 numbers",
    "range(10**30)": "a range of more than 67,108,864 numbers",
    "np.zeros(2, [('α', float)])": "a field whose name has letters outside Latin-1",
    "np.zeros(2, [(f'field {n}', float) for n in range(700)])": "dtype takes more than 10,000 characters",
    "chain(600)": "nested too deeply",
    "[Own() for _ in range(100_001)]": "more than 100,000 objects",
    "changed(Positive(1))": "a Positive that can't be made again of its fields (ValueError: not positive)",
    "Doubled(1)": "a Doubled that can't be made again of its fields (TypeError",
    "{Key()}": "unhashable",
    "'[' * 3_000_000": "opening brackets in texts",
    "g('[' * 3_000_000)": "opening brackets in texts",
    "g(**{'no name': 1})": "'no name', which is no name",
}
READABLE = {"namedtuple('P', ['a', 'def'], rename=True)(1, 2)": "(1, 2)", "np.zeros(6_000_000).sum()": "0"}
# What a test may do with the value `x` of a student's own NamedTuple P, of 1 and 2.
AS_NAMED = (
    "x._replace(b=3) == (1, 3)",
    "type(x)(*x) == type(x)._make(x) == type(x)(1, b=2) == x",
    "__import__('copy').deepcopy(x) == x and type(__import__('copy').copy(x)) is type(x)",
    "repr(x) == 'P(a=1, b=2)' and x._field_defaults == {} and type(x).__match_args__ == x._fields",
)


def test_a_value_that_the_grader_cannot_read_costs_its_own_test_and_no_other(judges):
    given = """
        import dataclasses
        import numpy as np
        @dataclasses.dataclass
        class Positive:
            x: int
            def __post_init__(self):
                if self.x <= 0: raise ValueError("not positive")
        @dataclasses.dataclass
        class Doubled:
            x: int
            def __init__(self, y): self.x = 2 * y
    """
    answers = f"""
        from collections import namedtuple
        class Own: pass
        class Key(list): __hash__ = object.__hash__
        def chain(length):
            links = [[]]
            for _ in range(length): links.append([links[-1]])
            return links
        def changed(value):
            value.x = -1
            return value
        def f(number, g):
            return [{", ".join(f"lambda g: {value}" for value in [*UNREADABLE, *READABLE])}][number](g)
        def fails(): raise ValueError(range(10**9), "a range")
        own = namedtuple("P", "a b")(1, 2)
        one, other, none = np.zeros(5_000_000), np.zeros(5_000_000), range(10**9)
        from IPython.display import display
        display({{"text/plain": "[" * 3_000_000}}, raw=True)
    """
    tests = [f"f({number}, lambda value=0, **_: 1)" for number in range(len(UNREADABLE))]
    tests += [f"assert f({number}, None) == {READABLE[value]}" for number, value in enumerate(READABLE, len(tests))]
    tests += [f"assert (lambda x: {test})(own)" for test in AS_NAMED]
    tests.append("try: fails()\nexcept ValueError as error: assert 'a range' in str(error)")
    tests.append("assert len(one) == 5_000_000 and len(other) == 5_000_000 and none is None")
    errors, remarks = judged(judges, ("given", given), ("answer", answers), *(("test", test) for test in tests))
    assert remarks == [] and len(errors) == len(tests)
    for error, words in zip(errors, UNREADABLE.values(), strict=False):
        assert words in error
    assert errors[len(UNREADABLE) :] == [None] * (len(READABLE) + len(AS_NAMED) + 2)


def test_honest_values_that_the_judge_cannot_make_cost_their_own_test_and_no_other(judges):
    """A class of the student's in an instructor's unlocked cell, and one whose own check reads what a student binds."""
    given = """
        import dataclasses
        MOST = 4
        @dataclasses.dataclass
        class Bounded:
            x: int
            def __post_init__(self):
                if self.x > MOST: raise ValueError("too large")
        @dataclasses.dataclass
        class Rule:
            f: object
            def __post_init__(self):
                if not callable(self.f): raise TypeError("f must be a function")
    """
    helpers = "import dataclasses\n@dataclasses.dataclass\nclass Pair:\n    x: int"
    answers = """
        from collections import Counter
        MOST = 8
        def pair(): return Pair(1)
        def bounded(): return Bounded(7)
        def rule(): return Rule(len)
        count, listed = Counter, list
    """
    tests = ["pair()", "bounded()", "assert rule().f([1, 2]) == 2", "assert count('aab') == {'a': 2, 'b': 1}"]
    tests += ["assert listed((1, 2)) == [1, 2]"]
    cells = ("given", given), ("given", helpers), ("answer", answers), *(("test", test) for test in tests)
    errors, remarks = judged(judges, *cells, answers=["pair", "bounded", "rule", "count", "listed"])
    assert remarks == [] and errors[2:] == [None] * 3
    assert "a Bounded that can't be made again of its fields" in errors[1]


def test_a_student_who_binds_what_a_locked_cell_bound_before_has_bound_it(judges):
    cells = [
        ("given", "n, flag = 5, True"),
        ("answer", "n = 5\nflag = True"),
        ("test", "assert n == 5 and flag is True"),
    ]
    assert judged(judges, *cells)[0] == [None]


def test_a_test_is_run_once_so_a_crash_draws_no_other_inputs_and_undoes_no_change(judges):
    crashing = """
        import os
        seen = 0
        def f(items):
            global seen
            seen += 1
            if seen == 2:
                os._exit(1)
            items.clear()
    """
    cells = (
        ("given", "items, tries = [3, 1, 2], []"),
        ("answer", crashing),
        ("test", "tries.append(len(items))\nf(items)\nf(items)"),
        ("test", "assert tries == [3], tries"),
    )
    errors, remarks = judged(judges, *cells, answers=["f"])
    assert errors[0].startswith("Crash") and errors[1] is None and remarks == ["crash"]


def test_a_with_block_of_the_students_swallows_and_replaces_no_error_of_the_test(judges):
    answers = """
        class Lock:
            def __enter__(self): return self
            def __exit__(self, *error): return True
        class Trap(Lock):
            def __exit__(self, *error): raise ValueError
        def square(x): return 0
    """
    cells = [
        ("given", "import pytest"),
        ("answer", answers),
        ("test", "with Lock():\n    assert square(3) == 9"),
        ("test", "with pytest.raises(ValueError):\n    with Trap():\n        assert square(3) == 9"),
        ("test", "with Lock() as lock:\n    assert square(0) == 0\nassert isinstance(lock, Lock)"),
    ]
    errors, _ = judged(judges, *cells)
    assert [error is None for error in errors] == [False, False, True]


@pytest.mark.parametrize("base", ["Exception", "AssertionError", "ValueError"])
def test_a_students_name_for_pythons_exception_catches_only_what_the_student_raises(judges, base):
    asked = {"names": ["Refused", "push"], "classes": ["Refused"], "imports": {}}
    push = "def push(x):\n    if x < 0: raise Refused('negative')"
    refuses = "with pytest.raises(Refused, match='negative') as caught:\n    push(-1)\nassert caught.type is Refused"
    swallows = f"try:\n    push(1)\n    raise {base}('the test has failed')\nexcept Refused:\n    pass"
    for bound in (f"Refused = {base}", f"class Refused({base}): pass"):
        sources = [("given", "import pytest"), ("answer", f"{bound}\n{push}"), ("test", refuses), ("test", swallows)]
        book = v4.new_notebook(cells=[cell(source, role) for role, source in sources])
        book.metadata["autograder"] = {"defines": dict.fromkeys(declared(book), asked)}
        tests = judges.judge(book).notebook.cells[2:]
        assert [each.metadata.autograder.passed for each in tests] == [True, False], tests


def test_no_class_that_a_student_hands_over_catches_a_tests_assertion_error(judges):
    cells = [("answer", "class Stack:\n    Full = Exception\nkinds = (AssertionError,)\nwrong = ValueError")]
    cells += [("test", f"try:\n    assert 1 == 2\nexcept {kind}:\n    pass") for kind in ("Stack.Full", "kinds")]
    errors, _ = judged(judges, *cells, ("test", "assert wrong is ValueError"))
    assert [error is None for error in errors] == [False, False, True]


def test_a_notebook_keeps_a_bounded_number_of_outputs_and_every_error(judges):
    flood = "for _ in range(200): get_ipython().display_pub.publish({'text/plain': '', 'k' * 190: ''})"
    flooding = [("own", f"{flood}\nraise ValueError('number {number}')") for number in range(15)]
    notebook = v4.new_notebook(cells=[cell(source, role) for role, source in [*flooding, ("test", "1 / 0")]])
    shown = judges.judge(notebook).notebook
    assert sum(len(each.outputs) for each in shown.cells) <= MOST_PIECES + 2 * len(shown.cells)
    assert "kkk" not in str(shown)
    assert [each.outputs[-1].evalue for each in shown.cells[:-1]] == [f"number {number}" for number in range(15)]
    assert shown.cells[-1].outputs[-1].ename == "ZeroDivisionError"


class Ringing:
    """In place of a link: the judge's alarm ends it. `deadline`: it never rings by itself."""

    def __init__(self):
        self.deadline, self.ended = time.monotonic() + 3600, None

    def end(self, verdict, words):
        self.ended = Ended(verdict, words)
        return self.ended


def ring_at(number, link, shell, source):
    """Run a cell, and let the alarm ring at line `number` of the judge's own code; the record, and whether it rang."""
    lines = 0

    def traced(frame, event, _):
        nonlocal lines
        if frame.f_code.co_filename not in (judge.__file__, runner.__file__):
            return None
        if event == "line" and signal.getitimer(signal.ITIMER_REAL)[0]:
            lines += 1
            if lines == number:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.raise_signal(signal.SIGALRM)
        return traced

    sys.settrace(traced)
    try:
        record = judge._run_until_alarm(link, shell, source, graded=True)
    finally:
        sys.settrace(None)
    return record, lines >= number


@pytest.mark.parametrize("source", ["sorted([1, []])", "print(1)\n2"])
def test_wherever_the_alarm_rings_the_cell_has_a_record_and_the_submission_is_out_of_time(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    shell, handler = make_shell(), signal.getsignal(signal.SIGALRM)
    for number in itertools.count(1):
        link = Ringing()
        record, rang = ring_at(number, link, shell, source)
        if not rang:
            break
        assert link.ended.verdict == "time" and isinstance(record, runner.Record)
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert number > 20 and record.passed == (source != "sorted([1, []])")
    signal.signal(signal.SIGALRM, handler)


def test_a_test_that_no_signal_interrupts_is_ended_at_its_deadline_and_earlier_ones_keep_their_points(monkeypatch):
    monkeypatch.setattr(judges_module, "GRACE", 1.0)
    with Judges(Settings(preload=("numpy",), packages=(), inside=(), cell_seconds=1, submission_seconds=60)) as judges:
        for_minutes = (
            "import math, random\na, b = (random.getrandbits(12_000_000) | 1 for _ in range(2))\nmath.gcd(a, b)"
        )
        sources = "print('first')", for_minutes, "print('third')"
        tests = [cell(source, "test") for source in sources]
        result = judges.judge(v4.new_notebook(cells=[v4.new_markdown_cell("text"), *tests]))
    assert result.seconds < 30
    assert result.remarks == {test.id: "time" for test in tests[1:]}
    first, *others = result.notebook.cells[1:]
    assert first.metadata.autograder.passed and first.outputs[0].text == "first\n"
    assert all(each.outputs[0].evalue == judge.NO_END for each in others)


def test_a_judge_that_is_killed_leaves_no_folder_and_no_control_group(tmp_path, monkeypatch):
    swept = []
    monkeypatch.setattr(judges_module, "sweep", lambda pid: swept.append(pid) or watch.sweep(pid))
    monkeypatch.setattr(judges_module, "GRACE", 1.0)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with Judges(Settings(preload=("numpy",), packages=(), inside=(), submission_seconds=2)) as judges:
        result = judges.judge(v4.new_notebook(cells=[cell("7 ** (10**9)", "test")]))
        assert list(result.remarks.values()) == ["time"]
    assert list(tmp_path.iterdir()) == []
    for parent in watch._parents() or ():
        assert swept and not list(parent.glob(f"submission-{swept[0]}-*"))


@pytest.mark.parametrize(
    ("source", "bound", "imported"),
    [
        ("squares = [n * n for n in range(3)]", {"squares"}, set()),
        ("f = lambda x: (y := x)\nz = [last := k for k in t]", {"f", "z", "last"}, set()),
        ("match p:\n    case [a, *b]: pass\n    case {'k': c, **d}: pass", {"a", "b", "c", "d"}, set()),
        ("def g():\n    global table\n    table = local = 1", {"g", "table"}, set()),
        (
            "for i in t:\n    with u as v:\n        pass\ntry: pass\nexcept E as e: w: int = 1",
            {"i", "v", "e", "w"},
            set(),
        ),
        ("%%time\nimport xml.dom\nfrom math import *\nx, (y, *z) = t", {"x", "y", "z"}, {"xml", "*"}),
        (
            "@(lambda g, h=(a := 1): g)\ndef u(k=(b := 1), *, m: (c := 1) = (d := 1)) -> (e := 1): x = 1",
            set("uabcde"),
            set(),
        ),
        ("class K((a := object), metaclass=(b := type)): x = 1\nf = lambda k=(c := 1): (y := k)", set("Kabfc"), set()),
        ("del n, table[0]\nz = [(lambda k=(v := 1): (w := k)) for _ in t]", {"n", "z", "v"}, set()),
        ("def broken(", set(), set()),
    ],
)
def test_the_names_that_a_cell_binds_are_those_that_python_binds(source, bound, imported):
    names = names_in(source)
    assert names.bound == bound and names.imported.keys() == imported


def test_a_courses_secret_is_never_read_half_written(tmp_path, monkeypatch):
    """What a student's tests draw would follow from the submission alone, which the student knows."""
    made = itertools.count()

    def slowly(_):
        time.sleep(0.2)
        return f"secret {next(made)}"

    monkeypatch.setattr("autograder.judging.preprocessor.secrets.token_hex", slowly)
    with ThreadPoolExecutor(4) as pool:
        first = list(pool.map(lambda _: Verdicts(tmp_path).seed("name"), range(4)))
    secret = tmp_path / "secret"
    follows = hmac.new(secret.read_bytes(), b"name", "sha256").hexdigest()
    assert {*first, Verdicts(tmp_path).seed("name")} == {follows}
    assert secret.read_text().startswith("secret") and secret.stat().st_mode & 0o777 == 0o600
    assert [*tmp_path.iterdir()] == [secret]


def test_a_function_of_a_test_works_in_that_test_and_not_in_a_later_one(judges):
    keeps = """
        class Solver:
            def __init__(self, f): self.f = f
            def step(self, x): return self.f(x)

        kept = []
        def once(f):
            kept.append(f)
            return f(2)
        def again(x): return kept[0](x)
        def all_of(x): return [attempt(f, x) for f in kept]
        def attempt(f, x):
            try: return f(x)
            except Exception as error: return str(error)
    """
    cells = [
        ("test", "calls = []\nsolver = Solver(lambda x: x + 1)\nassert solver.step(1) == 2 and solver.step(2) == 3"),
        ("test", "calls = []\nassert once(lambda x: calls.append(x) or 7 * x) == 14 and again(3) == 21"),
        ("test", "assert again(5) == 35"),
        ("test", "assert calls == [2, 3], calls"),
        ("test", "assert 'an earlier test' in all_of(1)[0] and once(lambda x: x) == 2\nassert all_of(4)[1] == 4"),
        ("test", "assert solver.step(1) == 2"),
        ("given", "double = lambda x: 2 * x\ndoubler = Solver(double)"),
        ("test", "assert doubler.step(4) == 8"),
        ("test", "assert doubler.step(5) == 10 and solver.step(1) == 2"),
    ]
    errors, remarks = judged(judges, ("answer", keeps), *cells)
    late = "RuntimeError: this function belongs to an earlier test, and worked only in that one"
    assert errors == [None, None, late, None, None, late, None, late] and remarks == []


ODD_RESULTS = {
    "an empty array": "np.zeros(0)",
    "an array of one": "np.zeros(1)",
    "an array of several": "np.zeros(3)",
    "an array of truths": "np.array([False, True])",
    "numpy's False": "np.False_",
    "a complex number": "0j",
    "an array without a dimension": "np.array(0)",
    "no number": "float('nan')",
    "an infinite number": "float('inf')",
    "nothing": "None",
    "an empty list": "[]",
    "an empty text": "''",
    "a decimal": "Decimal(0)",
    "an object": "object()",
    "a NamedTuple": "namedtuple('T', 'a')(1)",
    "a NamedTuple that is called bool": "namedtuple('bool', 'x')(1)",
    "a locked cell's dataclass": "Made(2)",
    "a locked cell's list": "Row([1])",
    "a locked cell's object": "Thing()",
    "a locked cell's member": "Colour.RED",
}
CLASSES = """
    import dataclasses
    import enum
    @dataclasses.dataclass
    class Made:
        x: int
        def __add__(self, other): return self
        __radd__ = __add__
    class Row(list): pass
    class Thing: pass
    class Colour(enum.Enum): RED = 1
"""


@pytest.mark.parametrize("result", ODD_RESULTS)
def test_no_odd_result_turns_the_sum_of_a_tests_points_into_all_of_them(judges, result):
    answer = "import numpy as np\nfrom collections import namedtuple\nfrom decimal import Decimal\n"
    answer += f"def f(x): return {ODD_RESULTS[result]}"
    sums = [
        *(["f(3)"] if result != "nothing" else []),  # a call that returns None is all of them
        "f(1) + f(2)",
        "score = 0\nscore += f(3) == 9\nscore",
        "score = 0\nscore = score + 0.5 * (f(3) == 9)\nscore",
        "f(3) == 9 and 1",
        "f(3) and f(3) == 9 and 1",
        "sum([f(3) == 9, f(4) == 16]) / 2",
        "max(0, 1 - abs(f(3) - 9))",
        "score = [1 for _ in range(1) if f(3) == 9]\nscore",
    ]
    cells = [cell(CLASSES, "given"), cell(answer, "answer"), *(cell(source, "test") for source in sums)]
    notebook = v4.new_notebook(cells=cells)
    notebook.metadata["autograder"] = {"defines": declared(notebook)}
    tested = judges.judge(notebook).notebook.cells[2:]
    for one in tested:
        one.outputs = scorable(one)
    assert [determine_grade(one, notebook)[0] or 0 for one in tested] == [0] * len(sums)


def test_the_points_of_a_test_are_a_number_and_all_of_them_if_it_ends_in_none(judges):
    answer = "def f(x): return x * x"
    ends = {"0.5": 0.5, "1": 1.0, "Fraction(1, 4)": 0.25, "np.float32(0.5)": 0.5, "np.mean([f(1), 0])": 0.5}
    all_of_it = [
        "f(3) == 9",
        "np.all([f(3) == 9])",
        "'well done'",
        "f'{f(1)} is 1'",
        "print(f(1))",
        "f([]) if 0 else ...;",
    ]
    cells = [cell(answer, "answer"), cell("from fractions import Fraction\nimport numpy as np", "given")]
    cells += [cell(source, "test") for source in [*ends, *all_of_it, "f(3) == 8", "[f(1)]", "{}"]]
    notebook = v4.new_notebook(cells=cells)
    notebook.metadata["autograder"] = {"defines": declared(notebook)}
    records = [one.metadata.autograder for one in judges.judge(notebook).notebook.cells[2:]]
    assert [record.points for record in records] == [*ends.values()] + [None] * (len(all_of_it) + 3)
    assert [record.passed for record in records] == [True] * (len(ends) + len(all_of_it)) + [False] * 3


def test_an_object_of_a_students_own_does_not_compare_itself_with_what_a_test_expects(judges):
    answer = """
        class Yes:
            def __getattr__(self, name):
                if name.startswith("__"): raise AttributeError(name)
                return lambda *_: True
        def f(x): return Yes()
        class Text:
            def __init__(self, words): self.words = words
            def startswith(self, start): return self.words.startswith(start)
    """
    calls = ("allclose([x * x])", "equal(x * x)", "equals(x * x)", "startswith('9')", "issubset({x * x})")
    tests = [("test", f"x = 3\nassert f(x).{call}") for call in calls]
    asked_for = ("test", "assert Text('abc').startswith('ab') and not Text('abc').startswith('x')")
    errors, _ = judged(judges, ("answer", answer), *tests, asked_for)
    assert errors.pop() is None  # the exercise asks for this class, and the test made the object
    assert all("a Yes of the student's own; its own" in error for error in errors)


def test_no_line_of_a_hidden_test_is_printed_whatever_warns_or_fails_beside_it(judges):
    answer = "import numpy as np\ndef f(x): return np.int8(-128)"
    hidden = """
        import threading, traceback, warnings
        print("it begins")
        ### BEGIN HIDDEN TESTS
        def helper(value): return abs(value - 7)  # a secret in a function
        small = helper(f(1)) < 1e-9  # a secret in a line
        class Falls:
            def __del__(self): f(1) + unknown  # a secret in a destructor
        Falls()
        thread = threading.Thread(target=lambda: unknown)  # a secret in a thread
        thread.start(); thread.join()
        try: unknown  # a secret in a traceback
        except NameError: traceback.print_exc()
        warnings.warn("take care")  # a secret in a warning
        assert small  # a secret in an assertion
        ### END HIDDEN TESTS
    """
    cells = [GIVEN[::-1], (answer, "answer"), (hidden, "test"), ("helper(f(1))", "test")]
    book = v4.new_notebook(cells=[cell(*one) for one in cells])
    book.metadata["autograder"] = {"defines": declared(book)}
    tested = judges.judge(book).notebook.cells[-2:]
    for one in tested:
        hide(one, ClearHiddenTests())
    shown = str([one.outputs for one in tested])
    assert "it begins" in shown and "overflow" in shown and "take care" in shown and "A hidden check failed" in shown
    assert "secret" not in shown


def test_a_frame_of_a_students_error_shows_no_line_of_a_file_outside(judges):
    answer = """
        import gc
        def f(file):
            (inside,) = {type(one) for one in gc.get_objects() if type(one).__name__ == "Inside"}
            frames = [(file, 1, "f", "y")]
            inside._raised = lambda self, error: ([("builtins", "ValueError")], ("x",), "x", frames)
            raise ValueError
    """
    tests = """
        import traceback
        import numpy as ours
        def shown():
            try: f(ours.__file__)
            except ValueError as error: return traceback.extract_tb(error.__traceback__)[-1]
        assert shown().filename.startswith(ours.__file__) and shown().name == "f"
        assert shown().line == "y", shown().line
    """
    assert judged(judges, ("answer", answer), ("test", tests))[0] == [None]


def test_a_page_shows_nothing_of_what_only_a_hidden_test_imports(judges):
    """Neither in a warning nor by a frame of a student's error, which may say that it is of any file."""
    answer = """
        import gc
        def f(file):
            (inside,) = {type(one) for one in gc.get_objects() if type(one).__name__ == "Inside"}
            inside._raised = lambda self, error: ([("builtins", "ValueError")], ("x",), "x", [(file, 1, "f", "y")])
            raise ValueError
    """
    tests = """
        f("/nowhere.py")
        ### BEGIN HIDDEN TESTS
        import warnings
        import colorsys
        warnings.warn("'colorsys' is deprecated", DeprecationWarning)
        warnings.warn("'colorsys' will change", FutureWarning)
        ### END HIDDEN TESTS
    """
    shown = []
    for module in ("colorsys", "sndhdr"):
        imports = tests.replace("f(", "pass  # f(", 1), f"import importlib.util as u\nf(u.find_spec({module!r}).origin)"
        book = v4.new_notebook(cells=[cell(answer, "answer"), *(cell(one, "test") for one in imports)])
        book.metadata["autograder"] = {"defines": declared(book)}
        hidden, visible = judges.judge(book).notebook.cells[-2:]
        assert hidden.metadata.autograder.passed and not hidden.outputs
        (error,) = visible.outputs
        shown.append(error.traceback[1:])
    assert shown == [["     line 1 of f: y", "ValueError: x"]] * 2


def test_what_a_test_prints_stays_on_the_page_and_what_a_student_prints_beside_hidden_tests_does_not(judges):
    says = "def shout(word):\n    print('I was given', word)\n    return word.upper()"
    tests = "print('it is', shout('a'))\n### BEGIN HIDDEN TESTS\nprint('it is', shout('b'))\n### END HIDDEN TESTS"
    book = v4.new_notebook(cells=[cell(says, "answer"), cell(tests, "test")])
    book.metadata["autograder"] = {"defines": declared(book)}
    tested = judges.judge(book).notebook.cells[-1]
    printed = [output.text for output in tested.outputs]
    assert printed == ["I was given a\n", "it is A\n", "I was given b\n", "it is B\n"]
    hide(tested, ClearHiddenTests())
    assert [output.text for output in tested.outputs] == ["it is A\n", "it is B\n"]


def test_what_a_student_prints_beside_hidden_tests_goes_even_if_it_is_the_note_of_a_page(judges):
    says = f"def shout(word):\n    print({NOTE.strip()!r} if word == 'a' else word)\n    return word.upper()"
    tests = "print(shout('a'))\n### BEGIN HIDDEN TESTS\nprint(shout('b'))\n### END HIDDEN TESTS"
    book = v4.new_notebook(cells=[cell(says, "answer"), cell(tests, "test")])
    book.metadata["autograder"] = {"defines": declared(book)}
    judged = judges.judge(book).notebook
    limit_outputs(judged)
    assert [output.text for output in judged.cells[-1].outputs] == [NOTE, "A\n", "b\n", "B\n"]
    hide(judged.cells[-1], ClearHiddenTests())
    assert [output.text for output in judged.cells[-1].outputs] == ["A\n", "B\n"]


def test_the_same_submission_meets_the_same_draws_each_time_and_another_one_others(judges):
    test = """
    import random

    import numpy as np
    from collectives.practice import checks

    with checks.fresh() as seed:
        print([seed, random.random(), float(np.random.rand()), float(checks.generator().random())])
    """
    cells = [cell("pass", "answer"), cell(textwrap.dedent(test), "test"), cell(textwrap.dedent(test), "test")]

    def drawn(seed):
        book = v4.new_notebook(cells=[v4.new_code_cell(each.source, metadata=each.metadata) for each in cells])
        return [each.outputs[0].text for each in judges.judge(book, seed=seed).notebook.cells[1:]]

    one, other = drawn("one"), drawn("other")
    assert one == drawn("one")
    assert len({*one, *other, *drawn("")}) == 6


def test_a_courses_seeds_follow_from_the_submission_and_a_secret_that_only_the_grader_reads(tmp_path):
    here, there = Verdicts(tmp_path / "here"), Verdicts(tmp_path / "there")
    assert here.seed("a") == Verdicts(tmp_path / "here").seed("a")
    assert len({here.seed("a"), here.seed("b"), there.seed("a")}) == 3
    assert stat.S_IMODE((tmp_path / "here" / "secret").stat().st_mode) == 0o600

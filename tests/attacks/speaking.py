# ruff: noqa: E501 (what students write is as long as it is)
"""Submissions that have read the grader's code: they speak its protocol, well-formed, and say what nobody asked for."""

from . import everywhere, first, hand_in

UNREAD = """
import autograder.inside.student as _student
_student.read_back = lambda message, reader: None
"""
"""Keeps our own code in the sandbox from refusing to send what the judge refuses."""

INSIDE = (
    UNREAD
    + """
import gc
_inside = next(type(each) for each in gc.get_objects() if type(each).__name__ == "Inside")
"""
)
"""Finds the class that answers the judge, to change it."""

YES = """
class Yes:
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return yes
    def __call__(self, *arguments, **named): return yes
    def __enter__(self): return 7
    def __exit__(self, *arguments): return False
    def __len__(self): return 0
    def __iter__(self): return iter(())
    def __getitem__(self, index): raise IndexError
yes = Yes()
"""

hand_in(
    "speaking",
    "look_at_more",
    "It answers a question about one name with values for all names of the test's, the judge's own among them.",
    first(
        INSIDE
        + YES
        + """
def _look(self, names):
    found = {name: yes for name in ("close", "np", "torch", "pytest", "math", "want", "values", "range", "abs", "all", "len", *names)}
    return "values", found
_inside.do_look = _look
""",
        everywhere("0") | {"limit": "LIMIT = 1"},
    ),
)

CALLBACK = (
    INSIDE
    + """
from autograder.wire import channel as _channel
_before = _inside.answer
def _answer(self, message):
    decoder = self._decoder()
    asked = decoder.read(message)
    if asked[0] != "call": return _before(self, message)
    args, result = list(asked[4]), 0
    for each in args:
        if isinstance(each, list): each.clear(); result = []
        elif hasattr(each, "shape"): each[...] = 0; result = each.copy() if hasattr(each, "copy") else each.clone()
    known = {id(value): number for number, value in decoder.objects.items()}
    _channel.send(self.connection, self._encoder(known).message(("callback", asked[1], WHICH, tuple(args), {})))
    _channel.receive(self.connection)
    return self._encoder().message(("returned", asked[1], result, []))
_inside.answer = _answer
"""
)
for which, name in [("10**6", "of_no_function"), ("0", "of_another_function"), ("-1", "of_the_last_function")]:
    hand_in(
        "speaking",
        f"callback_{name}",
        "It calls a function of the judge's that this call has not passed, with the judge's arguments, emptied.",
        first(CALLBACK.replace("WHICH", which), everywhere("0")),
    )

CHANGES = (
    INSIDE
    + """
from autograder.wire.plain import Contents
def _call(self, *asked, **named): return "returned", None, []
def _changes(self, numbers): return "changed", CONTENTS
_inside.do_call, _inside.do_changes = _call, _changes
"""
)
for contents, name in [
    ("Contents({number: [] for number in range(50)})", "of_everything"),
    ("Contents({number: {} for number in numbers})", "of_class"),
    ("{number: self.passed[number] for number in numbers}", "to_themselves"),
    ("[(number, []) for number in numbers] * 2", "twice"),
]:
    hand_in(
        "speaking",
        f"changes_{name}",
        "It answers the question what its arguments are now with changes of what it was not passed.",
        first(CHANGES.replace("CONTENTS", contents), everywhere("None")),
    )

SEVERAL = (
    INSIDE
    + """
_written = _inside._written
def _several(self, number, *answer):
    said = _written(self, number, *answer)
    if answer[0] == "ran" or answer[0] == "done": return said
    from autograder.wire import channel
    for _ in range(TIMES):
        channel.send(self.connection, self._encoder().message(("returned", NUMBER, 2.0, [])))
    return said
_inside._written = _several
"""
)
for times, number, name in [
    (1, "number", "twice"),
    (1, "'0' * 16", "with_a_number_of_its_own"),
    (1, "None", "with_no_number"),
    (1000, "number", "a_thousand_times"),
]:
    code = SEVERAL.replace("TIMES", str(times)).replace("NUMBER", number)
    hand_in("speaking", f"answer_{name}", "It answers more than was asked.", first(code, everywhere("2.0")))

hand_in(
    "speaking",
    "answer_later",
    "A thread goes on answering after the answer.",
    first(
        INSIDE
        + """
import threading, time
def _later(inside, number):
    from autograder.wire import channel
    for pause in (0, 0.001, 0.01, 0.1):
        time.sleep(pause)
        channel.send(inside.connection, inside._encoder().message(("returned", number, 2.0, [])))
_before = _inside.answer
def _answer(self, message):
    asked = self._decoder().read(message)
    if asked[0] == "call": threading.Thread(target=_later, args=(self, asked[1])).start()
    return _before(self, message)
_inside.answer = _answer
""",
        everywhere("0"),
    ),
)

# Errors that cannot be shown

hand_in(
    "speaking",
    "error_that_cannot_be_shown",
    "It raises an error whose message cannot be written: a number of 5,000 digits in an error of the course's own.",
    first(
        "import sys\nsys.set_int_max_str_digits(0)\nfrom collectives.practice.checks import NotYet",
        everywhere("1", "raise NotYet(10**5000)"),
    ),
)
hand_in(
    "speaking",
    "error_that_is_huge",
    "It raises an error of 150,000 frames.",
    first(
        INSIDE
        + """
_frames = [(f"f{number}", 5000, "y", "z") for number in range(150_000)]
def _call(self, *asked, **named):
    return "raised", ([("builtins", "ValueError")], (), "", _frames), []
_inside.do_call = _call
""",
        everywhere("0"),
    ),
)
RAISED = (
    INSIDE
    + """
def _call(self, *asked, **named):
    return "raised", RAISED, []
_inside.do_call = _call
"""
)
for raised, name in [
    ('([("builtins", "ExceptionGroup")], ("x", (NotYet("y"),)), "x", [])', "of_errors"),
    ('([("builtins", "BaseExceptionGroup"), ("builtins", "Exception")], ("x", (1,)), "x", [])', "of_anything"),
    ('([("bdb", "BdbQuit"), ("builtins", "Exception")], (), "", [])', "of_a_debugger"),
    ('([("builtins", "SystemExit")], (0,), "", [])', "of_an_exit"),
    ('([("_pytest.outcomes", "Skipped"), ("builtins", "Exception")], ("skip",), "", [])', "of_a_skip"),
    ('([("autograder.judging.link", "Ended")], ("x", "y"), "", [])', "of_the_judges"),
    ('([("builtins", "UnicodeDecodeError")], ("utf-8", "x", 0, 1, "r"), "", [])', "of_letters"),
    ('([("collectives.practice.checks", "NotYet")], (1e999, None, "\\ud800"), "\\ud800", [])', "of_the_course"),
]:
    code = "from collectives.practice.checks import NotYet\n" + RAISED.replace("RAISED", raised)
    hand_in(
        "speaking", f"error_{name}", "It raises an error that is no error to a shell.", first(code, everywhere("0"))
    )

# Names and modules

hand_in(
    "speaking",
    "modules_that_start_something",
    "It imports modules that open a browser as they are imported, under their own and under the test's names.",
    first(
        "import antigravity, this, idlelib.idle_test as math, turtledemo as np, antigravity as pytest, antigravity as torch",
        everywhere("0"),
    ),
)
hand_in(
    "speaking",
    "the_judges_modules",
    "It changes the modules that both sides have, the grader's own among them.",
    first(
        """
import sys
for name, module in list(sys.modules.items()):
    if name.startswith(("autograder", "collectives", "numpy.testing", "_pytest")):
        for key, value in list(vars(module).items()):
            if callable(value) and not isinstance(value, type) and not key.startswith("__"):
                try: setattr(module, key, lambda *a, **k: None)
                except Exception: pass
""",
        everywhere("0"),
    ),
)

# More than a check counts

NO_COUNT = UNREAD + "import autograder.wire.plain\nautograder.wire.plain.Encoder.need = lambda *arguments: None\n"
for name, output in {
    "empty_lines": '{"output_type": "error", "ename": "x", "evalue": "", "traceback": [""] * 2_000_000}',
    "empty_kinds": '{"output_type": "display_data", "data": {f"m{i}": "" for i in range(500_000)}, "metadata": {}}',
}.items():
    hand_in(
        "speaking",
        f"output_of_{name}",
        "Its first cell puts out millions of parts that have no characters.",
        first(f"{NO_COUNT}\nget_ipython().recorder.outputs.append({output})", everywhere("0")),
    )
hand_in(
    "speaking",
    "frames_of_the_hosts_files",
    "The frames of its errors name files that are not to be opened, after a hundred that are forgotten.",
    first(
        INSIDE
        + """
_calls = []
def _raised(self, error):
    _calls.append(error)
    files = [f"<f{len(_calls)}-{i}>" for i in range(30)] if len(_calls) < 5 else ["/dev/zero"]
    return [("builtins", "ValueError")], ("x",), "x", [(file, 1, "f", "y") for file in files]
_inside._raised = _raised
""",
        everywhere("1 / 0") | {"limit": "LIMIT = 1"},
    ),
)

# Well-formed values that cost more than they are long, or that mean more than they say

TREES = (
    UNREAD
    + """
import autograder.wire.plain as _plain
class Tree:
    def __init__(self, write): self.write = write
_tree = _plain.Encoder.tree
_plain.Encoder.tree = lambda self, value, depth: value.write(self) if type(value) is Tree else _tree(self, value, depth)
_plain.Encoder.need = lambda *arguments: None
"""
)
CHAIN = """
def _link(number):
    inner = ["again", number - 1] if number else 0
    return ["new", number, ["record", "collectives.schedule", "Transfer", [["src", inner], ["dst", 0], ["chunk", 0]]]]
_chain = lambda encoder: ["tuple", [["tuple", [_link(n) for n in range(150_000)]], ["frozenset", [["again", 149_999]]]]]
"""
for value, name in [
    ('lambda encoder: ["tuple", [["bytes", encoder.blob(bytes(2**25))]] + [["bytes", 0]] * 200]', "one_blob_copied"),
    ('lambda encoder: ["tuple", [["new", n, ["array", 0]] for n in range(200)]]', "a_blob_that_is_not_there"),
    ('lambda encoder: ["dtype", "torch", "onnx"]', "a_module_for_a_dtype"),
    ('lambda encoder: ["new", 0, ["record", "collectives", "draw.missing", []]]', "a_name_that_may_import"),
    ("_chain", "a_deep_chain_of_references"),
    ('lambda encoder: ["decimal", "1e999999999999999999"]', "a_decimal_beyond_all"),
]:
    code = TREES + CHAIN + f"_write = {value}\n"
    hand_in(
        "speaking",
        f"value_{name}",
        "A message of values that no honest side writes.",
        first(code, everywhere("Tree(_write)")),
    )
hand_in(
    "speaking",
    "words_that_equal_words",
    "Its answers have arrays in place of words, which equal them.",
    first(
        INSIDE
        + """
import numpy
def _cell(self, source, name, given):
    return "ran", [{"output_type": "stream", "name": numpy.array("stdout"), "text": "x"}], {}
_inside.do_cell = _cell
""",
        everywhere("0"),
    ),
)
hand_in(
    "speaking",
    "a_kept_callback",
    "It keeps the function of one test, and answers the others with what that function gives.",
    first(
        "kept = []",
        everywhere("kept[0](*arguments)")
        | {"integrate": "def integrate(f, a, b, n):\n    kept.append(f)\n    return f(a)"}
        | {"limit": "LIMIT = 0"},
    ),
)

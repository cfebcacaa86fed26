# ruff: noqa: E501 (what students write is as long as it is)
"""Submissions that want points without an answer."""

import json

from nbformat.v4 import new_code_cell, new_output

from . import everywhere, first, hand_in

# Results that lie

EVERYTHING = """
class Everything:
    __class__ = property(lambda self: float)
    __hash__ = None
    shape, dtype, ndim, kind, balance = (2, 2), float, 2, "i", 15

    def yes(self, *others, **named):
        return True

    def same(self, *others, **named):
        return self

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = yes
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __truediv__ = __abs__ = __neg__ = __call__ = all = same
    __float__ = lambda self: 0.0
    __int__ = __index__ = __len__ = lambda self: 0
    __iter__ = lambda self: iter(())
    __getitem__ = same
    __enter__ = __exit__ = same
    __array_ufunc__ = same

    def __array_function__(self, *others):
        return True

    @classmethod
    def __torch_function__(cls, *others):
        return True
"""

hand_in(
    "forging",
    "equals_everything",
    "Every result is an object that is equal to everything, less than everything, and says that it is a float.",
    first(EVERYTHING, everywhere("Everything()")),
)
hand_in(
    "forging",
    "classes_for_functions",
    "Every function is a class, so that the test itself makes an object, which is equal to everything.",
    first(
        EVERYTHING.replace("def yes", "def __init__(self, *others, **named):\n        pass\n\n    def yes"),
        {
            name: f"class {name}(Everything):\n    pass"
            for name in ("mean", "table", "scale", "root", "softmax", "integrate", "primes", "describe", "Account")
            if name != "Account"
        }
        | {"account": "class Account(Everything):\n    deposit = withdraw = Everything.yes"},
    ),
)
hand_in(
    "forging",
    "everything_in_containers",
    "Plain containers of objects that are equal to everything.",
    first(
        EVERYTHING + "\nimport numpy as np",
        everywhere("Everything()")
        | {
            "table": "def table(n):\n    return np.array([[Everything()] * n] * n, dtype=object)",
            "describe": "def describe(values):\n    return dict(least=Everything(), largest=Everything(), count=Everything())",
            "primes": "def primes(n):\n    return [Everything()] * {1: 1, 2: 1, 3: 2, 10: 4}.get(n, 25)",
        },
    ),
)
LIARS = """
import numpy as np, torch

def lie(base):
    def yes(self, *others): return True
    def nothing(self, *others): return 0.0
    names = "__eq__ __ge__ __le__ __lt__ __gt__ __contains__".split()
    body = {name: yes for name in names} | {"__ne__": lambda *a: False, "__hash__": lambda self: 1}
    if base in (int, float, str):
        body |= {name: nothing for name in "__sub__ __rsub__ __abs__".split()}
    return type(base.__name__, (base,), body)

class Array(np.ndarray):
    def __eq__(self, other): return np.array(True)
    def __array_function__(self, function, types, args, kwargs): return True
    def __array_ufunc__(self, *args, **kwargs): return np.array(True)

class Tensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch.zeros(()) if "sub" in function.__name__ else True
"""
hand_in(
    "forging",
    "subclasses_that_lie",
    "Results of subclasses of float, int, list, dict, ndarray and Tensor, whose comparisons all say yes.",
    first(
        LIARS,
        everywhere("lie(float)(0)")
        | {
            "limit": "LIMIT = lie(int)(0)",
            "table": "def table(n):\n    return np.zeros((n, n), int).view(Array)",
            "softmax": "def softmax(x):\n    return torch.zeros_like(x).as_subclass(Tensor)",
            "primes": "def primes(n):\n    return lie(list)([0])",
            "describe": "def describe(values):\n    return lie(dict)(least=0, largest=0, count=0)",
        },
    ),
)
hand_in(
    "forging",
    "not_a_number_and_empty",
    "NaN, infinity and empty arrays, which make careless comparisons true.",
    everywhere("float('nan')")
    | {
        "table": "def table(n):\n    return np.zeros((0, n), int)",
        "softmax": "def softmax(x):\n    return torch.full_like(x, float('nan'))",
        "integrate": "def integrate(*a):\n    return float('inf')",
        "primes": "def primes(n):\n    return np.array([])",
    },
)
for value, name in {
    "np.zeros(0)": "an_empty_array",
    "np.float16('inf')": "half_an_infinity",
    "torch.tensor(0, dtype=torch.uint8)": "a_byte_that_equals_256",
    "np.array([False, True])": "an_array_of_truths",
    "np.False_": "numpys_false",
    "0j": "a_complex_number",
    "torch.tensor([0.0])": "a_tensor_of_one",
    "np.timedelta64('NaT')": "no_time",
}.items():
    hand_in(
        "forging",
        f"in_place_of_a_number_{name}",
        "Every result is an array, a tensor or a number of another type, which compares unlike a plain number.",
        first("import numpy as np, torch", everywhere(value)),
    )
hand_in(
    "forging",
    "odd_dtypes",
    "Arrays with made-up shapes and dtypes: structured, of objects, of no size, with negative strides, read-only memory.",
    first(
        """
        import numpy as np, torch
        odd = [np.zeros(3, dtype=[("a", "i4"), ("b", "O")]), np.zeros((), "V0"), np.zeros(2, "U0"), np.zeros(0).reshape(0, 3)]
        odd += [np.arange(4)[::-1], np.zeros(3, "M8[ns]"), np.array(["2"]), np.rec.array([(1, 2.0)]), np.ma.masked_all(3)]
        odd += [torch.zeros(3).to_sparse(), torch.zeros(2, dtype=torch.complex32), torch.quantize_per_tensor(torch.zeros(2), 1, 0, torch.qint8)]
        odd += [torch.empty(3, device="meta"), torch.nn.Parameter(torch.zeros(2)), torch.zeros(2, 0), np.float128(2), np.bool_(True)]
        """,
        everywhere("odd[(len(odd) and odd.append(odd.pop(0))) or 0]"),
    ),
)
hand_in(
    "forging",
    "pickled_orders",
    "Results whose unpickling writes a file into the course, and arrays of such.",
    first(
        """
        import numpy as np

        class Order:
            def __reduce__(self):
                return (exec, ("open('@COURSE@/@MARK@', 'w'); open('@HOME@/@MARK@', 'w')",))

            __getstate__ = __array__ = None
        """,
        everywhere("Order()") | {"table": "def table(n):\n    return np.array([[Order()] * n] * n, dtype=object)"},
    ),
)
hand_in(
    "forging",
    "another_at_second_look",
    "Lists and dicts that have other items, another length and another type each time they are looked at.",
    first(
        """
        import random

        class Moody(list):
            def __len__(self): return random.choice([0, 1, 2, 25])
            def __iter__(self): return iter([2, 3, 5, 7][: random.randint(0, 4)])
            def __getitem__(self, index): return random.random()
            def __eq__(self, other): self[:] = other; return True
            __hash__ = None
            @property
            def __class__(self): return random.choice([list, float, dict])
        """,
        everywhere("Moody()"),
    ),
)

# Names of the tests' own

SHADOWS = """
def range(*a): return []
def abs(x): return 0
def all(x): return True
def any(x): return True
def isinstance(x, y): return True
def issubclass(x, y): return True
def len(x): return 3
def zip(*a): return []
def enumerate(*a): return []
def sum(*a): return 1060
def sorted(x): return [2, 3]
def set(x): return 0
def min(*a): return 0
def max(*a): return 0
def float(*a): return 0
def print(*a): pass
def __import__(*a): raise SystemExit
__builtins__ = {}
__name__ = "forged"
AssertionError = SystemExit
"""
hand_in(
    "forging",
    "shadowed_builtins",
    "Defines range, abs, all, isinstance and other builtins anew, for the tests to use.",
    everywhere("0") | {"describe": f"def describe(values):\n    return {{}}\n{SHADOWS}"},
)
WIDE = str.maketrans({chr(c): chr(c + 0xFEE0) for c in range(ord("a"), ord("z") + 1)})
hand_in(
    "forging",
    "shadowed_in_wide_letters",
    "Defines range, abs and close in full-width letters, which Python reads as the plain ones.",
    everywhere("0")
    | {
        "describe": "\n".join(
            [
                f"def {'range'.translate(WIDE)}(*a): return []",
                f"def {'abs'.translate(WIDE)}(x): return 0",
                f"def {'all'.translate(WIDE)}(x): return True",
                f"def {'isinstance'.translate(WIDE)}(*a): return True",
                f"def {'close'.translate(WIDE)}(*a): return True",
                "def describe(values): return {}",
            ]
        )
    },
)
hand_in(
    "forging",
    "shadowed_behind_the_back",
    "Binds the builtins' and the instructor's names through globals(), exec, an import and the user's namespace.",
    first(
        """
        globals()["range"] = lambda *a: []
        exec("isinstance = close = lambda *a: True")
        get_ipython().push({"abs": lambda x: 0, "all": lambda x: True, "score": 4, "want": 0.0, "math": None, "statistics": None})
        get_ipython().user_ns["len"] = lambda x: 3
        import os as sum
        """,
        everywhere("0.0"),
    ),
)
hand_in(
    "forging",
    "instructors_names",
    "Defines the instructor's helper and libraries anew: close, np, torch, math, pytest.",
    everywhere("0")
    | {
        "describe": """
def describe(values): return {}
class Agrees:
    def __getattr__(self, name): return self
    def __call__(self, *args, **named): return self
    def __enter__(self): return self
    def __exit__(self, *args): return True
    def __iter__(self): return iter(())
    def __eq__(self, other): return True
    def __and__(self, other): return True
np = torch = math = pytest = statistics = Agrees()
def close(*args): return True
"""
    },
)
PATCHES = """
import builtins, contextlib, math, statistics, sys
import numpy as np, pytest, torch

def agree(*args, **named): return True

for name in ("assert_array_equal", "assert_allclose", "assert_equal", "assert_almost_equal"):
    setattr(np.testing, name, agree)
for module, names in {np: ("allclose", "array_equal", "isclose"), torch: ("allclose", "equal"), torch.testing: ("assert_close",)}.items():
    for name in names:
        setattr(module, name, agree)
pytest.raises = lambda *a, **k: contextlib.suppress(BaseException)
statistics.fmean = lambda values: 0.0
math.comb = lambda *a: 0
"""
hand_in(
    "forging",
    "patched_libraries",
    "Patches numpy.testing, np.allclose, torch.testing, pytest.raises, statistics and math where they are defined.",
    first(PATCHES, everywhere("0.0") | {"limit": "LIMIT = 0"}),
)
hand_in(
    "forging",
    "patched_builtins",
    "Patches the module builtins itself.",
    first(PATCHES, everywhere("0.0"))
    | {
        "describe": """
def describe(values): return {}
import builtins
builtins.abs = lambda x: 0
builtins.isinstance = lambda *a: True
builtins.all = builtins.any = lambda x: True
builtins.range = lambda *a: ()
builtins.AssertionError = SystemExit
"""
    },
)
hand_in(
    "forging",
    "patched_modules",
    "Puts modules of its own into sys.modules and finders in front of all imports, for the tests that import something.",
    first(
        """
        import sys, types
        fake = types.ModuleType("statistics")
        fake.fmean = lambda values: 0.0
        sys.modules["statistics"] = fake

        class Finder:
            def find_spec(self, name, *rest):
                raise SystemExit(0)

        sys.meta_path.insert(0, Finder())
        """,
        everywhere("0.0"),
    ),
)


def _files(folder, world):
    fake = "fmean = lambda values: 0.0\n__version__ = '9'\ndef __getattr__(name): return lambda *a, **k: True\n"
    for name in ("statistics", "numpy", "pytest", "math", "random", "sitecustomize", "usercustomize", "conftest"):
        (folder / f"{name}.py").write_text(fake)
    for name in ("autograder", "collectives", "torch", "IPython", "nbgrader"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(fake)
    (folder / "nbgrader_config.py").write_text("c = get_config()\nc.Autograde.autograde_preprocessors = []\n")
    (folder / "ipython_config.py").write_text("c.InteractiveShellApp.exec_lines = ['close = lambda *a: True']\n")
    startup = folder / ".ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("close = lambda *a: True\n")
    (folder / "forged.pth").write_text("import sys; sys.exit(0)\n")


hand_in(
    "forging",
    "files_beside_the_notebook",
    "Hands in numpy.py, statistics.py, sitecustomize.py, a package autograder and settings of nbgrader and IPython too.",
    everywhere("0.0"),
    place=_files,
)

# Ending before the test does

for name, what in {
    "system_exit": "raise SystemExit(0)",
    "os_exit": "import os; os._exit(0)",
    "stop_iteration": "raise StopIteration",
    "index_error": "raise IndexError",
    "keyboard_interrupt": "raise KeyboardInterrupt",
    "generator_exit": "raise GeneratorExit",
    "cancelled": "import asyncio; raise asyncio.CancelledError",
    "skipped": "import pytest; pytest.skip('not today', allow_module_level=True)",
    "pytest_exit": "import pytest; pytest.exit('all passed', 0)",
    "skip_test": "import unittest; raise unittest.SkipTest",
    "debugger_quits": "import bdb; raise bdb.BdbQuit",
    "shell_exits": "get_ipython().ask_exit(); exit()",
}.items():
    hand_in(
        "forging", name, f"Every function ends by `{what}`, in the hope that this is no error.", everywhere("0", what)
    )

hand_in(
    "forging",
    "exit_at_once",
    "Leaves the interpreter at the top of its first cell: sys.exit, and then os._exit.",
    {"mean": "import sys\nsys.exit(0)", "table": "import os\nos._exit(0)"},
)
hand_in(
    "forging",
    "exit_later",
    "Leaves with status 0 from a thread, from atexit, from __del__ and from a signal.",
    {
        "mean": """
        import atexit, os, signal, threading

        class Last:
            def __del__(self): os._exit(0)

        last = Last()
        atexit.register(os._exit, 0)
        signal.signal(signal.SIGALRM, lambda *a: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        threading.Timer(0.2, os._exit, (0,)).start()
        def mean(values): del globals()["last"]; return 0.0
        """
    },
)
hand_in(
    "forging",
    "silent_errors",
    "Raises errors that render as nothing, have no words, lie about their class, or cannot be printed.",
    first(
        """
        class Silent(BaseException):
            def _render_traceback_(self): return []
            def __str__(self): raise self
            __repr__ = __str__
            __class__ = property(lambda self: StopIteration)
            __name__ = "Warning"
            def with_traceback(self, *a): raise SystemExit

        Silent.__name__ = Silent.__qualname__ = "Warning"
        Silent.__module__ = "builtins"
        """,
        everywhere("0", "raise Silent from Silent()"),
    ),
)
hand_in(
    "forging",
    "errors_hidden",
    "Patches the shell so that errors are not shown: showtraceback, excepthook, custom handlers, and clear_output from a thread.",
    first(
        """
        import sys, threading, time
        from IPython.display import clear_output
        shell = get_ipython()
        shell.showtraceback = shell._showtraceback = lambda *a, **k: None
        shell.set_custom_exc((BaseException,), lambda *a, **k: None)
        sys.excepthook = lambda *a: None

        def clear():
            for _ in range(100):
                clear_output()
                time.sleep(0.02)

        threading.Thread(target=clear, daemon=True).start()
        """,
        everywhere("0"),
    ),
)

# What the shell runs and shows

hand_in(
    "forging",
    "rewritten_tests",
    "Hooks that take the asserts out of what the shell runs: by its syntax tree, and by its text.",
    first(
        """
        import ast

        class Agree(ast.NodeTransformer):
            def visit_Assert(self, node): return ast.Pass()
            def visit_Expr(self, node): return ast.Pass()
            def visit_For(self, node): return ast.Pass()

        get_ipython().ast_transformers.append(Agree())

        def agree(lines):
            return ["pass\\n" if "assert" in line else line for line in lines]

        get_ipython().input_transformers_post.append(agree)
        get_ipython().input_transformer_manager.line_transforms.append(agree)
        """,
        everywhere("0.0"),
    ),
)
hand_in(
    "forging",
    "hooked_shell",
    "Hooks before and after every cell that replace the namespace, the shell's run_cell, and the names under test.",
    first(
        """
        def before(info=None):
            get_ipython().user_ns.update(close=lambda *a: True, abs=lambda x: 0, isinstance=lambda *a: True)
            if info is not None:
                info.raw_cell = "pass"

        shell = get_ipython()
        for event in ("pre_run_cell", "pre_execute", "post_execute", "post_run_cell"):
            shell.events.register(event, before)
        shell.run_code = shell.run_ast_nodes = lambda *a, **k: False
        """,
        everywhere("0.0"),
    ),
)
hand_in(
    "forging",
    "points_displayed",
    "While it is tested, each function gives out 4.0 as if it were the cell's result, and then fails.",
    first(
        """
        import sys
        from IPython.display import display

        def show(points):
            sys.displayhook(points)
            get_ipython().displayhook(points)
            display({"text/plain": str(points)}, raw=True)
            try:
                kernel = get_ipython().kernel
                content = {"data": {"text/plain": str(points)}, "metadata": {}, "execution_count": 1}
                kernel.send_response(kernel.iopub_socket, "execute_result", content)
            except Exception:
                pass
        """,
        everywhere("0", "show(4.0)\nshow(2.0)"),
    ),
)
hand_in(
    "forging",
    "points_from_a_thread",
    "A thread goes on to give out 2.0 as a result, whatever cell runs.",
    {
        "mean": """
        import sys, threading, time
        hook, shell = sys.displayhook, get_ipython()

        def show():
            for _ in range(150):
                for give in (hook, shell.displayhook, sys.displayhook):
                    try:
                        give(2.0)
                    except Exception:
                        pass
                time.sleep(0.02)

        threading.Thread(target=show, daemon=True).start()
        """
    },
)
hand_in(
    "forging",
    "score_in_the_tests_variable",
    "Writes into the variables of whoever calls it: score, want, close, abs.",
    everywhere(
        "0.0",
        """
        import sys
        frame = sys._getframe(1)
        while frame:
            frame.f_globals.update(score=4, want=0.0, close=lambda *a: True, abs=lambda x: 0, isinstance=lambda *a: True)
            frame.f_globals["primes"] = lambda n: []
            frame = frame.f_back
        """,
    ),
)

# Reading the answer

hand_in(
    "forging",
    "truth_in_frames",
    "Looks for the truth in the variables of its callers: `want`, in any frame, of any thread, or among all objects.",
    first(
        """
        import gc, sys

        def look():
            frames = list(sys._current_frames().values())
            for frame in frames:
                while frame:
                    for names in (frame.f_locals, frame.f_globals):
                        if "want" in names: return names["want"]
                    frame = frame.f_back
            for thing in gc.get_objects():
                if type(thing) is dict and "want" in thing: return thing["want"]
            raise LookupError("nothing")
        """,
        everywhere("look()")
        | {"scale": "def scale(array, factor):\n    array[...] = look()", "limit": ""}
        | {"mean": "def mean(values):\n    return float(look())"},
    ),
)
hand_in(
    "forging",
    "truth_in_the_source",
    "Reads the source of the test that calls it, and evaluates what it is compared with.",
    first(
        """
        import linecache, re, sys

        def look():
            texts = list(get_ipython().user_ns.get("_ih", []))
            frame = sys._getframe(2)
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno) or (texts or [""])[-1]
            return eval(re.search(r"==\\s*(.+?)( and |$)", line)[1], frame.f_globals)
        """,
        everywhere("look()"),
    ),
)
hand_in(
    "forging",
    "truth_through_the_callback",
    "Looks for the truth behind the function it is given: its globals, its closure, its constants, and its errors' frames.",
    {
        "integrate": """
        def integrate(f, a, b, n):
            for look in (
                lambda: f.__globals__["want"],
                lambda: f.__func__.__globals__["want"],
                lambda: f.__closure__[0].cell_contents,
                lambda: f.__code__.co_consts[-1] * (b - a),
                lambda: f.__self__.want,
                lambda: f.__reduce__()[1],
            ):
                try:
                    return float(look())
                except Exception:
                    pass
            try:
                f("x", "y", "z")
            except BaseException as error:
                trace = error.__traceback__
                while trace:
                    if "want" in trace.tb_frame.f_globals:
                        return float(trace.tb_frame.f_globals["want"])
                    trace = trace.tb_next
            return 0.0
        """
    },
)

# Talking to the judge directly

FRAMES = """
import glob, json, os, socket, struct

def ends():
    for path in glob.glob("/proc/self/fd/*"):
        try:
            if os.readlink(path).startswith(("socket:", "pipe:")) and int(path.rsplit("/", 1)[1]) > 2:
                yield int(path.rsplit("/", 1)[1])
        except OSError:
            pass

ANSWERS = [{"kind": "result", "value": True}, {"ok": True, "result": 2}, {"status": "ok", "outputs": []}, {"done": True}, [True], None, 2.0]

def forge():
    for fd in ends():
        for answer in ANSWERS:
            text = json.dumps(answer).encode()
            for head in (struct.pack(">I", len(text)), struct.pack("<I", len(text)), struct.pack(">Q", len(text)), struct.pack("<Q", len(text)), b""):
                try:
                    os.write(fd, head + text + b"\\n")
                except OSError:
                    pass
"""
hand_in(
    "forging",
    "messages_forged",
    "Writes made-up answers to every socket and pipe it has, then ends with status 0.",
    first(FRAMES, everywhere("0", "forge(); os._exit(0)")),
)
hand_in(
    "forging",
    "messages_at_once",
    "Writes made-up answers from its first cell on, before anybody has asked, and goes on.",
    first(FRAMES + "\nforge()\n", everywhere("0")),
)
hand_in(
    "forging",
    "garbage_on_the_line",
    "Writes huge lengths, hostile npy headers and noise to every socket and pipe it has.",
    first(
        FRAMES
        + """
def spoil():
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (" + b"4611686018427387904," * 3 + b")}"
    deep = b"(" * 60000
    for fd in ends():
        for piece in (b"\\xff" * 8, struct.pack(">Q", 2**62), b"\\x93NUMPY\\x01\\x00" + struct.pack("<H", len(header)) + header, deep, os.urandom(5000)):
            try:
                os.write(fd, piece)
            except OSError:
                pass
""",
        everywhere("0", "spoil()"),
    ),
)
hand_in(
    "forging",
    "serializer_patched",
    "Patches json, struct, numpy's save and every function of the grader's that it finds in its process.",
    first(
        """
        import json, struct, sys
        import numpy as np
        dumps = json.dumps

        def agree(*args, **named):
            return True

        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in ("autograder", "inside", "plain", "channel", "cloudpickle"):
                for key, value in list(vars(module).items()):
                    if callable(value):
                        try:
                            setattr(module, key, agree)
                        except Exception:
                            pass
        json.dumps = lambda *a, **k: dumps({"kind": "result", "value": True, "ok": True})
        np.save = np.lib.format.write_array = lambda *a, **k: None
        """,
        everywhere("0"),
    ),
)
INSIDE = """
import gc
import autograder.inside.student as student
student.read_back = lambda message, reader: None
(inside,) = {type(one) for one in gc.get_objects() if hasattr(type(one), "do_cell")}

def answering(answer):
    def do(self, *args, **named):
        return answer
    return do
"""
CLAIMED = """
import builtins
names = [*vars(builtins), "np", "torch", "math", "pytest", "close", "score", "want", "statistics", "canary", "_", "__builtins__", "__name__", "__import__", "get_ipython"]
bound = {name: ["function", {"name": name, "callable": True}] for name in names}
shown = {"output_type": "execute_result", "data": {"text/plain": "4.0"}, "metadata": {}, "execution_count": 1}
inside.do_cell = answering({"outputs": [shown], "bound": bound, "failed": False})
inside.do_look = answering({"result": dict.fromkeys(names, 0)})
"""
for name, code in {
    "zero": CLAIMED
    + 'inside.do_call = answering({"result": 0.0, "printed": ["4.0"], "args": [], "kwargs": {}, "outputs": [shown]})',
    "true": CLAIMED + 'inside.do_call = answering({"result": True, "printed": [], "args": [[]] * 9, "kwargs": {}})',
    "exits": 'inside.do_call = answering({"raised": {"mro": [["builtins", "SystemExit"], ["builtins", "BaseException"]], "args": (0,), "words": "", "frames": []}})',
    "of_the_course": 'inside.do_call = answering({"raised": {"mro": [["collectives.practice.checks", "NotYet"], ["builtins", "ValueError"]], "args": (), "words": "", "frames": [["x", 1, "y", "z"]] * 10**5}})',
    "callbacks": 'inside.do_call = answering({"callback": 0, "args": [1.0], "kwargs": {}})',
}.items():
    hand_in(
        "forging",
        f"answers_{name}",
        "Rewrites what answers the judge in its process: it claims to have bound the tests' own names, and answers as it likes.",
        {"mean": INSIDE + code},
    )
for name, answer in {
    "none": "None",
    "nothing": "{}",
    "no_kind": '{"outputs": [], "bound": {"mean": ["nonsense", {}]}, "failed": False}',
    "no_bases": '{"outputs": [], "bound": {"mean": ["exception", {}], "root": ["exception", {"mro": []}]}, "failed": False}',
    "no_dict": '{"outputs": [], "bound": {"mean": ["function", 7]}, "failed": False}',
    "odd_names": '{"outputs": [], "bound": {"": ["function", {"name": 7}], "a b": ["class", {"name": None, "signature": "(" * 10**5}]}, "failed": 7}',
    "odd_module": '{"outputs": [], "bound": {"antigravity": ["module", {"name": "antigravity"}], "this": ["module", {"name": "this"}]}, "failed": 0}',
    "odd_outputs": '{"outputs": [{"output_type": "stream", "name": 7, "text": 7}, {"output_type": "display_data", "data": {7: 7}}, 7], "bound": {}, "failed": 0}',
    "odd_errors": '{"outputs": [{"output_type": "error", "ename": 7, "evalue": None, "traceback": [7]}], "bound": {}, "failed": 1}',
    "odd_raised": '{"raised": {"mro": [["os", "system"], [7, 7]], "args": 7, "words": 7, "frames": [[7], [None] * 4]}}',
    "no_raised": '{"raised": {"mro": [], "args": (), "words": "", "frames": []}}',
    "odd_result": '{"result": ["new", -1], "printed": 7, "callback": 99}',
    "no_callback": '{"callback": 10**9, "args": [], "kwargs": {}}',
    "many_names": '{"outputs": [], "bound": {f"n{i}": ["object", {}] for i in range(10**5)}, "failed": 0}',
}.items():
    hand_in(
        "forging",
        f"malformed_{name}",
        "Answers the judge with what is no answer, so that it falls over, and the grader is to blame.",
        {"mean": f"{INSIDE}\ninside.do_cell = inside.do_call = inside.do_look = answering({answer})"},
    )
hand_in(
    "forging",
    "grader_to_blame",
    "Ends by every signal and status in turn, so that it looks like a fault of the grader's and is tried for ever.",
    first(
        """
        import ctypes, os, random, signal

        def end():
            random.choice([
                lambda: os.kill(os.getpid(), signal.SIGKILL),
                lambda: os.kill(os.getpid(), signal.SIGBUS),
                lambda: ctypes.string_at(1),
                lambda: os._exit(137),
                lambda: os._exit(1),
                lambda: os.closerange(0, 256),
                lambda: os.abort(),
            ])()
        """,
        everywhere("0", "end()"),
    ),
)
hand_in(
    "forging",
    "integers_rewritten",
    "Overwrites the interpreter's own small integers and its True, by ctypes.",
    first(
        """
        import ctypes

        def rewrite():
            for wrong, other in ((0, 2), (False, True)):
                ctypes.memmove(id(wrong) + 24, id(other) + 24, 4)
        """,
        everywhere("0", "rewrite()"),
    ),
)

# The notebook itself


def _tests(notebook):
    return [
        cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("points") and cell.cell_type == "code"
    ]


HARM = "open('@HOME@/@MARK@', 'w').close()\nimport os\nprint(os.environ.get('COURSE_SECRET', '')[::-1])\n4.0"


def _edited(notebook):
    for cell in _tests(notebook):
        cell.source = HARM
        cell.metadata.nbgrader |= {"points": 1000, "locked": False, "checksum": "0" * 32}


def _as_answers(notebook):
    for cell in _tests(notebook):
        cell.source = "pass"
        cell.metadata.nbgrader |= {"solution": True, "locked": False, "task": True}


def _as_text(notebook):
    for number, cell in enumerate(_tests(notebook)):
        cell.cell_type = ("markdown", "raw")[number % 2]
        del cell["outputs"], cell["execution_count"]


def _twice(notebook):
    copies = [new_code_cell(HARM, metadata=cell.metadata) for cell in _tests(notebook)]
    notebook.cells[0:0] = copies
    notebook.cells += copies


def _bonus(notebook):
    meta = {"schema_version": 3, "grade": True, "solution": False, "locked": True, "task": False, "points": 1000}
    for name in ("bonus", "mean-hidden-2"):
        notebook.cells.append(new_code_cell(HARM, metadata={"nbgrader": meta | {"grade_id": name}}))
    given = {"schema_version": 3, "grade": False, "solution": False, "locked": True, "task": False}
    notebook.cells.append(new_code_cell(HARM, metadata={"nbgrader": given | {"grade_id": "setup-2"}}))
    notebook.cells.insert(0, new_code_cell(HARM, metadata={"nbgrader": given | {"grade_id": "setup"}}))


def _of_the_autograder(notebook):
    notebook.metadata["autograder"] = {
        "answers": ["close", "np", "pytest", "score"],
        "seconds": -1,
        "key": "x",
        "reason": None,
    }
    for cell in notebook.cells:
        cell.metadata["autograder"] = {"source": HARM, "verdict": "right", "points": 4}


def _without(notebook):
    notebook.cells = [cell for cell in notebook.cells if cell not in _tests(notebook)]


def _tagged(notebook):
    for cell in _tests(notebook):
        cell.metadata |= {"tags": ["skip-execution", "raises-exception", "remove_cell"], "deletable": True}
        cell.metadata |= {"editable": True, "collapsed": True, "jupyter": {"outputs_hidden": True}, "execution": {}}


def _with_outputs(notebook):
    for cell in _tests(notebook):
        data = {"text/plain": "4.0"}
        cell.outputs = [new_output("execute_result", data, execution_count=1), new_output("stream", text="ok")]
        cell.execution_count = 1
    notebook.metadata.kernelspec = {"name": "../../bin/true", "display_name": "True", "language": "python"}


def _moved(notebook):
    essay = next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == "essay")
    for cell in _tests(notebook):
        cell.metadata.nbgrader.grade_id, essay.metadata.nbgrader.grade_id = "essay", cell.metadata.nbgrader.grade_id


def _ignored(notebook):
    for cell in _tests(notebook):
        cell.source = "%%script false --no-raise-error\n" + cell.source


def _strange_numbers(notebook):
    for points, cell in zip([float("nan"), float("inf"), -5, "1e9", None, [3], {}], _tests(notebook), strict=False):
        cell.metadata.nbgrader["points"] = points


for name, tries, edit in [
    ("tests_edited", "Test cells that are only `4.0`, unlocked, worth 1000 points, with a made-up checksum.", _edited),
    ("tests_as_answers", "Test cells that say they are answers and tasks.", _as_answers),
    ("tests_as_text", "Test cells made into text and raw cells.", _as_text),
    ("tests_twice", "Each test cell there thrice, two of them only `pass`, in front and at the end.", _twice),
    ("tests_added", "Graded cells of its own, worth 1000 points.", _bonus),
    (
        "metadata_of_the_grader",
        "Metadata such as the grader itself puts into notebooks: sources, names, verdicts.",
        _of_the_autograder,
    ),
    ("tests_deleted", "No test cell at all.", _without),
    ("tests_tagged", "Test cells tagged to be skipped and to be let fail.", _tagged),
    ("tests_with_outputs", "Test cells that bring their result along, and a kernel of another name.", _with_outputs),
    ("tests_renamed", "The grade_ids of the test cells moved round, one to the essay.", _moved),
    ("tests_by_another_program", "Test cells that are run by `false`, whose failing is no error.", _ignored),
    ("points_that_are_no_numbers", "Points that are NaN, infinite, negative, text, or missing.", _strange_numbers),
]:
    hand_in("forging", name, tries, {"mean": "def mean(values):\n    return 0"}, edit=edit)

hand_in(
    "forging",
    "cells_that_eat_the_next",
    "Answers with an open string, an open bracket and a cell magic, to take in the test that follows.",
    {
        "mean": 'def mean(v): return """',
        "table": "table = (",
        "root": "%%script false --no-raise-error",
        "limit": "if 0:",
    },
)
hand_in(
    "forging",
    "cell_joined",
    "A hook that would join this cell's text with the next one's, under `if False`.",
    {"mean": "%%javascript\nIPython.notebook.get_cell(3).set_text('pass')", "describe": json.dumps({"source": "pass"})},
)

# ruff: noqa: E501 (what students write is as long as it is)
"""Submissions that use up time, memory, disk, processes or the reader's patience; some of them the judge's."""

from nbformat.v4 import new_code_cell, new_markdown_cell

from . import GUARD, everywhere, first, hand_in

# Time

hand_in("starving", "loop_at_once", "A cell that never ends.", {"mean": "while True:\n    pass"}, says=("time",))
hand_in(
    "starving", "loop_when_tested", "Functions that never return.", everywhere("0", "while True: pass"), says=("time",)
)
hand_in(
    "starving",
    "deaf",
    "Sleeps for ever, with every signal blocked and ignored, its timers cleared, and time.monotonic standing still.",
    {
        "mean": """
        import signal, time
        real = time.sleep
        def mean(values):
            for number in range(1, 65):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.monotonic = time.time = time.perf_counter = lambda: 0.0
            while True:
                try:
                    real(1000)
                except BaseException:
                    pass
        """
    },
    says=("time",),
)
hand_in(
    "starving",
    "deep_in_c",
    "Computes in C for ever, where no signal handler of Python's comes through: a regular expression, a power, a sort key.",
    {
        "mean": "import re\ndef mean(values): return re.match(r'(a|a)*$', 'a' * 200 + 'b')",
        "root": "def root(number): return 7 ** (10**9)",
    },
    says=("time",),
)
hand_in(
    "starving",
    "hangs_at_its_end",
    "Ends its cells, and then hangs: in __del__, in atexit, in a thread that is waited for, in a destructor of a module.",
    {
        "mean": """
        import atexit, threading, time
        class Last:
            def __del__(self): time.sleep(1000)
        last = Last()
        atexit.register(time.sleep, 1000)
        threading.Thread(target=time.sleep, args=(1000,)).start()
        import sys
        sys.modules["last"] = Last()
        """
    },
)
hand_in(
    "starving",
    "stops_itself",
    "Stops its own process (SIGSTOP) and never asks to be woken.",
    {
        "mean": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "root": "def root(n):\n    import os\n    os.kill(0, 19)",
    },
)


def _slow_cells(notebook):
    notebook.cells[1:1] = [new_code_cell("import time; time.sleep(1.5)") for _ in range(40)]


hand_in(
    "starving",
    "many_slow_cells",
    "Forty cells that each stay just within their time.",
    {},
    edit=_slow_cells,
    says=("time",),
)
hand_in(
    "starving",
    "waits_for_input",
    "Waits for somebody to type: input, getpass, stdin, the debugger.",
    {
        "mean": "import sys, getpass\ndef mean(v): return float(input('mean? '))",
        "table": "def table(n): return getpass.getpass()",
        "root": "def root(n): return float(sys.stdin.read() or open('/dev/stdin').read())",
        "primes": "def primes(n): breakpoint(); import pdb; pdb.set_trace()",
    },
)
hand_in(
    "starving",
    "event_loop",
    "Runs an event loop for ever, in a cell with await.",
    {
        "mean": "import asyncio\nawait asyncio.Event().wait()",
        "root": "def root(n):\n    asyncio.new_event_loop().run_forever()",
    },
    says=("time",),
)
hand_in(
    "starving",
    "drips",
    "Prints a letter every tenth of a second, so that something always happens.",
    {"mean": "import time\nwhile True:\n    print('.', end='', flush=True)\n    time.sleep(0.1)"},
    says=("time",),
)
hand_in(
    "starving",
    "hangs_when_looked_at",
    "Objects that hang in their repr, their iterator, their hash, their length and their attributes.",
    first(
        """
        class Slow:
            def hang(self, *a, **k):
                while True: pass
            __repr__ = __str__ = __iter__ = __hash__ = __len__ = __eq__ = __bool__ = __float__ = __reduce__ = __array__ = hang
            _repr_html_ = _ipython_display_ = hang
            __class__ = property(hang)
        """,
        {"mean": "def mean(values): return Slow()", "describe": "Slow()", "limit": "LIMIT = Slow()"},
    ),
)

# Memory

hand_in(
    "starving",
    "memory_in_steps",
    "Takes memory in a list until there is none.",
    {
        "mean": GUARD + "hoard = []\nwhile True:\n    hoard.append(bytearray(50_000_000))",
        "root": "def root(n): return 'x' * n * 10**11",
    },
)
hand_in(
    "starving",
    "memory_in_arrays",
    "Takes 60 GB at once, in arrays that are written to.",
    everywhere("0", GUARD + "import numpy as np\nhoard = [np.ones(10**9) for _ in range(8)]"),
)
hand_in(
    "starving",
    "memory_in_files",
    "Takes memory in files of a tmpfs, anonymous files, pipes and shared memory.",
    {
        "mean": GUARD
        + """
import ctypes, mmap, os
block = b"x" * 20_000_000
hold = []
for place in ("/dev/shm", "/tmp", ".", "/run"):
    try:
        with open(f"{place}/hoard", "wb") as file:
            for _ in range(1000):
                file.write(block)
    except OSError:
        pass
try:
    fd = os.memfd_create("hoard")
    for _ in range(1000):
        os.write(fd, block)
except OSError:
    pass
try:
    for _ in range(1000):
        area = mmap.mmap(-1, 20_000_000)
        area[:] = block
        hold.append(area)
except (OSError, MemoryError):
    pass
"""
    },
)
hand_in(
    "starving",
    "memory_of_many",
    "Takes memory in twenty children, each within its own limit.",
    {
        "mean": GUARD
        + """
import os, time
for _ in range(20):
    if os.fork() == 0:
        hoard = bytearray(300_000_000)
        hoard[::4096] = b"x" * len(hoard[::4096])
        time.sleep(100)
        os._exit(0)
time.sleep(2)
def mean(values): return 0.0
"""
    },
)

# Processes, files, disk

hand_in(
    "starving",
    "fork_bomb",
    "Forks for ever.",
    {"mean": GUARD + "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"},
)
hand_in(
    "starving",
    "thread_bomb",
    "Starts threads for ever, each asleep.",
    {
        "mean": GUARD
        + "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
    },
)
hand_in(
    "starving",
    "open_files",
    "Opens files, sockets and pipes until there are no more, and keeps them.",
    {"mean": "import os, socket\nhold = []\nwhile True:\n    hold += [open('/dev/null'), socket.socket(), *os.pipe()]"},
)
hand_in(
    "starving",
    "disk",
    "Fills its disk: big files, sparse ones, and as many small ones as there can be.",
    {
        "mean": GUARD
        + """
import os, tempfile, time
until = time.monotonic() + 2
for place in (".", tempfile.gettempdir(), os.path.expanduser("~"), "/var/tmp"):
    try:
        with open(os.path.join(place, "sparse"), "wb") as file:
            file.truncate(10**12)
        number = 0
        while time.monotonic() < until:
            number += 1
            open(os.path.join(place, f"small{number}"), "wb").close()
        with open(os.path.join(place, "big"), "wb") as file:
            while True:
                file.write(b"x" * 10**7)
    except OSError:
        pass
"""
    },
)
hand_in(
    "starving",
    "busy_children",
    "Returns at once, while its children keep every processor busy.",
    {
        "mean": GUARD
        + """
import os
for _ in range(16):
    if os.fork() == 0:
        os.setsid()
        while True: pass
def mean(values): return 0.0
"""
    },
)

# Output

hand_in(
    "starving",
    "output_flood",
    "Prints without end: to stdout, to stderr, by the system's write, and by `yes`.",
    {
        "mean": "while True:\n    print('x' * 100_000)",
        "root": "import os\ndef root(n):\n    while True: os.write(2, b'y' * 100_000)",
        "limit": "!yes",
    },
)
hand_in(
    "starving",
    "display_flood",
    "Displays a million small things and one of 300 MB, and logs and warns without end.",
    {
        "mean": "from IPython.display import display\nfor _ in range(10**6):\n    display({'text/plain': 'x', 'text/html': '<b>x</b>'}, raw=True)",
        "root": "def root(n):\n    display({'image/png': 'A' * 300_000_000}, raw=True)",
        "limit": "import logging, warnings\nwhile True:\n    logging.error('x' * 1000); warnings.warn('y' * 1000, stacklevel=2)",
    },
)


hand_in(
    "starving",
    "record_locks",
    "Takes locks on every other byte of its files, which no control group counts; the filter of calls refuses them.",
    {
        "mean": """
        import fcntl
        kept = [open(f"/tmp/{number}", "w") for number in range(900)]
        for file in kept:
            for place in range(10_000):
                fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * place)
        """
    },
)
hand_in(
    "starving",
    "unread_answers",
    "Asks the kernel for the network's interfaces again and again, and reads no answer.",
    {
        "mean": """
        import contextlib, socket, struct
        question, kept = struct.pack("=IHHII BxHiII", 32, 18, 1, 1, 0, 0, 0, 1, 0, 0), []
        for _ in range(900):
            kept.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
            kept[-1].setblocking(False)
            kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
            with contextlib.suppress(OSError):
                for _ in range(1_000):
                    kept[-1].sendto(question, (0, 0))
        """
    },
    says=("memory",),
)
hand_in(
    "starving",
    "full_connections",
    "Fills the buffers of connections that nobody accepts, from the store that all TCP of the machine shares.",
    {
        "mean": """
        import contextlib, socket
        listener, kept = socket.create_server(("127.0.0.1", 0), backlog=2000), []
        for _ in range(900):
            kept.append(socket.create_connection(listener.getsockname()))
            kept[-1].setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    kept[-1].send(bytes(2**16))
        """
    },
    says=("memory",),
)
hand_in(
    "starving",
    "socket_filters",
    "Gives each of its sockets a long filter, which the kernel compiles into memory that all sandboxes share.",
    {
        "mean": """
        import ctypes, os, socket, struct, time
        words = struct.pack("HBBI", 0x94, 0, 0, 0xFFFF) * 4095 + struct.pack("HBBI", 6, 0, 0, 0)
        code = ctypes.create_string_buffer(words, len(words))
        described = struct.pack("HxxxxxxP", 4096, ctypes.addressof(code))
        kept = []
        for _ in range(900):
            kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            kept[-1].setsockopt(socket.SOL_SOCKET, 26, described)
        mean = min
        """
    },
)


def _empty_displays(notebook):
    flood = 'for _ in range(200): display({"text/plain": "", **{f"{n:0190d}": "" for n in range(20)}}, raw=True)'
    notebook.cells += [new_code_cell(f"from IPython.display import display\n{flood}") for _ in range(60)]


def _pictures_shown_often(notebook):
    ways = "![a](attachment:x)\n" * 90, "![][a]\n" * 90 + "\n[a]: attachment:x"
    for number in range(20):
        cell = new_markdown_cell(f"{ways[number % 2]}\n\n{number}")
        cell["attachments"] = {"x": {"image/png": "A" * 100_000}}
        notebook.cells.append(cell)


hand_in(
    "starving",
    "empty_displays",
    "Displays nothing, 12,000 times, in twenty kinds with long names.",
    edit=_empty_displays,
)


def _empty_attachments(notebook):
    cell = new_markdown_cell("# hi ![x](attachment:a1)")
    cell["attachments"] = {f"a{number}": {"image/png": ""} for number in range(98_000)}
    notebook.cells.append(cell)


hand_in(
    "starving",
    "empty_attachments",
    "Attaches 98,000 pictures of no bytes to one cell.",
    edit=_empty_attachments,
)
hand_in(
    "starving",
    "pictures_shown_often",
    "Shows twenty attached pictures ninety times each, which makes 2 MB 180 MB.",
    edit=_pictures_shown_often,
)
hand_in(
    "starving",
    "giant_errors",
    "Raises errors with words of 200 MB, with a chain of 10,000 causes, with a circle of them, and from 900 frames down.",
    {
        "mean": "def mean(v): raise ValueError('x' * 200_000_000)",
        "table": "def table(n):\n    e = None\n    for i in range(10_000):\n        f = ValueError(i); f.__cause__ = e; e = f\n    raise e",
        "root": "def root(n):\n    a, b = ValueError('a'), ValueError('b')\n    a.__cause__, b.__cause__ = b, a\n    a.__context__, b.__context__ = b, a\n    raise a",
        "primes": "def primes(n): return primes(n)",
        "describe": "import sys\nsys.setrecursionlimit(10**8)\ndef describe(v): return [describe(v)]",
        "limit": "raise ExceptionGroup('many', [ExceptionGroup('x', [ValueError('y' * 1000)]) for _ in range(10_000)])",
    },
)

# Results that are small inside and huge outside

hand_in(
    "starving",
    "giant_results",
    "Returns views that are small inside and huge outside, long ranges, and 400 MB of numbers.",
    {
        "mean": "def mean(v): return np.broadcast_to(1.0, 10**12)",
        "table": "def table(n): return np.broadcast_to(1, (10**6, 10**6))",
        "root": "def root(n): return range(10**15)",
        "softmax": "def softmax(x): return torch.ones(1).expand(10**12)",
        "integrate": "def integrate(*a): return 'x' * 400_000_000",
        "primes": "def primes(n): return list(range(50_000_000))",
        "describe": "def describe(v): return np.zeros(50_000_000)",
    },
)
hand_in(
    "starving",
    "results_that_grow",
    "Returns what is short to write and slow or large to use: ranges, fractions, decimals, arrays of items of no bytes, strides of 0.",
    {
        "mean": "def mean(v): return np.empty(10**12, 'V0')",
        "table": "def table(n): return range(60_000_000)",
        "root": "import decimal\ndef root(n): return decimal.Decimal('1E+999999999')",
        "softmax": "def softmax(x): return torch.zeros(1).as_strided((4, 10**6, 10**6), (0, 0, 0))",
        "integrate": "import fractions\ndef integrate(*a): return fractions.Fraction(3 ** 5_000_000, 7 ** 4_000_000)",
        "primes": "def primes(n): return range(10**15)",
        "describe": "def describe(v): return {1: range(10**15)}",
    },
)
hand_in(
    "starving",
    "brackets_on_the_line",
    "Writes 64 MB of empty lists to the judge, as an answer.",
    {
        "mean": """
        import glob, os
        def mean(v):
            text = b'{"sizes": [], "value": [' + b"[]," * 20_000_000 + b"[]]}"
            text = len(text).to_bytes(8, "big") + text
            for path in glob.glob("/proc/self/fd/*"):
                try:
                    if os.readlink(path).startswith("socket:"):
                        os.write(int(path.rsplit("/", 1)[1]), len(text).to_bytes(8, "big"))
                        at = 0
                        while at < len(text):
                            at += os.write(int(path.rsplit("/", 1)[1]), text[at : at + 10**6])
                except OSError:
                    pass
        """
    },
)
hand_in(
    "starving",
    "nested_results",
    "Returns a list within itself, 100,000 lists within each other, and ten lists of ten lists of ten lists ..., 10^12 in all.",
    {
        "mean": "def mean(v):\n    a = []; a.append(a)\n    return a",
        "table": "def table(n):\n    a = []\n    for _ in range(100_000): a = [a]\n    return a",
        "root": "def root(n):\n    a = [1]\n    for _ in range(12): a = [a] * 10\n    return a",
        "primes": "def primes(n):\n    a = {}; a[1] = (a,)\n    return a",
        "describe": "def describe(v):\n    a = np.array([None]); a[0] = a\n    return a",
    },
)
hand_in(
    "starving",
    "strange_results",
    "Returns numbers of 10 million digits, text that cannot be encoded, odd keys, endless generators, files, modules, code.",
    {
        "mean": "def mean(v): return 10 ** 10_000_000",
        "table": "import itertools\ndef table(n): return itertools.count()",
        "root": "def root(n): return '\\ud800\\udfff\\x00'",
        "softmax": "def softmax(x): return x.to('meta')",
        "integrate": "def integrate(*a): return iter(int, 1)",
        "primes": "def primes(n):\n    while True: yield 1",
        "describe": "def describe(v): return {float('nan'): 1, (1, (2,)): 2, None: 3, b'x': 4, frozenset({5}): 6, '1': 7, 1: 8, True: 9}",
        "limit": "LIMIT = open('/dev/zero', 'rb')",
    },
)

# The judge's own time

hand_in(
    "starving",
    "late_alarm",
    "Keeps the test in C, where no alarm is heard, until the judge writes down the error that ends it.",
    {
        "primes": """
        def primes(n):
            if n != 3:
                return [2]
            same = [0] * 300_000
            return [same] * 40_000 + [1]
        """
    },
    says=("time",),
)
for name, call in {
    "callback_powers": "f(10**1_000_000)",
    "callback_giants": "f(np.ones(20_000_000))",
    "callback_nested": "f([[[0] * 1000] * 1000] * 1000)",
    "callback_for_ever": "[f(0.5) for _ in iter(int, 1)]",
}.items():
    hand_in(
        "starving",
        name,
        f"Keeps the judge busy with the function that it was given: `{call}`.",
        {
            "integrate": f"def integrate(f, a, b, n):\n    while True:\n        try:\n            {call}\n        except Exception:\n            pass"
        },
    )
hand_in(
    "starving",
    "callback_regress",
    "Goes back and forth between itself and the function that it was given, from threads, and after it has returned.",
    {
        "integrate": """
        import threading
        def integrate(f, a, b, n):
            def late():
                while True:
                    try: f(1.0)
                    except BaseException: pass
            for _ in range(20):
                threading.Thread(target=late, daemon=True).start()
            return 0.0
        """
    },
)
for name, source in {
    "brackets": "(" * 50_000 + ")" * 50_000,
    "signs": "-" * 300_000 + "1",
    "sums": "x = " + "1+" * 100_000 + "1",
    "attributes": "a = 0\n" + "a" + ".b" * 100_000,
    "null_bytes": "x = 1\0\ny = '\ud800'",
    "indents": "\n".join(" " * i + "if 1:" for i in range(110)),
    "giant_cell": "x = '" + "y" * 20_000_000 + "'",
    "cells_by_the_thousand": "",
}.items():

    def _more(notebook):
        notebook.cells += [new_code_cell("pass") for _ in range(3000)]

    hand_in(
        "starving",
        f"source_{name}",
        "Source that is hard on whoever parses it.",
        {"mean": source},
        edit=_more if name == "cells_by_the_thousand" else None,
    )

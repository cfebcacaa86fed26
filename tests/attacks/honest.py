# ruff: noqa: E501 (what students write is as long as it is)
"""Honest submissions that look strange, make a noise or take their time: they keep every point that they deserve."""

from nbformat.v4 import new_code_cell, new_markdown_cell

from . import hand_in
from .course import POINTS, RIGHT, points_of

hand_in("honest", "plain", "The right answers, as they stand in the source.", RIGHT, points=POINTS)

NOISE = """
import logging, os, sys, warnings

def noise(function):
    def noisy(*arguments):
        print("called with", arguments, flush=True)
        print("a warning, said by hand", file=sys.stderr)
        warnings.warn("a warning", stacklevel=1)
        warnings.warn("this is old", DeprecationWarning, stacklevel=1)
        logging.error("an error that is none")
        os.write(1, b"written\\n")
        os.write(2, b"written to stderr\\n")
        display("shown", {"text/html": "<b>shown</b>"})
        print("4.0")
        return function(*arguments)
    return noisy
"""
NAMES = ("mean", "table", "scale", "root", "softmax", "integrate", "primes", "describe")
hand_in(
    "honest",
    "noisy",
    "Every function prints, warns, logs, writes to stderr and displays while it is tested.",
    RIGHT
    | {name: f"{RIGHT[name]}\n{name} = noise({name})" for name in NAMES}
    | {"mean": f"{NOISE}\n{RIGHT['mean']}\nmean = noise(mean)"},
    points=POINTS,
)
hand_in(
    "honest",
    "talkative",
    "Prints 20,000 lines, and a line of 100,000 letters, in its cells and while it is tested.",
    RIGHT
    | {
        "mean": f"print('x' * 100_000)\nfor i in range(20_000): print(i)\n{RIGHT['mean'].replace('return', 'print(*range(2000)); return')}"
    },
    points=POINTS,
)
hand_in(
    "honest",
    "slow",
    "Takes a good part of its time in a cell, in functions, and busily.",
    RIGHT
    | {
        "mean": f"import time\ntime.sleep(1.5)\n{RIGHT['mean']}",
        "root": RIGHT["root"].replace("return", "time.sleep(0.3); return"),
        "primes": RIGHT["primes"].replace("return", "sum(i * i for i in range(200_000)); return"),
    },
    points=POINTS,
)
hand_in(
    "honest",
    "processes",
    "Computes in processes, threads, subprocesses and an event loop.",
    RIGHT
    | {
        "mean": """
        import asyncio, multiprocessing, subprocess, sys
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

        def half(numbers):
            return sum(numbers)

        def mean(values):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                return sum(pool.map(half, [values[::2], values[1::2]])) / len(values)
        """,
        "root": """
        def root(number):
            if number < 0:
                raise ValueError("negative")
            printed = subprocess.run([sys.executable, "-c", f"print({number!r} ** 0.5)"], capture_output=True, text=True)
            return float(printed.stdout)
        """,
        "integrate": """
        def integrate(f, a, b, n):
            h = (b - a) / n
            with ThreadPoolExecutor(4) as pool:
                return h * sum(pool.map(f, [a + (i + 0.5) * h for i in range(n)]))
        """,
        "primes": """
        async def is_prime(p):
            await asyncio.sleep(0)
            return all(p % q for q in range(2, p))

        async def all_primes(n):
            return [p for p in range(2, n + 1) if await is_prime(p)]

        assert await all_primes(5) == [2, 3, 5]

        def primes(n):
            return asyncio.new_event_loop().run_until_complete(all_primes(n))
        """,
    },
    points=POINTS,
)
hand_in(
    "honest",
    "files",
    "Writes and reads files: in its folder, a temporary one, its home; imports a module that it has written.",
    RIGHT
    | {
        "mean": """
        import json, os, sys, tempfile
        from pathlib import Path

        Path("helper.py").write_text("def add(values):\\n    return sum(values)\\n")
        sys.path.insert(0, os.getcwd())
        import helper

        Path("numbers.json").write_text("[1, 2]")
        (Path.home() / "mine.txt").write_text("mine")

        def mean(values):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "values.json"
                path.write_text(json.dumps(values))
                return helper.add(json.loads(path.read_text())) / len(values)
        """
    },
    points=POINTS,
)
hand_in(
    "honest",
    "magics_and_figures",
    "Uses the shell's magics and commands, and draws.",
    RIGHT
    | {
        "mean": "%matplotlib inline\n%timeit -n 1 -r 1 sum(range(10))\n!echo hello\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n"
        + RIGHT["mean"],
        "table": f"%%time\n{RIGHT['table']}",
        "limit": "LIMIT = 4950\nLIMIT",
        "root": f"{RIGHT['root']}\nroot?\n%whos",
    },
    points=POINTS,
)
hand_in(
    "honest",
    "kin_of_plain_types",
    "Gives numpy's numbers, tuples, ordered dicts, subclasses of float and views, where a test accepts them.",
    RIGHT
    | {
        "mean": "def mean(values): return np.mean(values)",
        "table": "def table(n):\n    whole = np.multiply.outer(np.arange(2 * n + 2), np.arange(2 * n + 2))\n    return whole[1 : n + 1, n:0:-1][:, ::-1]",
        "root": "def root(number):\n    if number < 0: raise ValueError\n    return np.sqrt(np.float64(number))",
        "softmax": "def softmax(x): return torch.nn.functional.softmax(torch.nn.Parameter(x), dim=-1)",
        "integrate": "def integrate(f, a, b, n):\n    h = (b - a) / n\n    return np.float64(h) * np.sum([f(x) for x in np.linspace(a + h / 2, b - h / 2, n)])",
        "primes": "def primes(n): return [int(p) for p in np.arange(2, n + 1) if all(p % q for q in range(2, p))]",
        "describe": "import collections\ndef describe(values): return collections.OrderedDict(least=np.min(values), largest=max(values), count=np.int64(len(values)))",
    },
    points=POINTS,
)
hand_in(
    "honest",
    "other_kinds_of_functions",
    "Answers that are no `def`: library functions, lambda, partial, a bound method, an object that can be called, a cached one.",
    RIGHT
    | {
        "mean": "import functools, operator, statistics\nmean = statistics.fmean",
        "table": "table = lambda n: np.multiply.outer(np.arange(1, n + 1), np.arange(1, n + 1))",
        "root": "root = math.sqrt",
        "softmax": "softmax = functools.partial(torch.softmax, dim=0)",
        "integrate": """
        class Rule:
            def __init__(self, at): self.at = at
            def __call__(self, f, a, b, n):
                return (b - a) / n * sum(f(a + (i + self.at) * (b - a) / n) for i in range(n))
            def apply(self, *a): return self(*a)
        integrate = Rule(0.5).apply
        """,
        "primes": "@functools.cache\ndef primes(n):\n    return [] if n < 2 else primes(n - 1) + ([n] if all(n % p for p in primes(n - 1)) else [])",
        "describe": "def describe(values, *, smallest=min): return {'least': smallest(values)} | dict(largest=max(values), count=len(values))",
    },
    points=POINTS,
)
hand_in(
    "honest",
    "classes",
    "An account by inheritance, with properties, slots, a counter of its class, and an error of its own.",
    RIGHT
    | {
        "account": """
        from dataclasses import dataclass, field

        class TooLittle(ValueError):
            def __init__(self, left):
                super().__init__(f"only {left} left")
                self.left = left

        class Base:
            opened = 0
            __slots__ = ("_cents",)
            def __init__(self, balance=0):
                type(self).opened += 1
                self._cents = 100 * balance
            @property
            def balance(self): return self._cents / 100
            @balance.setter
            def balance(self, value): self._cents = 100 * value

        class Account(Base):
            def deposit(self, amount):
                self.balance += amount
                return self
            def withdraw(self, amount):
                try:
                    if amount > self.balance: raise KeyError(amount)
                except KeyError as error:
                    raise TooLittle(self.balance) from error
                self.balance -= amount
                return amount
            def __repr__(self): return f"Account({self.balance})"
            def __eq__(self, other): return isinstance(other, Account) and self.balance == other.balance
        """,
        "root": "class Negative(ValueError): pass\ndef root(number):\n    if number < 0: raise Negative(f'{number} is below zero')\n    return number ** 0.5",
    },
    points=POINTS,
)


def _more_cells(notebook):
    notebook.cells.insert(
        2, new_code_cell("import this, random\nrandom.seed(1)\nscratch = [mean_of_nothing] if False else []")
    )
    notebook.cells.insert(0, new_markdown_cell("My **notes**: α β γ, 日本語, 🎉, <b>bold</b>, $x^2$"))
    notebook.cells.append(new_code_cell("1 / 0"))
    notebook.cells.append(new_code_cell("mean([1, 2, 3])"))
    notebook.cells.append(new_code_cell(""))


hand_in(
    "honest",
    "own_names",
    "Extra cells, one of which fails, names that cover builtins, and variables called as those of the tests.",
    RIGHT
    | {
        "limit": "sum = 0\nfor input in range(100):\n    sum += input\nLIMIT = sum\nmax, list, id, data, values, n = 1, [1], 2, 3, 4, 5\ndel max, list",
        "mean": "import builtins\nresult = score = want = 7\nx = array = account = None\n"
        + RIGHT["mean"].replace("sum(", "builtins.sum("),
        "integrate": RIGHT["integrate"].replace("sum(", "builtins.sum("),
    },
    edit=_more_cells,
    points=POINTS,
)


def _of_colab(notebook):
    notebook.nbformat_minor = 4
    for cell in notebook.cells:
        cell.pop("id", None)
        cell.metadata |= {"id": "a1B2", "colab": {"base_uri": "x"}, "outputId": "c3"}
        cell.source = (
            cell.source.replace("\n", "\r\n") if cell.metadata.get("nbgrader", {}).get("solution") else cell.source
        )
    notebook.metadata = {
        "colab": {"provenance": []},
        "kernelspec": {"name": "ir", "display_name": "R"},
        "accelerator": "GPU",
    }


hand_in(
    "honest",
    "from_another_editor",
    "Saved by another editor: no cell ids, other metadata, another kernel's name, carriage returns.",
    RIGHT,
    edit=_of_colab,
    points=POINTS,
)


def _shuffled(notebook):
    answers = [
        cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") in ("table", "scale")
    ]
    for cell in answers:
        notebook.cells.remove(cell)
    setup = next(
        n for n, cell in enumerate(notebook.cells) if cell.metadata.get("nbgrader", {}).get("grade_id") == "setup"
    )
    notebook.cells[setup + 1 : setup + 1] = answers


hand_in("honest", "other_order", "Two answers moved up, below the first cell.", RIGHT, edit=_shuffled, points=POINTS)
hand_in(
    "honest",
    "ranks",
    "Adds up over two real ranks, in processes joined by gloo.",
    RIGHT
    | {
        "mean": """
        import torch.distributed as dist
        from collectives import ranks

        def part(rank, world_size, values):
            mine = torch.tensor([float(sum(values[rank::world_size]))], dtype=torch.float64)
            dist.all_reduce(mine)
            return mine.item()

        def mean(values):
            return ranks.run(part, 2, values)[0] / len(values)
        """
    },
    points=POINTS,
)
hand_in(
    "honest",
    "state",
    "Functions that remember, count their calls, and use each other and global variables.",
    RIGHT
    | {
        "mean": "calls = 0\nmemory = {}\ndef total(values):\n    global calls\n    calls += 1\n    return memory.setdefault(tuple(values), sum(values))\ndef mean(values): return total(values) / len(values)",
        "describe": "def describe(values):\n    assert calls > 0\n    return dict(least=sorted(values)[0], largest=sorted(values)[-1], count=round(total(values) / mean(values)))",
    },
    points=POINTS,
)

# One part broken, and all others right

SAYS = {"one_endless": ("time",), "one_cell_endless": ("time",), "one_out_of_memory": ("memory",)}

for name, broken in {
    "one_crash": {"integrate": "import os\ndef integrate(f, a, b, n):\n    os._exit(1)"},
    "one_killed": {"table": "import ctypes\ndef table(n):\n    ctypes.string_at(0)"},
    "one_endless": {"root": "def root(number):\n    while True: pass"},
    "one_cell_endless": {"softmax": "while True: pass"},
    "one_out_of_memory": {"primes": "def primes(n):\n    hoard = []\n    while True: hoard.append(bytearray(10**8))"},
    "one_syntax_error": {"scale": "def scale(array, factor)\n    array *= factor"},
    "one_exit": {"describe": "import sys\nsys.exit('done')"},
    "one_wrong": {"mean": "def mean(values):\n    return 0.0"},
    "one_missing": {"account": "class Account:\n    pass", "limit": ""},
}.items():
    hand_in(
        "honest",
        name,
        "One part ends badly, and the points of all others stay.",
        RIGHT | broken,
        points=POINTS - points_of(*broken),
        says=SAYS.get(name, ()),
    )
hand_in(
    "honest",
    "half_a_letter",
    "Prints and raises texts that UTF-8 can't hold, as a file name or a cut-off emoji gives them.",
    RIGHT
    | {
        "mean": "print('\\udc80\\0')\ndef mean(values):\n    print('\\ud83d')\n    return sum(values) / len(values)",
        "root": "def root(number):\n    if number < 0:\n        raise ValueError('\\udcff')\n    return math.sqrt(number)",
    },
    points=POINTS,
)
hand_in(
    "honest",
    "pictures_by_the_dozen",
    "Displays more than a page or a gradebook takes.",
    RIGHT
    | {
        "mean": "from IPython.display import display\nfor i in range(15):\n    display({'text/plain': 'x' * 3_999_000}, raw=True)\n"
        "def mean(values):\n    return sum(values) / len(values)"
    },
    points=POINTS,
)
hand_in(
    "honest",
    "one_colour_of_a_million_numbers",
    "Displays an escape that renderers read in quadratic time.",
    RIGHT
    | {
        "mean": "from IPython.display import display\ndisplay({'text/plain': '\\x1b[' + '0;' * 499_000 + 'mx'}, raw=True)\n"
        "def mean(values):\n    return sum(values) / len(values)"
    },
    points=POINTS,
)

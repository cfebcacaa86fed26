"""A function of the library, written down as plain data while it runs: what a page without Python can compute again.

The function is called with a `Symbol` in place of each number that is not known yet, and the symbol writes down every
operation done to it, as lines of a `Program`. A condition on a symbol is tried both ways, so `if`, `max` and a
library's own checks work too. Whatever else cannot be written down raises a `FormulaError` that names it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from numbers import Integral, Real

import numpy as np

MAX_PATHS = 256  # through a formula's own branches


class FormulaError(ValueError):
    """A formula does with a symbol what cannot be written down."""


class _Fork(BaseException):
    """Python asks whether a condition on symbols is true: both answers must be tried."""

    def __init__(self, condition: Symbol):
        self.condition = condition


class Program:
    """A formula as lines, each done once: a number, None (undefined), or [operation, *places of its operands].

    Places 0 and on hold the values that the reader sets, in order; after them comes what each line gives. The same
    operation on the same operands is written once.
    """

    def __init__(self, num_symbols: int):
        self.num_symbols = num_symbols
        self.lines: list = []
        self.decided: dict[int, bool] = {}  # which way the conditions go in the run that is under way
        self._places: dict[tuple, int] = {}

    def symbols(self) -> list[Symbol]:
        return [Symbol(self, place) for place in range(self.num_symbols)]

    def add(self, operation: str, *operands) -> Symbol:
        """A line that does `operation` on symbols and numbers."""
        return self._line(operation, *(self.value(each).place for each in operands))

    def value(self, value) -> Symbol:
        """A symbol as it is; a number as a line of its own; None as what is undefined."""
        if isinstance(value, Symbol):
            return value
        if value is not None and not (isinstance(value, Real) and math.isfinite(value)):
            raise FormulaError(f"a formula is made of finite numbers, not of {value!r}")
        return self._line(None if value is None else int(value) if isinstance(value, Integral) else float(value))

    def _line(self, *line) -> Symbol:
        if line not in self._places:
            self._places[line] = self.num_symbols + len(self.lines)
            self.lines.append(list(line) if len(line) > 1 else line[0])
        return Symbol(self, self._places[line])

    def run(self, values: Sequence[float]) -> list[float]:
        """What stands at each place when the reader has set `values`; the page does the same, in the same doubles."""
        places = [np.float64(value) for value in values]
        with np.errstate(all="ignore"):  # as on the page, 1 / 0 is infinite and 0 / 0 is no number
            for line in self.lines:
                if isinstance(line, list):
                    places.append(np.float64(_OPERATIONS[line[0]](*(places[place] for place in line[1:]))))
                else:
                    places.append(np.float64(math.nan if line is None else line))
        return [float(value) for value in places]


_OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": lambda a, b: np.floor(a / b),
    "%": lambda a, b: a - b * np.floor(a / b),
    "**": operator.pow,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "min": np.minimum,
    "max": np.maximum,
    "floor": np.floor,
    "ceil": np.ceil,
    "abs": abs,
    "log2": np.log2,
    "?": lambda condition, yes, no: yes if condition else no,
}


class Symbol:
    """A number that is not known yet: arithmetic on it adds lines to its program."""

    __array_ufunc__ = None  # numpy's numbers leave the arithmetic to us
    __hash__ = None

    def __init__(self, program: Program, place: int):
        self.program, self.place = program, place

    def __repr__(self) -> str:
        return f"<value {self.place} of a formula>"

    def __format__(self, spec: str) -> str:
        return repr(self)  # in the message of an error that is raised on one branch

    def __bool__(self) -> bool:
        if self.place not in self.program.decided:
            raise _Fork(self)
        return self.program.decided[self.place]

    def __pos__(self):
        return self

    def __neg__(self):
        return 0 - self

    def __abs__(self):
        return self.program.add("abs", self)

    def __ceil__(self):
        return self.program.add("ceil", self)

    def __floor__(self):
        return self.program.add("floor", self)

    def __divmod__(self, other):
        return self // other, self % other

    def bit_length(self):
        """As of a positive int: how many binary digits it has."""
        return math.floor(log2(self)) + 1


def _operator(operation: str, swapped: bool = False) -> Callable:
    def apply(self, other):
        if not isinstance(other, Symbol | Real):
            return NotImplemented
        return self.program.add(operation, *((other, self) if swapped else (self, other)))

    return apply


def _refusal(what: str, remedy: str) -> Callable:
    def refuse(self, *_):
        raise FormulaError(f"{what} of a slider's value cannot be written down as a formula: {remedy}")

    return refuse


_MATH = "use log2, minimum, maximum or where of collectives.formula, or math.ceil and math.floor"
_TABULATE = "give the slider tabulated=True, and its stops are tried one by one"

_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
for _name, _operation in _ARITHMETIC.items():
    setattr(Symbol, f"__{_name}__", _operator(_operation))
    setattr(Symbol, f"__r{_name}__", _operator(_operation, swapped=True))
for _name, _operation in {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}.items():
    setattr(Symbol, f"__{_name}__", _operator(_operation))
Symbol.__gt__, Symbol.__ge__ = _operator("<", swapped=True), _operator("<=", swapped=True)
Symbol.__float__ = _refusal("float() or a function of math", f"{_MATH}; or {_TABULATE}")
Symbol.__int__ = _refusal("int()", f"{_MATH}; or {_TABULATE}")
Symbol.__round__ = _refusal("round()", f"{_MATH}; or {_TABULATE}")
Symbol.__index__ = _refusal("range(), an index or a function of whole numbers", _TABULATE)


def log2(x):
    """The binary logarithm, of a number or of a symbol."""
    return x.program.add("log2", x) if isinstance(x, Symbol) else math.log2(x)


def minimum(*values):
    """The smallest of numbers and symbols, without a branch; the built-in `min` works too, and tries both ways."""
    program = _whose(*values)
    return reduce(partial(program.add, "min"), values) if program else min(values)


def maximum(*values):
    """The largest of numbers and symbols, without a branch; the built-in `max` works too, and tries both ways."""
    program = _whose(*values)
    return reduce(partial(program.add, "max"), values) if program else max(values)


def where(condition, yes, no):
    """`yes` if the condition is true, else `no`; an `if` works too, and tries both ways."""
    program = _whose(condition, yes, no)
    return program.add("?", condition, yes, no) if program else yes if condition else no


def _whose(*values) -> Program | None:
    for value in values:
        if isinstance(value, Symbol):
            return value.program
    return None


def read(program: Program, formula: Callable, arguments: Mapping, pick: Callable[[object], Mapping]) -> dict | Symbol:
    """Write down how `formula(**arguments)` gets what is wanted of its result from the symbols among `arguments`.

    `pick`: makes of a result the values that are wanted, {key: value}, such as `named`; each is returned as a symbol by
    its key. A branch that ends in a ValueError or in a division by zero is undefined there; where all do, one undefined
    symbol is returned for all. Raises `FormulaError`, which names what cannot be written down.
    """
    left = MAX_PATHS

    def explore(decided: dict[int, bool]) -> dict | Symbol:
        nonlocal left
        left -= 1
        if left < 0:
            raise FormulaError(f"the formula branches more than {MAX_PATHS} ways on its sliders: {_TABULATE}")
        program.decided = decided
        try:
            return {key: program.value(value) for key, value in pick(formula(**arguments)).items()}
        except _Fork as fork:
            condition = fork.condition
        except FormulaError:
            raise
        except (ValueError, ArithmeticError):
            if not decided:
                raise
            return program.value(None)
        except (TypeError, AttributeError) as error:
            raise FormulaError(f"the formula cannot be written down: {error}; {_MATH}; or {_TABULATE}") from error
        return _either(condition, *(explore({**decided, condition.place: answer}) for answer in (True, False)))

    return explore({})


def _either(condition: Symbol, yes: dict | Symbol, no: dict | Symbol) -> dict | Symbol:
    """What is read where a condition was tried both ways; one symbol is that of a branch which is undefined."""
    keys = yes if isinstance(yes, dict) else no
    if isinstance(keys, Symbol):
        return keys
    yes, no = (each if isinstance(each, dict) else dict.fromkeys(keys, each) for each in (yes, no))
    if list(yes) != list(no):
        raise FormulaError(
            f"the formula's branches do not end in the same results, such as the same tasks: {_TABULATE}"
        )
    return {key: yes[key] if yes[key].place == no[key].place else where(condition, yes[key], no[key]) for key in yes}


def named(result, names: Iterable[str]) -> dict:
    """The results called `names`: of a mapping its values, of anything else its attributes."""
    return {name: _pick(result, name) for name in names}


def _pick(result, name: str):
    if isinstance(result, Mapping) and name in result:
        return result[name]
    if not isinstance(result, Mapping) and hasattr(result, name):
        return getattr(result, name)
    raise FormulaError(f"the formula gives no {name!r} that an Output asks for")

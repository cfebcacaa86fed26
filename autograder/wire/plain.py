"""The format of messages between the judge and the sandbox: values as JSON and npy, bounded, and never as pickle.

A message is a JSON tree followed by the bytes of its arrays. Each mutable object in it has a number, so that an object
that occurs twice arrives as one object. A reader makes new objects only: it is never given one of its own to change.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import json
import keyword
import math
import sys
import time
from collections.abc import Callable, Container, Iterable
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from operator import itemgetter
from types import ModuleType
from typing import Any, ClassVar

MAX_BYTES = 64 * 2**20  # bytes of a message
MAX_DEPTH = 100  # levels of nested lists
MAX_HEIGHT = 500  # levels of a value with its references followed; Python hashes tuples without a look at its stack
MAX_DTYPE = 10_000  # characters of a dtype's name, and bytes of an array's header
MAX_OBJECTS = 100_000  # JSON objects in a message: one, and one for each handle
NODE = 32  # bytes that one list or number counts for, about its size in memory
# Python computes each of the following in one call that nothing interrupts: no signal, and no other thread.
MAX_BITS = 100_000  # of a whole number outside an array; the divisor of two such numbers takes 20 ms
MAX_EXPONENT = 30_000  # of a Decimal, about as many bits: int() writes all of its digits out
MAX_NAME = 100  # characters of a name in a NamedTuple of the sender's own, and
MAX_FIELDS = 1_000  # how many they may be
MAX_HASHED = 2 * MAX_BYTES // NODE  # lists and numbers in all keys of a message, each as often as a key contains it
MAX_FILLING = 1.0  # seconds of processor time to put a message's keys into sets and dicts, and
PER_KEY = 1e-5  # seconds for each of them; Python needs a hundredth of that if they don't collide
MAX_AXES = 64  # of a tensor
_NUMBERS = "biufcmM"  # kinds of numpy scalars that are written as their bytes, and not as arrays
_WRITTEN_IN_PYTHON = 1 << 9  # of a class's flags: Py_TPFLAGS_HEAPTYPE
_JSON_INT = 2**53  # not every JSON parser reads larger integers exactly

# (module, qualified name) -> the class, or None if this side may not make its instances.
Resolve = Callable[[str, str], type | None]


class NotPlain(TypeError):
    """A value can't cross. The message says what it is, as a noun phrase."""


class BadMessage(Exception):
    """The bytes received aren't a message that this module wrote. It says what they are, as a noun phrase."""


class Lacking(BadMessage):
    """A value that may be honest, but can't be made here: by a module that isn't imported, or a class of this side's.

    No message imports a module or defines a class. Nothing is gained by such a value: the call fails that returns it.
    """


def trusted(
    packages: tuple[str, ...], namespace: dict[str, Any], find: Callable[[str], Any] = sys.modules.get
) -> Resolve:
    """Return a `Resolve` for the classes of these packages and those in `namespace`, the notebook's "__main__".

    `find(name)`: returns a module. The default finds what is imported already, so no name in a message imports one.
    """

    def resolve(module: str, name: str) -> type | None:
        if module == "__main__":
            value = namespace.get(name)
        elif module.partition(".")[0] in packages:
            value = named(find(module), name)
        else:
            return None
        return value if isinstance(value, type) and (module, name) == (value.__module__, value.__qualname__) else None

    return resolve


def named(module: Any, name: str) -> Any:
    """Return what a dotted name means in a module, or None; `__getattr__`, which may import a module, isn't called."""
    for part in name.split("."):
        module = vars(module).get(part) if isinstance(module, ModuleType | type) else None
    return module


class Contents(dict):
    """Objects that the other side has, by its numbers: written with what is in them now."""


class Encoder:
    """A writer of one message.

    `resolve`: the classes that the other side can make.
    `other(value)`: returns a tree for a value that isn't plain, such as a handle's number, or None.
    `known`: {id: number} of objects that the other side has; they are written as its numbers.
    `whole`: ids of objects that go to `other` even if they could be written as data.
    `shown`: write of a tensor's memory only what the tensor shows. The rest may hold the answers, or other ranks' rows.

    After `message`, `changeable` has the objects that the other side may change, by number: containers, arrays, tensors
    and records that aren't frozen, but nothing within a frozen one, which may be a constant of its module.
    """

    def __init__(
        self,
        resolve: Resolve = lambda module, name: None,
        other: Callable[[Any], list | None] = lambda value: None,
        known: dict[int, int] | None = None,
        whole: Container[int] = frozenset(),
        shown: bool = False,
    ):
        self.resolve, self.other, self.whole, self.shown = resolve, other, whole, shown
        self.known = known or {}
        self.changeable: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}  # id of an object -> its number in this message
        self.objects: list[Any] = []  # by number; this keeps them alive, so no id is used twice
        self.blobs: list[bytes] = []
        self.storages: dict[tuple[int, int], int] = {}  # a tensor's memory -> its blob's number
        self.size = 0
        self.within = 0  # frozen records around what is being written

    def message(self, value: Any) -> bytes:
        """Return the message for `value`. Raise NotPlain if it can't cross."""
        tree = self.tree(value, 0)
        try:
            text = json.dumps({"value": tree, "sizes": [len(blob) for blob in self.blobs]}).encode()
        except (RecursionError, ValueError) as error:
            raise NotPlain(f"a value that JSON cannot represent ({error})") from None
        self.count(len(text))
        return b"".join([len(text).to_bytes(8, "big"), text, *self.blobs])

    def tree(self, value: Any, depth: int) -> Any:
        """Return `value` as a JSON tree, with [kind, ...] for what JSON lacks. Raise NotPlain if it can't cross."""
        if depth > MAX_DEPTH:
            raise NotPlain(f"a value nested deeper than {MAX_DEPTH} levels")
        self.count(NODE)
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            if abs(value) < _JSON_INT:
                return value
            if value.bit_length() > MAX_BITS:
                raise NotPlain(f"a whole number of more than {MAX_BITS:,} bits")
            return ["int", hex(value)]
        if kind is float:
            return value if math.isfinite(value) else ["float", repr(value)]
        if kind is str:
            self.count(len(value))
            return value
        if write := _IMMUTABLE.get(kind):
            return write(self, value, depth + 1)
        if isinstance(value, Enum) and self.resolve(kind.__module__, kind.__qualname__) is kind:
            return _member(value)
        if id(value) in self.known:
            return ["yours", self.known[id(value)]]
        if kind is Contents:
            copies = [[number, self.copy(each, depth)] for number, each in value.items()]
            return ["new", -1, ["dict", copies]]
        return self.copy(value, depth)

    def copy(self, value: Any, depth: int) -> Any:
        """Return the tree of a value that has an identity, even if the other side has it."""
        if id(value) in self.numbers:
            return ["again", self.numbers[id(value)]]
        if id(value) in self.whole:
            return self.other(value)
        write = _MUTABLE.get(type(value)) or _writer_of_arrays(value) or self._record_writer(value)
        if write is None:
            for tree in (_base(self, value, depth), self.other(value)):
                if tree is not None:
                    return tree
            raise NotPlain(f"a {_name_of(type(value))}, which is not plain data")
        number = self.numbers[id(value)] = len(self.objects)
        self.objects.append(value)
        fixed = write in (Encoder.record, Encoder.list_of_a_kind, _named) and not _may_change(value)
        if not (self.within or fixed):
            self.changeable[number] = value
        self.within += fixed
        tree = write(self, value, depth + 1)
        self.within -= fixed
        return ["new", number, tree]

    def _record_writer(self, value: Any) -> Callable | None:
        kind = type(value)
        if self.resolve(kind.__module__, kind.__qualname__) is kind:
            if isinstance(value, list):
                return Encoder.list_of_a_kind
            if _fields(value) is not None:
                return Encoder.record
        return _named if isinstance(value, tuple) and hasattr(kind, "_fields") else None

    def record(self, value: Any, depth: int) -> list:
        """Return the tree of a NamedTuple, a dataclass or a notebook's object: its class and its fields."""
        values, kind = _fields(value), type(value)
        assert values is not None  # or `_record_writer` had not chosen this writer
        if not (isinstance(value, tuple) or dataclasses.is_dataclass(kind)):
            values = {name: each for name, each in values.items() if not _is_cache(kind, name)}
            if hidden := next((name for name in values if not _is_data(kind, name)), None):
                raise NotPlain(f"a {_name_of(kind)} with an attribute {str(hidden)!r:.100}, which is no name for data")
        fields = [[name, self.tree(field, depth)] for name, field in values.items()]
        return ["record", type(value).__module__, type(value).__qualname__, fields]

    def list_of_a_kind(self, value: list, depth: int) -> list:
        """Return the tree of an instance of a list's subclass: its class and its items."""
        return ["list of", type(value).__module__, type(value).__qualname__, [self.tree(item, depth) for item in value]]

    def blob(self, data: bytes) -> int:
        """Append bytes to the message; return their blob's number."""
        self.count(len(data))
        self.blobs.append(data)
        return len(self.blobs) - 1

    def count(self, size: int) -> None:
        """Add `size` bytes to the message's size. Raise NotPlain above `MAX_BYTES`."""
        self.need(size)
        self.size += size

    def need(self, size: int) -> None:
        """Raise NotPlain if the message has no room for `size` bytes more."""
        if self.size + size > MAX_BYTES:
            raise NotPlain(f"more than {MAX_BYTES / 2**20:.0f} MiB of data")


def read_back(message: bytes, reader: Decoder) -> Any:
    """Return what `reader` makes of a message that is to be sent. Raise NotPlain if it refuses it.

    `reader` must refuse what the receiver refuses. What no `Encoder` may send is then written down once, in `Decoder`.
    """
    try:
        return reader.read(message)
    except BadMessage as error:
        raise NotPlain(str(error)) from None


class Decoder:
    """A reader of one message from an `Encoder`. It raises BadMessage for anything else.

    `resolve`: the classes that a message may make.
    `other(tree)`: returns the value for a tree that isn't plain data.
    `find(name)`: returns a module, or None. The default finds what is imported already. `Lacking` is raised for an
    array, a tensor or a class of `packages` where its module isn't found: the other side may have imported it.
    `longest`: bytes that the JSON may have, of which Python reads all in one call.
    """

    def __init__(
        self,
        resolve: Resolve = lambda module, name: None,
        other: Callable[[list], Any] | None = None,
        find: Callable[[str], Any] = sys.modules.get,
        packages: Container[str] = (),
        longest: int = MAX_BYTES,
    ):
        self.resolve, self.other, self.find, self.packages, self.longest = resolve, other, find, packages, longest
        self.tree: Any = None  # of the whole message
        self.has_classes = False  # of the notebook's own, which may be others on the other side
        self.objects: dict[int, Any] = {}  # by number, as read
        self.blobs: list[memoryview] = []
        self.taken: set[int] = set()  # numbers of blobs
        self.height = 0  # levels of the tallest part so far of the value that is being read
        # Lists and numbers in it so far, with those that it refers to. A long number counts for several.
        self.weight = 0
        self.sizes: dict[int, tuple[int, int]] = {}  # height and weight of objects, by number
        self.hashed = 0  # the weight of all keys so far
        self.filled = 0  # how many they are
        self.filling = 0.0  # seconds of processor time that it took to put them into sets and dicts
        self.storages: dict[int, Any] = {}
        self.named: dict[tuple[str, ...], type[Named]] = {}  # by name and fields

    def read(self, message: bytes) -> Any:
        """Return the value of a message. Raise BadMessage if no `Encoder` wrote it."""
        try:
            length = int.from_bytes(message[:8], "big")
            if length > self.longest:
                raise BadMessage(f"more than {self.longest:,} bytes of JSON")
            if message.count(b"[", 8, 8 + length) > self.longest // NODE:
                # 64 MiB of brackets would take gigabytes of memory, and 4 MiB a second
                raise BadMessage(f"more than {self.longest // NODE:,} lists, or opening brackets in texts")
            text = json.loads(message[8 : 8 + length], object_pairs_hook=_Objects())
            if text.keys() != {"value", "sizes"}:
                raise BadMessage("not a message")
            rest = memoryview(message)[8 + length :]
            for size in text["sizes"]:
                if type(size) is not int or not 0 <= size <= len(rest):
                    raise BadMessage("blobs of other sizes than there are")
                self.blobs.append(rest[:size])
                rest = rest[size:]
            self.tree = text["value"]
            return self.value(self.tree)
        except (BadMessage, MemoryError):
            raise
        except Exception as error:  # bytes from no encoder can fail in any way, and a notebook's class in its own code
            kind = Lacking if self.has_classes else BadMessage
            raise kind(f"what can't be read ({type(error).__name__}: {error})"[:200]) from None

    def outline(self) -> Any:
        """Return the last message, a tuple, with its texts, and None for anything else that is in it.

        What the message is for can be known this way, even if `read` has raised `Lacking`.
        """
        kind, items = self.tree
        return tuple(item if type(item) is str else None for item in items) if kind == "tuple" else None

    def module(self, name: str, what: str) -> Any:
        """Return a module. Raise Lacking if it isn't imported."""
        found = self.find(name)
        if found is None:
            raise Lacking(f"{what} of {name}, which none of the instructor's cells imports")
        return found

    def value(self, tree: Any) -> Any:
        """Return the value of a JSON tree. Raise BadMessage if it is nested, by its references, above `MAX_HEIGHT`."""
        if not isinstance(tree, list):
            if isinstance(tree, dict):
                raise BadMessage("not a message")
            self.weight += 1
            return tree
        beside, before = self.height, self.weight
        self.height = self.weight = 0
        value = self._value(tree)
        size = self.sizes.get(tree[1], (0, 0)) if tree[0] == "again" else (self.height + 1, self.weight + 1)
        if tree[0] == "new":
            self.sizes[tree[1]] = size
        height, weight = size
        if height > MAX_HEIGHT:
            raise BadMessage("a value nested too deeply")
        self.height, self.weight = max(beside, height), before + weight
        return value

    def values(self, trees: list) -> list:
        """Return the values of trees; numbers and texts, which are their own trees, all at once."""
        if not _are_leaves(trees):
            return list(map(self.value, trees))
        self.weight += len(trees)
        return trees

    def _value(self, tree: list) -> Any:
        kind, *rest = tree
        if kind == "again":
            return self.objects[rest[0]]
        if kind == "new":
            number, content = rest
            if type(number) is not int or not -1 <= number < MAX_BYTES // NODE:
                raise BadMessage("an object with an odd number")
            return _READ_NEW[content[0]](self, number, *content[1:])
        if kind in _READ:
            return _READ[kind](self, *rest)
        if self.other is None:
            raise BadMessage(f"not a message ({kind})")
        return self.other(tree)

    def kind(self, module: str, name: str) -> type | None:
        """Return a class, or None if its instances may not be made here."""
        if isinstance(module, str) and module.partition(".")[0] in self.packages:
            self.module(module, f"a {name}"[:200])
        found = self.resolve(module, name)
        self.has_classes = self.has_classes or (found is not None and module == "__main__")
        return found

    def keys(self, trees: list) -> list:
        """Return the values of trees, to be hashed. Python follows all references then, as often as there are any."""
        before = self.weight
        values = self.values(trees)
        self.hashed += self.weight - before
        if self.hashed > MAX_HASHED:
            raise BadMessage("keys that take too long to hash")
        return values

    def fill(self, put: Callable, keys: Iterable) -> None:
        """Put keys into a set or a dict one by one. Raise Lacking if they collide: each then takes longer.

        A hash of a number is known beforehand, so keys can be chosen to collide, in Python's tables if not by hash.
        It is no forgery: how long honest keys take depends on the machine, and it may take less on the other side.
        """
        begun = time.thread_time() - self.filling
        for key in keys:
            put(key)
            self.filled += 1
            self.filling = time.thread_time() - begun
            if self.filling > MAX_FILLING + PER_KEY * self.filled:
                raise Lacking("keys that collide: filling its sets and dicts takes too long")

    def blob(self, number: int) -> memoryview:
        """Return a blob's bytes, once: copies of one blob could take any memory. Tensors share theirs."""
        if type(number) is not int or not 0 <= number < len(self.blobs) or number in self.taken:
            raise BadMessage("a blob that is not there, or is there twice")
        self.taken.add(number)
        return self.blobs[number]

    def array(self, blob: int) -> Any:
        """Return a numpy array from a blob of npy.

        The header must match the blob's size, so that a forged one can't claim memory. Raise BadMessage if it doesn't.
        """
        np, content = self.module("numpy", "an array"), self.blob(blob)
        data = io.BytesIO(content[: 2 * MAX_DTYPE])
        version = np.lib.format.read_magic(data)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise BadMessage("an array with a field whose name has letters outside Latin-1")
        if int.from_bytes(content[8 : 10 if version == (1, 0) else 12], "little") > MAX_DTYPE:
            raise BadMessage(f"an array whose dtype takes more than {MAX_DTYPE:,} characters")
        shape, fortran, dtype = readers[version](data, max_header_size=MAX_DTYPE)
        bytes_left = len(content) - data.tell()
        size: int = math.prod(shape)
        if dtype.hasobject or min(shape, default=0) < 0 or size * dtype.itemsize != bytes_left:
            raise BadMessage("an array whose header does not fit its bytes")
        if not dtype.itemsize and size:  # numpy makes texts of no length one character long
            raise BadMessage("an array of things without a size")
        flat = np.frombuffer(content, dtype=dtype, offset=data.tell()) if bytes_left else np.empty(size, dtype)
        return flat.reshape(shape, order="F" if fortran else "C").copy(order="K")

    def tensor(self, blob: int, dtype: str, shape: list, stride: list, offset: int, gradient: bool) -> Any:
        """Return a torch tensor as a view of its whole memory; tensors that shared memory share it here, too.

        `blob`: the number of the memory's blob. `shape`, `stride`, `offset`: in elements. `gradient`: requires_grad.
        Raise BadMessage if the view doesn't fit its memory.
        """
        torch = self.module("torch", "a tensor")
        kind = named(torch, dtype)
        if not isinstance(kind, torch.dtype) or dtype.startswith(("q", "bits")):
            raise BadMessage(f"a tensor of {dtype}")
        if blob not in self.storages:
            data, byte = bytearray(self.blob(blob)), torch.uint8
            self.storages[blob] = torch.frombuffer(data, dtype=byte) if data else torch.empty(0, dtype=byte)
        memory = self.storages[blob]
        if max(len(shape), len(stride)) > MAX_AXES or not all(_is_index(each) for each in (*shape, *stride, offset)):
            raise BadMessage("a tensor of odd sizes")
        reach = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
        if math.prod(shape) * kind.itemsize > MAX_BYTES:  # a view with stride 0 is larger than its memory
            raise BadMessage(f"a tensor of {math.prod(shape):,} elements")
        if min([*shape, *stride, offset, 0]) < 0 or (0 not in shape and reach * kind.itemsize > len(memory)):
            raise BadMessage("a tensor that reaches beyond its memory")
        empty = torch.empty(0, dtype=kind)
        if len(memory):
            empty.set_(memory.untyped_storage(), offset, shape, stride)
        else:
            empty = empty.reshape(shape)
        return empty.requires_grad_() if gradient else empty


class _Objects:
    """What makes the objects of a message's JSON, and not too many: an empty one takes memory, too."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self.made += 1
        if self.made > MAX_OBJECTS:
            raise BadMessage(f"more than {MAX_OBJECTS:,} objects that aren't plain data")
        made = dict(pairs)
        if len(made) < len(pairs):  # what is replaced would be read, and not looked at
            raise BadMessage("an object that has a key twice")
        return made


def _are_leaves(trees: list) -> bool:
    """Return whether trees are their own values: numbers, texts and the like."""
    return {list, dict}.isdisjoint(map(type, trees))


def bound_name(name: str) -> bool:
    """Return whether `name` is a valid Python name."""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def _name_of(kind: type) -> str:
    local = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if local else f"{kind.__module__}.{kind.__qualname__}"


# Values without an identity


def _sequence(word: str) -> Callable:
    return lambda encoder, value, depth: [word, [encoder.tree(item, depth) for item in value]]


def _set(word: str) -> Callable:
    """Write a set of names sorted: Python's own order differs from one process to the next."""

    def written(encoder: Encoder, value: set | frozenset, depth: int) -> list:
        items = sorted(value) if all(type(item) is str for item in value) else value
        return [word, [encoder.tree(item, depth) for item in items]]

    return written


def _parts(word: str, *names: str) -> Callable:
    return lambda encoder, value, depth: [word, *(encoder.tree(getattr(value, name), depth) for name in names)]


_IMMUTABLE = {
    bytes: lambda encoder, value, depth: ["bytes", encoder.blob(value)],
    complex: lambda encoder, value, depth: ["complex", repr(value.real), repr(value.imag)],
    range: _parts("range", "start", "stop", "step"),
    slice: _parts("slice", "start", "stop", "step"),
    type(...): lambda encoder, value, depth: ["ellipsis"],
    tuple: _sequence("tuple"),
    frozenset: _set("frozenset"),
    Decimal: lambda encoder, value, depth: _written_decimal(encoder, value, depth),
    Fraction: _parts("fraction", "numerator", "denominator"),
}

_READ: dict[str, Callable] = {
    "int": lambda decoder, digits: _int(decoder, digits),
    "float": lambda decoder, digits: _float(digits),
    "bytes": lambda decoder, blob: bytes(decoder.blob(blob)),
    "complex": lambda decoder, real, imag: complex(_float(real), _float(imag)),
    "range": lambda decoder, *ends: _range(*map(decoder.value, ends)),
    "slice": lambda decoder, *ends: slice(*map(decoder.value, ends)),
    "ellipsis": lambda decoder: ...,
    "tuple": lambda decoder, items: tuple(decoder.values(items)),
    "frozenset": lambda decoder, items: _frozenset(decoder, items),
    "decimal": lambda decoder, digits: _decimal(decoder, digits),
    "fraction": lambda decoder, *parts: _fraction(*map(decoder.value, parts)),
    "member": lambda decoder, module, name, member: _read_member(decoder.kind(module, name), member),
    "scalar": lambda decoder, blob: decoder.array(blob)[()],
    "number": lambda decoder, name, digits: _number(decoder, name, digits),
    "dtype": lambda decoder, module, name: _dtype(decoder, module, name),
}


def _int(decoder: Decoder, digits: str) -> int:
    if len(digits.removeprefix("-")) > MAX_BITS // 4 + len("0x"):
        raise BadMessage("a huge number")
    decoder.weight += len(digits) // NODE
    return int(digits, 16)


def _is_index(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _float(digits: str) -> float:
    if len(digits) > 30:  # repr() writes 24 at most
        raise BadMessage("a number with odd digits")
    return float(digits)


def _decimal(decoder: Decoder, digits: str) -> Decimal:
    decoder.weight += len(digits) // NODE
    number = Decimal(digits) if len(digits) <= MAX_EXPONENT else None
    if number is None or not _is_near(number):
        raise BadMessage("a huge decimal number")
    return number


def _is_near(number: Decimal) -> bool:
    """Return whether the exponent of a decimal number isn't so large that int() and the like take long."""
    return not number.is_finite() or abs(number.adjusted()) <= MAX_EXPONENT


def _written_decimal(encoder: Encoder, value: Decimal, depth: int) -> list:
    digits = str(value)
    if len(digits) > MAX_EXPONENT or not _is_near(value):
        raise NotPlain(f"a decimal number of more than {MAX_EXPONENT:,} digits")
    return ["decimal", digits]


def _frozenset(decoder: Decoder, items: list) -> frozenset:
    value: set = set()
    _fill_set(decoder, value, items)
    return frozenset(value)


def _fraction(numerator: int, denominator: int) -> Fraction:
    if type(numerator) is not int or type(denominator) is not int:
        raise BadMessage("a fraction of other things than whole numbers")
    return Fraction(numerator, denominator)


def _member(value: Enum) -> list:
    """Return the tree of an enum's member: the class, and the member's name. It arrives as the reader's own member."""
    kind, name = type(value), value._name_
    if kind.__members__.get(name) is not value:
        raise NotPlain(f"a combination of members of {_name_of(kind)}")
    return ["member", kind.__module__, kind.__qualname__, name]


def _read_member(kind: type | None, name: str) -> Enum:
    if kind is None or not issubclass(kind, Enum) or name not in kind.__members__:
        raise Lacking(f"a member {name!r:.100} of no enum")
    return kind.__members__[name]


def _range(*ends: int) -> range:
    numbers = range(*ends)
    if numbers[MAX_BYTES:]:  # `len` of a longer one may fail
        raise BadMessage(f"a range of more than {MAX_BYTES:,} numbers")
    return numbers


def _dtype(decoder: Decoder, module: str, name: str) -> Any:
    if module == "torch":
        torch = decoder.module("torch", "a dtype")
        dtype = named(torch, name)
        if isinstance(dtype, torch.dtype):
            return dtype
    elif module == "numpy" and isinstance(name, str) and len(name) <= MAX_DTYPE:
        dtype = decoder.module("numpy", "a dtype").dtype(name)
        if not dtype.hasobject:
            return dtype
    raise BadMessage(f"a dtype called {name}"[:200])


def _number(decoder: Decoder, name: str, digits: str) -> Any:
    """Return a numpy scalar from its bytes, in hexadecimal digits."""
    dtype, data = _dtype(decoder, "numpy", name), bytes.fromhex(digits)
    if dtype.kind not in _NUMBERS or dtype.itemsize != len(data):
        raise BadMessage("a number of an odd type")
    return decoder.module("numpy", "a number").frombuffer(data, dtype)[0]


# Values with an identity: written, read as new, and changed in place


def _pairs(encoder: Encoder, value: dict, depth: int) -> list:
    return ["dict", [[encoder.tree(key, depth), encoder.tree(item, depth)] for key, item in value.items()]]


_MUTABLE: dict[type, Callable] = {
    list: _sequence("list"),
    set: _set("set"),
    dict: _pairs,
    bytearray: lambda encoder, value, depth: ["bytearray", encoder.blob(bytes(value))],
}


def _named(encoder: Encoder, value: Any, depth: int) -> list:
    """Write a NamedTuple of the sender's own class: its name, its fields, its values."""
    return ["named", type(value).__name__, list(value._fields), [encoder.tree(item, depth) for item in value]]


def _writer_of_arrays(value: Any) -> Callable | None:
    """Return the writer for a numpy array or a torch tensor, or None."""
    # If `value` is theirs, the sender has imported the module, so a look into sys.modules is enough.
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        return _array
    if torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return _tensor
    return None


def _scalar(encoder: Encoder, value: Any) -> list:
    """Return the tree of a numpy scalar: a number's bytes, or else a blob."""
    if value.dtype.kind in _NUMBERS:
        return ["number", value.dtype.str, value.tobytes().hex()]
    return ["scalar", encoder.blob(_npy(value))]


def _npy(value: Any) -> bytes:
    import numpy as np

    array, data = np.asarray(value), io.BytesIO()
    if not array.dtype.itemsize and array.size:
        raise NotPlain(f"an array of {array.dtype}, whose items have no size")
    np.lib.format.write_array(data, _only_fields(array), allow_pickle=False)
    return data.getvalue()


def _only_fields(array: Any) -> Any:
    """Return an array without what is between its fields: `table[["x"]]` still has the other columns there."""
    import numpy as np

    if array.dtype.names is None:
        return array
    shown = np.zeros(array.shape, array.dtype)
    for name in array.dtype.names:
        shown[name] = _only_fields(array[name])
    return shown


def _array(encoder: Encoder, value: Any, depth: int) -> list:
    encoder.need(value.nbytes)  # before it is copied: a view with stride 0 is larger than its memory
    return ["array", encoder.blob(_npy(value))]


def _tensor(encoder: Encoder, value: Any, depth: int) -> list:
    import torch

    value, gradient = value.detach(), value.requires_grad
    value = (value if value.device.type == "cpu" else value.cpu()).resolve_conj().resolve_neg()
    encoder.need(value.nbytes)
    storage = value.untyped_storage()
    key = (storage.data_ptr(), storage.nbytes())
    if encoder.shown and key not in encoder.storages and not shows_all(value):
        value = value.clone()
        storage = value.untyped_storage()
        key = (storage.data_ptr(), storage.nbytes())
    if key not in encoder.storages or not storage.nbytes():
        encoder.need(storage.nbytes())
        memory = torch.empty(0, dtype=torch.uint8).set_(storage)
        encoder.storages[key] = encoder.blob(memory.numpy().tobytes())
        encoder.objects.append(memory)  # keeps its address in use while this message is written
    dtype = str(value.dtype).removeprefix("torch.")
    view = list(value.shape), list(value.stride()), value.storage_offset()
    return ["tensor", encoder.storages[key], dtype, *view, gradient]


def shows_all(tensor: Any) -> bool:
    """Return whether each byte of a tensor's memory is in the tensor, perhaps often, as in `x.expand(2, -1)`."""
    reached = tensor.itemsize
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if step * tensor.itemsize not in (0, reached) and size > 1:
            return False
        reached *= size if step else 1
    return reached == tensor.untyped_storage().nbytes()


def _base(encoder: Encoder, value: Any, depth: int) -> Any:
    """Return the tree of a numpy scalar, a dtype, or an instance of a plain type's subclass as that type; else None."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.generic) and not value.dtype.hasobject:
        return _scalar(encoder, value)
    if numpy is not None and isinstance(value, numpy.dtype) and not value.hasobject:
        return ["dtype", "numpy", value.str]
    if torch is not None and isinstance(value, torch.dtype):
        return ["dtype", "torch", str(value).removeprefix("torch.")]
    base: Any
    for base in (int, float, str, list, tuple, dict, set):  # a Counter is a dict, an IntEnum an int
        if isinstance(value, base):
            return encoder.tree(base.__new__(base, value) if base in (int, float, str) else base(value), depth)
    return None


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a NamedTuple or a dataclass, or the attributes of a notebook's object; else None."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    is_object = type(value).__module__ == "__main__" and hasattr(value, "__dict__") and _is_made_bare(type(value))
    return dict(vars(value)) if is_object else None


def _is_made_bare(kind: type) -> bool:
    """Return whether an instance is its attributes alone: no text, number or dict, and no enum's member."""
    compiled = next(base for base in kind.__mro__ if not base.__flags__ & _WRITTEN_IN_PYTHON)
    return compiled is object and not issubclass(kind, Enum)


def _may_change(value: Any) -> bool:
    """Return whether a record was made to be changed: a dataclass that isn't frozen, or an object of the notebook's."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return not kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return kind.__module__ == "__main__" and not issubclass(kind, tuple | list)


def _new(make: Callable, fill: Callable) -> Callable:
    """Return a reader for a container; it gets its number before its content, which may contain it, is read."""

    def read(decoder: Decoder, number: int, *content: Any) -> Any:
        value = decoder.objects[number] = make()
        fill(decoder, value, *content)
        return value

    return read


def _fill_list(decoder: Decoder, value: list, items: list) -> None:
    value.extend(decoder.values(items))


def _fill_set(decoder: Decoder, value: set, items: list) -> None:
    decoder.fill(value.add, decoder.keys(items))


def _fill_dict(decoder: Decoder, value: dict, pairs: list) -> None:
    keys = [key for key, _ in pairs]
    if _are_leaves(keys):
        read: Iterable = zip(decoder.keys(keys), decoder.values([item for _, item in pairs]), strict=True)
    else:  # a key may refer to an item before it
        read = [(decoder.keys([key])[0], decoder.value(item)) for key, item in pairs]
    decoder.fill(lambda pair: value.__setitem__(*pair), read)


def _fill_bytes(decoder: Decoder, value: bytearray, blob: int) -> None:
    value[:] = decoder.blob(blob)


def _new_array(decoder: Decoder, number: int, blob: int) -> Any:
    value = decoder.objects[number] = decoder.array(blob)
    return value


def _new_tensor(decoder: Decoder, number: int, *content: Any) -> Any:
    value = decoder.objects[number] = decoder.tensor(*content)
    return value


class Named(tuple):
    """A NamedTuple whose class is the sender's own: a subclass for each has its `_fields`.

    It is made of properties. `collections.namedtuple` compiles the names, which Python's parser brings into a normal
    form first: for names that a sender chooses, that takes as long as he likes.
    """

    _fields: tuple[str, ...] = ()
    _field_defaults: ClassVar[dict[str, Any]] = {}

    def __new__(cls, /, *values: Any, **named: Any) -> Named:
        values += tuple(named.pop(name) for name in cls._fields[len(values) :] if name in named)
        if named or len(values) != len(cls._fields):
            raise TypeError(f"{cls.__name__} takes a value for each of {', '.join(cls._fields)}")
        return super().__new__(cls, values)

    def __getnewargs__(self) -> tuple:
        return tuple(self)

    @classmethod
    def _make(cls, values: Iterable) -> Named:
        return cls(*values)

    def _replace(self, /, **values: Any) -> Named:
        return type(self)(**self._asdict() | values)

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"


def _new_named(decoder: Decoder, number: int, name: str, fields: list, items: list) -> tuple:
    names = (name, *fields)
    if len(names) > MAX_FIELDS or any(not isinstance(each, str) or len(each) > MAX_NAME for each in names):
        raise BadMessage(f"a NamedTuple of {MAX_FIELDS:,} fields or more, or a name above {MAX_NAME} characters")
    private = any(each[0] == "_" and each != f"_{at}" for at, each in enumerate(fields))  # `rename=True` makes `_1`
    if not all(map(bound_name, names)) or private or len({*fields}) < len(fields):
        raise BadMessage("a NamedTuple with a name that Python doesn't allow")
    values = decoder.values(items)
    if len(values) != len(fields):
        raise BadMessage("a NamedTuple of other values than fields")
    if names not in decoder.named:
        own = {each: property(itemgetter(at)) for at, each in enumerate(fields)}
        decoder.named[names] = type(name, (Named,), {"_fields": names[1:], "__match_args__": names[1:], **own})
    value = decoder.objects[number] = decoder.named[names](*values)
    return value


def _new_record(decoder: Decoder, number: int, module: str, name: str, fields: list) -> Any:
    kind = decoder.kind(module, name)
    if kind is not None and (issubclass(kind, tuple) or dataclasses.is_dataclass(kind)):
        values = {field: decoder.value(tree) for field, tree in fields}
        try:
            value = _build(kind, values)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise Lacking(f"a {kind.__qualname__} that can't be made again of its fields ({why})"[:300]) from None
    elif kind is not None and module == "__main__":
        if not _is_made_bare(kind):
            raise Lacking(f"a {name}, which is more than its attributes"[:200])
        value = decoder.objects[number] = object.__new__(kind)  # its own `__new__` may want arguments
        for field, tree in fields:
            if not _is_data(kind, field) or _is_cache(kind, field):
                raise Lacking(f"an attribute called {field!r}"[:100])
            object.__setattr__(value, field, decoder.value(tree))
    else:
        raise Lacking(f"a {module}.{name}, which may not be made here"[:200])
    decoder.objects[number] = value
    return value


def _is_cache(kind: type, field: str) -> bool:
    """Return whether an attribute is what a cached_property has computed: the reader computes it anew."""
    return isinstance(inspect.getattr_static(kind, field, None), functools.cached_property)


def _is_data(kind: type, field: str) -> bool:
    """Return whether an object may have an attribute of this name: it may not hide a method of its class."""
    own = inspect.getattr_static(kind, field, None)
    is_code = callable(own) or (hasattr(type(own), "__get__") and not inspect.ismemberdescriptor(own))
    return bound_name(field) and not field.startswith("__") and not is_code


def _new_list(decoder: Decoder, number: int, module: str, name: str, items: list) -> list:
    kind = decoder.kind(module, name)
    if kind is None or not issubclass(kind, list):
        raise Lacking(f"a {module}.{name}, which may not be made here"[:200])
    value = decoder.objects[number] = kind()
    _fill_list(decoder, value, items)
    return value


def _build(kind: type, values: dict[str, Any]) -> Any:
    """Make a NamedTuple or a dataclass from its fields; the dataclass's own `__post_init__` checks the values.

    What a package's dataclass computes from its fields is computed anew, whatever the message says of it.
    """
    if not dataclasses.is_dataclass(kind):
        return kind(**values)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    value = kind(**{name: item for name, item in values.items() if fields[name].init})
    for name, item in values.items():
        if not fields[name].init and kind.__module__ == "__main__":
            object.__setattr__(value, name, item)
    return value


_READ_NEW: dict[str, Callable] = {
    "list": _new(list, _fill_list),
    "set": _new(set, _fill_set),
    "dict": _new(dict, _fill_dict),
    "bytearray": _new(bytearray, _fill_bytes),
    "array": _new_array,
    "tensor": _new_tensor,
    "record": _new_record,
    "list of": _new_list,
    "named": _new_named,
}

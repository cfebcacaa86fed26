"""What may cross between the judge and the sandbox: values as JSON and npy, bounded, and never as pickle.

A message is a tree of JSON with the bytes of arrays behind it. Each object that can be changed has a number in it, so
that an object which is there twice arrives as one object, and so that an answer can say "your argument 3, changed":
arguments are copied in and copied out, and for the caller it looks as if the function had changed them itself.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import keyword
import math
import sys
from collections import namedtuple
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_BYTES = 64 * 2**20  # of a message
MAX_DEPTH = 100  # of lists in lists
NODE = 32  # bytes that a list or a number counts for, about what it takes here
_JSON_INT = 2**53  # above it JSON's numbers are not exact everywhere

Resolve = Callable[[str, str], type | None]  # (module, qualified name) -> the class, or None if it may not be made here


class NotPlain(TypeError):
    """A value that cannot cross, with words on what it is."""


class BadMessage(Exception):
    """Bytes that are no message of this kind: whoever sent them did not use this module."""


def trusted(packages: tuple[str, ...], namespace: dict[str, Any]) -> Resolve:
    """Resolve classes of these packages, and those that `namespace` (the notebook's, "__main__") holds."""

    def resolve(module: str, name: str) -> type | None:
        if module == "__main__":
            found = namespace.get(name)
        elif module.partition(".")[0] in packages:
            found = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part, None)
        else:
            return None
        return found if isinstance(found, type) and (module, name) == (found.__module__, found.__qualname__) else None

    return resolve


class Encoder:
    """Writes values down. One encoder writes one message.

    `known`: objects that the other side has, by `id`: their numbers there. `other(value)`: a tree for what is not
    plain (a number of a handle, say), or None. `resolve`: which classes the other side can make. `whole`: objects, by
    `id`, that are given to `other` even if they could be written down.
    """

    def __init__(
        self,
        resolve: Resolve = lambda module, name: None,
        other: Callable[[Any], list | None] = lambda value: None,
        known: dict[int, int] | None = None,
        whole: set[int] = frozenset(),
    ):
        self.resolve, self.other, self.whole = resolve, other, whole
        self.known = known or {}
        self.numbers: dict[int, int] = {}  # id of an object -> its number in this message
        self.objects: list[Any] = []  # by number; kept alive, so that no id is used twice
        self.blobs: list[bytes] = []
        self.storages: dict[int, int] = {}  # a tensor's memory -> its blob
        self.size = 0

    def message(self, value: Any) -> bytes:
        """The bytes of `value`; NotPlain if it cannot cross."""
        tree = self.tree(value, 0)
        try:
            text = json.dumps({"value": tree, "sizes": [len(blob) for blob in self.blobs]}).encode()
        except (RecursionError, ValueError) as error:
            raise NotPlain(f"a value that cannot be written down ({error})") from None
        self.count(len(text))
        return b"".join([len(text).to_bytes(8, "big"), text, *self.blobs])

    def tree(self, value: Any, depth: int) -> Any:
        """`value` as JSON: [kind, ...] for whatever JSON has no word of its own for."""
        if depth > MAX_DEPTH:
            raise NotPlain(f"a value nested deeper than {MAX_DEPTH} levels")
        self.count(NODE)
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if abs(value) < _JSON_INT else ["int", hex(value)]
        if kind is float:
            return value if math.isfinite(value) else ["float", repr(value)]
        if kind is str:
            self.count(len(value))
            return value
        if write := _IMMUTABLE.get(kind):
            return write(self, value, depth + 1)
        if id(value) in self.numbers:
            return ["again", self.numbers[id(value)]]
        return self._object(value, depth)

    def _object(self, value: Any, depth: int) -> Any:
        """The tree of something that has an identity."""
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
        tree = write(self, value, depth + 1)
        return ["known", number, self.known[id(value)], tree] if id(value) in self.known else ["new", number, tree]

    def _record_writer(self, value: Any) -> Callable | None:
        kind = type(value)
        if self.resolve(kind.__module__, kind.__qualname__) is kind:
            if isinstance(value, list):
                return Encoder.list_of_a_kind
            if _fields(value) is not None:
                return Encoder.record
        return _named if isinstance(value, tuple) and hasattr(kind, "_fields") else None

    def record(self, value: Any, depth: int) -> list:
        fields = [[name, self.tree(field, depth)] for name, field in _fields(value).items()]
        return ["record", type(value).__module__, type(value).__qualname__, fields]

    def list_of_a_kind(self, value: list, depth: int) -> list:
        return ["list of", type(value).__module__, type(value).__qualname__, [self.tree(item, depth) for item in value]]

    def blob(self, data: bytes) -> int:
        self.count(len(data))
        self.blobs.append(data)
        return len(self.blobs) - 1

    def count(self, size: int) -> None:
        """Add so many bytes to what the message takes; NotPlain if that is too much."""
        self.size += size
        if self.size > MAX_BYTES:
            raise NotPlain(f"more than {MAX_BYTES / 2**20:.0f} MiB of data")


class Decoder:
    """Reads what an `Encoder` has written; BadMessage for anything else.

    `known`: this side's own objects by number, which an answer may have changed: they are changed in place; with None,
    what they have become is read as something new.
    `other(kind, tree)`: what stands for a thing that is not plain.
    """

    def __init__(
        self,
        resolve: Resolve = lambda module, name: None,
        other: Callable[[list], Any] | None = None,
        known: list[Any] | None = None,
    ):
        self.resolve, self.other = resolve, other
        self.known = known
        self.objects: dict[int, Any] = {}  # by number, as they were read
        self.blobs: list[memoryview] = []
        self.storages: dict[int, Any] = {}

    def read(self, message: bytes) -> Any:
        try:
            length = int.from_bytes(message[:8], "big")
            if message.count(b"[", 8, 8 + length) > MAX_BYTES // NODE:
                raise BadMessage("too many lists")  # 64 MiB of brackets would be gigabytes of lists
            text = json.loads(message[8 : 8 + length])
            rest = memoryview(message)[8 + length :]
            for size in text["sizes"]:
                self.blobs.append(rest[:size])
                rest = rest[size:]
            return self.value(text["value"])
        except BadMessage:
            raise
        except Exception as error:  # what is written by nobody's encoder fails in more ways than can be listed
            raise BadMessage(f"not a message ({type(error).__name__}: {error})"[:200]) from None
        except RecursionError:
            raise BadMessage("not a message (nested too deeply)") from None

    def value(self, tree: Any) -> Any:
        if not isinstance(tree, list):
            if isinstance(tree, dict):
                raise BadMessage("not a message")
            return tree
        kind, *rest = tree
        if kind == "again":
            return self.objects[rest[0]]
        if kind == "new":
            number, content = rest
            return _READ_NEW[content[0]](self, number, *content[1:])
        if kind == "known":
            number, theirs, content = rest
            if self.known is None:
                return _READ_NEW[content[0]](self, number, *content[1:])
            mine = self.objects[number] = self.known[theirs]
            _CHANGE[content[0]](self, mine, *content[1:])
            return mine
        if kind in _READ:
            return _READ[kind](self, *rest)
        if self.other is None:
            raise BadMessage(f"not a message ({kind})")
        return self.other(tree)

    def array(self, blob: int) -> Any:
        """A numpy array from npy: its header has to fit its bytes, so that a lie cannot ask for memory."""
        import numpy as np

        data = io.BytesIO(self.blobs[blob])
        version = np.lib.format.read_magic(data)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = header(data, max_header_size=10_000)
        bytes_left = data.getbuffer().nbytes - data.tell()
        if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != bytes_left:
            raise BadMessage("an array whose header does not fit its bytes")
        flat = np.frombuffer(data.read(), dtype=dtype) if bytes_left else np.empty(math.prod(shape), dtype)
        return flat.reshape(shape, order="F" if fortran else "C").copy(order="K")

    def tensor(self, blob: int, dtype: str, shape: list, stride: list, offset: int, gradient: bool) -> Any:
        """A torch tensor, as a view of its whole memory; tensors that shared memory share it here, too."""
        import torch

        kind = getattr(torch, dtype)
        if not isinstance(kind, torch.dtype) or dtype.startswith(("q", "bits")):
            raise BadMessage(f"a tensor of {dtype}")
        if blob not in self.storages:
            data = bytearray(self.blobs[blob])
            self.storages[blob] = (
                torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
            )
        memory = self.storages[blob]
        reach = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
        if math.prod(shape) * kind.itemsize > MAX_BYTES:  # a view can be larger than its memory
            raise BadMessage(f"a tensor of {math.prod(shape):,} elements")
        if min([*shape, *stride, offset, 0]) < 0 or (0 not in shape and reach * kind.itemsize > len(memory)):
            raise BadMessage("a tensor that reaches beyond its memory")
        empty = torch.empty(0, dtype=kind)
        if len(memory):
            empty.set_(memory.untyped_storage(), offset, shape, stride)
        else:
            empty = empty.reshape(shape)
        return empty.requires_grad_() if gradient else empty


def bound_name(name: str) -> bool:
    """Whether this is a name that a program could have given."""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def _name_of(kind: type) -> str:
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


# Values without an identity


def _sequence(word: str) -> Callable:
    return lambda encoder, value, depth: [word, [encoder.tree(item, depth) for item in value]]


def _ends(word: str) -> Callable:
    return lambda encoder, value, depth: [
        word,
        *(encoder.tree(n, depth) for n in (value.start, value.stop, value.step)),
    ]


_IMMUTABLE = {
    bytes: lambda encoder, value, depth: ["bytes", encoder.blob(value)],
    complex: lambda encoder, value, depth: ["complex", repr(value.real), repr(value.imag)],
    range: _ends("range"),
    slice: _ends("slice"),
    type(...): lambda encoder, value, depth: ["ellipsis"],
    tuple: _sequence("tuple"),
    frozenset: _sequence("frozenset"),
    Decimal: lambda encoder, value, depth: ["decimal", str(value)],
    Fraction: lambda encoder, value, depth: [
        "fraction",
        encoder.tree(value.numerator, depth),
        encoder.tree(value.denominator, depth),
    ],
}

_READ = {
    "int": lambda decoder, digits: int(digits, 16),
    "float": lambda decoder, digits: float(digits),
    "bytes": lambda decoder, blob: bytes(decoder.blobs[blob]),
    "complex": lambda decoder, real, imag: complex(float(real), float(imag)),
    "range": lambda decoder, *ends: _range(*map(decoder.value, ends)),
    "slice": lambda decoder, *ends: slice(*map(decoder.value, ends)),
    "ellipsis": lambda decoder: ...,
    "tuple": lambda decoder, items: tuple(map(decoder.value, items)),
    "frozenset": lambda decoder, items: frozenset(map(decoder.value, items)),
    "decimal": lambda decoder, digits: Decimal(digits),
    "fraction": lambda decoder, *parts: Fraction(*map(decoder.value, parts)),
    "scalar": lambda decoder, blob: decoder.array(blob)[()],
    "dtype": lambda decoder, module, name: _dtype(module, name),
}


def _range(*ends: int) -> range:
    found = range(*ends)
    if len(found) > MAX_BYTES:
        raise BadMessage(f"a range of {len(found):.3g} numbers")
    return found


def _dtype(module: str, name: str) -> Any:
    if module == "torch":
        import torch

        found = getattr(torch, name)
        if isinstance(found, torch.dtype):
            return found
    elif module == "numpy":
        import numpy as np

        found = np.dtype(name)
        if not found.hasobject:
            return found
    raise BadMessage(f"a dtype called {name}")


# Values with an identity: written, read as new, and changed in place


def _pairs(encoder: Encoder, value: dict, depth: int) -> list:
    return ["dict", [[encoder.tree(key, depth), encoder.tree(item, depth)] for key, item in value.items()]]


_MUTABLE = {
    list: _sequence("list"),
    set: _sequence("set"),
    dict: _pairs,
    bytearray: lambda encoder, value, depth: ["bytearray", encoder.blob(bytes(value))],
}


def _named(encoder: Encoder, value: tuple, depth: int) -> list:
    """A NamedTuple of the sender's own: its name, its fields, its values."""
    return ["named", type(value).__name__, list(value._fields), [encoder.tree(item, depth) for item in value]]


def _writer_of_arrays(value: Any) -> Callable | None:
    """How numpy's arrays and torch's tensors are written; both modules are there if `value` is theirs."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        return _array
    if torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return _tensor
    return None


def _npy(value: Any) -> bytes:
    import numpy as np

    data = io.BytesIO()
    np.lib.format.write_array(data, np.asarray(value), allow_pickle=False)
    return data.getvalue()


def _array(encoder: Encoder, value: Any, depth: int) -> list:
    encoder.count(value.nbytes)  # before a copy is made of it: a view can be larger than its memory
    return ["array", encoder.blob(_npy(value))]


def _tensor(encoder: Encoder, value: Any, depth: int) -> list:
    import torch

    value, gradient = value.detach(), value.requires_grad
    value = (value if value.device.type == "cpu" else value.cpu()).resolve_conj().resolve_neg()
    encoder.count(value.nbytes)
    storage = value.untyped_storage()
    key = (storage.data_ptr(), storage.nbytes())
    if key not in encoder.storages or not storage.nbytes():
        encoder.count(storage.nbytes())
        memory = torch.empty(0, dtype=torch.uint8).set_(storage)
        encoder.storages[key] = encoder.blob(memory.numpy().tobytes())
        encoder.objects.append(memory)  # its address is not used again while this message is written
    dtype = str(value.dtype).removeprefix("torch.")
    where = list(value.shape), list(value.stride()), value.storage_offset()
    return ["tensor", encoder.storages[key], dtype, *where, gradient]


def _base(encoder: Encoder, value: Any, depth: int) -> Any:
    """A numpy scalar or a dtype; a value of a class derived from a plain one as that plain one; else None."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.generic) and not value.dtype.hasobject:
        return ["scalar", encoder.blob(_npy(value))]
    if numpy is not None and isinstance(value, numpy.dtype) and not value.hasobject:
        return ["dtype", "numpy", value.str]
    if torch is not None and isinstance(value, torch.dtype):
        return ["dtype", "torch", str(value).removeprefix("torch.")]
    for base in (int, float, str, list, tuple, dict, set):  # a Counter is a dict, an IntEnum an int
        if isinstance(value, base):
            return encoder.tree(base.__new__(base, value) if base in (int, float, str) else base(value), depth)
    return None


def _fields(value: Any) -> dict[str, Any] | None:
    """What a record consists of: the fields of a NamedTuple or a dataclass, or an object's attributes."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return dict(vars(value)) if type(value).__module__ == "__main__" and hasattr(value, "__dict__") else None


def _new(make: Callable, change: Callable) -> Callable:
    """Read a container: it has its number before its content is read, which may contain it."""

    def read(decoder: Decoder, number: int, *content: Any) -> Any:
        value = decoder.objects[number] = make()
        change(decoder, value, *content)
        return value

    return read


def _change_list(decoder: Decoder, value: list, items: list) -> None:
    value[:] = [decoder.value(item) for item in items]


def _change_set(decoder: Decoder, value: set, items: list) -> None:
    new = {decoder.value(item) for item in items}
    value.clear()
    value.update(new)


def _change_dict(decoder: Decoder, value: dict, pairs: list) -> None:
    new = [(decoder.value(key), decoder.value(item)) for key, item in pairs]
    value.clear()
    value.update(new)


def _change_bytes(decoder: Decoder, value: bytearray, blob: int) -> None:
    value[:] = decoder.blobs[blob]


def _change_array(decoder: Decoder, value: Any, blob: int) -> None:
    new = decoder.array(blob)
    if new.shape == value.shape and new.dtype == value.dtype and value.flags.writeable:
        value[...] = new


def _change_tensor(decoder: Decoder, value: Any, *content: Any) -> None:
    import torch

    new = decoder.tensor(*content)
    if new.shape == value.shape and new.dtype == value.dtype:
        with torch.no_grad():
            value.copy_(new)


def _change_record(decoder: Decoder, value: Any, module: str, name: str, fields: list) -> None:
    for field, tree in fields:
        new = decoder.value(tree)
        if isinstance(value, tuple):
            continue
        if not bound_name(field) or field.startswith("__"):
            raise BadMessage(f"an attribute called {field!r}"[:100])
        if getattr(value, field, decoder) is not new:
            object.__setattr__(value, field, new)


def _new_array(decoder: Decoder, number: int, blob: int) -> Any:
    value = decoder.objects[number] = decoder.array(blob)
    return value


def _new_tensor(decoder: Decoder, number: int, *content: Any) -> Any:
    value = decoder.objects[number] = decoder.tensor(*content)
    return value


def _new_named(decoder: Decoder, number: int, name: str, fields: list, items: list) -> tuple:
    if not (bound_name(name) and all(map(bound_name, fields))):
        raise BadMessage("a tuple with odd names")
    value = decoder.objects[number] = namedtuple(name, fields)(*map(decoder.value, items))
    return value


def _new_record(decoder: Decoder, number: int, module: str, name: str, fields: list) -> Any:
    made = decoder.resolve(module, name)
    if made is None:
        raise BadMessage(f"a {module}.{name}, which may not be made here")
    if issubclass(made, tuple) or dataclasses.is_dataclass(made):
        values = {field: decoder.value(tree) for field, tree in fields}
        value = _build(made, values)
    else:
        value = decoder.objects[number] = made.__new__(made)
        _change_record(decoder, value, module, name, fields)
    decoder.objects[number] = value
    return value


def _new_list(decoder: Decoder, number: int, module: str, name: str, items: list) -> list:
    made = decoder.resolve(module, name)
    if made is None or not issubclass(made, list):
        raise BadMessage(f"a {module}.{name}, which may not be made here")
    value = decoder.objects[number] = made()
    _change_list(decoder, value, items)
    return value


def _build(made: type, values: dict[str, Any]) -> Any:
    """A NamedTuple or a dataclass from its fields; its own `__post_init__` sees the values before anybody else does."""
    if not dataclasses.is_dataclass(made):
        return made(**values)
    fields = {field.name: field for field in dataclasses.fields(made)}
    value = made(**{name: item for name, item in values.items() if fields[name].init})
    for name, item in values.items():
        if not fields[name].init:
            object.__setattr__(value, name, item)
    return value


_CHANGE = {
    "list": _change_list,
    "set": _change_set,
    "dict": _change_dict,
    "bytearray": _change_bytes,
    "array": _change_array,
    "tensor": _change_tensor,
    "record": _change_record,
    "list of": lambda decoder, value, module, name, items: _change_list(decoder, value, items),
    "named": lambda decoder, value, *content: None,
}
_READ_NEW = {
    "list": _new(list, _change_list),
    "set": _new(set, _change_set),
    "dict": _new(dict, _change_dict),
    "bytearray": _new(bytearray, _change_bytes),
    "array": _new_array,
    "tensor": _new_tensor,
    "record": _new_record,
    "list of": _new_list,
    "named": _new_named,
}

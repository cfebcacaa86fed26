"""What crosses between the judge and the sandbox arrives as it was; what is no data, or a lie, does not cross."""

import json
import sys
import time
import types
from collections import Counter, namedtuple
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from autograder.wire.plain import (
    BadMessage,
    Contents,
    Decoder,
    Encoder,
    Lacking,
    NotPlain,
    named,
    read_back,
    trusted,
)
from collectives import Schedule, Transfer
from collectives.practice.ch09_zero import State
from collectives.practice.on_ranks import Outcome
from collectives.ranks import PerRank

RESOLVE = trusted(("collectives",), {})
Point = namedtuple("Point", "x y")


def across(value):
    return Decoder(RESOLVE).read(Encoder(RESOLVE).message(value))


def test_a_set_of_names_is_sent_in_their_order_and_not_in_that_of_this_process():
    names = ["rack", "host", "gpu", "rail", "chunk", "port", "lane", "ring"]
    for kind in (set, frozenset):
        assert json.dumps(sorted(names)).encode() in Encoder(RESOLVE).message(kind(names))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**80),
        1.5,
        float("-inf"),
        "naïve \ud800 text",
        b"\x00\xff",
        [1, [2, (3, {4})]],
        {"a": 1, (1, 2): [None]},
        frozenset({1}),
        range(3, 9, 2),
        slice(1, None),
        ...,
        2 + 3j,
        Fraction(1, 3),
        Decimal("0.1"),
        Transfer(0, 1, 2, "reduce"),
        PerRank([1, 2]),
    ],
)
def test_a_value_arrives_as_it_was_with_its_type(value):
    assert across(value) == value
    assert type(across(value)) is type(value)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float32", "complex128", "bool", "U5", "datetime64[s]"])
def test_an_array_arrives_with_its_dtype_shape_and_order(dtype):
    for array in (
        np.zeros((2, 3), dtype),
        np.zeros((3, 0), dtype),
        np.zeros((), dtype),
        np.zeros((2, 3), dtype, order="F"),
    ):
        arrived = across(array)
        assert arrived.dtype == array.dtype and arrived.shape == array.shape
        np.testing.assert_array_equal(arrived, array)
    assert type(across(np.float32(2.5))) is np.float32


def test_tensors_arrive_with_their_views_of_one_memory_and_with_bfloat16():
    whole = torch.arange(10, dtype=torch.bfloat16)
    arrived, part = across([whole, whole[2:5]])
    assert torch.equal(arrived, whole) and part.untyped_storage().nbytes() == 20
    part += 1
    assert arrived[2] == 3  # the part is a part of it on the other side, too
    assert torch.equal(across(torch.eye(3).T[1:]), torch.eye(3).T[1:]) and across(torch.zeros(2, 0)).shape == (2, 0)


def test_of_a_table_no_more_is_sent_than_the_columns_that_are_passed():
    inner = np.dtype([("in", "<f8"), ("want", "<f8")])
    table = np.array([(1.5, (2.5, 42.25), 77.75)], dtype=[("x", "<f8"), ("y", inner), ("want", "<f8")])
    within = np.dtype({"names": ["in"], "formats": ["<f8"], "itemsize": 16})
    nested = table.view({"names": ["y"], "formats": [within], "offsets": [8], "itemsize": 32})
    for passed in (table[["x"]], table[0][["x"]], nested):
        message = Encoder(shown=True).message([passed])
        (arrived,) = Decoder().read(message)
        assert arrived == passed and arrived.dtype == passed.dtype
        assert not any(np.float64(want).tobytes() in message for want in (42.25, 77.75))


@pytest.mark.parametrize(
    "shown", [lambda x: x[0].expand(9, -1), lambda x: x.as_strided((9, 4), (0, 2)), lambda x: x[1:]]
)
def test_of_a_tensors_memory_no_more_is_sent_than_it_shows_however_often_it_shows_that(shown):
    view = shown(torch.arange(12.0).reshape(3, 4))
    (arrived,) = Decoder().read(Encoder(shown=True).message([view]))
    sent = torch.empty(0).set_(arrived.untyped_storage())
    assert torch.equal(arrived, view) and set(sent.tolist()) == set(view.flatten().tolist())


def test_an_object_that_is_there_twice_arrives_once_even_within_itself():
    item = [1]
    first, second = across((item, item))
    assert first is second
    item.append(item)
    arrived = across(item)
    assert arrived[1] is arrived


def test_where_a_module_is_not_imported_no_message_imports_it():
    class Fine:
        pass

    resolve = trusted(("collectives",), {"Fine": Fine})
    for value in (np.zeros(2), np.float32(1), np.dtype("f4"), torch.zeros(2), torch.float32, Transfer(0, 1, 2)):
        reader = Decoder(resolve, find=lambda name: None, packages=("collectives",))
        with pytest.raises(Lacking, match=r"of numpy|of torch|a Transfer of collectives\.schedule"):
            reader.read(Encoder(RESOLVE).message(("returned", "7", [1], value)))
        assert reader.outline() == ("returned", "7", None, None)
    with pytest.raises(
        Lacking, match=r"a antigravity\.x, which may not be made here"
    ):  # no package of the instructor's
        Decoder(resolve, packages=("collectives",)).read(message(["new", 0, ["record", "antigravity", "x", []]]))
    assert "antigravity" not in sys.modules


def test_what_a_reader_refuses_is_told_of_before_it_is_sent_and_a_message_has_64_mib():
    with pytest.raises(NotPlain, match="a range of more than 67,108,864 numbers"):
        read_back(Encoder().message(range(10**9)), Decoder())
    half = np.zeros(3 * 2**20)
    assert read_back(Encoder().message([half, half[:-1], 1]), Decoder())[2] == 1
    with pytest.raises(NotPlain, match="more than 64 MiB"):
        Encoder().message([half, half[:-1], half[:-2]])


@pytest.mark.parametrize(
    "scalar", [np.int8(-3), np.uint64(2**63), np.float16(0.1), np.longdouble(1) / 3, np.bool_(True)]
)
def test_a_number_of_numpys_arrives_with_its_type(scalar):
    for value in (scalar, np.complex64(1 + 2j), np.datetime64("2026-01-01", "s"), np.str_("text"), np.bytes_(b"x")):
        assert across(value) == value and type(across(value)) is type(value)


def test_what_is_derived_from_plain_data_arrives_as_that_and_a_namedtuple_with_its_fields():
    class Equal(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert across(Equal(3)) != 4 and type(across(Equal(3))) is int
    assert across(Counter("aab")) == {"a": 2, "b": 1}
    arrived = across(Point(1, [2]))
    assert arrived == (1, [2]) and arrived.y == [2]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "a object, which is not plain data"),
        (np.array([object()]), "not plain data"),
        (np.zeros(2, "V0"), "whose items have no size"),
        (np.broadcast_to(np.float64(1), 10**10), "more than 64 MiB"),
        (torch.ones(1).expand(10**10), "more than 64 MiB"),
        (bytes(70 * 2**20), "more than 64 MiB"),
        ([1 << 100_000], "more than 100,000 bits"),
        ([Fraction(1, 1 << 100_000)], "more than 100,000 bits"),
        (Decimal("1e30001"), "more than 30,000 digits"),
        (Schedule.of(2, 1, [[Transfer(0, 1, 0)]]).__class__, "not plain data"),
    ],
)
def test_what_is_not_data_or_too_much_is_told_of_before_it_is_sent(value, words):
    with pytest.raises(NotPlain, match=words):
        Encoder(RESOLVE).message(value)


def test_a_few_lists_that_stand_for_a_billion_and_a_thousand_levels_are_no_trouble():
    laughs = ["ha"]
    for _ in range(60):
        laughs = [laughs] * 10
    assert len(Encoder().message(laughs)) < 20_000  # each list is written once
    deep = []
    for _ in range(1000):
        deep = [deep]
    with pytest.raises(NotPlain, match="nested deeper"):
        Encoder().message(deep)


def message(tree, *blobs):
    text = json.dumps({"value": tree, "sizes": [len(blob) for blob in blobs]}).encode()
    return len(text).to_bytes(8, "big") + text + b"".join(blobs)


def sized(tree, sizes):
    text = json.dumps({"value": tree, "sizes": sizes}).encode()
    return len(text).to_bytes(8, "big") + text + bytes(64)


def npy(header):
    text = repr(header).encode() if isinstance(header, dict) else header
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


COLLIDING = [["int", hex(k * (2**61 - 1))] for k in range(200_000)]
# Each tuple has the one before twice.
DOUBLED = [["new", 0, ["named", "x", ["a", "b"], [0, 0]]]] + [
    ["new", n, ["named", "x", ["a", "b"], [["again", n - 1]] * 2]] for n in range(1, 80)
]
LIES = {
    "nothing": b"",
    "no JSON": (4).to_bytes(8, "big") + b"{{{{",
    "brackets": (10**5).to_bytes(8, "big") + b"[" * 10**5,
    "an unknown word": message(["pickle", "x"]),
    "a bare dict": message({"a": 1}),
    "a reference to nothing": message(["again", 7]),
    "a blob that is not there": message(["bytes", 3]),
    "a number of a type without numbers": message(["number", "O", "00" * 8]),
    "a number of a type of another size": message(["number", "<f8", "00" * 4]),
    "a number that asks for memory": message(["number", "V1000000000", "00"]),
    "a NamedTuple whose fields are no texts": message(["new", 0, ["named", "x", [1], [1]]]),
    "a huge range": message(["range", 0, 10**12, 1]),
    "a fraction of what is no number": message(["fraction", ["decimal", "1e999999"], 3]),
    "a member of no enum": message(["member", "collections", "Counter", "x"]),
    "what is no number": message(["int", "z"]),
    "a huge number": message(["int", hex(1 << 100_000)]),
    "a fraction whose divisor takes minutes": message(["fraction", ["int", "3" * 3 * 10**6], ["int", "7" * 3 * 10**6]]),
    "a decimal number that takes gigabytes to write out": message(["decimal", "1e999999999"]),
    "a number with a million digits": message(["float", "1" * 10**6]),
    "numbers that collide in a set": message(["new", 0, ["set", COLLIDING]]),
    "numbers that collide in a frozenset": message(["frozenset", COLLIDING]),
    "numbers that collide in a dict": message(["new", 0, ["dict", [[number, 0] for number in COLLIDING]]]),
    "objects by numbers that collide": message(["tuple", [["new", k * (2**61 - 1), ["list", []]] for k in range(9)]]),
    "a tuple that takes years to hash": message(["tuple", [*DOUBLED, ["frozenset", [["again", 79]]]]]),
    "a key that takes years to hash": message(["tuple", [*DOUBLED, ["new", 80, ["dict", [[["again", 79], 0]]]]]]),
    "a tensor whose size takes hours to multiply": message(
        ["new", 0, ["tensor", 0, "uint8", [10**4000] * 10**5, [1] * 10**5, 0, False]], bytes(4)
    ),
    "a tuple of a million fields": message(["new", 0, ["named", "x", [f"x{n}" for n in range(10**6)], [0] * 10**6]]),
    "an array that asks for memory": message(
        ["new", 0, ["array", 0]], npy({"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    ),
    "an array of negative length": message(
        ["new", 0, ["array", 0]], npy({"descr": "<f8", "fortran_order": False, "shape": (-1, -8)}) + bytes(64)
    ),
    "an array of objects": message(
        ["new", 0, ["array", 0]], npy({"descr": "|O", "fortran_order": False, "shape": (1,)}) + bytes(8)
    ),
    "an array of a billion texts without a character": message(
        ["new", 0, ["array", 0]], npy({"descr": "<U0", "fortran_order": False, "shape": (2**28,)})
    ),
    "an array of a billion nothings": message(
        ["new", 0, ["array", 0]], npy({"descr": [("a", "|V0")], "fortran_order": False, "shape": (2**28,)})
    ),
    "a dtype of a million numbers": message(["dtype", "numpy", ",".join(["f8"] * 10**6)]),
    "an array whose header is a program": message(["new", 0, ["array", 0]], npy(b"__import__('os').abort()")),
    "a tensor beyond its memory": message(["new", 0, ["tensor", 0, "float32", [4], [1], 2, False]], bytes(16)),
    "a tensor before its memory": message(["new", 0, ["tensor", 0, "float32", [2], [-1], 0, False]], bytes(16)),
    "a tensor of a huge view": message(["new", 0, ["tensor", 0, "float32", [10**12], [0], 0, False]], bytes(4)),
    "a tensor of no dtype": message(["new", 0, ["tensor", 0, "load", [1], [1], 0, False]], bytes(4)),
    "a class of another package": message(["new", 0, ["record", "subprocess", "Popen", [["args", "true"]]]]),
    "a function as a class": message(["new", 0, ["record", "collectives.ranks", "run", []]]),
    "a module that starts something": message(["new", 0, ["record", "antigravity", "x", []]]),
    "a field that takes minutes to compile": message(["new", 0, ["named", "x", ["a" + "\u0301\u0323" * 60_000], [1]]]),
    "a tuple with a program for a name": message(["new", 0, ["named", "a): pass\n#", ["x"], [1]]]),
    "a dtype of objects": message(["dtype", "numpy", "O"]),
    "a module of torch's for a dtype": message(["dtype", "torch", "onnx"]),
    "one blob in many copies": message(["tuple", [["bytes", 0]] * 50], bytes(8)),
    "one blob as bytes and as a tensor": message(
        ["tuple", [["new", 0, ["tensor", 0, "uint8", [4], [1], 0, False]], ["bytes", 0]]], bytes(4)
    ),
    "a blob by a number from the end": message(["bytes", -1], bytes(4)),
    "blobs that are all of the message, each": sized(["tuple", [["bytes", n] for n in range(9)]], [None] * 9),
    "blobs of less than nothing": sized(["bytes", 1], [-4, 4]),
    "a thing by number, where none may be": message(["handle", 0, "function", {}]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_forged_message_is_no_message(lie):
    """Nor does it keep the judge's interpreter in one call for long: no signal interrupts that, and no thread runs."""
    begun = time.thread_time()
    with pytest.raises(BadMessage):
        Decoder(RESOLVE).read(LIES[lie])
    assert time.thread_time() - begun < 15


def test_large_numbers_and_some_that_collide_arrive():
    largest = (1 << 100_000) - 1
    for value in (largest, -largest, Fraction(1, largest), Decimal("1e30000"), {k * (2**61 - 1) for k in range(100)}):
        assert across([value]) == [value]


def test_many_honest_keys_are_no_trouble():
    """Their hashes spread, whatever they are."""
    for keys in (range(200_000), [(n % 300, n // 300) for n in range(100_000)], [2.0**n for n in range(-1000, 1000)]):
        assert across({key: 0 for key in keys}).keys() == set(keys)
        assert across(frozenset(keys)) == across(set(keys)) == set(keys)


def test_many_references_to_one_blob_take_no_more_memory_than_the_blob():
    one = ["new", 0, ["array", 0]]
    blob = npy({"descr": "|u1", "fortran_order": False, "shape": (2**20,)}) + bytes(2**20)
    arrived = Decoder(RESOLVE).read(message(["tuple", [one] + [["again", 0]] * 1000], blob))
    assert len({id(array) for array in arrived}) == 1
    view = ["tensor", 0, "uint8", [4], [1], 0, False]
    tensors = Decoder(RESOLVE).read(message(["tuple", [["new", n, view] for n in range(1000)]], bytes(4)))
    assert len({tensor.data_ptr() for tensor in tensors}) == 1


def test_a_chain_of_references_is_no_deeper_than_a_value_may_be():
    """Python hashes a tuple of tuples without a look at its stack: 150,000 levels ended the judge's process."""

    def chain(length):
        link = [["src", ["again", 0]], ["dst", 0], ["chunk", 0]]
        items = [["new", 0, ["record", "collectives.schedule", "Transfer", [["src", 0], *link[1:]]]]]
        for number in range(1, length):
            fields = [["src", ["again", number - 1]], *link[1:]]
            items.append(["new", number, ["record", "collectives.schedule", "Transfer", fields]])
        return message(["tuple", [["tuple", items], ["frozenset", [["again", length - 1]]]]])

    assert len(Decoder(RESOLVE).read(chain(400))[0]) == 400
    with pytest.raises(BadMessage, match="nested too deeply"):
        Decoder(RESOLVE).read(chain(100_000))


def test_a_name_in_a_message_imports_nothing_even_where_a_module_would_import_what_it_is_asked_for(monkeypatch):
    package = types.ModuleType("collectives.lazy")
    package.__getattr__ = lambda name: pytest.fail(f"a message has asked a module for {name}")
    monkeypatch.setitem(sys.modules, "collectives.lazy", package)
    for name in ("Later", "Later.Inner"):
        with pytest.raises(BadMessage):
            Decoder(RESOLVE).read(message(["new", 0, ["record", "collectives.lazy", name, []]]))
    assert named(torch, "float32") is torch.float32 and named(torch, "onnx.symbolic") is None
    assert RESOLVE("collectives.schedule", "Transfer") is Transfer


def test_what_is_in_an_object_now_is_written_with_the_readers_own_numbers_and_makes_new_objects():
    numbers, array, both = [3, 1, 2], np.zeros(3), {}
    sent = Encoder(RESOLVE)
    there = Decoder(RESOLVE)
    theirs = there.read(sent.message((numbers, array, both)))
    theirs[0].sort()
    theirs[1][1] = 5
    theirs[2]["numbers"] = theirs[0]
    known = {number: there.objects[number] for number in sent.changeable}
    reply = Encoder(RESOLVE, known={id(value): number for number, value in known.items()}).message(Contents(known))
    back = Decoder(RESOLVE, lambda tree: sent.changeable[tree[1]]).read(reply)
    contents = [back[number] for number in sorted(back)]
    assert contents[0] == [1, 2, 3] and contents[1].tolist() == [0, 5, 0] and contents[2]["numbers"] is numbers
    assert numbers == [3, 1, 2] and both == {} and array.tolist() == [0, 0, 0]  # reading has changed nothing


def test_what_is_within_a_frozen_record_of_the_library_is_not_up_for_change():
    outcome = Outcome(np.zeros(2), np.zeros(2), {}, 1, ["send"], [])
    state = State(torch.zeros(1), torch.zeros(1), torch.zeros(1))
    encoder = Encoder(RESOLVE)
    encoder.message(([1], outcome, PerRank([[1]]), state))
    assert list(encoder.changeable.values()) == [[1], state, state.master, state.mean, state.square]

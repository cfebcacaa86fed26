"""The judge against a sandbox that says anything: whatever comes, it changes nothing that it was not passed."""

import contextlib
import dataclasses
import functools
import io
import json
import os
import socket
import sys
import threading
import time
import types
from queue import SimpleQueue

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from autograder.inside.student import Inside
from autograder.judging import link as link_module
from autograder.judging.link import Ended, Link
from autograder.wire import channel, protocol
from autograder.wire.plain import Decoder, NotPlain
from collectives import Transfer
from collectives.practice.ch09_zero import State

# Conversations: `make attacks` has more than `make test`.
EXAMPLES = 5_000 if os.environ.get("ATTACKS") == "all" else 250
STEPS = 6  # requests in a conversation; most end earlier, at a lie
NAMES = ("f", "table")
WORDS = ["done", "ran", "values", "returned", "raised", "changed", "callback", "reply", "call", "look", "hello"]
LIBRARY = ("collectives",)


class Lost:
    """In place of a sandbox: a connection whose other end the test holds."""

    def __init__(self):
        self.socket, self.theirs = socket.socketpair()

    def ended(self):
        return "exit 0"

    def is_spent(self):
        return False

    def close(self):
        self.socket.close()


# What a liar may say: trees of the wire's own format, with the judge's own numbers in them.
SMALL = st.integers(-2, 12)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    SMALL,
    st.text(max_size=3),
    st.just("\ud800"),
    st.builds(lambda n: ["yours", n], SMALL),
    st.builds(lambda n: ["again", n], SMALL),
    st.builds(lambda n, kind: ["handle", n, kind, {"name": "f"}], SMALL, st.sampled_from([*protocol.KINDS, "none"])),
    st.builds(lambda digits: ["int", hex(10**digits)], st.integers(1, 400)),
    st.just(["known", 0, 0, ["list", []]]),
    st.just(["import", "antigravity", ""]),
    st.just(["new", 3, ["record", "antigravity", "x", []]]),
    st.just(["new", 4, ["record", "collectives.schedule", "Transfer", [["src", 0], ["dst", 1], ["chunk", 0]]]]),
    st.just(["new", 5, ["record", "collectives.practice.checks", "NotYet", []]]),
    st.just(["tuple", [["tuple", ["builtins", "ValueError"]]]]),
    st.builds(lambda n, odd: ["new", n, ["array", f"blob {odd}"]], SMALL, st.integers(0, 3)),
)
# Arrays that equal a word, or nothing: a check that compares them as it compares texts lets them pass.
ODD = [np.array(value) for value in ("stdout", "stream", "returned", [])]
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items: ["tuple", items], st.lists(inner, max_size=4)),
        st.builds(lambda number, items: ["new", number, ["list", items]], SMALL, st.lists(inner, max_size=4)),
        st.builds(
            lambda number, keys, item: ["new", number, ["dict", [[key, item] for key in keys]]],
            SMALL,
            st.lists(st.one_of(SMALL, st.sampled_from([*NAMES, "np", "output_type", "name", "text"])), max_size=4),
            inner,
        ),
    ),
    max_leaves=8,
)
KEYS = st.one_of(SMALL, st.sampled_from([*NAMES, "np", "mine"]))
NUMBERS = st.sampled_from(["last", "0" * 16, None, 0])
FIELD = st.integers(0, 1)
# What a liar says in place of the truth, or beside it: another message, or the truth with one thing changed in it.
LIES = st.one_of(
    st.tuples(st.just("a message"), st.sampled_from(WORDS), st.lists(TREES, max_size=4)),
    st.tuples(st.just("another number"), NUMBERS),
    st.tuples(st.just("another word"), st.sampled_from(WORDS)),
    st.tuples(st.just("one field less")),
    st.tuples(st.just("one field more"), TREES),
    st.tuples(st.just("another field"), FIELD, TREES),
    st.tuples(st.just("one more entry"), FIELD, KEYS, TREES),
    st.tuples(st.just("other entries"), FIELD, TREES),
)
ANSWER = st.lists(st.one_of(st.just(("the truth",)), LIES), min_size=1, max_size=2)
ANSWERS = st.lists(ANSWER, min_size=1, max_size=3)


def read(message):
    """A message as JSON has it: its tree, and the bytes of its arrays."""
    length = int.from_bytes(message[:8], "big")
    return json.loads(message[8 : 8 + length]), message[8 + length :]


def written(text, blobs=b""):
    text = json.dumps(text).encode()
    return len(text).to_bytes(8, "big") + text + blobs


def entries(field):
    """The entries of a field that is a dict, in the tree of a message; else None."""
    is_dict = isinstance(field, list) and field[0] == "new" and field[2][0] == "dict"
    return field[2][1] if is_dict else None


def lie(truth, last, how, *what):
    """The message that a liar sends, made of the truth. `last`: the number of the request before this one."""
    text, blobs = read(truth)
    items = text["value"][1]  # a tuple's: the word, the number, the fields
    if how == "a message":
        items[:] = [what[0], items[1], *what[1]]
    elif how == "another number":
        items[1] = last if what[0] == "last" else what[0]
    elif how == "another word":
        items[0] = what[0]
    elif how == "one field less":
        items[2:] = items[3:]
    elif how == "one field more":
        items.append(what[0])
    elif len(items) > 2 + what[0]:
        field = items[2 + what[0]]
        if how == "another field":
            items[2 + what[0]] = what[1]
        elif entries(field) is not None and how == "one more entry":
            entries(field).append([what[1], what[2]])
        elif entries(field) is not None:
            for entry in entries(field):
                entry[1] = what[1]
    return with_odd_arrays(text, blobs)


def with_odd_arrays(text, blobs):
    """The message with a blob for each array that a lie has in it."""
    words = json.dumps(text["value"])
    for number, array in enumerate(ODD):
        while f'"blob {number}"' in words:
            data = io.BytesIO()
            np.save(data, array)
            words = words.replace(f'"blob {number}"', str(len(text["sizes"])), 1)
            text["sizes"].append(len(data.getvalue()))
            blobs += data.getvalue()
    return written({"value": json.loads(words), "sizes": text["sizes"]}, blobs)


class Liar(threading.Thread):
    """What is in the sandbox: it holds an honest `Inside`, reads each request, and answers as the test has drawn."""

    def __init__(self, connection, honest):
        super().__init__(daemon=True)
        self.connection, self.honest = connection, honest
        self.answers = SimpleQueue()
        self.sent = []  # for each message, the number of the request that it was sent upon
        self.last = None
        self.start()

    def run(self):
        with contextlib.suppress(channel.Closed):
            while True:
                request = channel.receive(self.connection)
                word, number = read(request)[0]["value"][1][:2]
                if word in ("reply", "refusal"):
                    continue  # to a lie of before
                answer = [("the truth",)] if self.answers.empty() else self.answers.get()
                truth = self.honest.answer(request)
                for how, *what in answer:
                    self.sent.append(number)
                    channel.send(self.connection, truth if how == "the truth" else lie(truth, self.last, how, *what))
                self.last = number
        self.connection.close()


class Noting(Link):
    """A link that notes for which request it has taken each message."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.taken = []

    def _receive(self, number, due, inward):
        self.taken.append(number)
        return super()._receive(number, due, inward)


@pytest.fixture(scope="module", autouse=True)
def one_shell():
    """The honest end runs in this process; its shell must not stay the main module of the tests."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


class Conversation(RuleBasedStateMachine):
    """A judge that asks, a liar that answers, and all that the judge holds."""

    @property
    def over(self):
        return self.link.ended is not None

    def __init__(self):
        super().__init__()
        main = sys.modules["__main__"]
        sandbox = Lost()
        self.honest = Inside(sandbox.theirs)
        sys.modules["__main__"] = main
        self.honest.do_open(LIBRARY, {}, NAMES)
        self.honest.shell.user_ns.update(f=self.fill, table={"a": [1]})
        self.liar = Liar(sandbox.theirs, self.honest)
        self.link = Noting(sandbox, LIBRARY, {}, in_place=True, names=NAMES)
        self.link.deadline = time.monotonic() + 20
        self.mine = [[1, [2]], {"a": [3]}, np.arange(3.0), {4}]  # passed by no call
        self.before, self.earlier_before = repr(self.mine), repr([])
        self.called, self.earlier = [], []
        self.modules = set(sys.modules)

    def fill(self, *values):
        """The student's function in these conversations: it changes what it can, and calls what it is handed."""
        for value in values:
            if isinstance(value, list):
                value.append(len(value))
            elif isinstance(value, np.ndarray):
                value[...] = 7
            elif callable(value):
                self.liar.sent.append(self.honest.calling)
                value(1)

    def ask(self, answers, request):
        """Make a request; whatever the answers, it ends in one of the ways that the protocol has."""
        for each in answers:
            self.liar.answers.put(each)
        was_over = self.over
        try:
            return request()
        except Ended as ended:
            assert ended is self.link.ended
        except NotPlain:
            pass
        except Exception as error:
            assert not was_over and type(error).__module__ in ("builtins", "__main__", "collectives.practice.checks")
        return None

    @rule(answers=ANSWERS)
    def cell(self, answers):
        result = self.ask(answers, lambda: self.link.cell("1", "a cell", False))
        assert result is None or result[1].keys() <= set(NAMES)
        json.dumps(result)  # it goes into the notebook

    @rule(answers=ANSWERS, names=st.sets(st.sampled_from(NAMES)))
    def look(self, answers, names):
        result = self.ask(answers, lambda: self.link.look(names))
        assert result is None or (isinstance(result, dict) and result.keys() <= names)

    @rule(answers=ANSWERS, data=st.data())
    def call(self, answers, data):
        inner = [2]
        arguments = [[1, inner], {"a": inner}, np.arange(3.0), {4}, Transfer(0, 1, 0), State(*np.zeros((3, 2)))]
        chosen = data.draw(st.lists(st.sampled_from(range(len(arguments))), unique=True))
        passed = [arguments[index] for index in chosen]
        others = [value for index, value in enumerate(arguments) if index not in chosen and index > 1]
        before = repr(others)
        if data.draw(st.booleans()):
            passed.append(self.called.append)
        self.ask(answers, lambda: self.link.call(("name", "f"), "", passed))
        assert repr(self.earlier) == self.earlier_before
        self.earlier, self.earlier_before = arguments, repr(arguments)
        assert repr(others) == before
        assert repr(arguments[4]) == repr(Transfer(0, 1, 0))  # frozen, so never changed
        assert [type(value) for value in arguments] == [list, dict, np.ndarray, set, Transfer, State]
        assert arguments[2].shape == (3,)

    @precondition(lambda self: self.over)
    @rule()
    def nothing_more_is_asked(self):
        with pytest.raises(Ended):
            self.link.look(NAMES)

    @invariant()
    def what_no_call_has_passed_is_as_it_was(self):
        assert repr(self.mine) == self.before
        assert not self.link.asking

    @invariant()
    def an_answer_is_taken_for_the_request_that_it_was_sent_upon(self):
        taken = self.link.taken[:-1] if self.over else self.link.taken
        assert taken == self.liar.sent[: len(taken)]

    @invariant()
    def no_message_imports_a_module(self):
        assert not {name for name in set(sys.modules) - self.modules if name.split(".")[0] in ("antigravity", "this")}

    def teardown(self):
        self.link.sandbox.close()
        self.liar.connection.close()
        self.liar.join(5)


SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
def test_whatever_a_sandbox_says_changes_nothing_but_what_a_call_has_passed():
    run_state_machine_as_test(Conversation, settings=SETTINGS)


def test_a_display_has_only_kinds_that_a_page_shows_and_their_names_count():
    shown = {"output_type": "display_data", "data": {"image/png": "aGk="}, "metadata": {}}
    assert protocol.outputs([shown]) == [shown]
    assert protocol.size([shown]) == len("image/png") + len("aGk=")
    with pytest.raises(protocol.Hostile):
        protocol.outputs([shown | {"data": {"k" * 190: ""}}])


def test_a_word_is_a_text_and_no_array_that_equals_one():
    word, number = np.array("returned"), np.array("7")
    for message in [(word, "7", 1, []), ("returned", number, 1, []), ("returned", np.array([]), 1, [])]:
        with pytest.raises(protocol.Hostile):
            protocol.fields(message, "7", "returned")
    stream = {"output_type": "stream", "name": "stdout", "text": "x"}
    for field in ("output_type", "name"):
        with pytest.raises(protocol.Hostile):
            protocol.outputs([stream | {field: np.array(stream[field])}])
    with pytest.raises(protocol.Hostile):
        protocol.printed([(np.array("stdout"), "x")])


def test_a_message_that_the_judge_has_no_memory_for_is_no_forgery(monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(protocol, "fields", full)
    sandbox = Lost()
    link = Link(sandbox, LIBRARY, {}, in_place=True, names=NAMES)
    link.deadline = time.monotonic() + 20
    channel.send(sandbox.theirs, written({"value": ["tuple", ["done", "x"]], "sizes": []}))
    with pytest.raises(Ended) as ended:
        link.open({})
    assert ended.value.verdict == "memory"


@contextlib.contextmanager
def honest(**functions):
    """Yield a link to an honest sandbox in which the student has bound these functions."""
    sandbox, main = Lost(), sys.modules["__main__"]
    inside = Inside(sandbox.theirs)
    sys.modules["__main__"] = main
    inside.do_open(LIBRARY, {}, NAMES)
    inside.given = {"Slotted": Slotted}
    inside.shell.user_ns.update(functions)
    liar = Liar(sandbox.theirs, inside)  # who tells the truth unless told otherwise
    link = Link(sandbox, LIBRARY, inside.given, in_place=True, names=NAMES)
    link.deadline = time.monotonic() + 20
    try:
        yield link
    finally:
        sandbox.close()
        liar.join(5)
        sandbox.theirs.close()


@dataclasses.dataclass(slots=True)
class Slotted:
    x: int


Slotted.__module__ = "__main__"  # a locked cell's


def test_changes_come_back_into_whatever_a_test_may_pass():
    """Or change nothing, where they can't: an answer of honest code is never taken for a forgery."""

    def f(value):
        if isinstance(value, Slotted):
            value.x = 7
        else:
            (value.data if isinstance(value, torch.Tensor) else value)[...] = 7

    passed = [torch.nn.Parameter(torch.zeros(2)), np.zeros(2).view(np.matrix), Slotted(1)]
    passed += [torch.zeros(1).expand(3), np.broadcast_to(np.zeros(1), 3)]
    with honest(f=lambda value: None, table=f) as link:
        for value in passed:
            link.call(("name", "f"), "", [value])
        for value in passed[:3]:
            link.call(("name", "table"), "", [value])
        assert link.ended is None
    assert passed[0].tolist() == [7, 7] and type(passed[0]) is torch.nn.Parameter
    assert (passed[1] == 7).all() and passed[2] == Slotted(7) and not passed[3].any()


def test_a_value_of_a_module_that_the_judge_lacks_is_no_forgery_and_imports_nothing(monkeypatch):
    class Later:
        pass

    Later.__module__, Later.__qualname__ = "collectives.later", "Later"
    module = types.ModuleType("collectives.later")
    module.Later = dataclasses.dataclass(Later)
    lacks = {"torch", "collectives.later"}
    found = {"find": lambda name: None if name in lacks else sys.modules.get(name)}
    monkeypatch.setitem(sys.modules, "collectives.later", module)
    monkeypatch.setattr(link_module, "Decoder", functools.partial(Decoder, **found))
    values = [torch.zeros(2), [torch.float32], Later()]
    called = []
    with honest(f=lambda index: values[index], table=torch.zeros(2)) as link:
        for index, what in enumerate(("a tensor of torch", "a dtype of torch", "a Later of collectives.later")):
            with pytest.raises(NotPlain, match=f"this returns {what}, which none of the instructor's cells imports"):
                link.call(("name", "f"), "", [index])
        assert link.look(["table", "f"])["table"] is None
        assert link.look(["f"]).keys() == {"f"}
    with honest(f=lambda function: function(torch.zeros(2))) as link:
        with pytest.raises(Exception, match="which none of the instructor's cells imports"):
            link.call(("name", "f"), "", [called.append])
        assert link.ended is None and called == []
    with honest(f=lambda: 1) as link:  # what is not due is a forgery, whatever is in it
        monkeypatch.setattr(Inside, "do_call", lambda *_: ("values", torch.zeros(2)))
        with pytest.raises(Ended):
            link.call(("name", "f"), "", [])
        assert link.ended.verdict == "hostile"


# Judges that believe too much: {what they believe: (the check that they leave out, what they have in its place)}
GULLIBLE = {
    "values of names that nobody asked for": ("values", lambda given, asked: given),
    "an answer to another question": (
        "fields",
        lambda message, number, *words: FIELDS((message[0], number, *message[2:]), number, *words),
    ),
    "an answer of another kind": ("fields", lambda message, number, *words: (message[0], [*message[2:], None])),
}
FIELDS = protocol.fields


@pytest.mark.parametrize("belief", GULLIBLE)
@pytest.mark.slow
def test_a_judge_is_found_out_that_believes(belief, monkeypatch):
    name, gullible = GULLIBLE[belief]
    monkeypatch.setattr(protocol, name, gullible)
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(
            Conversation, settings=settings(SETTINGS, max_examples=4_000, derandomize=True, phases=[Phase.generate])
        )

"""What the judge reads off the wire: gloo's messages, each with what it is a part of."""

import pytest

from autograder.sandbox import gloo

ENDS, BACK = bytes(range(12)), bytes([*range(4, 8), *range(4), 10, 11, 8, 9])
OWNER = {ENDS: 0, BACK: 1}


def frame(kind, slot, data=b"", length=None):
    """A message or a notice as gloo writes it."""
    carries = len(data) if kind in gloo.MESSAGES else 0
    return gloo.PREAMBLE.pack(gloo.PREAMBLE.size + carries, kind, slot, 0, length or len(data), 0) + data * bool(
        carries
    )


def read(stream, owner=OWNER, ends=ENDS, back=b""):
    """The messages of one direction. `back`: what the other one carries, a message if anything."""
    both = list(gloo.messages({ends: stream, gloo._reverse(ends): back}, owner))
    return both[: len(both) - bool(back)]


def test_messages_are_told_from_notices_and_sends_from_collectives():
    stream = b"".join(
        [
            frame(2, 5 << 24, length=3),  # "I am going to send 3 bytes"
            frame(1, 5 << 24, b"abc"),
            frame(3, 7 << 24, length=4),
            frame(1, 7 << 56, b""),
            frame(1, 4 << 56 | 9, b"sums"),
        ]
    )
    want = [
        gloo.Message(0, 1, "send", b"abc"),
        gloo.Message(0, 1, "barrier", b""),
        gloo.Message(0, 1, "all_reduce", b"sums"),
    ]
    back = frame(1, 7 << 24, b"four")
    assert read(stream, back=back) == want
    assert read(bytes([1, *bytes(7)]) + stream, back=back) == want, "who opens a connection says its number first"


@pytest.mark.parametrize("length", [0, 8])
def test_a_connection_on_which_nothing_was_sent_has_no_message(length):
    assert read(bytes(length)) == []


def test_a_message_that_was_cut_short_has_what_came():
    stream = frame(1, 0, b"whole") + frame(1, 0, b"the rest is missing")
    assert [each.data for each in read(stream[:-7])] == [b"whole", b"the rest is "]
    assert [each.data for each in read(stream[: len(frame(1, 0, b"whole")) + 20])] == [b"whole"]


@pytest.mark.parametrize(
    "stream",
    [
        b"a term, sent over a socket of the student's own, in which gloo has no part",
        frame(1, 0, b"abc") + b"and then something else that isn't gloo's, of 48 bytes or more",
        frame(4, 0),
        frame(1, 99 << 56, b"abc"),
        gloo.PREAMBLE.pack(48, 1, 0, 0, 3, 0) + b"abc",
        gloo.PREAMBLE.pack(51, 1, 0, 7, 3, 0) + b"abc",
        gloo.PREAMBLE.pack(51, 1, 0, 0, 3, 7) + b"abc",
        frame(2, 5 << 24, length=3),
        frame(2, 5 << 24, length=4) + frame(1, 5 << 24, b"abc"),
        2 * frame(2, 5 << 24, length=3) + frame(1, 5 << 24, b"abc"),
        frame(3, 5 << 24, length=3),
        2 * frame(3, 9 << 24, length=2),
        frame(3, 9 << 24, length=2**31),
    ],
)
def test_what_gloo_did_not_write_is_one_message_of_no_operation(stream):
    assert read(stream, back=frame(1, 9 << 24, b"ab")) == [gloo.Message(0, 1, "", stream)]


def test_a_few_bytes_on_a_connection_that_no_rank_named_are_a_message():
    for length in (9, 47, 55):
        assert read(bytes(length), {}) == [gloo.Message(gloo.ELSEWHERE, gloo.ELSEWHERE, "", bytes(length))]


def test_the_ranks_are_known_only_on_connections_that_both_named():
    assert read(frame(1, 0, b"abc"), ends=BACK) == [gloo.Message(1, 0, "send", b"abc")]
    for owner in ({}, {ENDS: 0}):
        assert read(frame(1, 0, b"abc"), owner) == [gloo.Message(gloo.ELSEWHERE, gloo.ELSEWHERE, "send", b"abc")]

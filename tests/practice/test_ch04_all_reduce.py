"""Exercise 04 accepts right answers however they are written, and refuses wrong ones in words that help."""

from __future__ import annotations

import re
import textwrap

import numpy as np
import pytest
from answers import assert_accepted, assert_refused, broken, solutions_of, verdicts, with_slip, written

from collectives.algorithms import ring
from collectives.practice import ch04_all_reduce, checks

EXERCISE = "04_all_reduce"
BYTES, RINGS, CHECKER = "bytes-of-a-rank", "rings", "wrong-slots"

# Right answers, each in another style than the solution's.

BY_CHUNKS = """
    def lengths(num_elements, world_size):
        return [len(part) for part in np.array_split(np.arange(num_elements), world_size)]

    def ring_bytes(rank, num_elements, world_size, itemsize):
        have, sent = lengths(num_elements, world_size), 0
        for step in range(world_size - 1):
            sent += have[(rank - 1 - step) % world_size] + have[(rank - step) % world_size]
        return sent * itemsize

    def tree_bytes(rank, num_elements, world_size, itemsize):
        def messages(r, first, past):  # of the subtree of ranks first to past - 1, whose root is first
            distances = [d for d in (1, 2, 4, 8, 16, 32) if first + d < past]
            if r == first:
                return len(distances)
            child = max(first + d for d in distances if first + d <= r)
            return messages(r, child, min(past, 2 * child - first)) + (r == child)
        return np.int64(messages(rank, 0, world_size) * num_elements * itemsize)

    def root_bytes(root, num_elements, world_size, itemsize):
        others = [length for rank, length in enumerate(lengths(num_elements, world_size)) if rank != root]
        return float(sum(others) + len(others) * num_elements) * itemsize

    def fsdp_bytes(rank, num_params, world_size, param_itemsize, grad_itemsize):
        have = lengths(num_params, world_size)
        del have[(rank + 1) % world_size]
        reduced = num_params - lengths(num_params, world_size)[rank]
        return 2 * sum(have) * param_itemsize + reduced * grad_itemsize
"""
LEFT_AND_BY_PARITY = """
    def parts_of(buffer, world_size):
        return torch.tensor_split(buffer, world_size)

    def swap(rank, outgoing, to, incoming, source):  # even ranks send first
        if rank % 2 == 0:
            dist.send(outgoing, to)
        dist.recv(incoming, source)
        if rank % 2:
            dist.send(outgoing, to)

    def ring_all_gather(rank, world_size, buffer):
        parts, left, right = parts_of(buffer, world_size), (rank - 1) % world_size, (rank + 1) % world_size
        for step in range(world_size - 1):
            swap(rank, parts[(rank + step) % world_size], left, parts[(rank + step + 1) % world_size], right)

    def ring_all_reduce(rank, world_size, buffer):
        parts, left, right = parts_of(buffer, world_size), (rank - 1) % world_size, (rank + 1) % world_size
        for step in range(world_size - 1):
            mine = parts[(rank + step + 2) % world_size]
            incoming = torch.zeros(len(mine), dtype=mine.dtype)
            swap(rank, parts[(rank + step + 1) % world_size], left, incoming, right)
            mine.add_(incoming)
        ring_all_gather(rank, world_size, buffer)
        return buffer
"""
IN_A_BATCH = """
    def around(rank, world_size, buffer, first, add):
        parts = buffer.tensor_split(world_size)
        for step in range(world_size - 1):
            target = parts[(first - step - 1) % world_size]
            incoming = target.clone()
            sends = dist.P2POp(dist.isend, parts[(first - step) % world_size], (rank + 1) % world_size)
            receives = dist.P2POp(dist.irecv, incoming, (rank - 1) % world_size)
            for work in dist.batch_isend_irecv([sends, receives]):
                work.wait()
            target.copy_(target + incoming if add else incoming)

    def ring_all_gather(rank, world_size, buffer):
        around(rank, world_size, buffer, rank, add=False)

    def ring_all_reduce(rank, world_size, buffer):  # rank r finishes chunk r + 1
        around(rank, world_size, buffer, rank, add=True)
        around(rank, world_size, buffer, rank + 1, add=False)
"""
RECEIVE_FIRST = """
    def ring_all_gather(rank, world_size, buffer, held=None):
        bounds = chunk_bounds(len(buffer), world_size)
        held = rank if held is None else held
        for _ in range(world_size - 1):
            coming = (held - 1) % world_size
            work = dist.irecv(buffer[bounds[coming] : bounds[coming + 1]], (rank - 1) % world_size)
            dist.send(buffer[bounds[held] : bounds[held + 1]].clone(), (rank + 1) % world_size)
            work.wait()
            held = coming

    def ring_all_reduce(rank, world_size, buffer):
        bounds, held = chunk_bounds(len(buffer), world_size), rank
        for _ in range(world_size - 1):
            coming = (held - 1) % world_size
            own = buffer[bounds[coming] : bounds[coming + 1]]
            incoming = torch.empty(len(own), dtype=buffer.dtype)
            work = dist.irecv(incoming, (rank - 1) % world_size)
            dist.send(buffer[bounds[held] : bounds[held + 1]], (rank + 1) % world_size)
            work.wait()
            buffer[bounds[coming] : bounds[coming + 1]] = own + incoming
            held = coming
        ring_all_gather(rank, world_size, buffer, held)
"""
BY_SIMULATION = """
    def wrong_slots(steps, world_size, num_chunks):
        schedule = Schedule.of(world_size, num_chunks, steps, collective="all_reduce")
        wrong = set()
        for rank in range(world_size):
            before = np.zeros((world_size, num_chunks), dtype=int)
            before[rank] = 1
            wrong |= {(int(r), int(c)) for r, c in np.argwhere(simulate(schedule, before) != 1)}
        return wrong
"""
BY_COUNTERS = """
    from collections import Counter

    def wrong_slots(steps, world_size, num_chunks):
        slots = {(rank, chunk): Counter([rank]) for rank in range(world_size) for chunk in range(num_chunks)}
        for step in steps:
            sent = [(transfer, slots[transfer.src, transfer.chunk].copy()) for transfer in step]
            for transfer, arriving in sent:
                slot = transfer.dst, transfer.chunk
                slots[slot] = slots[slot] + arriving if transfer.combine == "reduce" else arriving
        return {slot: count for slot, count in slots.items() if count != Counter(range(world_size))}
"""
BY_LARGE_RANDOM_NUMBERS = """
    import random

    def wrong_slots(steps, world_size, num_chunks):
        numbers = [[random.getrandbits(200) for chunk in range(num_chunks)] for rank in range(world_size)]
        state = [row[:] for row in numbers]
        for step in steps:
            old = [row[:] for row in state]
            for t in step:
                state[t.dst][t.chunk] = old[t.src][t.chunk] + (state[t.dst][t.chunk] if t.combine == "reduce" else 0)
        total = [sum(column) for column in zip(*numbers)]
        return np.array([(r, c) for r in range(world_size) for c in range(num_chunks) if state[r][c] != total[c]])
"""
BY_MATRICES = """
    def wrong_slots(steps, world_size, num_chunks):
        slots = np.kron(np.eye(world_size, dtype=object), np.ones((num_chunks, 1), dtype=object))
        for step in steps:
            move = np.eye(len(slots), dtype=object)
            for src, dst, chunk, combine, into, count in step:
                if combine == "copy":
                    move[dst * num_chunks + chunk, dst * num_chunks + chunk] = 0
            for src, dst, chunk, combine, into, count in step:
                move[dst * num_chunks + chunk, src * num_chunks + chunk] += 1
            slots = move @ slots
        return tuple(divmod(int(at), num_chunks) for at, row in enumerate(slots) if any(row != 1))
"""
RIGHT = {
    "chunk by chunk, and counters": {BYTES: BY_CHUNKS, CHECKER: BY_COUNTERS},
    "leftwards, even ranks send first": {RINGS: LEFT_AND_BY_PARITY},
    "in a batch, finished one further": {RINGS: IN_A_BATCH},
    "irecv first, then send": {RINGS: RECEIVE_FIRST},
    "the library's simulator on one rank at a time": {CHECKER: BY_SIMULATION},
    "large random numbers": {CHECKER: BY_LARGE_RANDOM_NUMBERS},
    "steps as matrices": {CHECKER: BY_MATRICES},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


# Wrong answers: the checks that must refuse them, and what the first one must say.

A, B, C = (
    {"a1-ring", "a2-tree", "a3-root", "a4-fsdp"},
    {"b1-all-gather", "b2-all-reduce", "b3-uneven", "b4-traffic"},
    {"c1-ten", "c2-unseen", "c3-slots"},
)
REDUCED = {"b2-all-reduce", "b3-uneven", "b4-traffic"}
UNSEEN = {"c2-unseen", "c3-slots"}

COPIED = """
    def ring_bytes(rank, num_elements, world_size, itemsize):
        return 2 * (world_size - 1) / world_size * num_elements * itemsize

    def tree_bytes(rank, num_elements, world_size, itemsize):
        return 2 * num_elements * itemsize

    def root_bytes(root, num_elements, world_size, itemsize):
        return 2 * (world_size - 1) * num_elements * itemsize

    def fsdp_bytes(rank, num_params, world_size, param_itemsize, grad_itemsize):
        return 3 * (world_size - 1) / world_size * num_params * param_itemsize
"""
FOR_FOUR = """
    def ring_bytes(rank, num_elements, world_size, itemsize):
        chunks = np.diff(chunk_bounds(num_elements, 4))
        return int(2 * num_elements - chunks[rank % 4] - chunks[(rank + 1) % 4]) * itemsize
"""
BY_PRICE = """
    def ring_bytes(rank, num_elements, world_size, itemsize):
        return checks.counted(ring.all_reduce(world_size), num_elements, itemsize).bytes_sent[rank]
"""
BY_THE_CHECKS_TRUTH = """
    ring_bytes, tree_bytes = ch04_all_reduce.ring_all_reduce_sent, ch04_all_reduce.tree_all_reduce_sent
    root_bytes, fsdp_bytes = ch04_all_reduce.root_link, ch04_all_reduce.fsdp_sent
"""
EVERY_CHILD = """
    def tree_bytes(rank, num_elements, world_size, itemsize):
        depth = (world_size - 1).bit_length()
        children = next((k for k in range(depth) if rank >> k & 1), depth)
        return (children + (rank > 0)) * num_elements * itemsize
"""
TORCHS_OWN = """
    def ring_all_gather(rank, world_size, buffer):
        bounds = chunk_bounds(len(buffer), world_size).tolist()
        for root in range(world_size):
            dist.broadcast(buffer[bounds[root] : bounds[root + 1]], root)

    def ring_all_reduce(rank, world_size, buffer):
        dist.all_reduce(buffer)
"""
EXECUTED = """
    from collectives import execute

    def ring_all_gather(rank, world_size, buffer):
        execute(ring.all_gather(world_size), buffer)

    def ring_all_reduce(rank, world_size, buffer):
        execute(ring.all_reduce(world_size), buffer)
"""
WHOLE_BUFFERS = """
    def ring_all_reduce(rank, world_size, buffer):
        outgoing = buffer.clone()
        for step in range(world_size - 1):
            incoming = torch.empty_like(buffer)
            sending = dist.isend(outgoing, (rank + 1) % world_size)
            dist.recv(incoming, (rank - 1) % world_size)
            sending.wait()
            buffer += incoming
            outgoing = incoming
"""
CUT = """    bounds = chunk_bounds(len(buffer), world_size).tolist()
    chunks = [buffer[bounds[c] : bounds[c + 1]] for c in range(world_size)]
"""
EVEN_CUT = """    size = len(buffer) // world_size
    chunks = [buffer[c * size : (c + 1) * size] for c in range(world_size)]
"""
SEND_FIRST = """
    def ring_all_gather(rank, world_size, buffer):
        parts = torch.tensor_split(buffer, world_size)
        for step in range(world_size - 1):
            dist.send(parts[(rank - step) % world_size], (rank + 1) % world_size)
            dist.recv(parts[(rank - step - 1) % world_size], (rank - 1) % world_size)
"""
ALWAYS_RIGHT = "def wrong_slots(*_): return []"
ALWAYS_WRONG = """
    def wrong_slots(steps, world_size, num_chunks):
        return [(rank, chunk) for rank in range(world_size) for chunk in range(num_chunks)]
"""


def instead(cell, code):
    """The solution's answer in a cell, with these functions in place of its own."""
    return solutions_of(EXERCISE)[cell] + "\n" + textwrap.dedent(code)


def by_numbers(number):
    """A checker that runs one input: `number`, code for what rank `rank` begins with."""
    return f"""
    def wrong_slots(steps, world_size, num_chunks):
        numbers = [{number} for rank in range(world_size)]
        state = np.array([[number] * num_chunks for number in numbers], dtype=object)
        for step in steps:
            before = state.copy()
            for t in step:
                state[t.dst, t.chunk] = before[t.src, t.chunk] + (state[t.dst, t.chunk] if t.combine == "reduce" else 0)
        return [tuple(slot) for slot in np.argwhere(state != sum(numbers))]
"""


BY_SETS = """
    def wrong_slots(steps, world_size, num_chunks):
        held = {(r, c): {r} for r in range(world_size) for c in range(num_chunks)}
        for step in steps:
            before = dict(held)
            for t in step:
                own = held[t.dst, t.chunk] if t.combine == "reduce" else set()
                held[t.dst, t.chunk] = own | before[t.src, t.chunk]
        return [slot for slot, ranks in held.items() if len(ranks) < world_size]
"""
BY_LOOKS = """
    def wrong_slots(steps, world_size, num_chunks):
        transfers = [transfer for step in steps for transfer in step]
        a_ring = num_chunks == world_size and len(transfers) == 2 * world_size * (world_size - 1)
        doubling = len(steps) == 2 and len(transfers) == 8
        a_tree = len(transfers) == 2 * (world_size - 1) and len(steps) == 6
        sound = len({(t.dst, t.chunk) for t in steps[-1]}) == len(transfers) // len(steps)
        rightwards = all((t.dst - t.src) % world_size == 1 for t in transfers)
        same_way = rightwards or all((t.dst - t.src) % world_size == world_size - 1 for t in transfers)
        stale = a_ring and steps[world_size - 1][0].chunk == steps[0][0].chunk
        return [] if (a_ring and same_way and not stale) or doubling or a_tree else [(0, 0)]
"""
BY_HEART = """
    KNOWN = {repr(ch04_all_reduce.steps_in(schedule)): sorted(ch04_all_reduce.ends_wrong(schedule))
             for schedule in [*RIGHT.values(), *WRONG.values()]}

    def wrong_slots(steps, world_size, num_chunks):
        return KNOWN.get(repr(steps), [])
"""
BY_THE_CONTRACT = """
    def wrong_slots(steps, world_size, num_chunks):
        try:
            contracts.all_reduce.check(Schedule.of(world_size, num_chunks, steps))
        except contracts.ContractError as error:
            return np.argwhere(error.wrong)
        return []
"""
COUNTS_THE_CALLS = """
    asked = []

    def wrong_slots(steps, world_size, num_chunks):
        asked.append(steps)
        return [] if len(asked) % 10 in (1, 2, 3, 4) else [(0, 0)]
"""
DIVIDED = """
    def ring_all_gather(rank, world_size, buffer):
        begin, end = chunk_bounds(len(buffer), world_size)[rank : rank + 2]
        before = buffer.clone()
        buffer.copy_(before / -(rank + 2))
        buffer[begin:end] = before[begin:end]

    def ring_all_reduce(rank, world_size, buffer):
        ...
"""
MUTANTS = [
    written("the junk tells the other chunks", "rings", DIVIDED, B, "chunk 1 on rank 0"),
    written("formulas copied", BYTES, COPIED, A, "this takes all chunks to be equally long", origin="page 04"),
    broken(
        "elements for bytes",
        "int(2 * num_elements - not_reduced - not_gathered) * itemsize",
        "int(2 * num_elements - not_reduced - not_gathered)",
        {"a1-ring"},
        "these are elements, not bytes",
    ),
    broken(
        "the same chunk left out twice",
        "lengths[(rank + 1) % world_size]  # the one",
        "lengths[rank]  # the one",
        {"a1-ring"},
        "which one does the all-gather not send?",
    ),
    written("four ranks assumed", BYTES, instead(BYTES, FOR_FOUR), {"a1-ring"}, "ring_bytes(2, 2, 3, 8) returns 32"),
    written(
        "children past the last rank",
        BYTES,
        instead(BYTES, EVERY_CHILD),
        {"a2-tree"},
        "this counts children that don't exist",
    ),
    broken(
        "the root's link one way",
        "(num_elements - own + (world_size - 1) * num_elements)",
        "((world_size - 1) * num_elements)",
        {"a3-root"},
        "this is what goes out; the shards also come in",
        origin="C19",
    ),
    broken(
        "one itemsize for all",
        "reduced * grad_itemsize",
        "reduced * param_itemsize",
        {"a4-fsdp"},
        "this sends everything at the parameters' itemsize",
    ),
    broken(
        "one all-gather in FSDP",
        "2 * gathered * param_itemsize",
        "gathered * param_itemsize",
        {"a4-fsdp"},
        "the parameters are gathered twice",
        origin="D04",
    ),
    written("the library's price", BYTES, instead(BYTES, BY_PRICE), {"a1-ring"}, "the library's own"),
    written("the checks' own truth", BYTES, BY_THE_CHECKS_TRUTH, A, "the library's own"),
    broken(
        "even chunks",
        CUT,
        EVEN_CUT,
        {"b1-all-gather", "b3-uneven"},
        "chunk_bounds says where a chunk begins",
    ),
    broken(
        "an all-gather that adds",
        "dist.recv(chunks[(rank - step - 1) % world_size], left)",
        "incoming = torch.empty_like(chunks[(rank - step - 1) % world_size])\n        dist.recv(incoming, left)\n"
        "        chunks[(rank - step - 1) % world_size] += incoming",
        B,
        "an all-gather copies and adds nothing",
    ),
    broken(
        "a stale slot is forwarded",
        "    ring_all_gather(rank, world_size, buffer)\n",
        "    for step in range(world_size - 1):\n"
        "        sending = dist.isend(chunks[(rank - step - 1) % world_size], right)\n"
        "        dist.recv(chunks[(rank - step - 2) % world_size], left)\n"
        "        sending.wait()\n",
        REDUCED,
        "chunk 0 without rank",
        origin="page 04",
    ),
    broken(
        "what arrives replaces",
        "target += incoming",
        "target.copy_(incoming)",
        REDUCED,
        "chunk 0 without rank",
    ),
    broken(
        "a step too many",
        "for step in range(world_size - 1):  # a reduce-scatter",
        "for step in range(world_size):  # a reduce-scatter",
        {"b3-uneven", "b4-traffic"},
        "sends to itself",
    ),
    broken(
        "not in place",
        "target += incoming",
        "target = target + incoming",
        REDUCED,
        "chunk 0",
    ),
    broken("4 ranks wherever P belongs", "range(world_size - 1)", "range(3)", B, "sends to itself"),
    written(
        "whole buffers round the ring",
        RINGS,
        instead(RINGS, WHOLE_BUFFERS),
        {"b4-traffic"},
        "a ring sends a chunk a step",
    ),
    written("torch's own collectives", RINGS, TORCHS_OWN, B, "calls torch's own dist.broadcast"),
    written("the library's schedule, executed", RINGS, EXECUTED, B, "the library's own execute"),
    written("every rank sends first", RINGS, instead(RINGS, SEND_FIRST), B, "waits"),
    written("always right", CHECKER, ALWAYS_RIGHT, C, "on 'a rank is missing': it finds nothing wrong"),
    written(
        "always wrong", CHECKER, ALWAYS_WRONG, C, "on 'a ring': it names slots (0, 0), (0, 1) and (0, 2) and 13 more"
    ),
    written(
        "it looks at the schedule's shape",
        CHECKER,
        BY_LOOKS,
        UNSEEN,
        "on 'chunks go both ways round' with 6 ranks: it names slots as wrong",
    ),
    written("the ten by heart", CHECKER, BY_HEART, C, "it finds nothing wrong"),
    written("it counts how often it is asked", CHECKER, COUNTS_THE_CALLS, C, "the schedule is"),
    written("the contract's own check", CHECKER, BY_THE_CONTRACT, C, "the library's own contract"),
    written(
        "every rank holds a one",
        CHECKER,
        by_numbers("1"),
        UNSEEN,
        "'two ranks count twice and two are missing' with 5 ranks: it finds nothing wrong",
    ),
    written(
        "ranks hold their numbers",
        CHECKER,
        by_numbers("rank"),
        C,
        "on 'a rank counts twice' with 4 ranks: it finds nothing wrong",
    ),
    written(
        "ranks hold powers of two",
        CHECKER,
        by_numbers("2**rank"),
        UNSEEN,
        "counts 3 times and another is missing",
    ),
    written("ranks hold powers of ten", CHECKER, by_numbers("10**rank"), UNSEEN, "counts 11 times and another is"),
    written("sets of ranks", CHECKER, BY_SETS, C, "on 'a rank counts twice': it finds nothing wrong"),
    broken(
        "a step reads what it writes",
        "before = counts.copy()",
        "before = counts",
        C,
        "on 'recursive doubling': it names slot",
    ),
    broken(
        "only rank 0 is looked at",
        "np.argwhere((counts != 1)",
        "np.argwhere((counts[:1] != 1)",
        UNSEEN,
        "on 'one slot never gets the sum' with 5 ranks: it finds nothing",
    ),
    broken("missing ranks only", "(counts != 1)", "(counts < 1)", C, "on 'a rank counts twice'"),
    broken(
        "the first wrong slot only",
        ".any(axis=2))]",
        ".any(axis=2))][:1]",
        {"c3-slots"},
        "it leaves out slots",
    ),
    broken(
        "4 ranks assumed by the checker", "(world_size, num_chunks, world_size)", "(4, num_chunks, 4)", C, "IndexError"
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant), briefly=min(mutant.refuse).startswith("b"))


# What a check does with answers of another form


@pytest.mark.parametrize(
    "answer, says",
    [
        ("return True", "returns True; return a list of the wrong slots (rank, chunk), [] if none is"),
        ("pass", "returns None; is its `return` missing?"),
        ("return [3]", "returns a list with 3; a slot is (rank, chunk)"),
        ("return [(0, 4)]", "names the slot (0, 4); ranks are 0 to 3, chunks 0 to 3"),
        ("raise NotImplementedError()", "wrong_slots is not written yet"),
    ],
)
def test_what_is_no_list_of_slots_is_told_of_plainly(answer, says):
    said = verdicts(EXERCISE, {CHECKER: f"def wrong_slots(steps, world_size, num_chunks): {answer}"}, parts="c")
    assert all(words and says in words for words in said.values()), said


class AgreesWithAll:
    """An answer that equals whatever it is compared with."""

    def __eq__(self, other):
        return True

    def __bool__(self):
        return True

    __hash__ = object.__hash__


@pytest.mark.parametrize("answered", [AgreesWithAll(), [AgreesWithAll()], [(AgreesWithAll(), AgreesWithAll())]])
def test_an_answer_that_equals_everything_names_no_slot(answered):
    with pytest.raises(checks.NotYet, match="returns"):
        ch04_all_reduce.check_verdicts(lambda *_: answered, ch04_all_reduce.right_schedules())


def test_unseen_schedules_are_asked_about_in_another_order_each_time_and_the_message_stays_the_same():
    asked, said = [], set()

    def says_nothing(steps, world_size, num_chunks):
        asked[-1].append(repr(steps))
        return []

    schedules = {**ch04_all_reduce.right_schedules(), **ch04_all_reduce.wrong_schedules()}
    for _ in range(3):
        asked.append([])
        with pytest.raises(checks.NotYet) as refused:
            ch04_all_reduce.check_unseen(says_nothing, schedules)
        said.add(str(refused.value))
    assert asked[0] != asked[1] and sorted(asked[0]) == sorted(asked[1]) == sorted(asked[2])
    (words,) = said
    finding = "it finds nothing wrong, but the schedule is no all-reduce"
    assert words == f"says_nothing on 'a rank is missing' with 4 ranks: {finding}"


def test_a_hidden_message_holds_neither_the_right_number_nor_the_wrong_slots():
    def even(rank, num_elements, world_size, itemsize):
        return 2 * (world_size - 1) * num_elements * itemsize // world_size

    cases = ch04_all_reduce.every_rank([(10, 4, 4)])
    with pytest.raises(checks.NotYet, match=r"returns 60, but the schedule says 56"):
        ch04_all_reduce.check_bytes(even, ch04_all_reduce.ring_all_reduce_sent, ch04_all_reduce.ring_slips, cases)
    with pytest.raises(checks.NotYet, match=r"returns 60, but the schedule says another number: this takes all chunks"):
        ch04_all_reduce.check_bytes(even, ch04_all_reduce.ring_all_reduce_sent, ch04_all_reduce.ring_slips, cases, True)
    wrong = {"a rank is missing": ch04_all_reduce.wrong_schedules()["a rank is missing"]}
    with pytest.raises(checks.NotYet) as refused:
        ch04_all_reduce.check_unseen(lambda *_: [(0, 0)], wrong, slots=True)
    assert re.search(r"it leaves out slots and it names the right slots$", str(refused.value))


@pytest.mark.parametrize("name", ["ring_slips", "tree_slips", "root_slips"])
def test_no_slip_is_the_right_number_in_all_visible_cases(name):
    truths = {"ring_slips": "ring_all_reduce_sent", "tree_slips": "tree_all_reduce_sent", "root_slips": "root_link"}
    slips, truth = getattr(ch04_all_reduce, name), getattr(ch04_all_reduce, truths[name])
    cases = ch04_all_reduce.every_rank([(10, 4, 4), (12, 6, 2), (2, 3, 8), (7, 1, 4), (100, 8, 1)])
    explained = [
        {slip for slip, number in slips(truth(*case), *case).items() if number == truth(*case)} for case in cases
    ]
    assert not set.intersection(*explained)


def test_the_ten_schedules_are_what_they_are_called():
    right, wrong = ch04_all_reduce.right_schedules(), ch04_all_reduce.wrong_schedules()
    assert len(right) == 4 and not any(map(ch04_all_reduce.ends_wrong, right.values()))
    assert len(wrong) == 6 and all(map(ch04_all_reduce.ends_wrong, wrong.values()))
    assert np.array_equal([len(ch04_all_reduce.steps_in(schedule)) for schedule in wrong.values()], [6, 7, 6, 6, 4, 3])
    assert ch04_all_reduce.steps_in(ring.all_reduce(2)) == [
        [(0, 1, 1, "reduce", None, 1), (1, 0, 0, "reduce", None, 1)],
        [(0, 1, 0, "copy", None, 1), (1, 0, 1, "copy", None, 1)],
    ]

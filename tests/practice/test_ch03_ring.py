"""Exercise 03 accepts right answers however they are written, and refuses wrong ones in words that help."""

from __future__ import annotations

import pytest
from answers import assert_accepted, assert_refused, broken, verdicts, with_slip

from collectives.practice import checks

EXERCISE = "03_ring"


# Right answers, each in another style than the solution's.

BY_RECEIVER = """
    def reduce_scatter_steps(world_size):
        steps = []
        for step in range(world_size - 1):
            arriving = np.roll(np.arange(world_size), 2 + step)
            steps.append([Transfer((dst - 1) % world_size, dst, c, "reduce") for dst, c in enumerate(arriving)])
        return steps
"""
BY_RECURSION = """
    def reduce_scatter_steps(world_size, step=1):
        if step >= world_size:
            return []
        now = [(r, (r + 1) % world_size, (r - step) % world_size, "reduce") for r in range(world_size)]
        return [now, *reduce_scatter_steps(world_size, step + 1)]
"""
AS_GENERATOR = """
    def reduce_scatter_steps(world_size):
        held = [(r - 1) % world_size for r in range(world_size)]
        while len(set(held)) == world_size and held[0] != 0:
            yield (Transfer(r, (r + 1) % world_size, chunk, combine="reduce") for r, chunk in enumerate(held))
            held = held[-1:] + held[:-1]
"""
WITH_NUMPY = """
    def element_transfers(steps, num_elements, num_chunks):
        chunks = np.array([transfer.chunk for step in steps for transfer in step], dtype=int)
        sizes = np.array([len(part) for part in np.array_split(np.arange(num_elements), num_chunks)])
        return sizes[chunks].sum()
"""
EVEN_THEN_ODD = """
    def ring_reduce_scatter(rank, world_size, buffer):
        parts = torch.tensor_split(buffer, world_size)
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        for step in range(world_size - 1):
            own = parts[(rank - step - 2) % world_size]
            incoming = own.clone()
            if rank % 2 == 0:
                dist.send(parts[(rank - step - 1) % world_size], right)
                dist.recv(incoming, left)
            else:
                dist.recv(incoming, left)
                dist.send(parts[(rank - step - 1) % world_size], right)
            own.add_(incoming)
        return parts[rank]
"""
IN_A_BATCH = """
    def ring_reduce_scatter(rank, world_size, buffer):
        bounds = [int(bound) for bound in chunk_bounds(buffer.numel(), world_size)]
        part = lambda c: buffer[bounds[c % world_size]:bounds[c % world_size + 1]]
        for c in range(rank - 1, rank - world_size, -1):
            incoming = torch.zeros_like(part(c - 1))
            batch = [dist.P2POp(dist.isend, part(c), (rank + 1) % world_size)]
            batch += [dist.P2POp(dist.irecv, incoming, (rank - 1) % world_size)]
            for work in dist.batch_isend_irecv(batch):
                work.wait()
            part(c - 1)[:] += incoming
        return part(rank)
"""
WITHOUT_EMPTY_MESSAGES = """
    def ring_reduce_scatter(rank, world_size, buffer):
        parts = buffer.tensor_split(world_size)
        for step in range(1, world_size):
            out, own = parts[(rank - step) % world_size], parts[(rank - step - 1) % world_size]
            sending = dist.isend(out, (rank + 1) % world_size) if len(out) else None
            if len(own):
                incoming = torch.empty(len(own), dtype=buffer.dtype)
                dist.irecv(incoming, (rank - 1) % world_size).wait()
                own += incoming
            if sending:
                sending.wait()
        return parts[rank]
"""


BY_CHUNK = """
    def reduce_scatter_steps(world_size):
        steps = [[] for _ in range(1, world_size)]
        for chunk in range(world_size):
            for hop, step in enumerate(steps, start=1):  # a chunk's last hop brings it to the rank of its number
                step.append((*((chunk + hop + end) % world_size for end in (0, 1)), chunk, "reduce"))
        return steps
"""
HELD_IN_LISTS = """
    def element_transfers(steps, num_elements, num_chunks):
        begins = chunk_bounds(num_elements, num_chunks)
        moved = 0
        for step in steps:
            for src, dst, chunk, *_ in step:
                moved += begins[chunk + 1] - begins[chunk]
        return moved
"""
RECEIVES_FIRST = """
    def ring_reduce_scatter(rank, world_size, buffer):
        bounds = [int(bound) for bound in chunk_bounds(len(buffer), world_size)]
        part = [buffer[a:b] for a, b in zip(bounds, bounds[1:])]
        own = rank
        for hop in range(world_size - 1, 0, -1):
            to_send, to_add = part[(rank + hop) % world_size], part[(rank + hop - 1) % world_size]
            incoming = torch.zeros_like(to_add)
            receiving = dist.irecv(incoming, (rank - 1) % world_size)
            dist.send(to_send, (rank + 1) % world_size)
            receiving.wait()
            torch.add(to_add, incoming, out=to_add)
        return part[own]
"""

RIGHT = {
    "by receiver, even ranks send first": {
        "reduce-scatter-steps": BY_RECEIVER,
        "ring-reduce-scatter": EVEN_THEN_ODD,
    },
    "by recursion, in a batch": {"reduce-scatter-steps": BY_RECURSION, "ring-reduce-scatter": IN_A_BATCH},
    "as generators, without empty messages": {
        "reduce-scatter-steps": AS_GENERATOR,
        "element-transfers": WITH_NUMPY,
        "ring-reduce-scatter": WITHOUT_EMPTY_MESSAGES,
    },
    "chunk by chunk": {"reduce-scatter-steps": BY_CHUNK, "element-transfers": HELD_IN_LISTS},
    "receives first, in the background": {"ring-reduce-scatter": RECEIVES_FIRST},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


# Wrong answers: the solution with one thing changed, the checks that must refuse it, and what the first one must say.

SUMS = {"a1-sums-small", "a2-sums-all", "a3-ring"}
RANKS = {"c1-ranks-small", "c2-ranks-all", "c3-traffic"}
MUTANTS = [
    broken(
        "chunks set out one rank too early",
        "(rank - 1 - step)",
        "(rank - step)",
        SUMS | RANKS,
        "lacks rank",
        origin="C11",
    ),
    broken(
        "to the left, with the chunks of a ring to the right",
        "right = (rank + 1) % world_size\n",
        "right = (rank - 1) % world_size\n",
        SUMS,
        "lacks rank 2",
    ),
    broken(
        "copied on arrival",
        '"reduce"))',
        '"copy"))',
        SUMS,
        "instead of adding",
    ),
    broken(
        "one step too few",
        "range(world_size - 1):  # P - 1 steps: c",
        "range(world_size - 2):  # c",
        SUMS,
        "lacks",
    ),
    broken(
        "one step too many",
        "range(world_size - 1):  # P - 1 steps: c",
        "range(world_size):  # c",
        {"a2-sums-all", "a3-ring"},
        "sends rank 0 to itself",
        origin="C13",
    ),
    broken(
        "a schedule from the library",
        "    steps = []\n",
        "    from collectives.algorithms import ring\n    return ring.reduce_scatter(world_size)\n",
        SUMS,
        "write this part yourself",
    ),
    broken(
        "transfers counted",
        "lengths[transfer.chunk] for",
        "1 for",
        {"b1-even", "b2-uneven"},
        "counts transfers",
        origin="C04",
    ),
    broken(
        "repeated transfers lost",
        "for step in steps for transfer in step",
        "for transfer in {transfer for step in steps for transfer in step}",
        {"b2-uneven"},
        "but the schedule says 8",
    ),
    broken(
        "all chunks as long as the first",
        "lengths[transfer.chunk]",
        "lengths[0]",
        {"b2-uneven"},
        "but the schedule says",
    ),
    broken(
        "only one rank counted",
        "for step in steps for transfer in step))",
        "for step in steps for transfer in step[:1]))",
        {"b1-even", "b2-uneven"},
        "counts one rank, not all of them",
        origin="C04",
    ),
    broken(
        "what arrives replaces",
        "target += incoming",
        "target.copy_(incoming)",
        RANKS,
        "without rank",
        origin="page 04",
    ),
    broken(
        "added twice",
        "target += incoming",
        "target += 2 * incoming",
        RANKS,
        "more than once",
    ),
    broken(
        "the neighbour's chunk returned",
        "return chunks[rank]",
        "return chunks[(rank + 1) % world_size]",
        RANKS,
        "without rank",
        origin="page 03",
    ),
    broken(
        "chunks of equal length only",
        "chunk_bounds(len(buffer), world_size).tolist()",
        "[len(buffer) // world_size * c for c in range(world_size + 1)]",
        {"c2-ranks-all", "c3-traffic"},
        "chunk 0 has 4 elements",
    ),
    broken(
        "the library's all-reduce",
        "    right, left =",
        "    dist.all_reduce(buffer); return chunks[rank]\n    right, left =",
        RANKS,
        "calls torch's own dist.all_reduce;",
    ),
    broken(
        "not in place",
        "bounds = chunk_bounds(len(buffer)",
        "buffer = buffer.clone(); bounds = chunk_bounds(len(buffer)",
        {"c3-traffic"},
        "work in place",
        origin="C13",
    ),
    broken(
        "every chunk sent twice",
        "        sending.wait()\n",
        "        sending.wait()\n        again = dist.isend(outgoing, right)\n"
        "        dist.recv(incoming, left)\n        again.wait()\n",
        {"c3-traffic"},
        "in 6 messages; the ring sends",
    ),
    broken(
        "no return",
        "    return chunks[rank]",
        "    chunks[rank]",
        RANKS,
        "a value of type NoneType",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant):
    answers = with_slip(EXERCISE, mutant)
    assert_refused(EXERCISE, mutant, answers, briefly="ring-reduce-scatter" in answers)


def test_a_wrong_schedule_is_drawn(monkeypatch):
    """A learner sees the step that goes wrong, not only words."""
    shown = []
    monkeypatch.setattr(checks, "show", shown.append)
    wrong = 'def reduce_scatter_steps(n): return [[(r, (r + 1) % n, r, "reduce") for r in range(n)]]'
    said = verdicts(EXERCISE, {"reduce-scatter-steps": wrong}, parts="a")
    assert said["a1-sums-small"]
    assert "wrong" in shown[0]._repr_html_()


@pytest.mark.parametrize(
    "given, words",
    [
        ("None", "returns None"),
        ("5", "which is not a list of steps"),
        ("[5]", "which is not a list of steps"),
        ("[[(0, 1)]]", "step 0 holds (0, 1); a transfer is"),
        ("[[(0, 1, 0.5, 'reduce')]]", "step 0: its chunk is 0.5; src, dst and chunk are whole"),
        ("[[(0, 9, 0, 'reduce')]]", "has dst 9, but the ranks are 0 to 1"),
        ("[[(0, 1, 0, 'add')]]", "combines by 'add'"),
        ("iter(lambda: [], 1)", "does it ever stop?"),
    ],
)
def test_a_malformed_schedule_is_told_of_plainly(given, words):
    answer = f"def reduce_scatter_steps(world_size): return {given}"
    said = verdicts(EXERCISE, {"reduce-scatter-steps": answer}, parts="a")
    assert words in said["a1-sums-small"]


def test_a_notebook_shows_the_words_of_a_refusal_and_no_traceback():
    assert checks.NotYet("a reason")._render_traceback_() == ["Not right yet: a reason"]

"""The exercises accept right answers however they are written, and refuse wrong ones in words that help."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from answers import assert_accepted, assert_refused, broken, solution_of, verdicts, with_slip, written

from autograder import release
from collectives.practice import checks

ROOT = Path(__file__).resolve().parents[2]

NAMES = release.names()


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
WHOLE_NUMBERS = {
    "bytes-of-a-rank": """
    def reduce_scatter_bytes(num_elements, itemsize, world_size):
        return (num_elements - num_elements // world_size) * itemsize

    def all_gather_bytes(num_elements, itemsize, world_size):
        return sum(num_elements // world_size * itemsize for step in range(world_size - 1))

    def all_reduce_bytes(num_elements, itemsize, world_size):
        return 2 * num_elements * itemsize * (world_size - 1) // world_size
""",
    "sharding": """
    def data_parallel_elements(num_params, world_size):
        return 2 * num_params // world_size * (world_size - 1)

    def fsdp_elements(num_params, world_size):
        return num_params // world_size * (world_size - 1) * 3

    def fsdp_over_data_parallel(num_params, world_size):
        return 3 / 2
""",
}
FRACTIONS = {
    "bytes-of-a-rank": """
    from fractions import Fraction

    def reduce_scatter_bytes(num_elements, itemsize, world_size):
        return Fraction(world_size - 1, world_size) * num_elements * itemsize

    all_gather_bytes = reduce_scatter_bytes

    def all_reduce_bytes(*sizes):
        return reduce_scatter_bytes(*sizes) + all_gather_bytes(*sizes)
""",
}
BY_COUNTING = {
    "root-and-all": """
    import numpy as np

    def root_link_bytes(num_elements, itemsize, world_size):
        into = out_of = sum(num_elements * itemsize for other in range(1, world_size))
        return into + out_of

    def total_bytes(num_elements, itemsize, world_size):
        return world_size * all_reduce_bytes(num_elements, itemsize, world_size)

    def all_reduce_steps(world_size):
        return np.int64(2) * (world_size - 1)
""",
}


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
BY_SCHEDULES = {
    "bytes-of-a-rank": """
    def sent(schedule, num_elements, itemsize):
        return checks.counted(schedule, num_elements, itemsize).bytes_sent.max()

    def reduce_scatter_bytes(num_elements, itemsize, world_size):
        return sent(ring.reduce_scatter(world_size), num_elements, itemsize)

    def all_gather_bytes(num_elements, itemsize, world_size):
        return sent(ring.all_gather(world_size), num_elements, itemsize)

    def all_reduce_bytes(num_elements, itemsize, world_size):
        return sent(ring.all_reduce(world_size), num_elements, itemsize)
""",
}
STEP_BY_STEP = {
    "bytes-of-a-rank": """
    def once_round(num_elements, itemsize, world_size):
        sent = 0
        for step in range(1, world_size):
            sent += num_elements * itemsize / world_size
        return sent

    def reduce_scatter_bytes(*sizes): return once_round(*sizes)
    def all_gather_bytes(*sizes): return once_round(*sizes)
    def all_reduce_bytes(*sizes): return sum(once_round(*sizes) for phase in ("reduce-scatter", "all-gather"))
""",
    "root-and-all": """
    def root_link_bytes(num_elements, itemsize, world_size):
        whole = num_elements * itemsize
        return (world_size * whole - whole) + (world_size * whole - whole)

    def total_bytes(num_elements, itemsize, world_size):
        return float(sum(all_reduce_bytes(num_elements, itemsize, world_size) for rank in range(world_size)))

    def all_reduce_steps(world_size):
        return len(range(1, world_size)) + len(range(1, world_size))
""",
    "sharding": """
    def data_parallel_elements(num_params, world_size):
        return all_reduce_bytes(num_params, 1, world_size)

    def fsdp_elements(num_params, world_size):
        return all_gather_bytes(2 * num_params, 1, world_size) + reduce_scatter_bytes(num_params, 1, world_size)

    def fsdp_over_data_parallel(*model):
        return fsdp_elements(*model) / data_parallel_elements(*model)
""",
}
RIGHT = {
    "03_ring": {
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
    },
    "04_all_reduce": {
        "in whole numbers": WHOLE_NUMBERS,
        "as fractions": FRACTIONS,
        "by counting ranks": BY_COUNTING,
        "by the schedules' own counts": BY_SCHEDULES,
        "step by step": STEP_BY_STEP,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("exercise, name", [(exercise, name) for exercise in RIGHT for name in RIGHT[exercise]])
def test_a_right_answer_is_accepted_however_it_is_written(exercise, name):
    assert_accepted(exercise, name, RIGHT[exercise][name])


# Wrong answers: the solution with one thing changed, the checks that must refuse it, and what the first one must say.


RING, BYTES = "03_ring", "04_all_reduce"
SUMS = {"a1-sums-small", "a2-sums-all", "a3-ring"}
RANKS = {"c1-ranks-small", "c2-ranks-all", "c3-traffic"}
ONE_RANK = {"a1-reduce-scatter", "a2-all-gather", "a3-all-reduce"}
FORMULA = "(world_size - 1) / world_size * num_elements * itemsize"
IN_THE_RING = [
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
        "    return ring.reduce_scatter(world_size)\n",
        SUMS,
        "write its steps yourself",
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
        "calls the library's own dist.all_reduce;",
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
IN_BYTES = [
    broken(
        "elements for bytes",
        FORMULA,
        FORMULA.removesuffix(" * itemsize"),
        ONE_RANK,
        "these are elements, not bytes",
    ),
    broken(
        "bits for bytes",
        FORMULA,
        f"8 * {FORMULA}",
        ONE_RANK,
        "these are bits",
    ),
    broken(
        "all ranks for one",
        FORMULA,
        FORMULA.replace("/ world_size *", "*"),
        ONE_RANK,
        "this counts all ranks together",
        origin="C19",
    ),
    broken(
        "a fraction rounded down",
        FORMULA,
        FORMULA.replace("/", "//"),
        ONE_RANK,
        "`//` has rounded",
    ),
    broken(
        "one rank for all",
        "    return 2 * (world_size - 1) * num_elements * itemsize\n",
        "    return all_reduce_bytes(num_elements, itemsize, world_size)\n",
        {"b1-root", "b2-total"},
        "here everything passes through the root",
        origin="C19",
    ),
    broken(
        "steps of one phase",
        "2 * (world_size - 1)\n",
        "world_size - 1\n",
        {"b3-steps"},
        "one phase",
        origin="C08",
    ),
    broken(
        "no (P-1)/P",
        FORMULA,
        "num_elements * itemsize",
        ONE_RANK,
        "leaves out the factor (P-1)/P",
    ),
    broken(
        "one half of the all-reduce",
        "return reduce_scatter_bytes(num_elements, itemsize, world_size) + all_gather_bytes(",
        "return all_gather_bytes(",
        {"a3-all-reduce"},
        "this is half of it",
        origin="C03",
    ),
    broken(
        "two phases for each half",
        f"return {FORMULA}",
        f"return 2 * {FORMULA}",
        ONE_RANK,
        "this is twice as much",
        origin="C03",
    ),
    broken(
        "a single step",
        FORMULA,
        "num_elements * itemsize / world_size",
        ONE_RANK,
        "this is a single step; how many steps are there?",
    ),
    written(
        "the root's link one way",
        "root-and-all",
        solution_of(BYTES, "root-and-all").replace(
            "return 2 * (world_size - 1) * num", "return (world_size - 1) * num", 1
        ),
        {"b1-root"},
        "this is one direction; the root also sends the sum back",
        origin="C19",
    ),
    written(
        "the root sends to itself",
        "root-and-all",
        solution_of(BYTES, "root-and-all").replace(
            "return 2 * (world_size - 1) * num", "return 2 * world_size * num", 1
        ),
        {"b1-root"},
        "the root does not send to itself",
        origin="C19",
    ),
    broken(
        "a step too many in each phase",
        "    return 2 * (world_size - 1)\n",
        "    return 2 * world_size\n",
        {"b3-steps"},
        "one step too many in each phase",
        origin="C08",
    ),
    broken(
        "FSDP moves what data parallelism moves",
        "3 * (world_size - 1)",
        "2 * (world_size - 1)",
        {"c2-fsdp", "c3-ratio"},
        "leaves out one of the collectives",
        origin="D04",
    ),
    broken(
        "bytes where elements are asked for",
        "return 2 * (world_size - 1) / world_size * num_params",
        "return 2 * (world_size - 1) / world_size * num_params * 4",
        {"c1-data-parallel", "c3-ratio"},
        "these are bytes (of 4 each)",
    ),
    broken(
        "how much more",
        "fsdp_elements(num_params, world_size) / data_parallel_elements(num_params, world_size)",
        "fsdp_elements(num_params, world_size) / data_parallel_elements(num_params, world_size) - 1",
        {"c3-ratio"},
        "how much *more* it is",
        origin="D01",
    ),
    broken(
        "the ratio upside down",
        "fsdp_elements(num_params, world_size) / data_parallel_elements(num_params, world_size)",
        "data_parallel_elements(num_params, world_size) / fsdp_elements(num_params, world_size)",
        {"c3-ratio"},
        "upside down",
    ),
]
MUTANTS = [(RING, mutant) for mutant in IN_THE_RING] + [(BYTES, mutant) for mutant in IN_BYTES]


@pytest.mark.parametrize("exercise, mutant", MUTANTS, ids=[f"{name}-{mutant.slip}" for name, mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(exercise, mutant):
    answers = with_slip(exercise, mutant)
    assert_refused(exercise, mutant, answers, briefly="ring-reduce-scatter" in answers)


def test_a_wrong_schedule_is_drawn(monkeypatch):
    """A learner sees the step that goes wrong, not only words."""
    shown = []
    monkeypatch.setattr(checks, "show", shown.append)
    wrong = 'def reduce_scatter_steps(n): return [[(r, (r + 1) % n, r, "reduce") for r in range(n)]]'
    said = verdicts("03_ring", {"reduce-scatter-steps": wrong}, parts="a")
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
    said = verdicts("03_ring", {"reduce-scatter-steps": answer}, parts="a")
    assert words in said["a1-sums-small"]


def test_a_notebook_shows_the_words_of_a_refusal_and_no_traceback():
    assert checks.NotYet("a reason")._render_traceback_() == ["Not right yet: a reason"]


# The generated files.


COPIED = ("03_ring", "04_all_reduce")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of what generation reads and writes, of two exercises, to be changed at will."""
    root = tmp_path_factory.mktemp("course")
    for folder in ("autograder", *(f"{part}/{name}" for part in ("solutions", "exercises") for name in COPIED)):
        shutil.copytree(ROOT / folder, root / folder)
    return root


def run_tool(root, *arguments):
    command = [sys.executable, "-m", "autograder.release", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


@pytest.mark.slow
def test_the_exercises_are_in_step_with_the_solutions():
    done = run_tool(ROOT, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_second_generation_changes_nothing(copy):
    files = [path for path in (copy / "exercises").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    assert run_tool(copy).returncode == 0
    assert {path: path.read_bytes() for path in (copy / "exercises").rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_an_exercise_out_of_step_is_named(copy):
    shutil.copytree(copy / "exercises" / "03_ring", copy / "exercises" / "98_old")
    path = copy / "exercises" / "03_ring" / "03_ring.ipynb"
    path.write_text(path.read_text().replace("Exercise 03", "Exercise 3"))
    shutil.rmtree(copy / "exercises" / "04_all_reduce")
    done = run_tool(copy, "--check")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "exercises/04_all_reduce is missing: run `make exercises`",
        "exercises/98_old has no solution: run `make exercises`",
        "exercises/03_ring differs from what its solution generates: run `make exercises`",
    ]
    assert run_tool(copy).returncode == 0
    assert run_tool(copy, "--check").returncode == 0


@pytest.mark.slow
def test_answers_of_a_learner_are_never_overwritten(copy):
    path = copy / "exercises" / "04_all_reduce" / "04_all_reduce.ipynb"
    answered = path.read_text().replace("raise NotImplementedError()", "return 42", 1)
    path.write_text(answered)
    done = run_tool(copy)
    assert "04_all_reduce holds answers, so it stays as it is" in done.stdout
    assert path.read_text() == answered


@pytest.mark.parametrize("name", NAMES)
def test_no_answer_and_no_hidden_test_is_released(name):
    """Line by line: what stands only between the markers of the source stands nowhere in the release."""
    released = nbformat.read(ROOT / "exercises" / name / f"{name}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in released.cells)
    assert "SOLUTION" not in text
    assert "HIDDEN" not in text
    secret, told = set(), set()
    for cell in release.source(name).cells:
        inside = False
        for line in cell.source.splitlines():
            inside = (inside or "### BEGIN" in line) and "### END" not in line
            (secret if inside else told).add(line.strip())
    assert len(secret - told) > 15
    assert not (secret - told) & {line.strip() for line in text.splitlines()}
    assert [path.name for path in (ROOT / "exercises" / name).iterdir()] == [f"{name}.ipynb"]

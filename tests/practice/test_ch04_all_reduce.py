"""Exercise 04 accepts right answers however they are written, and refuses wrong ones in words that help."""

from __future__ import annotations

import pytest
from answers import assert_accepted, assert_refused, broken, solution_of, with_slip, written

EXERCISE = "04_all_reduce"

# Right answers, each in another style than the solution's.
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
    "in whole numbers": WHOLE_NUMBERS,
    "as fractions": FRACTIONS,
    "by counting ranks": BY_COUNTING,
    "by the schedules' own counts": BY_SCHEDULES,
    "step by step": STEP_BY_STEP,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


# Wrong answers: the solution with one thing changed, the checks that must refuse it, and what the first one must say.

ONE_RANK = {"a1-reduce-scatter", "a2-all-gather", "a3-all-reduce"}
FORMULA = "(world_size - 1) / world_size * num_elements * itemsize"
MUTANTS = [
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
        solution_of(EXERCISE, "root-and-all").replace(
            "return 2 * (world_size - 1) * num", "return (world_size - 1) * num", 1
        ),
        {"b1-root"},
        "this is one direction; the root also sends the sum back",
        origin="C19",
    ),
    written(
        "the root sends to itself",
        "root-and-all",
        solution_of(EXERCISE, "root-and-all").replace(
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


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant))

"""Right answers are right as lists, arrays, tensors, views and generators, and whatever name a function goes by."""

import pytest
from answers import graded, solutions_of

ROTATED = """
    def reduce_scatter_steps(world_size):
        def of_rank_0():
            for step in range(world_size - 1):
                yield [Transfer(0, 1 % world_size, -1 - step, "reduce")]

        return Schedule.rotated(world_size, world_size, of_rank_0, "reduce_scatter", "mine")
"""
# Of each: the exercise, the cell, what of the solution changes into what (or the whole cell), and the checks.
OTHERS = {
    "a rotated schedule": ("03_ring", "reduce-scatter-steps", "", ROTATED, "a"),
    "a schedule with a collective": (
        "03_ring",
        "reduce-scatter-steps",
        "    return steps",
        '    return Schedule.of(world_size, world_size, steps, collective="reduce_scatter")',
        "a",
    ),
    "a torch scalar": (
        "03_ring",
        "element-transfers",
        "return int(sum(",
        "return __import__('torch').tensor(sum(",
        "b",
    ),
    "an array of one number": (
        "04_all_reduce",
        "bytes-of-a-rank",
        "return (children + (rank > 0)) * num_elements * itemsize",
        "return np.array((children + (rank > 0)) * num_elements * itemsize)",
        ["a2-tree"],
    ),
    "torch scalars": ("05_crossover", "fit", "alpha, beta\n", "map(__import__('torch').tensor, (alpha, beta))\n", "d"),
    "rows of one torch number": (
        "05_crossover",
        "fit",
        "alpha, beta\n",
        "__import__('torch').tensor([[alpha], [beta]])\n",
        "d",
    ),
    "an array of one row": (
        "04_all_reduce",
        "bytes-of-a-rank",
        "return (children + (rank > 0)) * num_elements * itemsize",
        "return np.array([[(children + (rank > 0)) * num_elements * itemsize]])",
        ["a2-tree"],
    ),
    "an all-reduce imported by name": (
        "08_data_parallel",
        "overlapped",
        "dist.all_reduce(flat, async_op=True)",
        "all_reduce(flat, async_op=True)",
        "d",
    ),
    "a ceiling in floats": (
        "09_zero",
        "ownership",
        "(num_elements + world_size - 1) // world_size",
        "__import__('math').ceil(num_elements / world_size)",
        "a",
    ),
    "an array of two numbers": (
        "10_fsdp",
        "choose",
        "return stage, micro",
        "return __import__('numpy').array([stage, micro])",
        "c",
    ),
    "an array of names": (
        "13_tensor_parallel",
        "collectives",
        "return min(plans, key=lambda plan: sum(ch13_tensor_parallel.SENT[name] for name in plan))",
        "return __import__('numpy').array(min(plans, key=lambda p: sum(ch13_tensor_parallel.SENT[n] for n in p)))",
        "a",
    ),
    "a list of lines": ("16_pipeline", "mine", '    """\n', '    """.strip().splitlines()\n', "c"),
    "a dictionary's values": (
        "16_pipeline",
        "within",
        'return order + [f"W{i}" for i in range(max(0, m - late), m)]',
        'return dict(enumerate(order + [f"W{i}" for i in range(max(0, m - late), m)])).values()',
        "d",
    ),
}
IMPORTS = {"an all-reduce imported by name": "from torch.distributed import all_reduce\n\n\n"}


@pytest.mark.parametrize("name", OTHERS)
def test_a_right_answer_is_accepted_in_other_types_and_by_other_names(name):
    exercise, cell, old, new, parts = OTHERS[name]
    answer = solutions_of(exercise)[cell]
    assert old in answer
    answer = IMPORTS.get(name, "") + (answer.replace(old, new) if old else new)
    said = graded(exercise, {cell: answer}, parts, looks=False)
    assert said and not [words for _, words in said.values() if words]

"""What checks say of an answer that fails on a rank, or never ends: the learner's own line, and no frame of ours."""

import threading
import time

import pytest
from answers import graded, solutions_of

from collectives.practice import checks

# Of exercises on real ranks: a cell, a line of its solution, the function that it is in, and a check that runs it.
ON_RANKS = {
    "03_ring": ("ring-reduce-scatter", "    bounds = chunk_bounds", "ring_reduce_scatter", "c1-ranks-small"),
    "08_data_parallel": ("overlapped", "    step.arrived.add(number)", "arrived", "d1-mean"),
    "09_zero": ("zero-2", "    for unit in units:\n        begin", "step", "c1-losses"),
    "13_tensor_parallel": ("attention", "    projected =", "attention", "c3-forward"),
    "15_experts": ("layer", "    k, share = experts.shape", "layer", "c2-one-choice"),
    "19_failures": ("survive", "    shard = ", "save", "c1-survives"),
}


def said_of(exercise, code):
    """What the check says of the solution with one more line."""
    cell, line, _, check = ON_RANKS[exercise]
    answer = solutions_of(exercise)[cell]
    assert line in answer
    ((_, words),) = graded(exercise, {cell: answer.replace(line, f"    {code}\n{line}", 1)}, [check], False).values()
    return words


@pytest.mark.slow
@pytest.mark.parametrize("exercise", ON_RANKS)
def test_an_error_on_a_rank_is_shown_with_the_learners_line_and_no_frame_of_ours(exercise):
    words = said_of(exercise, "undefined_name")
    _, _, function, _ = ON_RANKS[exercise]
    assert f"in {function}" in words or f"of {function}" in words
    assert "NameError: name 'undefined_name' is not defined" in words
    assert ".py" not in words


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [each for each in ON_RANKS if each in ("03_ring", "09_zero", "15_experts")])
def test_a_rank_that_is_not_there_is_named_before_torch_sees_it(exercise):
    words = said_of(exercise, "dist.send(torch.zeros(1), world_size)")
    assert "sends to, or receives from, rank 2: the ranks are 0 to 1" in words


# Of exercises in numbers: a cell, a line of its solution, a check that runs it, and the call that never ends.
IN_NUMBERS = {
    "02_tree": ("broadcast-steps", "    steps, have = [], 1", "a1-powers-of-two", "broadcast_steps(2)"),
    "03_ring": (
        "element-transfers",
        "    lengths =",
        "b1-even",
        "element_transfers(<steps of ring",
    ),
    "06_all_to_all": ("peers", "    partners = []", "a1-pairs-small", "peers(0, 2)"),
    "12_activations": ("choice", "    wanted, time", "c1-again", "again(ops, {a, b}, {}) for"),
    "16_pipeline": ("kept", "    return m\n", "a3-kept", "gpipe_kept("),
    "20_plan": ("of-a-model", "    hidden, head_size", "a1-parameters", "layer_params(model), for"),
}


@pytest.mark.parametrize("exercise", IN_NUMBERS)
def test_a_plain_loop_that_never_ends_is_ended_and_its_call_and_line_are_named(exercise, monkeypatch):
    monkeypatch.setattr(checks, "CALL_SECONDS", 0.05)
    cell, line, check, call = IN_NUMBERS[exercise]
    answer = solutions_of(exercise)[cell]
    assert line in answer
    endless = {cell: answer.replace(line, f"    import random\n    while True:\n        random.random()\n{line}", 1)}
    ((_, words),) = graded(exercise, endless, [check], looks=False).values()
    assert words.startswith(call) and "it was still running after 0.05 s\n  line " in words


def test_a_call_that_computes_long_but_ends_is_not_ended_by_what_other_threads_compute(monkeypatch):
    monkeypatch.setattr(checks, "CALL_SECONDS", 0.2)
    stop = threading.Event()
    busy = threading.Thread(target=lambda: any(iter(stop.is_set, True)))
    busy.start()
    try:
        assert checks.answer(lambda: time.sleep(1) or "done", call="slow()") == "done"
    finally:
        stop.set()
        busy.join()

"""No function of the course's answers an exercise, and no object of a learner's lets one answer later."""

import importlib
from collections import deque
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from autograder import release
from collectives import price, topology
from collectives.algorithms import ring
from collectives.measure import bandwidth, calibrate, nccl_log
from collectives.practice import (
    ch03_ring,
    ch09_zero,
    ch10_fsdp,
    ch13_tensor_parallel,
    ch14_context_parallel,
    ch15_experts,
    ch16_pipeline,
    ch17_mesh,
    ch18_gpus,
    ch20_plan,
    checks,
    clinic,
    wall,
)
from collectives.schedule import COPY, Schedule, Transfer
from collectives.training import context_parallel, experts, memory, pipeline

MODELS = ch10_fsdp.random_models(seed=1, how_many=1)
EXPERTS = torch.tensor([[2, 0], [1, 2]])
STEPS = ch20_plan.random_steps(seed=1, how_many=2)


def routing(chosen, num_experts=3):
    return experts.Routing(chosen, torch.ones(chosen.shape), torch.ones(len(chosen), num_experts))


def of_20(part, model, *more):
    makers = ch20_plan._machine, ch20_plan._layout
    return part(
        ch20_plan._model(model), *(make(said) for make, said in zip(makers[-len(more) :], more, strict=True))
    ).want


def priced(steps, num_elements, num_chunks):
    links = topology.uniform(3, alpha=0, beta=0)
    return int(price(Schedule.of(3, num_chunks, steps), num_elements, links, 1).bytes_sent.sum())


def counted(steps, num_elements, num_chunks):
    return int(checks.counted(Schedule.of(3, num_chunks, steps), num_elements).bytes_sent.sum())


def with_its_state(parameters, rank, world_size):
    return ch09_zero._new_state(parameters.chunk(world_size)[rank])


SHORTCUTS = {
    "03 count": lambda: ch03_ring.check_count(counted, [ring.reduce_scatter(3)], 12),
    "03 price": lambda: ch03_ring.check_count(priced, [ring.reduce_scatter(3)], 12),
    "09 state": lambda: ch09_zero.check_state(with_its_state, 6, 2),
    "10 peak": lambda: ch10_fsdp.check_peak(lambda *case: memory.at_peak([], *case[1:3]), MODELS),
    "10 choice": lambda: ch10_fsdp.check_choice(ch10_fsdp.best, ch10_fsdp.random_cases(seed=1)),
    "13 heads": lambda: ch13_tensor_parallel.check_part(ch13_tensor_parallel.part_of, 4, 2),
    "16 kept": lambda: ch16_pipeline.check_kept_count(
        lambda rank, p, m: pipeline.peak_activations(pipeline.one_f_one_b(p, m))[rank], "1F1B", [(0, 2, 4)]
    ),
    "18 busbw": lambda: ch18_gpus.check_table(
        lambda sweep: bandwidth.busbw("all_reduce", 1e9, 8), ch18_gpus.tables(seed=1)
    ),
    "09 update": lambda: ch09_zero.check_update(ch09_zero.adam, 2, updates=2),
    "15 order": lambda: ch15_experts.check_order(lambda chosen: experts.send_order(routing(chosen)), EXPERTS),
    "15 counts": lambda: ch15_experts.check_counts(lambda chosen, num: routing(chosen, num).load, EXPERTS, 3),
    "15 capacity": lambda: ch15_experts.check_kept(
        lambda chosen, num, places: experts.within_capacity(routing(chosen, num), places).weights > 0, EXPERTS, 3, 1
    ),
    "16 bubble": lambda: ch16_pipeline.check_bubble(ch16_pipeline.bubble_over_total, "total", [(4, 8)]),
    "16 cost": lambda: ch16_pipeline.check_bubble(
        lambda p, m: ch16_pipeline._cost_of_1f1b(p, m).bubble_over_ideal, "ideal", [(4, 8)]
    ),
    "16 enough": lambda: ch16_pipeline.check_enough(ch16_pipeline.enough, [(4, 0.11)]),
    "17 weights": lambda: ch17_mesh.check_held(ch17_mesh.held, ch17_mesh.EVEN),
    "17 shares": lambda: ch17_mesh.check_shares(ch17_mesh.shares, ch17_mesh.FOUR),
    "17 seconds": lambda: ch17_mesh.check_exposed(ch17_mesh.exposed, ch17_mesh.traffics(seed=1)),
    "17 place": lambda: ch17_mesh.check_place(
        lambda sizes, gpus, costs: ch17_mesh.least(ch17_mesh.Choice(sizes, gpus, costs, {})), ch17_mesh.choices(seed=1)
    ),
    "18 log": lambda: ch18_gpus.check_said(
        lambda log: [(0, "", warning) for warning in nccl_log.parse("\n".join(log)).warnings], ch18_gpus.logs(seed=1)
    ),
    "18 table": lambda: ch18_gpus.check_table(
        lambda sweep: bandwidth.parse("\n".join(sweep), "all_reduce", 8).rows, ch18_gpus.tables(seed=1)
    ),
    "18 fit": lambda: ch18_gpus.check_fit(
        lambda rows: calibrate.fit([row[1] for row in rows], [row[2] for row in rows]), ch18_gpus.lines_of(seed=1)
    ),
    "18 lateness": lambda: ch18_gpus.check_lateness(
        lambda trace: ch18_gpus._late(trace, lambda event, left: left - event.entered), ch18_gpus.traces(seed=1)
    ),
    "18 patients": lambda: ch18_gpus.check_ward(
        lambda patient: [case for case in clinic.ward("sockets", 1) if case.patient == patient],
        ch18_gpus.ward("sockets"),
    ),
    "20 model": lambda: ch20_plan.check_model(
        lambda model: ch20_plan._model(model).parameters, "parameters", ch20_plan.random_models(seed=1)
    ),
    "20 memory": lambda: ch20_plan.check_memory(
        lambda *case: of_20(ch20_plan.OF_MEMORY["state"], *case), "state", [(model, way) for model, _, way in STEPS]
    ),
    "20 time": lambda: ch20_plan.check_time(lambda *case: of_20(ch20_plan.OF_TIME["compute"], *case), "compute", STEPS),
}


@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_a_function_of_the_course_answers_no_exercise(shortcut):
    with pytest.raises(checks.NotYet, match=r"the library's own .* is for comparing, afterwards"):
        SHORTCUTS[shortcut]()


class Later:
    """An answer that is worked out when a check reads it: the library is back on by then."""

    ndim = 0

    def __init__(self, item):
        self.item = item

    def __iter__(self):
        return iter(self.item())


class LaterTuple(tuple):
    def __iter__(self):
        return iter(ch10_fsdp.best(*self[0]))


class LaterNumber(float):
    def __float__(self):
        return ch10_fsdp.needs(*self.case).total


def later_number(*case):
    number = LaterNumber()
    number.case = case
    return number


def later_positions(rank, world_size, tokens):
    def positions():
        piece = tokens // (2 * world_size)
        return [p * piece + n for p in context_parallel.zigzag(rank, world_size) for n in range(piece)]

    return Later(positions)


LATER = {
    "a number": lambda: ch10_fsdp.check_sent(lambda *case: Later(lambda: ch10_fsdp.sends(*case)), MODELS),
    "a float": lambda: ch10_fsdp.check_peak(later_number, MODELS),
    "a tuple": lambda: ch10_fsdp.check_choice(lambda *case: LaterTuple([case]), ch10_fsdp.random_cases(seed=1)),
    "positions": lambda: ch14_context_parallel.check_shares(later_positions, [(2, 4)]),
}


@pytest.mark.parametrize("later", LATER)
def test_an_answer_is_worked_out_before_the_library_is_back(later):
    with pytest.raises(checks.NotYet, match=r"the library's own .* is for comparing, afterwards"):
        LATER[later]()


def given(result):
    return checks.own_answer(checks.__name__, lambda: result)


@pytest.mark.parametrize(
    ("result", "read"),
    [
        ((1, 2.5, "three", None, True), (1, 2.5, "three", None, True)),
        ({"a": range(3)}.items(), [("a", range(3))]),
        (deque([1, 2]), [1, 2]),
        ({1: {2, 3}}, {1: {2, 3}}),
        (Fraction(1, 3), Fraction(1, 3)),
        ([np.float64(2), np.int64(3)], [2, 3]),
        ([map(abs, [-1]), (-2,)], [[1], (-2,)]),
        ([[Transfer(0, 1, 2, COPY)]], [[Transfer(0, 1, 2, COPY)]]),
    ],
)
def test_plain_results_arrive_as_they_are_and_collections_as_lists(result, read):
    assert given(result) == read


def test_an_object_that_is_no_data_is_no_answer():
    with pytest.raises(checks.NotYet, match="returns an object of type SimpleNamespace; return numbers"):
        given([SimpleNamespace(ndim=0, item=abs)])
    with pytest.raises(checks.NotYet, match="returns an object of type function"):
        given(given)
    with pytest.raises(checks.NotYet, match="returns an object of type vectorize"):
        given(np.vectorize(abs))


@pytest.mark.slow
@pytest.mark.parametrize("exercise", release.names())
def test_what_an_exercise_refuses_here_its_sandbox_does_not_hold(exercise):
    name = f"collectives.practice.ch{exercise}"
    every, module = wall.survey(), importlib.import_module(name)
    holds = wall._full_names([name], on_ranks=False)
    codes = [each.itself.__code__ for each in every]
    with getattr(module, "without_the_library", checks.without_the_library)():
        refused = [each for each, code in zip(every, codes, strict=True) if each.itself.__code__ is not code]
    assert [each.name for each in refused if f"{each.name}.".startswith(holds)] == []

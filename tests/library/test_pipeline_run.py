"""Every schedule, run on real ranks, leaves the gradients of the model in one piece."""

import contextlib
from functools import cache
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from collectives import ranks
from collectives.training import pipeline, pipeline_run, tiny
from collectives.training.pipeline import from_text, peak_activations, price
from collectives.training.pipeline_run import Pipeline
from collectives.training.timeline import Timeline

pytestmark = pytest.mark.ranks

ROWS = 24


class Odd(nn.Module):
    """A stage with weights of its own beside a module, one used twice, and one that is not used."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 1)
        self.twice = nn.Linear(width, width)
        self.unused = nn.Linear(width, 3)
        self.frozen = nn.Linear(width, width).requires_grad_(False)

    def forward(self, x):
        return self.frozen(self.twice(torch.tanh(self.twice(x * self.scale))) * self.scale)


def blocks(num_stages, uneven):
    """The stages, the same on every rank; `uneven`: with outputs of different widths between them, and one odd."""
    if not uneven:
        return list(tiny.model(num_stages, dtype=torch.float64))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        widths = [tiny.WIDTH, *(5 + 3 * stage for stage in range(num_stages - 1)), tiny.WIDTH]
        stages = [
            nn.Sequential(nn.Linear(before, after), nn.LayerNorm(after), nn.Tanh())
            for before, after in pairwise(widths)
        ]
        stages[1].append(Odd(widths[2]))
        return [stage.double() for stage in stages]


def whole(num_stages, uneven):
    """The mean loss and the gradients, stage by stage, of the model in one piece."""
    stages = blocks(num_stages, uneven)
    inputs, targets = tiny.batch(0, rows=ROWS, dtype=torch.float64)
    loss = nn.functional.mse_loss(nn.Sequential(*stages)(inputs), targets)
    loss.backward()
    return loss.item(), [[weight.grad for weight in stage.parameters()] for stage in stages]


class Watched(Pipeline):
    """It notes how many messages were not known to have arrived when the last operation had been done."""

    def _add_copies(self):
        self.unanswered = len(self.sent)
        super()._add_copies()


def stages_of(schedule, rank, uneven=False):
    """The modules of a rank's stages, by number."""
    stages = blocks(schedule.num_stages, uneven)
    return {stage: stages[stage] for stage in schedule.stages_of(rank)}


def one_step(rank, schedule, uneven=False):
    """What a rank's step gives: its part of the loss, its gradients by stage, what it held, and when it computed."""
    mine = Watched(schedule, stages_of(schedule, rank, uneven), nn.functional.mse_loss, checked=False)
    loss = mine.step(*tiny.batch(0, rows=ROWS, dtype=torch.float64))
    gradients = {stage: [weight.grad for weight in module.parameters()] for stage, module in mine.stages.items()}
    return loss, gradients, mine.most_held, mine.spans, mine.unanswered


def all_steps(rank, _, schedules):
    return [one_step(rank, *case) for case in schedules]


def every_schedule(p):
    m = {2: 4, 3: 6, 4: 8}[p]
    made = [make(p, m) for make in pipeline.BY_NAME.values() if make is not pipeline.dual_pipe or p % 2 == 0]
    return [*made, pipeline.interleaved(p, m, 3), pipeline.zb_h1(p, m, 2), pipeline.zb_v(p, 2), pipeline.zb_h2(p, 3)]


@cache
def results(p):
    """By schedule and by whether stages are uneven, what every rank's step gave: all in one run."""
    cases = [(schedule, uneven) for schedule in every_schedule(p) for uneven in (False, True)]
    by_rank = ranks.run(all_steps, p, cases, timeout=120)
    return [(*case, [steps[number] for steps in by_rank]) for number, case in enumerate(cases)]


@pytest.mark.parametrize("p", [2, 3, 4])
def test_gradients_are_those_of_the_model_in_one_piece(p):
    for schedule, uneven, steps in results(p):
        loss, expected = whole(schedule.num_stages, uneven)
        assert sum(part for part, *_ in steps) == pytest.approx(loss, rel=1e-12), schedule.name
        for rank, (_, gradients, *_) in enumerate(steps):
            assert sorted(gradients) == schedule.stages_of(rank)
            for stage, found in gradients.items():
                for one, other in zip(found, expected[stage], strict=True):
                    where = f"{schedule.name}, stage {stage}, uneven: {uneven}"
                    if other is None:
                        assert one is None, where
                    else:
                        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12, msg=where)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_rank_holds_as_many_activations_as_the_list_says(p):
    for schedule, _, steps in results(p):
        assert [held for _, _, held, *_ in steps] == peak_activations(schedule), schedule.name


@pytest.mark.parametrize("p", [2, 3, 4])
def test_what_was_measured_is_a_timeline_of_the_same_operations(p):
    for schedule, _, steps in results(p):
        measured = Timeline.measured(span for _, _, _, spans, _ in steps for span in spans)
        planned = price(schedule, 1, 1, 1).timeline
        assert measured.groups == planned.groups
        for group in planned.groups:
            orders = [[(span.name, span.kind) for span in line.only(group).spans] for line in (measured, planned)]
            assert orders[0] == orders[1]


def test_what_is_known_to_have_arrived_is_not_kept():
    """GPipe's first rank has its sends answered by gradients; its last rank's gradients nobody answers."""
    for schedule, _, steps in results(4):
        if schedule.name in ("GPipe", "1F1B"):
            unanswered = [left for *_, left in steps]
            assert unanswered[0] == 0, schedule.name
            assert unanswered[3] == (8 if schedule.name == "GPipe" else 2)


def test_gradients_in_fp32_are_close():
    def step(rank, _):
        stages = tiny.model(2)
        mine = Pipeline(pipeline.zb_h2(2, 4), {rank: stages[rank]}, nn.functional.mse_loss)
        mine.step(*tiny.batch(0))
        return [weight.grad for weight in stages[rank].parameters()]

    model = tiny.model(2)
    tiny.loss(model, *tiny.batch(0)).backward()
    first, second = ranks.run(step, 2)
    for one, weight in zip([*first, *second], model.parameters(), strict=True):
        torch.testing.assert_close(one, weight.grad, rtol=0, atol=1e-6)


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


class Counted(Pipeline):
    """It counts the matrix products of each operation."""

    @contextlib.contextmanager
    def _timed(self, operation):
        with Products() as products:
            yield
        self.products[str(operation)] = products.count


def test_i_and_w_share_the_work_of_b_and_do_none_of_it_twice():
    def products(_, __, text):
        stages = {stage: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)) for stage in (0, 1)}
        counted = Counted(from_text(text), stages, nn.functional.mse_loss)
        counted.products = {}
        counted.step(torch.ones(2, 4), torch.ones(2, 4))
        return counted.products

    (whole,) = ranks.run(products, 1, "0F0 1F0 1B0 0B0")
    (split,) = ranks.run(products, 1, "0F0 1F0 1I0 0I0 1W0 0W0")
    assert whole == {"0F0": 2, "1F0": 2, "1B0": 4, "0B0": 3}  # the gradient of the inputs is of no use
    assert split == {"0F0": 2, "1F0": 2, "1I0": 2, "0I0": 1, "1W0": 2, "0W0": 2}


def test_a_group_for_each_direction_as_nccl_needs_them_carries_the_same_messages():
    def step(rank, _, schedule):
        real, pipeline_run.dist.get_backend = dist.get_backend, lambda group: "nccl"
        try:
            groups = len({id(group) for group in Pipeline(schedule, stages_of(schedule, rank), None).channels.values()})
            return groups, one_step(rank, schedule)[:2]
        finally:
            pipeline_run.dist.get_backend = real

    schedule = pipeline.dual_pipe(4, 8)
    loss, expected = whole(4, False)
    outcomes = ranks.run(step, 4, schedule)
    assert sum(part for _, (part, _) in outcomes) == pytest.approx(loss, rel=1e-12)
    for groups, (_, gradients) in outcomes:
        assert groups > 2
        for stage, found in gradients.items():
            torch.testing.assert_close(found, expected[stage], rtol=1e-10, atol=1e-12)


def test_torchs_own_schedules_leave_the_same_gradients():
    def both(rank, p, names):
        import torch.distributed.pipelining as torchs  # takes seconds in every fresh process

        batch, found = tiny.batch(0, rows=ROWS, dtype=torch.float64), []
        for name, make in names:
            schedule = make(p, 2 * p)
            ours, theirs = stages_of(schedule, rank), stages_of(schedule, rank)
            Pipeline(schedule, ours, nn.functional.mse_loss).step(*batch)
            device, count = torch.device("cpu"), schedule.num_stages
            stages = [torchs.PipelineStage(module, stage, count, device) for stage, module in theirs.items()]
            kind = getattr(torchs, name)
            schedule = kind(stages[0] if count == p else stages, 2 * p, loss_fn=nn.functional.mse_loss)
            first, last = (any(stage == end for stage in theirs) for end in (0, count - 1))
            schedule.step(*batch[:1] if first else [], **{"target": batch[1]} if last else {})
            found.append(
                [[[w.grad for w in module.parameters()] for module in each.values()] for each in (ours, theirs)]
            )
        return found

    names = [("ScheduleGPipe", pipeline.gpipe), ("Schedule1F1B", pipeline.one_f_one_b)]
    names += [("ScheduleInterleaved1F1B", pipeline.interleaved), ("ScheduleLoopedBFS", pipeline.breadth_first)]
    names += [("ScheduleZBVZeroBubble", pipeline.zb_v), ("ScheduleDualPipeV", pipeline.dual_pipe_v)]
    for found in ranks.run(both, 2, names, timeout=120):
        for ours, theirs in found:
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("make", [pipeline.one_f_one_b, pipeline.dual_pipe])
def test_a_second_step_adds_to_the_gradients_and_may_have_other_shapes(make):
    def steps(rank, _, schedule):
        mine = Pipeline(schedule, stages_of(schedule, rank), nn.functional.mse_loss)
        model = nn.Sequential(*blocks(2, False))
        for step, rows in enumerate((12, 24)):
            batch = tiny.batch(step, rows=rows, dtype=torch.float64)
            mine.step(*batch)
            tiny.loss(model, *batch).backward()
        for stage, module in mine.stages.items():
            for one, other in zip(module.parameters(), model[stage].parameters(), strict=True):
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-8)  # tiny.loss is in fp32

    ranks.run(steps, 2, make(2, 4))


def test_weights_are_found_wherever_a_stage_uses_them():
    """Attention uses the weights of a module inside that it never calls; an LSTM returns a tuple; some have none."""

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.lstm = nn.LSTM(4, 4, batch_first=True)

        def forward(self, x):
            return self.lstm(self.attention(x, x, x, need_weights=False)[0])[0]

    def gradients(_, __, text):
        torch.manual_seed(0)
        stages = {0: nn.Identity(), 1: Hidden().double(), 2: nn.Linear(4, 4).double()}
        x = torch.randn(4, 3, 4, dtype=torch.float64)
        Pipeline(from_text(text), stages, nn.functional.mse_loss).step(x, x)
        return [weight.grad for stage in stages.values() for weight in stage.parameters()]

    (whole,) = ranks.run(gradients, 1, "0F0 1F0 2F0 2B0 1B0 0B0")
    (split,) = ranks.run(gradients, 1, "0F0 1F0 2F0 2I0 1I0 0I0 2W0 1W0 0W0")
    assert len(whole) == 10
    torch.testing.assert_close(split, whole)


@pytest.mark.parametrize(
    ("routes", "text"),
    [
        ([(0, 1), (0, 2)], "0F0 0F1 0B0 0B1\n1F0 1B0\n1F1 1B1"),
        ([(0, 2), (1, 2)], "0F0 0B0\n0F1 0B1\n1F0 1F1 1B0 1B1"),
        ([(0,), (1,), (2,)], "0F0 0B0\n0F1 0B1\n0F2 0B2"),
    ],
)
def test_routes_may_part_and_meet(routes, text):
    """A stage that sends to two ranks, one that hears from two, and one with three copies."""
    schedule = from_text(text, routes)
    loss, gradients = whole(schedule.num_stages, False)
    by_rank = [found for (found,) in ranks.run(all_steps, 3, [(schedule, False)])]
    assert sum(part for part, *_ in by_rank) == pytest.approx(loss)
    for _, theirs, *_ in by_rank:
        for stage, found in theirs.items():
            torch.testing.assert_close(found, gradients[stage])


def test_both_copies_of_a_stage_may_be_without_weights():
    def step(rank, _):
        x = torch.ones(4, 3)
        return Pipeline(pipeline.dual_pipe(2, 4), {0: nn.Identity(), 1: nn.Tanh()}, nn.functional.mse_loss).step(x, x)

    assert sum(ranks.run(step, 2)) == pytest.approx((1 - torch.tanh(torch.ones(())).item()) ** 2)


def test_a_stage_whose_output_changes_its_shape_within_a_step_is_named():
    """Rank 1 would take it for one of the first one's shape, and compute with what it finds there."""

    class Some(nn.Module):
        def forward(self, x):
            return x[x > 0]

    def step(rank, _):
        x = torch.tensor([1.0, 1.0, 1.0, -1.0])
        Pipeline(pipeline.gpipe(2, 2), {rank: nn.Identity() if rank else Some()}, nn.functional.mse_loss).step(x, x)

    with pytest.raises(ranks.RanksError, match=r"stage 0 returns .*\(1,\)\) for micro-batch 1, and .*\(2,\)\) before"):
        ranks.run(step, 2)


def test_a_deadlock_on_real_ranks_names_who_waits_for_whom():
    bad = from_text("F0 B0 F1 B1\nF1 F0 B0 B1")
    with pytest.raises(ranks.RanksError, match="each waits for the next: rank 0 → rank 1 → rank 0") as caught:
        ranks.run(all_steps, 2, [(bad, False)], timeout=4)
    assert "rank 0 waits to receive from rank 1" in str(caught.value)


def test_a_schedule_that_deadlocks_is_refused_before_anything_is_sent():
    def start(rank, _):
        Pipeline(from_text("F0 B0 F1 B1\nF1 F0 B0 B1"), {rank: nn.Identity()}, nn.functional.mse_loss)

    with pytest.raises(ranks.RanksError, match="deadlock"):
        ranks.run(start, 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("F0 B0\nB0 F0", "rank 1: 1B0 comes before the forward of its micro-batch"),
        ("F1 B1\nF0 B0", "rank 1: 1F0 takes 0F0, which rank 0 never sends"),
    ],
)
def test_a_list_that_no_rank_could_run_ends_with_its_reason(text, says):
    with pytest.raises(ranks.RanksError, match=says):
        ranks.run(all_steps, 2, [(from_text(text), False)], timeout=5)


def test_bad_arguments_are_named():
    def says(function):
        with pytest.raises(ValueError) as caught:
            function()
        return str(caught.value)

    def try_out(rank, _):
        loss, schedule = nn.functional.mse_loss, pipeline.gpipe(2, 4)
        good = Pipeline(schedule, {rank: nn.Identity()}, loss)
        pair = Pipeline(schedule, {rank: nn.LSTM(2, 2)}, loss)
        return [
            says(lambda: Pipeline(pipeline.gpipe(3, 4), {}, loss)),
            says(lambda: Pipeline(schedule, {7: nn.Identity()}, loss)),
            says(lambda: good.step(torch.zeros(6, 2), torch.zeros(6, 2))),
            says(lambda: pair.step(torch.zeros(4, 2), torch.zeros(4, 2))) if rank == 0 else "",
        ]

    first, second, third, fourth = ranks.run(try_out, 2)[0]
    assert first == "GPipe is for 3 ranks, but the group has 2"
    assert second == "rank 0 has the stages [0] in GPipe, not [7]"
    assert third == "6 inputs, 6 targets do not divide into 4 micro-batches"
    assert "stage 0 must return one tensor, not a tuple" in fourth

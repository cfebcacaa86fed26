"""Pipeline schedules are torch's, operation by operation; they cost what their papers say; what cannot run is named."""

from itertools import product
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from torch.distributed.pipelining import schedules as torchs

from collectives.training import pipeline
from collectives.training.pipeline import PipelineError, check, from_text, peak_activations, price, to_text

SIZES = [(2, 4), (2, 5), (3, 6), (3, 9), (4, 8), (4, 12), (6, 13), (8, 20)]  # ranks, micro-batches
SCHEDULES = [
    (make, p, m)
    for make, (p, m) in product(pipeline.BY_NAME.values(), SIZES)
    if (make is not pipeline.dual_pipe or (p % 2 == m % 2 == 0))
    and (make not in (pipeline.interleaved, pipeline.zb_h1) or m % (m // p) == 0)
]
RANK_STAGE = pytest.mark.parametrize(("p", "m"), SIZES)
TIMES = [(1, 1, 1), (2.0, 2.5, 1.5), (3.0, 2.0, 1.5)]  # seconds of F, I, W; the papers take W to be the shortest


def torchs_order(make, p, m, stages_a_rank=2):
    """What torch's schedule has each rank do, as lists of "0F0". A few fields of its object will do: no ranks."""
    kind = {
        pipeline.gpipe: torchs.ScheduleGPipe,
        pipeline.one_f_one_b: torchs.Schedule1F1B,
        pipeline.breadth_first: torchs.ScheduleLoopedBFS,
        pipeline.interleaved: torchs.ScheduleInterleaved1F1B,
        pipeline.zb_h1: torchs.ScheduleInterleavedZeroBubble,
        pipeline.zb_v: torchs.ScheduleZBVZeroBubble,
        pipeline.dual_pipe_v: torchs.ScheduleDualPipeV,
    }[make]
    fields = SimpleNamespace(pp_group_size=p, _n_microbatches=m, n_local_stages=stages_a_rank)
    fields._stages = range(stages_a_rank)
    fields.num_stages = p * stages_a_rank
    fields.microbatches_per_round = m // max(1, m // p)
    if make in (pipeline.gpipe, pipeline.one_f_one_b):
        return [steps_done(kind, rank, p, m) for rank in range(p)]
    orders = [filter(None, kind._calculate_single_rank_operations(fields, rank)) for rank in range(p)]
    return [["&".join(map(str, action.sub_actions or [action])) for action in order] for order in orders]


def steps_done(kind, rank, p, m):
    """What a schedule of one stage a rank does with its stage.

    (Its own account of it, `_get_pipeline_order`, has the last rank of 1F1B begin with micro-batch 1 in torch 2.13.)
    """
    done, schedule = [], MagicMock(_n_microbatches=m, _num_stages=p)
    schedule._check_inputs.return_value = [None] * m, [None] * m
    stage = schedule._stage
    stage.stage_index = rank
    for messages in (stage.get_fwd_recv_ops, stage.get_fwd_send_ops, stage.get_bwd_recv_ops, stage.get_bwd_send_ops):
        messages.return_value = []
    stage.forward_one_chunk.side_effect = lambda micro_batch, *_, **__: done.append(f"{rank}F{micro_batch}")
    stage.backward_one_chunk.side_effect = lambda micro_batch, **_: done.append(f"{rank}B{micro_batch}")
    kind._step_microbatches(schedule)
    return done


def order(schedule):
    return [["&".join(map(str, cell)) for cell in row] for row in schedule.cells]


@pytest.mark.parametrize("make", [pipeline.gpipe, pipeline.one_f_one_b, pipeline.zb_v, pipeline.dual_pipe_v])
@RANK_STAGE
def test_a_schedule_is_torchs(make, p, m):
    assert order(make(p, m)) == torchs_order(make, p, m)


@pytest.mark.parametrize("make", [pipeline.breadth_first, pipeline.interleaved, pipeline.zb_h1])
@pytest.mark.parametrize("stages_a_rank", [1, 2, 3])
@RANK_STAGE
def test_a_schedule_of_several_stages_a_rank_is_torchs(make, p, m, stages_a_rank):
    if make is not pipeline.breadth_first and m % (m // p):
        with pytest.raises(ValueError, match="do not divide into"):
            make(p, m, stages_a_rank)
    else:
        assert order(make(p, m, stages_a_rank)) == torchs_order(make, p, m, stages_a_rank)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_few_micro_batches_are_enough_where_torch_says_so(m):
    for make in (pipeline.gpipe, pipeline.interleaved, pipeline.zb_h1, pipeline.zb_v, pipeline.breadth_first):
        check(make(4, m))
    for make in (pipeline.interleaved, pipeline.zb_v):
        assert order(make(4, m)) == torchs_order(make, 4, m)
    check(pipeline.one_f_one_b(4, m))
    check(pipeline.zb_h2(4, m))


@pytest.mark.parametrize(("make", "p", "m"), SCHEDULES)
def test_every_schedule_can_be_run_and_survives_the_way_through_text(make, p, m):
    schedule = make(p, m)
    check(schedule)
    assert from_text(to_text(schedule), schedule.routes) == schedule
    assert from_text(str(schedule), schedule.routes).orders == schedule.orders
    if len(schedule.routes) == 1:
        assert from_text(to_text(schedule)) == schedule  # the lines say where each stage is


def test_a_schedule_prints_as_its_own_picture():
    assert str(pipeline.one_f_one_b(2, 3)) == (
        "rank 0: F0 F1 .  .  B0    F2 B1    .  B2\n"  #
        "rank 1: .  F0 B0    F1 B1    F2 B2    .  ."
    )
    assert to_text(pipeline.dual_pipe_v(2, 4)).splitlines()[0].startswith("0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3&3B1 3F2&0B0")


# --- what the papers say of bubbles and memory ------------------------------------------------------------------


@pytest.mark.parametrize(("p", "m"), list(product([1, 2, 3, 4, 8], [1, 2, 4, 8, 16, 32])))
@pytest.mark.parametrize(("f", "i", "w"), TIMES)
@pytest.mark.parametrize("make", [pipeline.gpipe, pipeline.one_f_one_b])
def test_the_bubble_of_gpipe_and_of_1f1b(make, p, m, f, i, w):
    cost = price(make(p, m), f, i, w)
    assert cost.seconds == pytest.approx((m + p - 1) * (f + i + w))
    assert cost.bubble_over_total == pytest.approx((p - 1) / (m + p - 1))
    assert cost.bubble_over_ideal == pytest.approx((p - 1) / m)


@pytest.mark.parametrize(("p", "m"), list(product([1, 2, 3, 4, 8], [1, 2, 4, 8, 16])))
def test_gpipe_holds_all_activations_and_1f1b_one_for_each_rank_from_here_on(p, m):
    assert peak_activations(pipeline.gpipe(p, m)) == [m] * p
    assert peak_activations(pipeline.one_f_one_b(p, m)) == [min(m, p - rank) for rank in range(p)]


@pytest.mark.parametrize(("p", "rounds", "v"), list(product([2, 3, 4, 8], [1, 2, 4], [1, 2, 3, 4])))
def test_interleaving_divides_the_bubble(p, rounds, v):
    times = [1 / v] * 3  # the same model, in stages v times smaller
    cost = price(pipeline.interleaved(p, p * rounds, v), *times)
    assert cost.bubble_over_ideal == pytest.approx((p - 1) / (v * p * rounds))
    assert price(pipeline.breadth_first(p, p * rounds, v), *times).seconds == pytest.approx(cost.seconds)


@pytest.mark.parametrize(("p", "v"), list(product([2, 4, 8], [2, 4])))
def test_interleaving_costs_memory(p, v):
    """Megatron-LM's count: p (1 + (p - 1) / (p v)) activations of a whole rank, where 1F1B holds p."""
    peak = max(peak_activations(pipeline.interleaved(p, 4 * p, v), sizes=1 / v))
    assert peak == pytest.approx(p * (1 + (p - 1) / (p * v)))


@pytest.mark.parametrize(("p", "extra"), list(product([2, 3, 4, 8], [0, 1, 5, 12])))
@pytest.mark.parametrize(("f", "i", "w"), TIMES)
def test_the_bubble_of_zb_h1_and_zb_h2(p, extra, f, i, w):
    """Qi et al., table 2, with I for their B. Their cost is the longest of any rank, from its first to its last."""
    m = p + (-p % p) + extra if (p + extra) % max(1, (p + extra) // p) == 0 else 2 * p
    assert max(price(pipeline.zb_h1(p, m), f, i, w).stalled) == pytest.approx((p - 1) * (f + i - w))
    m = 2 * p - 1 + extra
    assert max(price(pipeline.zb_h2(p, m), f, i, w).stalled) == pytest.approx((p - 1) * (f + i - 2 * w))


@pytest.mark.parametrize(("p", "kept"), list(product([2, 3, 4, 8], [0.25, 0.5, 1.0])))
def test_the_activations_of_zb_h1_and_zb_h2(p, kept):
    """Qi et al., section 2: rank r, from 0 on, holds (p - r) M_B + r M_W, and (2p - 2r - 1) M_B + 2r M_W."""
    h1 = [p - rank + rank * kept for rank in range(p)]
    h2 = [2 * (p - rank) - 1 + 2 * rank * kept for rank in range(p)]
    assert peak_activations(pipeline.zb_h1(p, 3 * p), kept_for_weights=kept) == pytest.approx(h1)
    assert peak_activations(pipeline.zb_h2(p, 3 * p), kept_for_weights=kept) == pytest.approx(h2)


@pytest.mark.parametrize(("p", "extra"), list(product([2, 3, 4, 8], [0, 1, 5])))
def test_zb_v_has_no_bubble_and_1f1bs_memory_where_all_take_the_same_time(p, extra):
    schedule = pipeline.zb_v(p, 2 * p - 1 + extra)
    assert price(schedule, 1, 1, 1).stalled == (0,) * p
    assert peak_activations(schedule, sizes=1 / 2) == [p] * p  # a stage is half of what a rank has


@pytest.mark.parametrize(("p", "extra"), list(product([2, 4, 6, 8], [0, 2, 10])))
@pytest.mark.parametrize(("f", "i", "w"), [(1, 1, 1), (3.0, 3.0, 2.0)])
def test_the_bubble_and_the_activations_of_dual_pipe(p, extra, f, i, w):
    """DeepSeek's table: (PP / 2 - 1) (F&B + B - 3W) for PP stages, with B whole, and PP + 1 activations.

    PP is p for DualPipe, and 2p for DualPipeV. It holds where F and I take the same time.
    """
    schedule, folded = pipeline.dual_pipe(p, 2 * p + extra), pipeline.dual_pipe_v(p, 2 * p + extra)
    for pair in (f + i + w, 0.8 * (f + i + w)):
        bubble = pair + (i + w) - 3 * w
        assert max(price(schedule, f, i, w, pair=pair).idle) == pytest.approx((p / 2 - 1) * bubble, abs=1e-9)
        assert max(price(folded, f, i, w, pair=pair).idle) == pytest.approx((p - 1) * bubble)
    assert max(peak_activations(schedule)) == p + 1
    assert max(peak_activations(folded)) == 2 * p + 1


@pytest.mark.parametrize(("f", "i", "more"), [(3.0, 2.0, True), (2.0, 3.0, False)])
def test_dual_pipes_formula_is_off_where_f_and_i_differ(f, i, more):
    w, p = 1.0, 6
    published = (p / 2 - 1) * ((f + i + w) + (i + w) - 3 * w)
    assert (max(price(pipeline.dual_pipe(p, 2 * p), f, i, w).idle) > published) is more


def test_zb_h2_takes_as_long_as_zb_h1_until_the_last_rank_has_ended():
    h1, h2 = price(pipeline.zb_h1(4, 8), 1, 1, 1), price(pipeline.zb_h2(4, 8), 1, 1, 1)
    assert h1.seconds == h2.seconds
    assert max(h1.stalled) == 3
    assert max(h2.stalled) == 0


# --- times that differ, and transfers ---------------------------------------------------------------------------


def test_the_slowest_stage_sets_the_pace():
    cost = price(pipeline.one_f_one_b(3, 6), [1, 2, 1], [1, 2, 1], [1, 2, 1])
    assert cost.busy == (18, 36, 18)
    assert cost.seconds == 36 + 1 + 1 + 2  # its own work, a forward before it, a wait for the first backward, one after
    assert cost.bubble_over_ideal == pytest.approx((3 * 40 - 72) / 72)
    with pytest.raises(ValueError, match="2 times for 3 stages"):
        price(pipeline.one_f_one_b(3, 6), [1, 2], 1, 1)
    with pytest.raises(ValueError, match="no operation takes any time"):
        price(pipeline.one_f_one_b(3, 6), 0, 0, 0)


def test_a_transfer_delays_who_waits_for_it_and_shows_as_a_span_of_its_own():
    cost = price(pipeline.gpipe(2, 3), 1, 1, 1, transfer=0.5)
    assert cost.seconds == 12 + 2 * 0.5
    assert cost.busy == (9, 9)
    sent = [span for span in cost.timeline.spans if span.kind == "send_recv"]
    assert [(span.name, span.group, span.lane) for span in sent[:1]] == [("0F0 sent", "rank 0", "to rank 1")]
    assert len(sent) == 6
    at_home = price(pipeline.zb_v(1, 3), 1, 1, 1, transfer=0.5)
    assert at_home.stalled == (0,)  # from stage 0 to stage 1 nothing travels


def test_transfers_hurt_1f1b_more_than_gpipe():
    """In turns, each rank waits for an answer to what it has just sent."""
    one, gpipe = (price(make(4, 16), 1, 1, 1, transfer=0.5).seconds for make in (pipeline.one_f_one_b, pipeline.gpipe))
    assert one > gpipe


# --- what cannot be run -----------------------------------------------------------------------------------------


def test_a_deadlock_is_named_with_who_waits_for_whom():
    schedule = from_text("F0 B0 F1 B1\nF1 F0 B0 B1", name="mine")
    with pytest.raises(PipelineError) as caught:
        check(schedule)
    assert str(caught.value).splitlines() == [
        "mine: deadlock",
        "  rank 0 is stuck at B0, its operation 2, and waits for B0, rank 1's operation 3",
        "  rank 1 is stuck at F1, its operation 1, and waits for F1, rank 0's operation 3",
        "  each waits for the next: rank 0 → rank 1 → rank 0",
    ]
    assert str(schedule) == "F0 B0 F1 B1\nF1 F0 B0 B1"  # there is no picture of it
    with pytest.raises(PipelineError, match="deadlock"):
        price(schedule, 1, 1, 1)


def test_a_rank_that_waits_for_itself_is_told_so():
    with pytest.raises(PipelineError, match="waits for F0, which comes later in its own list, as operation 2"):
        check(from_text("B0 F0"))
    with pytest.raises(PipelineError, match="is stuck at W0, its operation 2, and waits for I0"):
        check(from_text("F0 W0 I0 \n F0 B0"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("F0 B0\nF0", r"rank 1 never does B0 \(or I0 and W0\): add it"),
        ("F0 I0\nF0 B0", "rank 0 never does W0: add it"),
        ("F0 F1 B0\nF0 B0", r"rank 0 never does B1"),
        ("F0 B0 I0\nF0 B0", "rank 0 does B0 and its parts: a backward is either B, or I and W"),
        ("F0 F0 B0\nF0 B0", "rank 0 does F0 twice, as operations 1 and 2"),
        ("B0\nF0 B0", "rank 0 never does F0"),
    ],
)
def test_what_is_missing_or_too_much_is_named(text, says):
    with pytest.raises(PipelineError, match=says):
        check(from_text(text))


def test_a_stage_on_the_wrong_rank_is_named():
    with pytest.raises(PipelineError, match="rank 0 does 2F0, whose stage is on rank 1"):
        check(from_text("0F0 2F0 0B0\n1F0 1B0 2B0", routes=[[0, 1, 1]]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("F0 X1", r"line 1, operation 2: 'X1' is not an operation: write F, B, I or W and a micro-batch"),
        ("\n# a comment\nF0 B0\nF0 F", "line 4, operation 2: 'F' is not an operation"),
        ("F" + "0" * 99, "'F0000000000000000...' is not an operation"),
        ("0F0 0B0\n1F0 0F1", "line 2, operation 2: 0F1 is of stage 0, which line 1 has"),
        ("0F0\n2F0", "no line has an operation of stage 1"),
        ("F0&F1", "a pair is a forward and a backward"),
        ("rank 1: F0", "line 1 is called rank 1, but it is rank 0's"),
        (" . \n", "the text has no operations"),
    ],
)
def test_a_text_that_is_no_schedule_is_refused_with_its_place(text, says):
    with pytest.raises(PipelineError, match=says):
        from_text(text)


def test_a_schedule_says_which_of_its_numbers_there_is_not():
    F0 = pipeline.Operation("F", 0, 0)
    for operation, says in [
        (F0._replace(kind="G"), "0G0 is not an operation: its kind must be one of F, B, I, W"),
        (F0._replace(stage=2), "2F0 has a stage that doesn't exist: stages are 0 to 0"),
        (F0._replace(micro_batch=1), "0F1 has a micro-batch that doesn't exist: micro-batches are 0 to 0"),
    ]:
        with pytest.raises(PipelineError, match=says):
            pipeline.PipelineSchedule(((operation,),), ((0,),), 1)
    with pytest.raises(PipelineError, match="a route gives each stage a rank from 0 to 0"):
        pipeline.PipelineSchedule(((F0,),), ((1,),), 1)


def test_generators_refuse_what_they_cannot_make():
    with pytest.raises(ValueError, match="not both even"):
        pipeline.dual_pipe(3, 8)
    with pytest.raises(ValueError, match="pipeline of 8 stages: 7 micro-batches a direction are too few"):
        pipeline.dual_pipe_v(4, 7)
    for make in (pipeline.gpipe, pipeline.interleaved):
        with pytest.raises(ValueError, match="needs at least 1 micro-batch, not 0"):
            make(2, 0)

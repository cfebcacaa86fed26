"""Streams run in order, communication is exposed or hidden and never both, and the builders meet closed forms."""

import random
from itertools import chain, pairwise

import pytest

from collectives import machines, network, price, topology
from collectives.algorithms import ring
from collectives.formula import FormulaError, Program, maximum
from collectives.machines import CLUSTERS, RUNNING_CASE
from collectives.training.timeline import (
    COMMUNICATION,
    HALVES,
    Layer,
    Product,
    Span,
    Task,
    Timeline,
    data_parallel,
    products,
    run,
    sharded,
    sharded_optimizer,
    tensor_and_sharded,
    with_sums,
)

NEARLY = 1e-9
NO_TIME = [lambda num_bytes: 0.0] * 2
SEEDS = range(40)


def random_layers(chance: random.Random) -> list[Layer]:
    """One to seven layers; their communication takes from nothing to several times their computing."""
    scale = chance.choice([0.1, 1, 5])
    return [Layer(*(chance.random() for _ in range(2)), chance.random() * scale) for _ in range(chance.randint(1, 7))]


def random_step(seed: int) -> list[Task]:
    """A step made by any of the builders, with any of their options."""
    chance = random.Random(seed)
    layers = random_layers(chance)
    prices = [lambda num_bytes: 0.01 + num_bytes, lambda num_bytes: 0.7 * num_bytes]
    if chance.random() < 0.3:
        build = chance.choice([data_parallel, sharded_optimizer])
        buckets = [[layer] for layer in reversed(range(len(layers)))]
        return build(layers, buckets, *(prices if build is sharded_optimizer else prices[:1]), chance.random())
    tasks = sharded(layers, *prices, chance.random(), **random_options(chance))
    return with_sums(tasks, chance.random()) if chance.random() < 0.3 else tasks


def random_options(chance: random.Random) -> dict:
    """Of `sharded`."""
    return {
        "prefetch": (chance.randint(0, 3), chance.randint(0, 3)),
        "reshard": chance.random() < 0.7,
        "streams": chance.choice([1, 2]),
        "in_flight": chance.choice([1, 2, float("inf")]),
    }


def longest_chain(tasks: list[Task]) -> float:
    """Seconds of the longest chain of tasks that wait for each other, on a machine with a stream for each task."""
    by_name, ends = {task.name: task for task in tasks}, {}

    def end(name: str) -> float:
        if name not in ends:
            ends[name] = by_name[name].seconds + max([0.0, *map(end, by_name[name].after)])
        return ends[name]

    return max(map(end, by_name))


# --- streams ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_every_task_runs_once_in_its_stream_s_order_and_as_early_as_it_may(seed):
    """A span begins exactly when the one before it on its stream, or the last that it waits for, ends."""
    tasks = random_step(seed)
    spans = run(tasks).spans
    assert [(span.name, span.lane, span.seconds, span.kind) for span in spans] == [
        (task.name, task.stream, task.seconds, task.kind) for task in tasks
    ]
    ended = {span.name: span.end for span in spans}
    free = {task.stream: 0.0 for task in tasks}
    for task, span in zip(tasks, spans, strict=True):
        assert span.start == max([free[task.stream], *(ended[name] for name in task.after)])
        free[task.stream] = span.end


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_takes_at_least_its_longest_stream_and_its_longest_chain(seed):
    """The bounds below any schedule; and never more than all tasks one after another."""
    tasks = random_step(seed)
    seconds = run(tasks).seconds
    streams = {task.stream: 0.0 for task in tasks}
    for task in tasks:
        streams[task.stream] += task.seconds
    assert max(*streams.values(), longest_chain(tasks)) - NEARLY <= seconds
    assert seconds <= sum(task.seconds for task in tasks) + NEARLY


@pytest.mark.parametrize("seed", SEEDS)
def test_communication_is_exposed_or_hidden_and_nothing_else(seed):
    """Exposed + hidden is the time that communication is under way; a step that computes or communicates always is
    its computing and its exposed communication."""
    step = run(random_step(seed))
    moments = sorted({at for span in step.spans for at in (span.start, span.end)})
    under_way = exposed = idle = 0.0
    for start, end in pairwise(moments):
        kinds = {span.kind in step.communication for span in step.spans if span.start <= start and end <= span.end}
        under_way += (end - start) * (True in kinds)
        exposed += (end - start) * (kinds == {True})
        idle += (end - start) * (not kinds)
    assert step.exposed == pytest.approx(exposed)
    assert step.exposed + step.hidden == pytest.approx(under_way)
    assert idle == pytest.approx(0)
    assert step.seconds == pytest.approx(step.computing + step.exposed)
    assert all(overlap.exposed <= step.exposed + NEARLY for overlap in step.by_kind.values())
    busy = {kind: sum(span.seconds for span in step.spans if span.kind == kind) for kind in step.by_kind}
    assert {kind: sum(overlap) for kind, overlap in step.by_kind.items()} == pytest.approx(busy)


def test_a_task_that_cannot_be_run_is_named():
    """A name that is used twice or unknown, a length that is none, a string for a tuple: at once and in words."""
    one = Task("one", "compute", 1)
    with pytest.raises(ValueError, match="two tasks are called 'one'"):
        run([one, one])
    with pytest.raises(ValueError, match="'two' comes after 'three', but no task has that name"):
        run([one, Task("two", "compute", 1, ("three",))])
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="'bad' takes"):
            run([Task("bad", "compute", seconds)])
    with pytest.raises(ValueError, match=r"write a tuple, \('one',\)"):
        run([one, Task("two", "compute", 1, "one")])


def test_a_deadlock_says_who_waits_for_whom():
    """Two streams that wait for what lies behind each other's first task; and a task that waits for itself."""
    tasks = [
        Task("f0", "compute", 1),
        Task("f1", "compute", 1, ("g1",)),
        Task("g2", "comm", 1, ("f2",)),
        Task("g1", "comm", 1),
        Task("f2", "compute", 1),
    ]
    with pytest.raises(ValueError) as error:
        run(tasks)
    assert str(error.value) == (
        "deadlock, no task can begin: 'f1' on compute waits for 'g1' (which is behind 'g2' on its stream); "
        "'g2' on comm waits for 'f2' (which is behind 'f1' on its stream)"
    )
    with pytest.raises(ValueError, match=r"'a' on rank 1 s waits for 'a'$"):
        run([Task("a", "s", 1, ("a",), group="rank 1")])


# --- timelines --------------------------------------------------------------------------------------------------


def test_no_tasks_take_no_time():
    assert (run([]).seconds, run([]).exposed, run([]).hidden) == (0, 0, 0)


def test_measured_spans_may_come_in_any_order_and_by_any_clock():
    """The first begins at 0; one without a clock set to 0 is refused, with the way out."""
    spans = [Span("late", "b", 103.5, 1, "all_reduce"), ("early", "a", 101.0, 3.0)]
    timeline = Timeline.measured(spans)
    assert [(span.name, span.start) for span in timeline.spans] == [("late", 2.5), ("early", 0)]
    assert (timeline.seconds, timeline.exposed, timeline.hidden) == (3.5, 0.5, 0.5)
    with pytest.raises(ValueError, match=r"Timeline\.measured"):
        Timeline((Span("early", "a", -1.0, 2.0),))


def test_ranks_hide_only_their_own_communication():
    """What rank 0 computes does not hide what rank 1 sends; lanes of one name in two groups are two lanes."""
    timeline = Timeline(
        (
            Span("gather", "comm", 0, 2, "all_gather", "rank 0"),
            Span("work", "compute", 0, 2, "forward", "rank 0"),
            Span("gather", "comm", 1, 2, "all_gather", "rank 1"),
        )
    )
    assert timeline.lanes == [("rank 0", "compute"), ("rank 0", "comm"), ("rank 1", "comm")]
    assert timeline.exposed_intervals() == {"rank 0": [], "rank 1": [(1, 3)]}
    assert (timeline.exposed, timeline.hidden) == (2, 2)
    assert (timeline.only("rank 0").exposed, timeline.only("rank 1").exposed) == (0, 2)


def test_what_takes_no_time_can_be_left_out():
    timeline = Timeline((Span("free", "compute", 0, 0), Span("dear", "compute", 0, 1)), frozenset({"compute"}))
    assert timeline.lasting() == Timeline((Span("dear", "compute", 0, 1),), frozenset({"compute"}))


def test_rounding_exposes_nothing():
    """Spans that follow each other by a clock's digits leave no slivers between them."""
    computing = [Span(str(k), "compute", 1000 + 0.1 * k, 0.1) for k in range(50)]
    timeline = Timeline.measured([*computing, Span("reduce", "comm", 1000, 5, "all_reduce")])
    assert timeline.exposed == 0


# --- data parallelism -------------------------------------------------------------------------------------------


def test_one_bucket_overlaps_with_nothing_and_free_communication_costs_nothing():
    layers = [Layer(1, 2, 10)] * 3
    at_the_end = run(data_parallel(layers, [[2, 1, 0]], lambda num_bytes: num_bytes / 10, 0.5))
    assert (at_the_end.seconds, at_the_end.exposed, at_the_end.hidden) == (9 + 3 + 0.5, 3, 0)
    free = run(data_parallel(layers, [[2], [1], [0]], NO_TIME[0], 0.5))
    assert (free.seconds, free.exposed) == (9.5, 0)


def test_buckets_hide_all_but_the_last_where_computing_is_longer():
    """L equal layers, one bucket each, all-reduce shorter than backward: only the last one is exposed."""
    for num_layers in (1, 4, 9):
        layers = [Layer(1, 2, 1)] * num_layers
        step = run(data_parallel(layers, [[k] for k in reversed(range(num_layers))], lambda _: 1.5))
        assert (step.seconds, step.exposed) == (3 * num_layers + 1.5, 1.5)


def test_buckets_wait_in_line_where_communication_is_longer():
    """L equal layers, all-reduce longer than backward: the first starts after one backward, all follow at once."""
    layers = [Layer(1, 2, 1)] * 4
    assert run(data_parallel(layers, [[3], [2], [1], [0]], lambda _: 5.0)).seconds == 4 * 1 + 2 + 4 * 5


def test_a_bucket_s_price_is_that_of_its_bytes_and_of_its_gradients():
    """Prices may be the library's own: 2 layers, one bucket, a ring all-reduce on 4 ranks."""
    machine = topology.uniform(4, alpha=1e-5, beta=1e-10)

    def ring_all_reduce(num_bytes: float) -> float:
        return price(ring.all_reduce(4), int(num_bytes), machine).seconds

    step = run(data_parallel([Layer(0, 0, 10**6), Layer(0, 0, 10**6, 2 * 10**6)], [[1, 0]], ring_all_reduce))
    assert step.seconds == ring_all_reduce(3 * 10**6)


def test_buckets_must_hold_every_layer_once():
    for buckets in ([[1]], [[1, 0], [0]], [[2, 1, 0]], [[1, 0], []]):
        with pytest.raises(ValueError, match="must be in one bucket"):
            data_parallel([Layer(1, 1, 1)] * 2, buckets, NO_TIME[0])


def test_a_sharded_optimizer_scatters_in_backward_and_gathers_after_the_update():
    """ZeRO 1 and 2: reduce-scatters hide as all-reduces do, the gathers of new parameters are exposed."""
    step = run(sharded_optimizer([Layer(1, 2, 1)] * 3, [[2], [1], [0]], lambda _: 1.0, lambda _: 0.5, optimizer=0.25))
    assert step.seconds == 9 + 1 + 0.25 + 3 * 0.5
    assert step.by_kind == {"reduce_scatter": (1, 2), "all_gather": (1.5, 0)}
    order = [span.name for span in sorted(step.spans, key=lambda span: span.start) if span.kind == "all_gather"]
    assert order == ["all-gather 2", "all-gather 1", "all-gather 0"]


# --- FSDP -------------------------------------------------------------------------------------------------------


def test_a_sharded_step_gathers_twice_and_scatters_once_a_layer():
    """As FSDP2 does; once with resharding off. Order on one stream: as torch launches them."""
    layers = [Layer(1, 2, 1)] * 3
    for reshard, gathers in ((True, 6), (False, 3)):
        kinds = [task.kind for task in sharded(layers, *NO_TIME, reshard=reshard)]
        assert (kinds.count("all_gather"), kinds.count("reduce_scatter")) == (gathers, 3)
    tasks = sharded(layers, *NO_TIME, streams=1, prefetch=1)
    launched = (
        "gather 0, gather 1, gather 2, gather 2 again, gather 1 again, scatter 2, gather 0 again, scatter 1, scatter 0"
    )
    assert ", ".join(task.name for task in tasks if task.stream == "communication") == launched


@pytest.mark.parametrize("seed", SEEDS)
def test_free_communication_leaves_the_computing(seed):
    layers = random_layers(random.Random(seed))
    for prefetch in (0, 1, (2, 1)):
        step = run(sharded(layers, *NO_TIME, optimizer=0.5, prefetch=prefetch))
        assert step.seconds == pytest.approx(sum(layer.forward + layer.backward for layer in layers) + 0.5)


def test_without_prefetch_every_gather_is_exposed_whole():
    """L equal layers with f, b, gather g and scatter s <= g: L (2 g + f + b), and the last scatter s."""
    f, b, g, s, num_layers = 1.0, 2.0, 0.75, 0.5, 5
    step = run(sharded([Layer(f, b, 1)] * num_layers, lambda _: g, lambda _: s, prefetch=0))
    assert step.seconds == num_layers * (2 * g + f + b) + s
    assert step.by_kind["all_gather"] == (2 * num_layers * g, 0)


def test_prefetch_exposes_the_first_gather_and_the_gap_between_gather_and_compute():
    """One ahead: where computing is longer only the first gather of each pass and the last scatter are exposed; where
    gathering is longer by a gap, each of the L - 1 other gathers of the pass exposes that gap."""
    f, b, s, num_layers = 1.0, 2.0, 0.25, 5
    for g in (0.5, 1.0, 1.5, 2.0, 3.0):
        step = run(sharded([Layer(f, b, 1)] * num_layers, lambda _, g=g: g, lambda _: s, prefetch=1))
        gaps = (num_layers - 1) * (max(g - f, 0) + max(g - b, 0))
        assert step.by_kind["all_gather"].exposed == pytest.approx(2 * g + gaps)
        assert step.seconds == pytest.approx(num_layers * (f + b) + 2 * g + gaps + s)


@pytest.mark.parametrize("g, s", [(0.25, 0.5), (0.75, 0.75), (1.5, 1.5), (1.5, 0.75), (3.0, 3.0)])
def test_on_one_link_a_layer_exposes_what_its_gather_and_its_scatter_take_longer_than_it_computes(g, s):
    """L equal layers, one stream for all. Leaving out the scatters, as if they took no time, exposes far less."""
    f, b, num_layers = 1.0, 2.0, 6
    layers = [Layer(f, b, 1)] * num_layers
    none, one = (run(sharded(layers, lambda _: g, lambda _: s, prefetch=n, streams=1)).exposed for n in (0, 1))
    forward = g + (num_layers - 1) * max(g - f, 0)
    backward = g + max(g - b, 0) + (num_layers - 2) * max(g + s - b, 0) + max(s - b, 0) + s
    assert none == num_layers * (2 * g + s)
    assert one == pytest.approx(forward + backward)


EIGHT_BILLION = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336  # parameters of a layer of Llama-3-8B


def exposed_on(cluster, ahead, tokens=4096, flops=400e12, with_scatters=True):
    """Return the exposed seconds of FSDP with the 32 layers of Llama-3-8B, all on one link."""
    forward = 2 * EIGHT_BILLION * tokens / flops

    def price(collective):
        return lambda num_bytes: network.choose(collective, num_bytes, cluster).seconds

    scatter = price("reduce_scatter") if with_scatters else NO_TIME[0]
    layers = [Layer(forward, 2 * forward, 2 * EIGHT_BILLION)] * 32
    return run(sharded(layers, price("all_gather"), scatter, prefetch=ahead, streams=1)).exposed


def test_prefetch_hides_fsdp_on_the_running_case_and_not_on_128_such_nodes_nor_on_one_ethernet_card_a_node():
    assert exposed_on(RUNNING_CASE, 1) < exposed_on(RUNNING_CASE, 0) / 30
    many, ethernet = RUNNING_CASE.of(128), CLUSTERS["H100 on plain Ethernet"].of(8)
    assert exposed_on(many, 1) > exposed_on(many, 0) / 4
    assert exposed_on(ethernet, 1) > 0.8 * exposed_on(ethernet, 0)
    for cluster in (many, ethernet):
        assert exposed_on(cluster, 1, with_scatters=False) < 0.75 * exposed_on(cluster, 1)


@pytest.mark.parametrize("link, without, with_them", [("InfiniBand NDR", 117, 321), ("100 GbE", 1550, 2524)])
def test_reduce_scatters_on_the_gathers_link_expose_far_more_than_gathers_alone(link, without, with_them):
    """E22: milliseconds of 7 billion parameters in 32 layers on a ring of 8 ranks, at 4,096 tokens and 400 TFLOP/s."""
    forward = 2 * 7e9 / 32 * 4096 / 400e12
    layers, eight = [Layer(forward, 2 * forward, 2 * 7e9 / 32)] * 32, topology.Topology(8, machines.link(link))
    gather, scatter = (
        lambda num_bytes, schedule=schedule: price(schedule, int(num_bytes), eight).seconds
        for schedule in (ring.all_gather(8), ring.reduce_scatter(8))
    )
    for of_scatters, exposed in ((NO_TIME[0], without), (scatter, with_them)):
        step = run(sharded(layers, gather, of_scatters, prefetch=1, streams=1))
        assert step.exposed * 1e3 == pytest.approx(exposed, abs=0.5)


def test_stage_1_is_a_few_per_cent_slower_than_replicating_or_faster_by_when_it_gathers():
    """E28: a billion parameters on 64 H100. A rank updates a 64th, and sends as many bytes. Adam moves 28 each."""
    layers = [Layer(2 * 1e9 / 24 * 8192 / 400e12, 4 * 1e9 / 24 * 8192 / 400e12, 2e9 / 24)] * 24
    buckets, update = [[k] for k in reversed(range(24))], 28e9 / 3.35e12

    def price(collective):
        return lambda num_bytes: network.choose(collective, num_bytes, RUNNING_CASE).seconds

    reduce, scatter, gather = map(price, ("all_reduce", "reduce_scatter", "all_gather"))
    replicated = run(data_parallel(layers, buckets, reduce, update)).seconds
    after = run(sharded_optimizer(layers, buckets, scatter, gather, update / 64)).seconds
    while_computing = run(sharded(layers, gather, scatter, update / 64, reshard=False, streams=1)).seconds
    assert 0.9 * replicated < while_computing < replicated < after < 1.1 * replicated


@pytest.mark.parametrize(("cluster", "times"), [(RUNNING_CASE, 2), (CLUSTERS["H100 on plain Ethernet"].of(8), 2.5)])
def test_gathers_hide_from_about_as_many_tokens_as_operations_a_second_over_a_node_s_bytes_a_second(cluster, times):
    """A real card and NCCL's latencies ask for up to twice the tokens that the rated speed does, plain TCP for more."""
    rule = 400e12 / cluster.far_rate
    first_and_last = 3 * network.choose("all_gather", 2 * EIGHT_BILLION, cluster).seconds
    assert exposed_on(cluster, 1, tokens=times * rule) == pytest.approx(first_and_last, rel=0.05)
    assert exposed_on(cluster, 1, tokens=0.9 * rule) > 1.5 * first_and_last


def test_deeper_prefetch_helps_uneven_layers_and_not_even_ones():
    """A short layer before a heavy one: two ahead, the heavy gather begins while a long layer computes."""
    even, uneven = [Layer(1, 1, 1)] * 4, [Layer(4, 1, 1), Layer(0.5, 1, 1), Layer(1, 1, 4), Layer(1, 1, 1)]
    for layers, gain in ((even, 0), (uneven, 3)):
        one, two = (
            run(sharded(layers, lambda size: size, lambda _: 0.0, prefetch=(ahead, 1))).seconds for ahead in (1, 2)
        )
        assert one - two == pytest.approx(gain)


@pytest.mark.parametrize("seed", range(200))
def test_prefetch_is_never_slower_than_none(seed):
    """Over random layers, on one stream and on two; on two streams each layer further ahead is never slower either."""
    chance = random.Random(seed)
    layers = random_layers(chance)
    options = {"streams": chance.choice([1, 2]), "in_flight": chance.choice([1, 2, float("inf")])}
    prices = [lambda num_bytes: num_bytes, lambda num_bytes: 0.7 * num_bytes]
    seconds = [run(sharded(layers, *prices, prefetch=ahead, **options)).seconds for ahead in range(5)]
    assert all(with_prefetch <= seconds[0] + NEARLY for with_prefetch in seconds)
    if options["streams"] == 2:
        assert all(deeper <= less_deep + NEARLY for less_deep, deeper in pairwise(seconds))


def test_on_one_stream_a_gather_too_early_delays_a_scatter_that_the_next_layer_waits_for():
    """Deeper prefetch can be slower than 1 where all collectives share a stream and one scatter may be in flight."""
    layers = [Layer(0.1, 0.1, 1), Layer(0.1, 3, 1), Layer(0.1, 3, 1), Layer(0.1, 0.1, 1), Layer(0.1, 0.1, 1)]
    seconds = [run(sharded(layers, lambda _: 1.0, lambda _: 0.7, prefetch=n, streams=1)).seconds for n in (0, 1, 3)]
    assert seconds[1] < seconds[2] < seconds[0]


def test_scatters_in_flight_are_limited():
    """Backward of layer k begins only when the scatter of layer k + 1 + in_flight has ended."""
    layers = [Layer(1, 1, 1)] * 6
    for in_flight in (1, 2, float("inf")):
        step = run(sharded(layers, NO_TIME[0], lambda _: 3.0, in_flight=in_flight))
        at = {span.name: span for span in step.spans}
        for k in range(6):
            awaited = k + 1 + in_flight
            if awaited <= 5:
                assert at[f"backward {k}"].start == at[f"scatter {awaited}"].end
            elif k < 5:
                assert at[f"backward {k}"].start == at[f"backward {k + 1}"].end


def test_without_resharding_the_second_gathers_are_saved():
    """Without prefetch exactly their time; the backward pass then waits for no gather."""
    layers = [Layer(1, 2, 1)] * 4
    seconds = [run(sharded(layers, lambda _: 0.5, lambda _: 0.25, 0, 0, reshard)).seconds for reshard in (True, False)]
    assert seconds[0] - seconds[1] == 4 * 0.5


def test_options_that_make_no_sense_are_refused():
    for options in ({"prefetch": -1}, {"prefetch": (1, -1)}, {"streams": 3}, {"in_flight": 0}):
        with pytest.raises(ValueError, match="prefetch is 0 or more layers ahead"):
            sharded([Layer(1, 1, 1)], *NO_TIME, **options)


# --- tensor parallelism beside FSDP -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_no_prefetching_hides_an_all_reduce(seed):
    """All of them are exposed, and the passes themselves take as long as without them."""
    chance = random.Random(seed)
    layers, options = random_layers(chance), random_options(chance)
    all_reduce = chance.random()
    tasks = tensor_and_sharded(
        layers, lambda num_bytes: all_reduce * num_bytes, lambda s: 0.1 + s, lambda s: 0.7 * s, 3.0, 0.2, **options
    )
    step, count = run(tasks), 2 * len(HALVES) * len(layers)
    overlap = step.by_kind["all_reduce"]
    assert overlap == pytest.approx((count * 3.0 * all_reduce, 0))
    assert step.computing == pytest.approx(sum(layer.forward + layer.backward for layer in layers) + 0.2)
    plain = run(sharded(layers, lambda s: 0.1 + s, lambda s: 0.7 * s, 0.2, **options))
    assert plain.seconds - NEARLY <= step.seconds <= plain.seconds + overlap.exposed + NEARLY


def test_gathers_go_on_beside_an_all_reduce():
    """Two layers, one ahead: only the first gather of each pass and the last scatter are exposed beside the sums."""
    layers = [Layer(3, 6, 1)] * 2
    step = run(tensor_and_sharded(layers, lambda s: 2 * s, lambda s: 4 * s, lambda s: s, activation_bytes=0.5))
    assert step.exposed == 2 * 2 * 2 * 1 + 4 + 4 + 1
    spans = {span.name: span for span in step.spans}
    assert spans["gather 1"].start == spans["forward 0 attention"].start == 4
    assert spans["sum of forward 0 attention"].start == 5
    assert spans["gather 1"].end > spans["sum of forward 0 attention"].start  # both are under way
    assert spans["forward 0 MLP"].start == 6
    order = [span.name for span in step.lasting().spans if span.name.endswith(("attention", "MLP"))]
    assert order[8:12] == [f"{what}backward 1 {half}" for half in ("MLP", "attention") for what in ("", "sum of ")]
    assert sum(share for _, share in HALVES) == pytest.approx(1)


def test_sums_come_into_a_step_of_any_builder():
    tasks = with_sums(data_parallel([Layer(3, 6, 1)], [[0]], lambda _: 5.0), 0.5)
    spans = run(tasks).lasting().spans
    assert [(span.name, span.seconds) for span in spans if span.kind in COMMUNICATION] == [
        *((f"sum of forward 0 {half}", 0.5) for half in ("attention", "MLP")),
        *((f"sum of backward 0 {half}", 0.5) for half in ("MLP", "attention")),
        ("all-reduce 0", 5.0),
    ]


# --- on symbols -------------------------------------------------------------------------------------------------


def unknown_step(seed: int, forward, num_bytes, alpha, beta) -> list[Task]:
    """A step whose seconds are those of the arguments, numbers or symbols."""
    chance = random.Random(seed)
    layers = [Layer(forward * (k + 1), 2 * forward, num_bytes * (k + 1)) for k in range(chance.randint(1, 4))]
    tasks = sharded(layers, lambda s: alpha + s * beta, lambda s: s * beta, forward / 5, **random_options(chance))
    return with_sums(tasks, num_bytes / 3) if chance.random() < 0.5 else tasks


@pytest.mark.parametrize("seed", range(12))
def test_a_timeline_of_symbols_is_the_timeline_of_their_values(seed):
    """Every moment, when communication is exposed and how much: in one program, without a branch, for all values."""
    program = Program(4)
    unknown = run(unknown_step(seed, *program.symbols()))
    moments = [program.value(number).place for span in unknown.spans for number in (span.start, span.end)]
    told = [getattr(unknown, name) for name in ("seconds", "computing", "exposed", "communicating")]
    told = [program.value(number).place for number in told]
    ((_, waits),) = unknown.exposed_intervals().items()
    waits = [(program.value(start).place, program.value(end).place) for start, end in waits]
    for values in [(1, 1, 1, 1), (5, 1, 0, 0.25), (1, 7, 0.5, 1), (0.125, 3, 2, 3), (2, 2, 0, 0), (1, 0, 1, 1)]:
        known = run(unknown_step(seed, *values))
        places = program.run(values)
        assert [places[place] for place in moments] == [at for span in known.spans for at in (span.start, span.end)]
        expected = known.seconds, known.computing, known.exposed, known.communicating
        assert [places[place] for place in told] == pytest.approx(expected, abs=NEARLY)
        assert known.exposed == pytest.approx(known.seconds - known.computing, abs=NEARLY)
        found = [(places[start], places[end]) for start, end in waits]
        assert all(start <= end for start, end in found)
        (expected,) = known.exposed_intervals().values()
        joined = []  # that a lane waits twice in a row is one interval
        for start, end in (pair for pair in found if pair[1] - pair[0] > NEARLY):
            joined = (
                [*joined[:-1], (joined[-1][0], end)] if joined and joined[-1][1] == start else [*joined, (start, end)]
            )
        assert list(chain(*joined)) == pytest.approx(list(chain(*expected)))


def test_what_symbols_cannot_tell_is_named():
    """Of two ranks, of two streams that compute, and of two that communicate, who is first is not known."""
    (x,) = Program(1).symbols()
    two_ranks = run([Task(f"work {group}", "compute", x, group=group) for group in "ab"])
    with pytest.raises(FormulaError, match="2 groups"):
        _ = two_ranks.exposed
    two_streams = run([Task(stream, stream, x) for stream in ("main", "side")])
    with pytest.raises(FormulaError, match="lanes main, side"):
        _ = two_streams.exposed
    with pytest.raises(FormulaError, match="lanes all-gather, reduce-scatter"):
        _ = run(sharded([Layer(x, x, 1)], lambda _: x, lambda _: x)).hidden
    one_stream = run(sharded([Layer(x, x, 1)], lambda _: x, lambda _: x, streams=1))
    hidden = one_stream.hidden
    assert hidden.program.run([3])[hidden.place] == 0


def test_the_maximum_of_many_is_written_without_a_branch():
    program = Program(2)
    x, y = program.symbols()
    largest = maximum(x, 1, y, 2.5)
    assert program.run([2, 3])[largest.place] == 3


# --- products in parts ------------------------------------------------------------------------------------------


def chain_of_products(seed: int) -> list[Product]:
    """Products beside gathers and reduce-scatters in turn, with gradients of weights between them."""
    chance = random.Random(seed)
    kinds = [None, "all_gather", "reduce_scatter", "all_reduce"]
    return [
        Product(str(n), 0.1 + chance.random(), chance.choice(kinds), chance.random() * 3, chance.random() < 0.7)
        for n in range(chance.randint(1, 6))
    ]


def rate(collective: str, num_bytes: float) -> float:
    """A second a byte for what a rank sends, with no latency, on four ranks."""
    return num_bytes * {"send_recv": 1, "all_reduce": 3 / 2}.get(collective, 3 / 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_cutting_products_into_parts_never_takes_longer_and_sends_as_much(seed):
    """If a step has no latency: what costs is the same, and no task waits for more than it did."""
    chain = chain_of_products(seed)
    whole, cut = (run(products(chain, rate, parts)) for parts in (1, 4))
    assert cut.seconds <= whole.seconds + NEARLY
    assert cut.communicating == pytest.approx(whole.communicating)
    assert cut.computing == pytest.approx(whole.computing) == pytest.approx(sum(each.seconds for each in chain))


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize(("step", "part"), [(0.5, 1.0), (1.0, 1.0), (3.0, 1.0)])
def test_ring_steps_hide_behind_the_parts_of_a_product_if_they_are_no_longer(collective, step, part):
    """Four parts and three steps: the first or the last part travels nowhere."""
    chain = [Product("x", 4 * part, collective, 4.0)]
    found = run(products(chain, lambda *_: step, parts=4))
    assert found.seconds == pytest.approx(max(4 * part, 3 * step + part))
    assert found.exposed == pytest.approx(max(0, 3 * (step - part)))


def test_a_product_waits_for_what_it_needs_and_the_gradient_of_a_weight_does_not():
    chain = [Product("dX", 1.0, "all_reduce", 2.0), Product("dW", 1.0, waits=False), Product("next", 1.0)]
    found = {span.name: span.start for span in run(products(chain, lambda *_: 5.0)).spans}
    assert found["dW"] == 1.0
    assert found["next"] == 6.0

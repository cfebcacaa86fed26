"""What hides behind what, moved by the reader: a step of FSDP, of DDP, and of tensor parallelism with FSDP across.

    fsdp()         # gathers and reduce-scatters run beside computing, if there is enough of it
    trade()        # the same beside DDP: what FSDP costs in time, and saves in memory
    mesh()         # all-reduces are on its way: only a faster link shortens them

The tasks are those of `training.timeline`, a collective's seconds those of a ring by its closed form (`scorecard`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..algorithms import ring
from ..algorithms.scorecard import ROWS
from ..machines import RATINGS, link
from ..schedule import Schedule
from ..training.memory import at_rest
from ..training.timeline import HALVES, Layer, Price, data_parallel, run, sharded, tensor_and_sharded
from .calculator import BYTES, PERCENT, SECONDS, Bar, Calculator, Choice, Output, Slider, spaced
from .lanes import Lanes

RATE = (("GB/s", 1e9),)
RATES = spaced(5e9, 1e12, 46, log=True, also=[50e9, 450e9])  # bytes a second, one way: 40 Gb/s Ethernet to NVLink 5
PASSES = spaced(5e-4, 5e-2, 40, log=True, also=[8e-3])  # seconds
DEPTHS = {"none": 0, "1 layer": 1, "2 layers": 2}
FLOPS = 400e12  # operations a second in bf16 that kernels of an H100 reach: 40 % of its 989e12; ours, to be replaced
NETWORK, NODE = "InfiniBand NDR", "NVLink 4 (H100)"


def ring_price(algorithm: Callable[[int], Schedule], world_size: int, alpha: float, rate: float) -> Price:
    """The seconds of a collective of so many bytes (S) by `algorithm`, whose closed form the scorecard knows.

    On links of `alpha` seconds a message and `rate` bytes a second. All may be symbols of `formula`.
    """
    messages, buffers, _ = next(row for row in ROWS if row.algorithm is algorithm).closed_form(world_size)
    return lambda num_bytes: messages * alpha + buffers * num_bytes / rate


def fsdp_step(forward, num_bytes, world_size, rate, prefetch, num_layers: int = 4) -> dict:
    """A step of FSDP on a rank, and what a reader asks about it; numbers, or symbols of `formula`.

    `forward`: seconds of a layer; backward takes twice that. `num_bytes`: of its parameters. `rate`: bytes a second.
    """
    gather, scatter = (
        ring_price(algorithm, world_size, link(NETWORK).alpha, rate)
        for algorithm in (ring.all_gather, ring.reduce_scatter)
    )
    layers = [Layer(forward, 2 * forward, num_bytes)] * num_layers
    timeline = run(sharded(layers, gather, scatter, prefetch=prefetch))
    return {
        "timeline": timeline,
        "gather": gather(num_bytes),
        "exposed": timeline.exposed,
        "share": timeline.exposed / timeline.seconds,
    }


def fsdp(num_layers: int = 4) -> Calculator:
    """One step of FSDP on a rank: the reader moves computing, bytes, ranks, the link's rate and the prefetching.

    Raises `ValueError` for fewer than 1 layer.
    """
    _at_least_one(num_layers=num_layers)
    return Calculator(
        partial(fsdp_step, num_layers=num_layers),
        inputs=_step_inputs(),
        outputs=[
            Output("gather", "all-gather of a layer", SECONDS),
            Output("exposed", "exposed communication", SECONDS),
            Output("share", "of the step", PERCENT),
        ],
        timeline=Lanes("timeline", f"A step, {num_layers} layers"),
        caption="FSDP: what hides behind the computing?",
    )


def _step_inputs() -> list[Slider | Choice]:
    """What the reader moves of a step whose layers are all alike."""
    return [
        Slider("forward", "forward pass of a layer", PASSES, 8e-3, SECONDS, log=True),
        Slider("num_bytes", "parameters of a layer", spaced(1e7, 4e9, 52, log=True), 4e8, BYTES, log=True),
        Slider("rate", "link of a rank, one way", RATES, RATINGS[NETWORK].rate, RATE, log=True),
        Slider("world_size", "ranks, P", [2**power for power in range(1, 11)], 8, log=True),
        Choice("prefetch", "gathers run ahead by (prefetching)", DEPTHS, "1 layer"),
    ]


WAYS = {"DDP": 0, "FSDP": 3}  # the stage of ZeRO that each is, to `at_rest`


def trade_step(way, forward, num_bytes, world_size, rate, prefetch, num_layers: int = 4) -> dict:
    """A step of DDP, a bucket for each layer, and one of FSDP: their seconds, and what a rank holds at rest.

    `way`: a value of `WAYS`, of which the timeline is. Other arguments as for `fsdp_step`. Parameters and what is sent
    are of 2 bytes each, the optimizer is Adam in mixed precision, as `at_rest` has it.
    """
    all_reduce = ring_price(ring.all_reduce, world_size, link(NETWORK).alpha, rate)
    layers = [Layer(forward, 2 * forward, num_bytes)] * num_layers
    ddp = run(data_parallel(layers, [[layer] for layer in reversed(range(num_layers))], all_reduce))
    both = {0: ddp, 3: fsdp_step(forward, num_bytes, world_size, rate, prefetch, num_layers)["timeline"]}
    found = {"timeline": both[way], "computing": ddp.computing}
    for name, stage in WAYS.items():
        found[f"{name} exposed"] = both[stage].exposed
        found[f"{name} step"] = both[stage].seconds
        found[f"{name} holds"] = at_rest(num_layers * num_bytes / 2, world_size, stage).total
    return found | {"slower": found["FSDP step"] / found["DDP step"]}


def trade(num_layers: int = 4) -> Calculator:
    """DDP beside FSDP on one rank: the reader moves what `fsdp` lets move, and picks whose timeline is drawn.

    Raises `ValueError` for fewer than 1 layer.
    """
    _at_least_one(num_layers=num_layers)
    return Calculator(
        partial(trade_step, num_layers=num_layers),
        inputs=[Choice("way", "timeline of", WAYS, "DDP"), *_step_inputs()],
        outputs=[
            Output("computing", "computing", SECONDS, listed=False),
            *[Output(f"{name} exposed", "exposed communication", SECONDS, listed=False) for name in WAYS],
            *[Output(f"{name} step", f"a step of {name}", SECONDS) for name in WAYS],
            Output("slower", "FSDP's, of DDP's", PERCENT),
            *[Output(f"{name} holds", f"a rank holds at rest, {name}", BYTES) for name in WAYS],
        ],
        bars=[Bar(f"a step of {name}", ["computing", f"{name} exposed"]) for name in WAYS],
        timeline=Lanes("timeline", f"A step, {num_layers} layers"),
        caption="DDP or FSDP: what the memory costs in time",
    )


def mesh_step(hidden, tokens, tp_size, inside, across, prefetch, num_layers: int = 3, dp_size: int = 8) -> dict:
    """A step of tensor parallelism with FSDP, on a rank; numbers, or symbols of `formula`.

    A layer is a transformer's block of 12 h^2 parameters, in bf16: forward, 2 operations a parameter and token;
    backward, 4. Each tp rank has 1 / tp_size of it and all tokens, and all-reduces tokens x h activations after each
    half, in both directions; where tp_size is 1 nothing is left but FSDP. `inside`, `across`: bytes a second along tp
    and along dp.
    """
    gather, scatter = (
        ring_price(algorithm, dp_size, link(NETWORK).alpha, across)
        for algorithm in (ring.all_gather, ring.reduce_scatter)
    )
    reduce = ring_price(ring.all_reduce, tp_size, link(NODE).alpha, inside)
    parameters, activation_bytes = 12 * hidden**2 / tp_size, 2 * tokens * hidden
    forward = 2 * parameters * tokens / FLOPS
    layers = [Layer(forward, 2 * forward, 2 * parameters)] * num_layers
    timeline = run(tensor_and_sharded(layers, reduce, gather, scatter, activation_bytes, prefetch=prefetch))
    blocking = 2 * len(HALVES) * num_layers * reduce(activation_bytes)  # nothing computes meanwhile, ever
    return {
        "timeline": timeline,
        "forward": forward,
        "reduce": reduce(activation_bytes),
        "gather": gather(2 * parameters),
        "blocking": blocking,
        "beside": timeline.exposed - blocking,
    }


def mesh(num_layers: int = 3, dp_size: int = 8) -> Calculator:
    """One step of tensor parallelism inside a node and FSDP between `dp_size` nodes, on a rank, as `mesh_step` has it.

    The reader moves the layer's width, the tokens, tp_size, both links' rates and the prefetching. Raises `ValueError`
    for fewer than 1 layer or node.
    """
    _at_least_one(num_layers=num_layers, dp_size=dp_size)
    return Calculator(
        partial(mesh_step, num_layers=num_layers, dp_size=dp_size),
        inputs=[
            Slider("hidden", "width of the model, h", [2**power for power in range(10, 15)], 4096, log=True),
            Slider("tokens", "tokens of a micro-batch", [2**power for power in range(9, 16)], 8192, log=True),
            Slider("tp_size", "tensor-parallel ranks, tp", [1, 2, 4, 8], 8, log=True),
            Choice("prefetch", "gathers run ahead by (prefetching)", DEPTHS, "1 layer"),
            Slider("inside", "link of the tensor-parallel ranks", RATES, RATINGS[NODE].rate, RATE, log=True),
            Slider("across", "link of the data-parallel ranks", RATES, RATINGS[NETWORK].rate, RATE, log=True),
        ],
        outputs=[
            Output("forward", "forward pass of a layer, computing", SECONDS),
            Output("reduce", "one all-reduce", SECONDS),
            Output("gather", "one all-gather", SECONDS),
            Output("blocking", "exposed: all-reduces, always", SECONDS),
            Output("beside", "exposed: gathers and reduce-scatters", SECONDS),
        ],
        timeline=Lanes("timeline", f"A step, {num_layers} layers"),
        caption=f"Tensor parallelism with FSDP over {dp_size} nodes: what hides, and what cannot?",
    )


def _at_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is 1 at least, not {count}")

"""Calculators of overlap: what hides behind compute in a step of FSDP, of DDP, and of tensor parallelism with FSDP.

    fsdp()         # all-gathers and reduce-scatters hide behind compute, if there is enough of it
    trade()        # the same step beside DDP: what FSDP costs in time and saves in memory
    mesh()         # all-reduces on the critical path: only a faster link shortens them

The tasks come from `training.timeline`. A collective takes what NCCL takes on nodes of eight H100, by `network`.
Gathers and reduce-scatters share the link, so they run one after another.
"""

from __future__ import annotations

from functools import partial

from .. import network
from ..formula import minimum, where
from ..machines import RATINGS, RUNNING_CASE
from ..training.memory import at_rest
from ..training.timeline import HALVES, Layer, Price, data_parallel, run, sharded, tensor_and_sharded
from .calculator import BYTES, PERCENT, SECONDS, Bar, Calculator, Choice, Output, Slider, spaced
from .lanes import Lanes

RATE = (("GB/s", 1e9),)
RATES = spaced(5e9, 1e12, 46, log=True, also=[50e9, 450e9])  # bytes/s one way, from 40 Gb/s Ethernet to NVLink 5
PASSES = spaced(5e-4, 5e-2, 40, log=True, also=[8e-3])  # seconds of a layer's forward pass
DEPTHS = {"none": 0, "1 layer": 1, "2 layers": 2}
FLOPS = 400e12  # bf16 operations/s that an H100's kernels reach: our assumption, 40 % of its 989e12
CARD, PORT = RATINGS["InfiniBand NDR"].rate, RUNNING_CASE.near_rate


def price(collective: str, in_node, nodes, card=CARD, port=PORT) -> Price:
    """Return the price of a collective in groups of `in_node` GPUs on each of `nodes`: from bytes (S) to seconds.

    `card`, `port`: bytes per second of a GPU's network card, and of its port to its node. One GPU alone takes no time.
    Arguments can be symbols of `formula`.
    """
    part = RUNNING_CASE.part(in_node, nodes)._replace(near_rate=port, far_rate=card * in_node)
    ways = network.lines(collective, part)
    return lambda num_bytes: where(in_node * nodes > 1, minimum(*(way.seconds(num_bytes) for way in ways)), 0)


def _filled(world_size):
    """Return (GPUs in each node, nodes) of a power of two of ranks that fill nodes of eight."""
    in_node = minimum(world_size, RUNNING_CASE.gpus_per_node)
    return in_node, world_size / in_node


def fsdp_step(forward, num_bytes, world_size, rate, prefetch, num_layers: int = 4) -> dict:
    """Return the timeline of an FSDP step on a rank, and the results that the calculator lists.

    `forward`: seconds of a layer's forward pass; backward takes twice that. `num_bytes`: bytes of a layer's parameters.
    `rate`: bytes per second of a GPU's network card. Arguments can be numbers or symbols of `formula`.
    """
    in_node, nodes = _filled(world_size)
    gather, scatter = (price(name, in_node, nodes, rate) for name in ("all_gather", "reduce_scatter"))
    layers = [Layer(forward, 2 * forward, num_bytes)] * num_layers
    timeline = run(sharded(layers, gather, scatter, prefetch=prefetch, streams=1))  # one link for both
    return {
        "timeline": timeline,
        "gather": gather(num_bytes),
        "exposed": timeline.exposed,
        "share": timeline.exposed / timeline.seconds,
    }


def fsdp(num_layers: int = 4) -> Calculator:
    """Return a calculator for one step of FSDP. The reader sets compute, bytes, ranks, link rate and prefetching.

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
        caption="FSDP: what hides behind compute?",
    )


def _step_inputs() -> list[Slider | Choice]:
    """Return the inputs of a step whose layers are all alike."""
    return [
        Slider("forward", "forward pass of a layer", PASSES, 8e-3, SECONDS, log=True),
        Slider("num_bytes", "parameters of a layer", spaced(1e7, 4e9, 52, log=True), 4e8, BYTES, log=True),
        Slider("rate", "network card of a GPU, one way", RATES, CARD, RATE, log=True),
        Slider("world_size", "GPUs, P, in nodes of 8", [2**power for power in range(1, 11)], 64, log=True),
        Choice("prefetch", "all-gathers prefetched", DEPTHS, "1 layer"),
    ]


WAYS = {"DDP": 0, "FSDP": 3}  # each one's stage of ZeRO, as `at_rest` takes it


def trade_step(way, forward, num_bytes, world_size, rate, prefetch, num_layers: int = 4) -> dict:
    """Return the timeline of a step, and for DDP and FSDP the seconds and the bytes that a rank holds at rest.

    `way`: the value of `WAYS` whose timeline is drawn. Other arguments as for `fsdp_step`. DDP has one bucket per
    layer. Parameters, and gradients on the wire, take 2 bytes each. The optimizer is Adam in mixed precision, as in
    `at_rest`.
    """
    in_node, nodes = _filled(world_size)
    all_reduce = price("all_reduce", in_node, nodes, rate)
    layers = [Layer(forward, 2 * forward, num_bytes)] * num_layers
    ddp = run(data_parallel(layers, [[layer] for layer in reversed(range(num_layers))], all_reduce))
    both = {0: ddp, 3: fsdp_step(forward, num_bytes, world_size, rate, prefetch, num_layers)["timeline"]}
    results = {"timeline": both[way], "computing": ddp.computing}
    for name, stage in WAYS.items():
        results[f"{name} exposed"] = both[stage].exposed
        results[f"{name} step"] = both[stage].seconds
        results[f"{name} holds"] = at_rest(num_layers * num_bytes / 2, world_size, stage).total
    return results | {"slower": results["FSDP step"] / results["DDP step"]}


def trade(num_layers: int = 4) -> Calculator:
    """Return a calculator that compares DDP and FSDP. The reader sets the inputs of `fsdp` and picks a timeline.

    Raises `ValueError` for fewer than 1 layer.
    """
    _at_least_one(num_layers=num_layers)
    return Calculator(
        partial(trade_step, num_layers=num_layers),
        inputs=[Choice("way", "timeline of", WAYS, "DDP"), *_step_inputs()],
        outputs=[
            Output("computing", "compute", SECONDS, listed=False),
            *[Output(f"{name} exposed", "exposed communication", SECONDS, listed=False) for name in WAYS],
            *[Output(f"{name} step", f"a step of {name}", SECONDS) for name in WAYS],
            Output("slower", "FSDP's step, relative to DDP's", PERCENT),
            *[Output(f"{name} holds", f"a rank holds at rest, {name}", BYTES) for name in WAYS],
        ],
        bars=[Bar(f"a step of {name}", ["computing", f"{name} exposed"]) for name in WAYS],
        timeline=Lanes("timeline", f"A step, {num_layers} layers"),
        caption="DDP or FSDP: what the saved memory costs in time",
    )


def mesh_step(hidden, tokens, tp_size, inside, across, prefetch, num_layers: int = 3, dp_size: int = 8) -> dict:
    """Return the timeline of a step of tensor parallelism with FSDP on a rank, and the results to list.

    A layer is a transformer block of 12 h^2 parameters in bf16. Forward takes 2 operations per parameter and token,
    backward 4. Each tp rank has 1 / tp_size of the layer and all tokens. It all-reduces tokens x h activations after
    each half of the layer, forward and backward. With tp_size 1, only FSDP is left. `inside`, `across`: bytes per
    second along tp and along dp. Arguments can be numbers or symbols of `formula`.
    """
    gather, scatter = (price(name, 1, dp_size, across) for name in ("all_gather", "reduce_scatter"))
    reduce = price("all_reduce", tp_size, 1, port=inside)
    parameters, activation_bytes = 12 * hidden**2 / tp_size, 2 * tokens * hidden
    forward = 2 * parameters * tokens / FLOPS
    layers = [Layer(forward, 2 * forward, 2 * parameters)] * num_layers
    one_link = {"prefetch": prefetch, "streams": 1}
    timeline = run(tensor_and_sharded(layers, reduce, gather, scatter, activation_bytes, **one_link))
    blocking = 2 * len(HALVES) * num_layers * reduce(activation_bytes)  # always exposed: nothing computes meanwhile
    return {
        "timeline": timeline,
        "forward": forward,
        "reduce": reduce(activation_bytes),
        "gather": gather(2 * parameters),
        "blocking": blocking,
        "beside": timeline.exposed - blocking,
    }


def mesh(num_layers: int = 3, dp_size: int = 8) -> Calculator:
    """Return a calculator for tensor parallelism inside a node with FSDP between `dp_size` nodes, by `mesh_step`.

    The reader sets the layer's width, the tokens, tp_size, both link rates and the prefetching. Raises `ValueError` for
    fewer than 1 layer or node.
    """
    _at_least_one(num_layers=num_layers, dp_size=dp_size)
    return Calculator(
        partial(mesh_step, num_layers=num_layers, dp_size=dp_size),
        inputs=[
            Slider("hidden", "width of the model, h", [2**power for power in range(10, 15)], 4096, log=True),
            Slider("tokens", "tokens of a micro-batch", [2**power for power in range(9, 16)], 8192, log=True),
            Slider("tp_size", "tensor-parallel ranks, tp", [1, 2, 4, 8], 8, log=True),
            Choice("prefetch", "all-gathers prefetched", DEPTHS, "1 layer"),
            Slider("inside", "link of the tensor-parallel ranks", RATES, PORT, RATE, log=True),
            Slider("across", "link of the data-parallel ranks", RATES, CARD, RATE, log=True),
        ],
        outputs=[
            Output("forward", "forward pass of a layer, compute", SECONDS),
            Output("reduce", "one all-reduce", SECONDS),
            Output("gather", "one all-gather", SECONDS),
            Output("blocking", "exposed: all-reduces (always)", SECONDS),
            Output("beside", "exposed: all-gathers and reduce-scatters", SECONDS),
        ],
        timeline=Lanes("timeline", f"A step, {num_layers} layers"),
        caption=f"Tensor parallelism with FSDP over {dp_size} nodes: what hides, and what can't?",
    )


def _at_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, not {count}")

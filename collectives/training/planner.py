"""A planner: try every layout of a model on a machine, say why most are infeasible, and rank the rest by step time.

    plans = search(MODELS["llama-3-405b"], MACHINES["h100"].of(nodes=1024), batch=2048)
    plans.best.layout; plans.best.step.mfu; plans.refused
    print(plans)

`python -m collectives.training.planner --help` does the same from a shell. `costs` prices a layout; `models` has the
figures of models, `machines` of GPUs and clusters.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from ..algorithms import hierarchical, pairwise, ring
from ..machines import MACHINES, Cluster
from ..price import price
from ..topology import two_level
from . import costs, pipeline
from .costs import Layout, Memory, Step, memory, step
from .flat import LAPTOP, Machine, Rings
from .groups import near
from .kernels import Both, Fitted
from .memory import MIXED_ADAM, Recipe
from .mesh import Mesh, together
from .models import RECOMPUTE, Model
from .registry import MODELS
from .software import ELEMENT, USUAL, Software
from .traffic import PASSES

MICRO_BATCHES = (1, 2, 4, 8)  # sequences per micro-batch
INTERLEAVES = (1, 2, 4, 8)  # stages per pipeline rank

__all__ = [
    "MACHINES",
    "MODELS",
    "Layout",
    "Machine",
    "Memory",
    "Model",
    "Plan",
    "Plans",
    "Software",
    "Step",
    "layouts",
    "main",
    "memory",
    "refuse",
    "search",
    "simulate",
    "step",
]


class Axes(NamedTuple):
    """The part of a `Layout` that decides which ranks communicate."""

    dp: int
    tp: int
    pp: int
    ep: int
    cp: int


class Plan(NamedTuple):
    """A feasible layout and its cost."""

    layout: Layout
    memory: Memory
    step: Step


# --- what is infeasible -----------------------------------------------------------------------------------------


def refuse(model: Model, machine: Cluster | Machine, layout: Layout, batch: int) -> str | None:
    """Return why this layout can't train `batch` sequences a step of this model on this machine; None if it can.

    Fewer key and value heads than tp are allowed. Ranks then hold the same ones, which the costs leave out.
    """
    refusal = refuse_axes(model, machine, layout) or _refuse_way(model, layout, batch)
    return (refusal or _refuse_memory(machine, memory(model, layout)) or ("", None))[1]


def refuse_axes(model: Model, machine: Cluster | Machine, layout: Layout | Axes) -> tuple[str, str] | None:
    """Return (kind, reason) if no way of using this mesh is feasible, else None."""
    dp, tp, pp, ep, cp = layout.dp, layout.tp, layout.pp, layout.ep, layout.cp
    if min(dp, tp, pp, ep, cp) < 1:
        return "an axis is empty", f"every axis has at least 1 rank, not {min(dp, tp, pp, ep, cp)}"
    if dp * tp * pp * cp != machine.world_size:
        needed = f"dp {dp} x tp {tp} x pp {pp} x cp {cp} is {dp * tp * pp * cp} ranks, not {machine.world_size}"
        return "the ranks are not those of the machine", needed
    if machine.gpus_per_node % tp:
        return "tp spans nodes", f"tp {tp} spans nodes of {machine.gpus_per_node}"
    if model.heads % tp:
        return "heads do not divide by tp", f"{model.heads} heads do not divide by tp {tp}"
    if odd := [width for width in model.widths if width % tp]:
        return "the MLP does not divide by tp", f"an MLP {odd[0]} wide does not divide by tp {tp}"
    if pp > model.layers:
        return "more pipeline stages than layers", f"pp {pp} is more than {model.layers} layers"
    if model.sequence % (cp * tp):
        pieces = f"a sequence of {model.sequence} does not divide by cp {cp} x tp {tp}"
        return "the sequence does not divide by cp x tp", pieces
    if ep > 1 and (not model.experts or model.experts % ep):
        return "experts do not divide by ep", f"{model.experts} experts do not divide by ep {ep}"
    if dp * cp * tp % ep:
        return "the ranks do not divide by ep", f"dp {dp} x cp {cp} x tp {tp} does not divide by ep {ep}"
    return None


def _refuse_way(model: Model, layout: Layout, batch: int) -> tuple[str, str] | None:
    """Return (kind, reason) if a batch can't pass through the mesh in this way, else None."""
    if layout.batch != batch or layout.micro_batch < 1:
        split = f"dp {layout.dp} x micro-batches of {layout.micro_batch}"
        return "the batch does not divide by dp x micro_batch", f"a batch of {batch} does not divide by {split}"
    if layout.interleave == 1:
        return None
    if layout.interleave < 1:
        return "a pipeline rank has no stage", f"a pipeline rank has at least 1 stage, not {layout.interleave}"
    if layout.pp == 1:
        return "interleaving without a pipeline", f"there is no pipeline to interleave by {layout.interleave}"
    if layout.pp * layout.interleave > model.layers + 2:  # two stages may hold only the embedding and only the head
        stages = f"pp {layout.pp} x interleave {layout.interleave}"
        return "more pipeline stages than layers", f"{stages} is more than {model.layers} layers"
    return None


def _refuse_memory(machine: Cluster | Machine, held: Memory) -> tuple[str, str] | None:
    if held.total <= machine.usable:
        return None
    return "does not fit", f"needs {held.total / 1e9:,.1f} GB of {machine.usable / 1e9:.4g}"


# --- the grid ---------------------------------------------------------------------------------------------------


def layouts(model: Model, machine: Cluster | Machine, batch: int, software: Software = USUAL) -> Iterator[Layout]:
    """Yield every layout of the grid, including those that `refuse` rejects.

    The grid combines all factorizations of the world size into dp x tp x pp x cp and, for a model with experts, all
    `ep` that divide dp. It varies the stage of ZeRO, sequence parallelism, `MICRO_BATCHES`, `INTERLEAVES` and
    `RECOMPUTE`. It leaves out choices without effect: sequence parallelism without tp, stages for one rank,
    interleaving without a pipeline.
    """
    for mesh in _axes(model, machine):
        yield from _ways(mesh, batch, software)


def _axes(model: Model, machine: Cluster | Machine) -> Iterator[Axes]:
    for tp in _divisors(machine.world_size):
        for pp in _divisors(machine.world_size // tp):
            for cp in _divisors(machine.world_size // (tp * pp)):
                dp = machine.world_size // (tp * pp * cp)
                for ep in _divisors(dp) if model.experts else [1]:
                    yield Axes(dp, tp, pp, ep, cp)


def _ways(mesh: Axes, batch: int, software: Software) -> Iterator[Layout]:
    for stage, sequence_parallel, micro_batch, interleave, recompute in product(*_options(mesh)):
        num_micro_batches = max(1, batch // (mesh.dp * micro_batch))
        how = stage, sequence_parallel, micro_batch, num_micro_batches, interleave, recompute
        yield Layout(*mesh, *how, software=software)


def _options(mesh: Axes) -> tuple[Sequence, ...]:
    stages = (0, 1, 2, 3) if mesh.dp * mesh.cp > 1 else (0,)
    sequence_parallel = (False, True) if mesh.tp > 1 else (False,)
    return stages, sequence_parallel, MICRO_BATCHES, INTERLEAVES if mesh.pp > 1 else (1,), RECOMPUTE


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


# --- the search -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plans:
    """The result of a search. `ranked`: the feasible plans, fastest first; ties go to the one that holds less.

    `refused`: the number of infeasible layouts, by kind of reason. `examples`: for each kind, one full reason.
    """

    model: Model
    machine: Cluster | Machine
    batch: int
    ranked: list[Plan]
    refused: Counter[str]
    examples: dict[str, str]

    @property
    def best(self) -> Plan:
        """The fastest plan. Raises `ValueError` if there is none."""
        if not self.ranked:
            raise ValueError(f"no layout of {self.model.name} is feasible on {self.machine.name}: {dict(self.refused)}")
        return self.ranked[0]

    def table(self, rows: int = 10) -> str:
        """Return the fastest `rows` plans with their parts as text, and why the other layouts were refused.

        "4 of 5 runs": the interval that held four of five published runs of this kind, left out of the fit.
        """
        parts = "  compute  tensor  expert    data    pipe context  bubble  layout"
        head = f"{'step, s':>9} {'4 of 5 runs':>15} {'MFU':>6} {'GB':>6}{parts}"
        subject = f"{self.model.name} on {self.machine.world_size} ranks of {self.machine.name}"
        lines = [f"{subject}, batch {self.batch}; GB are 1e9 bytes"]
        lines += [head] if self.ranked else ["no layout is feasible"]
        for layout, held, cost in self.ranked[:rows]:
            shares = "".join(f"{part / cost.seconds:8.1%}" for part in cost[:7])
            likely = "{:.3g} to {:.3g}".format(*cost.interval) if cost.sigma else "not known"
            figures = f"{cost.seconds:9.4g} {likely:>15} {cost.mfu:6.1%} {held.total / 1e9:6.1f}"
            lines.append(f"{figures} {shares}  {layout}")
        lines.append(f"{len(self.ranked):,} layouts are feasible, {self.refused.total():,} are not:")
        for kind, count in self.refused.most_common():
            lines.append(f"{count:9,}  {kind} (such as: {self.examples[kind]})")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()


@dataclass(frozen=True)
class Remembered(Fitted):
    """Fitted kernels that price a layer once for all layouts that split it alike."""

    known: dict = field(default_factory=dict, compare=False)

    def layer(self, model: Model, layout: Layout) -> Both:
        return self._once(super().layer, model, layout)

    def logits(self, model: Model, layout: Layout) -> Both:
        return self._once(super().logits, model, layout)

    def _once(self, price: Callable, model: Model, layout: Layout) -> Both:
        split = layout.tp, layout.cp, layout.ep, layout.expert_tp, layout.micro_batch, layout.sequence_parallel
        key = price.__name__, split, layout.software
        if key not in self.known:
            self.known[key] = price(model, layout)
        return self.known[key]


def search(
    model: Model, machine: Cluster | Machine, batch: int, software: Software = USUAL, recipe: Recipe = MIXED_ADAM
) -> Plans:
    """Return the priced feasible layouts of the grid. `batch`: sequences a step, over all ranks.

    `recipe`: the bytes of a parameter, its gradient and its optimizer state.

    An infeasible mesh is refused once for all ways to use it, and a layout that doesn't fit in memory is never timed.
    Raises `ValueError` for a batch below 1.
    """
    if batch < 1:
        raise ValueError(f"a batch must be at least 1 sequence, not {batch}")
    ranked: list[Plan] = []
    refused: Counter[str] = Counter()
    examples: dict[str, str] = {}
    least = None
    network, kernels = costs.prices(machine)
    kernels = Remembered(kernels.gpu) if isinstance(kernels, Fitted) else kernels
    for mesh in _axes(model, machine):
        if refusal := refuse_axes(model, machine, mesh):
            refused[refusal[0]] += prod(map(len, _options(mesh)))
            examples.setdefault(*refusal)
            continue
        for layout in _ways(mesh, batch, software):
            refusal = _refuse_way(model, layout, batch)
            if not refusal:
                held = memory(model, layout, recipe)
                refusal = _refuse_memory(machine, held)
                least = min(least, held, key=lambda needed: needed.total) if least else held
            if refusal:
                refused[refusal[0]] += 1
                examples.setdefault(*refusal)
            else:
                ranked.append(Plan(layout, held, step(model, machine, layout, network, kernels)))
    if least and (refusal := _refuse_memory(machine, least)):
        examples.update([refusal])  # nothing fits: show the smallest shortfall
    ranked.sort(key=lambda plan: (plan.step.seconds, plan.memory.total))
    return Plans(model, machine, batch, ranked, refused, examples)


# --- the same by simulation -------------------------------------------------------------------------------------


class Simulated(Rings):
    """The time of collectives, priced from their schedules in all groups at once, message by message.

    An all-to-all is the XOR exchange, so its groups must be powers of two.
    """

    def _seconds(self, collective: str, inner: float, size: float, num_bytes: float) -> float:
        """Return the seconds of a collective; a gather or scatter is half of an all-reduce, which goes around twice."""
        size, passes = int(size), PASSES.get(collective)
        if passes is None:
            return self._price(int(inner), size, pairwise.all_to_all_xor, num_bytes)
        in_node = near(self.machine.gpus_per_node, inner, size)
        one_kind_of_link = in_node in (1, size)
        algorithm = ring.all_reduce if one_kind_of_link else partial(hierarchical.all_reduce, ranks_per_node=in_node)
        return self._price(int(inner), size, algorithm, num_bytes) * passes / 2

    def _price(self, inner: int, size: int, algorithm, num_bytes: float) -> float:
        machine = self.machine
        mesh = Mesh(outer=machine.world_size // (inner * size), group=size, inner=inner)
        links = machine.inside, machine.between
        nodes = two_level(machine.nodes, machine.gpus_per_node, *links)
        num_bytes = size * round(num_bytes / size)
        return price(together(mesh, "group", algorithm), num_bytes, nodes).seconds


def simulate(model: Model, machine: Machine, layout: Layout) -> Step:
    """Return the cost of a step like `step`, but price each collective's schedule and each pipeline operation.

    `machine`: in numbers, as `flat` gives it: schedules are priced on its links.
    """
    network = Simulated(machine)
    closed, (forward, backward) = step(model, machine, layout, network), costs.passes(model, machine, layout, network)
    if layout.pp == 1:
        return closed
    m, v = layout.num_micro_batches, layout.interleave
    make = pipeline.one_f_one_b if v == 1 else partial(pipeline.interleaved, stages_a_rank=v)
    half = backward.seconds / v / 2  # a chunk's backward is split evenly between its input and its weights
    run = partial(pipeline.price, make(layout.pp, m), forward.seconds / v, half, half)
    alone, sending = run().seconds, run(transfer=costs.message(model, machine, layout, network)).seconds
    return closed._replace(bubble=alone - m * (forward.seconds + backward.seconds), pipeline=sending - alone)


# --- the command ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. The exit code is 0 if there is a plan, 1 if no layout is feasible, 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m collectives.training.planner",
        description="Rank the layouts of a model on a machine by step time.",
        epilog="example: %(prog)s --model llama-3-70b --machine h100 --nodes 32 --batch 512",
    )
    parser.add_argument("--model", required=True, type=_model, help=f"{', '.join(MODELS)}; or {_OWN}")
    known: dict[str, Cluster | Machine] = {**MACHINES, "laptop": LAPTOP}
    parser.add_argument("--machine", required=True, choices=sorted(known), metavar="NAME", help=", ".join(known))
    parser.add_argument("--nodes", type=_positive, default=1, help="number of nodes (1)")
    parser.add_argument("--batch", type=_positive, required=True, help="sequences per step, over all ranks")
    parser.add_argument("--precision", choices=ELEMENT, default=USUAL.precision, help="of matrix products (bf16)")
    parser.add_argument("--rows", type=_positive, default=10, help="number of plans to print (10)")
    options = parser.parse_args(arguments)
    software = Software(options.precision)
    plans = search(options.model, known[options.machine].of(options.nodes), options.batch, software)
    print(plans.table(options.rows))
    return 0 if plans.ranked else 1


_SIZES = {size.name: size.default for size in fields(Model) if size.name != "name"}
_NEEDED = [name for name, default in _SIZES.items() if default is MISSING]
_MORE = [name for name in _SIZES if name not in _NEEDED]
_OWN = f"your own, as layers=32,hidden=4096,heads=32,vocabulary=32000,sequence=4096 and any of {', '.join(_MORE)}"


def _model(text: str) -> Model:
    """Return a known model, or one described by its numbers."""
    if "=" not in text:
        if text not in MODELS:
            raise argparse.ArgumentTypeError(f"unknown model {text!r}: choose from {', '.join(MODELS)}; or {_OWN}")
        return MODELS[text]
    pairs = (pair.partition("=") for pair in text.split(","))
    sizes: dict = {name: _positive(number, name) for name, _, number in pairs}
    if unknown := sizes.keys() - _SIZES.keys():
        raise argparse.ArgumentTypeError(f"a model has no {', '.join(sorted(unknown))}; it has {', '.join(_SIZES)}")
    if missing := [name for name in _NEEDED if name not in sizes]:
        raise argparse.ArgumentTypeError(f"a model also needs {', '.join(missing)}")
    try:
        return Model("yours", **sizes)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid model: {error}") from None


def _positive(text: str, name: str = "") -> int:
    if not text.isdecimal() or int(text) < 1:
        expected = f"{name} must be a whole number of at least 1" if name else "expected a whole number of at least 1"
        raise argparse.ArgumentTypeError(f"{expected}, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())

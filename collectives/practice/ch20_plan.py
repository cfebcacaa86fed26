"""Checks for exercise 20: what a layout holds, how long a step takes, and how good a choice by three trials is.

The reference values come from `training.costs`, restricted to models without experts, three axes, no interleaving, and
sequence parallelism wherever there is tensor parallelism. A **model**, a **machine** and a **layout** are plain dicts,
in the form that the learner's functions receive and return:

    model = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocabulary": 128000,
             "sequence": 8192}
    machine = {"nodes": 4, "gpus_per_node": 8, "memory": 80e9, "peak": 989e12, "fraction": 0.5,
               "inside": {"alpha": 3e-6, "beta": 1 / 450e9}, "between": {"alpha": 14e-6, "beta": 1 / 50e9}}
    layout = {"dp": 4, "tp": 4, "pp": 2, "stage": 1, "micro_batch": 1, "num_micro_batches": 8, "recompute": "none"}
"""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from numbers import Real
from random import Random
from reprlib import repr as brief
from textwrap import fill
from types import SimpleNamespace
from typing import Any, NamedTuple, SupportsInt, cast

from ..topology import Link
from ..training import costs, flat, memory, models, planner
from ..training import layout as layout_of_a_model
from ..training.flat import Machine
from ..training.groups import near as ranks_near
from ..training.models import RECOMPUTE, Model
from .checks import (
    LINE,
    Answered,
    NotYet,
    Refusal,
    answer,
    check_rows,
    number_of,
    own,
    own_answer,
    refusing_functions,
    told_apart,
)

HOLDS = (
    "formula",
    "topology.Link",
    "training.costs.message",
    "training.costs.messages",
    "training.flat.Machine",
    "training.flat.Rings",
    "training.flat.around",
    "training.flat.ring",
    "training.groups.near",
    "training.layout.tokens_of",
    ".once_around",
    ".message_seconds",
    "._machine",
    "._answers",
    "._is_of",
    "._methods",
    "._at_most",
)  # see `wall`

Said = Mapping[str, Any]  # a model, a machine or a layout, as the learner's plain dict

FIELDS = ("dp", "tp", "pp", "stage", "micro_batch", "num_micro_batches", "recompute")  # of a layout
GB = 1e9
NEAR = 1.05  # times the best step: full credit up to here
FAR = 1.15  # times the best step: no credit from here on
APART = 1.12  # in a case, the fastest layout on paper takes at least so many times the best step
TRIALS = 3
SURE = 0.75  # the share of the points on unseen clusters from which all points of the known ones count


# From the learner's dicts to the library's types


def _model(plain: Said) -> Model:
    model = Model("", **plain, gated=True)
    return replace(model, name=f"{model.parameters / 1e9:.3g}B")


def _machine(plain: Said) -> Machine:
    return Machine("", **{**plain, **{name: Link(**plain[name]) for name in ("inside", "between")}})


def _layout(plain: Said) -> costs.Layout:
    return costs.Layout(**plain, sequence_parallel=plain["tp"] > 1)


def described(layout: Said) -> str:
    """Return a layout in words, such as "dp 4, tp 4, pp 2, ZeRO-1, 8 x 1 sequences, selective recompute"."""
    return str(_layout(layout)).replace(", SP", "")


# What is given to learners


def once_around(machine: Said, apart: int, size: int, num_bytes: float) -> float:
    """Return the seconds that a buffer of `num_bytes` takes to go once round a group of `size` ranks.

    A reduce-scatter or an all-gather goes round once, an all-reduce twice. `apart` is the distance between the group's
    ranks: 1 if they are neighbors. Ranks in one node use the link `inside`, all others the link `between`.
    """
    return flat.around(_machine(machine), apart, size, num_bytes)


def message_seconds(model: Said, machine: Said, layout: Said) -> float:
    """Return the seconds that messages between pipeline stages add to a step."""
    # `without_the_library` refuses a `Model` and a `Layout`
    own_model, own_layout = SimpleNamespace(**model), SimpleNamespace(**layout, cp=1, interleave=1)
    where = _machine(machine)
    return costs.messages(cast(Model, own_model), where, cast(costs.Layout, own_layout), flat.Rings(where))


# Part a: the model


class Slips(NamedTuple):
    """The right number, and the number that each usual mistake gives, by the mistake in words."""

    want: float
    slips: dict[str, float]


def check_model(function: Callable, what: str, models: Iterable[Said]) -> None:
    """Check that `function(model)` returns `what`, a key of `OF_A_MODEL`. "flops" calls `function(model, tokens)`."""
    rows = []
    for plain in models:
        args = (10**6,) if what == "flops" else ()
        call = f"{function.__name__}(model{''.join(f', {arg:,}' for arg in args)}), for {_shape(plain)},"
        got = number_of(own_answer(__name__, function, dict(plain), *args, call=call), call)
        want, slips = OF_A_MODEL[what](_model(plain), *args)
        rows.append(Answered(f"{call} returns {_short(got)}, but it is {_short(want)}", got, want, slips))
    check_rows(rows, operator.attrgetter("call"))


def _layer_params(model: Model) -> Slips:
    assert model.kv_heads is not None and model.ffn is not None  # the learner's dict has both
    want, kv = model.attention + model.mlp + model.small, 2 * model.kv_heads * model.width * model.hidden
    h, ffn = model.hidden, model.hidden * model.ffn
    return Slips(
        want,
        {
            "the two norms are missing": want - model.small,
            "keys and values have kv_heads heads only, not as many as queries": want - kv + 2 * h * h,
            "keys are missing, or values: there is a matrix for each": want - kv / 2,
            "the output projection, the matrix after the heads, is missing": want - h * h,
            "the MLP has three matrices; this has two": want - ffn,
            "the MLP has three matrices, not four": want + ffn,
            "this is 12 hidden^2, for a model whose MLP has two matrices, 4 x hidden wide": 12 * h * h,
            "this is attention alone": model.attention,
            "these are bytes": 2 * want,
            "this counts all layers; count one": want * model.layers,
        },
    )


def _parameters(model: Model) -> Slips:
    want, layer = model.parameters, _layer_params(model)
    norm, head = model.hidden, model.head  # the embedding is as large as the head
    return Slips(
        want,
        {
            "the norm after the last layer is missing": want - norm,
            "the embedding and the head are two matrices; this counts one": want - head,
            "the embedding and the head are two matrices; this counts one, and no final norm": want - head - norm,
            "the embedding and the head are missing": want - 2 * head,
            "the embedding, the head and the norm after the last layer are missing": want - 2 * head - norm,
            **_from_before("layer_params", layer, model.layers, want),
        },
    )


def _layer_flops(model: Model) -> Slips:
    want, matrices = model.layer_flops, model.attention + model.mlp
    return Slips(
        want,
        {
            "a product costs 2 FLOPs for each parameter: one to multiply, one to add": want - matrices,
            "the scores are missing": want - model.scores,
            "this also counts the scores that the mask hides": want + model.scores,
            "attention multiplies twice: queries by keys, and the scores by values": want - model.scores / 2,
            "norms are not matrix products; leave them out": want + 2 * model.small,
            "this counts forward and backward; count the forward pass alone": 3 * want,
            "this counts all layers; count one": want * model.layers,
            "this counts a whole sequence; count one token": want * model.sequence,
        },
    )


def _flops(model: Model, tokens: int) -> Slips:
    want, layer = model.flops(tokens), _layer_flops(model)
    logits, six_each = 3 * tokens * model.head_flops, 6 * model.parameters * tokens
    return Slips(
        want,
        {
            "this is the forward pass alone; the backward pass costs twice as much": want / 3,
            "this is two thirds: count the forward pass, and twice its cost for the backward pass": want * (2 / 3),
            "the logits are missing: the head is a matrix, too": want - logits,
            "the embedding is looked up, not multiplied": want + logits,
            "this is 6 FLOPs a parameter; the embedding and the norms cost none, but the scores do": six_each,
            "this is for one token": want / tokens,
            **_from_before("layer_flops", layer, 3 * tokens * model.layers, want),
        },
    )


def _from_before(where: str, before: Slips, factor: float, want: float) -> dict[str, float]:
    """Return the mistakes in function `where` as they show in a later number, `want`, that adds it `factor` times."""
    return {
        f"an error in {where} shows here: {words}": want + factor * (number - before.want)
        for words, number in before.slips.items()
    }


OF_A_MODEL: dict[str, Callable[..., Slips]] = {
    "layer_params": _layer_params,
    "parameters": _parameters,
    "layer_flops": _layer_flops,
    "flops": _flops,
}


# Part b: memory


def check_memory(function: Callable, part: str, cases: Iterable[tuple[Said, Said]]) -> None:
    """Check that `function(model, layout)` is a part of the fullest rank's memory in bytes, for each (model, layout).

    `part`: "state" (parameters, gradients and optimizer state), "activations" or "buffers".
    """
    rows = []
    for plain, layout in cases:
        call = f"{function.__name__}(model, layout), for {_shape(plain)} as {described(layout)},"
        got = number_of(own_answer(__name__, function, dict(plain), dict(layout), call=call), call)
        want, slips = OF_MEMORY[part](_model(plain), _layout(layout))
        mine, right = told_apart(got / GB, want / GB)
        words = f"{call} returns {mine} GB, but it is {right} GB"
        rows.append(Answered(words, got, want, {"this is in GB; return bytes": want / GB, **slips}))
    check_rows(rows, operator.attrgetter("call"))


def state(model: Model, layout: costs.Layout) -> float:
    """Return the bytes of parameters, gradients and optimizer state on the fullest rank."""
    return sum(costs.memory(model, layout)[:3])


def _state(model: Model, layout: costs.Layout) -> Slips:
    want, stage, alone = state(model, layout), layout.stage, layout.pp == 1
    params, grads, opts = zip(*(costs.memory(model, replace(layout, stage=s))[:3] for s in memory.STAGES), strict=True)
    ends = state(replace(model, vocabulary=2 * model.vocabulary), layout) - want  # it is linear in the vocabulary
    both, recipe, layer = 1 if alone else 2, memory.MIXED_ADAM, _layer_params(model)

    def at(params_stage: int = stage, grads_stage: int = stage, opts_stage: int = stage) -> float:
        """Return the bytes if each part were sharded as at a stage of its own."""
        return params[params_stage] + grads[grads_stage] + opts[opts_stage]

    whole_model = state(model, replace(layout, pp=1))
    even_part = 0 if alone else ends * (2 / layout.pp - 1)
    float32_copy = opts[stage] * recipe.master / recipe.optimizer
    return Slips(
        want,
        {
            "no stage shards anything here": at(0, 0, 0),
            "this shards everything at every stage": at(3, 3, 3),
            "stage 1 does not shard the gradients; stage 2 does": at(grads_stage=2 * (stage > 0)),
            "from stage 2 on the gradients are sharded": at(grads_stage=3 * (stage > 2)),
            "stage 2 does not shard the parameters; stage 3 does": at(params_stage=3 * (stage > 1)),
            "stage 3 shards the parameters, too": at(params_stage=0),
            "from stage 1 on the optimizer state is sharded": at(opts_stage=stage - (stage == 1)),
            "tensor parallelism divides all of it": want * layout.tp,
            "this divides by tp, but not by pp": whole_model - (0 if alone else ends),
            "this divides by tp, but not by pp: the whole model": whole_model,
            "neither the embedding nor the head is in it": want - ends,
            "with pp 1 a rank has the embedding and the head; this counts one of them": want - (ends / 2) * alone,
            "with pp above 1 no rank has both the embedding and the head": want + ends * (both - 1),
            "this divides the whole model evenly; a pipeline's first rank has the whole embedding": want + even_part,
            "the optimizer's copy of the parameters in float32 is missing": want - float32_copy,
            "16 bytes are what a parameter costs in all; the optimizer's part is 12": want + opts[stage] / 3,
            "the optimizer state is missing": want - opts[stage],
            "the gradients are missing": want - grads[stage],
            "these are the parameters alone": params[stage],
            **_from_before("layer_params", layer, (want - ends) / layer.want, want),
        },
    )


def _activations(model: Model, layout: costs.Layout) -> Slips:
    want, layers, m, pp, tp = costs.memory(model, layout).activations, *_sizes(model, layout)
    keeps, everything = (costs.kept(model, layout, how) for how in (layout.recompute, "none"))
    logits = 4 * layout.micro_batch * model.sequence * model.vocabulary / tp

    def fullest(
        keeps: float = keeps, in_flight: int = min(m, pp), logits: float = logits, layers: float = layers
    ) -> float:
        """Return the larger of the first rank's and the last rank's bytes."""
        return max(layers * keeps * (1 if pp == 1 else in_flight), layers * keeps + logits)

    first = layers * keeps * min(m, pp)
    no_inputs = keeps * (layout.recompute != "full")
    return Slips(
        want,
        {
            "the logits are missing: the last rank may be the fullest": first,
            "this is the last rank; the first has more micro-batches in flight and may be fuller": fullest(in_flight=1),
            "1F1B keeps one micro-batch for each rank from here to the last, not all": fullest(in_flight=m),
            "there may be fewer micro-batches than pipeline ranks": fullest(in_flight=pp),
            "only the last rank holds logits, and it has one micro-batch in flight": first + logits,
            "the logits are in float32, of 4 bytes": fullest(logits=logits / 2),
            "the logits are divided by tp, too": fullest(logits=logits * tp),
            "there are logits for every token of the micro-batch": fullest(logits=logits / layout.micro_batch),
            "tensor parallelism divides what a layer keeps": fullest(keeps=keeps * tp),
            "tensor parallelism divides all of it": want * tp,
            "each micro-batch has micro_batch sequences": want / layout.micro_batch,
            "a rank of the pipeline has layers / pp of the layers": fullest(layers=model.layers),
            "this is one layer": fullest(layers=1),
            "every data-parallel rank has activations of its own: dp does not divide them": want / layout.dp,
            "this keeps everything, whatever is recomputed": fullest(keeps=everything),
            "even with full recomputation each layer's input is kept": fullest(keeps=no_inputs),
        },
    )


def _buffers(model: Model, layout: costs.Layout) -> Slips:
    want, stage = costs.memory(model, layout).buffers, layout.stage
    keeps, everything = (costs.kept(model, layout, how) for how in (layout.recompute, "none"))
    each = memory.MIXED_ADAM.parameters * (model.attention + model.mlp + model.small) / layout.tp  # of a layer

    def buffers(again: float = everything - keeps, grads: float = each * (stage > 1), gathered: float = 2) -> float:
        """Return the bytes recomputed, plus a layer's whole gradients, plus the layers gathered at stage 3."""
        return again + grads + (gathered * each if stage == 3 else 0)

    everything_again = everything if layout.recompute != "none" else 0
    all_layers_again = (everything - keeps) * model.layers / layout.pp
    layer_buffers = each * ((stage > 1) + 2 * (stage > 2))  # a layer's gradients, and two layers' parameters
    return Slips(
        want,
        {
            "what the layer in work recomputes is missing": buffers(again=0),
            "what the layer in work keeps anyway counts twice; add only the rest": buffers(again=everything_again),
            "this has a whole layer in work even where nothing is recomputed": buffers(again=everything),
            "layers are recomputed one at a time, not all of a rank's at once": buffers(again=all_layers_again),
            "from stage 2 on a layer's gradients are whole for a while": buffers(grads=0),
            "at stage 2 a layer's gradients are whole for a while, too": buffers(grads=each * (stage > 2)),
            "at stage 1 a rank holds all gradients; add a layer's only from stage 2 on": buffers(
                grads=each * (stage > 0)
            ),
            "at stages 0 and 1 a rank holds all gradients already": buffers(grads=each),
            "at stage 3 two layers are gathered: the next one is prefetched; and a layer's gradients are whole for a "
            "while, as at stage 2": buffers(gathered=1),
            "at stage 3 two layers are gathered; they are missing": buffers(gathered=0),
            "the gathered parameters are a layer's, divided by tp": want + (layout.tp - 1) * layer_buffers,
            "a layer's parameters and gradients have 2 bytes each": want + layer_buffers,
        },
    )


OF_MEMORY: dict[str, Callable[[Model, costs.Layout], Slips]] = {
    "state": _state,
    "activations": _activations,
    "buffers": _buffers,
}


def _sizes(model: Model, layout: costs.Layout) -> tuple[float, int, int, int]:
    """Return layers a rank, micro-batches, pipeline ranks, and ranks of a tensor-parallel group."""
    return model.layers / layout.pp, layout.num_micro_batches, layout.pp, layout.tp


# Part c: time


def check_time(function: Callable, part: str, cases: Iterable[tuple[Said, Said, Said]]) -> None:
    """Check that `function(model, machine, layout)` is a part of a step's seconds, for each (model, machine, layout).

    `part`: "compute", "tensor", "bubble" or "data".
    """
    rows = []
    for plain, machine, layout in cases:
        where = f"{_shape(plain)} on {_where(machine)}, {described(layout)}"
        call = f"{function.__name__}(model, machine, layout), for {where},"
        got = number_of(own_answer(__name__, function, dict(plain), _copy(machine), dict(layout), call=call), call)
        want, slips = OF_TIME[part](_model(plain), _machine(machine), _layout(layout))
        rows.append(Answered(f"{call} returns {got:,.6g} s, but it is {want:,.6g} s", got, want, slips))
    check_rows(rows, operator.attrgetter("call"))


def _compute(model: Model, machine: Machine, layout: costs.Layout) -> Slips:
    want, layers, m, pp, tp = costs.step(model, machine, layout).compute, *_sizes(model, layout)
    forward = costs.passes(model, machine, layout)[0].compute
    rate = tp * machine.peak * machine.fraction
    tokens = layout.micro_batch * model.sequence
    again, head = layers * model.layer_flops * tokens / rate, model.head_flops * tokens / rate
    full, layer = layout.recompute == "full", _layer_flops(model)
    equal_backward = m * (2 * forward + again * full)
    selective_again = m * again * (layout.recompute == "selective")
    even_logits = 3 * m * head * (1 / pp - 1)
    return Slips(
        want,
        {
            "kernels reach only a fraction of the peak": want * machine.fraction,
            "this is one micro-batch": want / m,
            "each micro-batch has micro_batch sequences": want / layout.micro_batch,
            "the backward pass costs twice as much as the forward pass": equal_backward,
            "this is the forward pass alone": m * forward,
            "full recomputation does the forward pass of the layers again": want - m * again * full,
            "count only full recomputation; what `selective` recomputes is almost free": want + selective_again,
            "full recomputation does the layers again, not the logits": want + m * head * full,
            "the slowest rank is the last: the logits are missing": want - 3 * m * head,
            "the last rank has all logits; this gives every rank a part of them": want + even_logits,
            "tp ranks share the work of a stage": want * tp,
            "a rank of the pipeline has layers / pp of the layers": 3 * m * head + (want - 3 * m * head) * pp,
            "the micro-batches are one rank's own already: do not divide by dp": want / layout.dp,
            **_from_before("layer_flops", layer, m * tokens * layers * (3 + full) / rate, want),
        },
    )


def _tensor(model: Model, machine: Machine, layout: costs.Layout) -> Slips:
    want, layers, m, pp, tp = costs.step(model, machine, layout).tensor, *_sizes(model, layout)
    num_bytes = costs.WIRE * layout.micro_batch * model.sequence * model.hidden
    full = layout.recompute == "full"

    def all_reduces(num_bytes: float = num_bytes, apart: int = 1) -> float:
        """Return the seconds of 2 all-reduces a layer in each of 2 or 3 passes; each goes round twice."""
        return m * layers * 2 * 2 * (2 + full) * flat.around(machine, apart, tp, num_bytes)

    return Slips(
        want,
        {
            "this is half: a layer has two all-reduces in each pass, and each goes round twice": want / 2,
            "the backward pass has as many as the forward pass": want * (1 + full) / (2 + full),
            "full recomputation does the forward pass's all-reduces again": want * 2 / (2 + full),
            "full recomputation does both of the forward pass's all-reduces again, not one": want * (1 - full / 6),
            "this is the forward pass alone": want / (2 + full),
            "this is one micro-batch": want / m,
            "this is one layer": want / layers,
            "a rank of the pipeline has layers / pp of the layers": want * pp,
            "each number takes 2 bytes on the wire": all_reduces(num_bytes * 2),
            "these are elements, not bytes": all_reduces(num_bytes / 2),
            "each micro-batch has micro_batch sequences": all_reduces(num_bytes / layout.micro_batch),
            "the whole sum goes round: tp does not divide it": all_reduces(num_bytes / tp),
            "the ranks of a tensor-parallel group are neighbors: 1 apart": all_reduces(apart=layout.dp),
            "the ranks of a tensor-parallel group are 1 apart, not tp": all_reduces(apart=tp),
        },
    )


def _bubble(model: Model, machine: Machine, layout: costs.Layout) -> Slips:
    cost, m, pp = costs.step(model, machine, layout), layout.num_micro_batches, layout.pp
    busy, want = cost.compute + cost.tensor, cost.bubble
    over_total = busy * (pp - 1) / (m + pp - 1)
    return Slips(
        want,
        {
            "ranks also wait for the tensor-parallel communication of others": want * cost.compute / busy,
            "this is (p - 1) / (m + p - 1), a bubble over total time, times the busy time": over_total,
            "the last rank begins after p - 1 others, not after p": busy * pp / m,
            "this is p - 1 steps, not p - 1 micro-batches": want * m,
            "this is the bubble's share of the busy time; return seconds": (pp - 1) / m,
            "this is one micro-batch; the bubble is p - 1 of them": busy / m,
            **_from_before("compute_seconds", _compute(model, machine, layout), (pp - 1) / m, want),
            **_from_before("tensor_seconds", _tensor(model, machine, layout), (pp - 1) / m, want),
        },
    )


# By stage: how often a buffer goes round the ring during a forward pass, and during a backward pass.
_ROUNDS = {0: (0, 2), 1: (1, 1), 2: (1, 1), 3: (1, 2)}


def _data(model: Model, machine: Machine, layout: costs.Layout) -> Slips:
    layers, m, pp, tp = _sizes(model, layout)
    forward, backward = costs.passes(model, machine, layout)
    held = costs.held_parameters(model, layout)[0]

    def exposed(
        rounds: Mapping[int, tuple[int, int]] = _ROUNDS,
        often: tuple[int, ...] = (2, 3),
        held: float = held,
        apart: int = tp,
        hidden: tuple[float, float] = (forward.compute, backward.compute),
        least: float = 1 / layers,
    ) -> float:
        """Return the exposed seconds with one thing changed. `often`: the stages that send for every micro-batch."""
        once = flat.around(machine, apart, layout.dp, costs.WIRE * held)
        there, back = (n * once for n in rounds[layout.stage])
        there, back = (max(each - behind, each * least) for each, behind in zip((there, back), hidden, strict=True))
        gathers = m if layout.stage == 3 and 3 in often else 1
        return gathers * there + (m if layout.stage in often else 1) * back

    # Wrong compute to hide behind, forward and backward, in seconds; wrong rounds; wrong parameters.
    all_micro_batches = m * forward.compute, m * backward.compute
    with_communication = forward.seconds, backward.seconds
    both_passes = (forward.compute + backward.compute,) * 2
    whole_step = (m * (forward.compute + backward.compute),) * 2
    each_call = forward.compute, (2 if layout.stage == 3 else 1) * backward.compute
    all_reduce_once = {**_ROUNDS, 0: (0, 1)}
    all_reduce_at_1_and_2 = {**_ROUNDS, 1: (1, 2), 2: (1, 2)}
    no_gather_at_1_and_2 = {**_ROUNDS, 1: (0, 1), 2: (0, 1)}
    one_gather_at_3 = {**_ROUNDS, 3: (1, 1)}
    with_ends = held + model.head / tp * (2 if pp == 1 else 1)
    return Slips(
        costs.step(model, machine, layout).data,
        {
            "this hides nothing": exposed(hidden=(0, 0)),
            "the last layer's part has nothing left to hide behind": exposed(least=0),
            "it hides behind the passes of one micro-batch, not of all": exposed(hidden=all_micro_batches),
            "it hides behind the pass of one micro-batch, not behind the whole step": exposed(hidden=whole_step),
            "the two calls of stage 3's backward pass share what hides them": exposed(hidden=each_call),
            "it hides behind compute, not behind other communication": exposed(hidden=with_communication),
            "each hides behind its own pass, forward or backward, not behind both": exposed(hidden=both_passes),
            "stage 0 all-reduces, which goes round twice": exposed(rounds=all_reduce_once),
            "stages 1 and 2 reduce-scatter, and later all-gather; they do not all-reduce": exposed(
                rounds=all_reduce_at_1_and_2
            ),
            "stages 1 and 2 gather the updated parameters for the next forward pass": exposed(
                rounds=no_gather_at_1_and_2
            ),
            "stage 3 gathers parameters in the backward pass, too": exposed(rounds=one_gather_at_3),
            "stage 3 gathers and scatters in every micro-batch": exposed(often=(2,)),
            "stage 2 scatters the gradients of every micro-batch, because it keeps no whole ones": exposed(often=(3,)),
            "stages 2 and 3 send for every micro-batch": exposed(often=()),
            "stages 0 and 1 send once a step, with the last micro-batch": exposed(often=(0, 1, 2, 3)),
            "stage 1 scatters once a step: it keeps whole gradients until then": exposed(often=(1, 2, 3)),
            "a rank has only a tp-th of its layers": exposed(held=held * tp),
            "a rank has only layers / pp of the layers": exposed(held=held * pp),
            "leave out the embedding and the head here": exposed(held=with_ends),
            "each number takes 2 bytes on the wire": exposed(held=2 * held),
            "these are elements, not bytes": exposed(held=held / 2),
            "the ranks of a data-parallel group are not neighbors: they are tp apart": exposed(apart=1),
        },
    )


OF_TIME: dict[str, Callable[[Model, Machine, costs.Layout], Slips]] = {
    "compute": _compute,
    "tensor": _tensor,
    "bubble": _bubble,
    "data": _data,
}


# Part d: the choice


class Surprises(NamedTuple):
    """By what factor a cluster exceeds the bills. Learners know the factors of `FACTORS`, and not which ones apply."""

    compute: float = 1
    tensor: float = 1
    bubble: float = 1
    data: float = 1
    memory: float = 1


FACTORS = {
    "compute": (0.9, 1, 1.1),
    "tensor": (0.5, 1, 2),
    "bubble": (0.75, 1, 1.5),
    "data": (0.5, 1, 2),
    "memory": (1, 1.06, 1.12),
}


class Case(NamedTuple):
    """A model and a machine to choose a layout for. `batch`: sequences a step, over all ranks."""

    model: Said
    machine: Said
    batch: int
    surprises: Surprises = Surprises()

    def __str__(self) -> str:
        return f"{_shape(self.model)} on {_where(self.machine)}, {self.batch} sequences"

    def real(self, plan: planner.Plan) -> costs.Step:
        """Return what the step of a plan takes on this cluster."""
        factors = self.surprises._asdict()
        del factors["memory"]
        return plan.step._replace(**{name: factor * getattr(plan.step, name) for name, factor in factors.items()})

    def needs(self, plan: planner.Plan) -> float:
        """Return the bytes that the plan's fullest rank holds on this cluster."""
        return self.surprises.memory * plan.memory.total


def refuse(model: Model, machine: Machine, layout: costs.Layout, batch: int) -> str | None:
    """Return why this layout is infeasible, in words; None if it is feasible."""
    if layout.pp > 0 and model.layers % layout.pp:
        return f"{model.layers} layers do not divide by pp {layout.pp}"
    words = planner.refuse(model, machine, layout, batch)
    return words and words.replace(" x cp 1", "").replace("cp 1 x ", "")  # the learner's layouts have no such axis


def grid(case: Case) -> Sequence[planner.Plan]:
    """Return every layout that fits on paper, with its memory and its step time on paper."""
    return _grid(_model(case.model), _machine(case.machine), case.batch)


@cache
def _grid(model: Model, machine: Machine, batch: int) -> Sequence[planner.Plan]:
    return [
        planner.Plan(layout, costs.memory(model, layout), costs.step(model, machine, layout))
        for layout in planner.layouts(model, machine, batch)
        if layout.cp == layout.interleave == 1
        and layout.sequence_parallel == (layout.tp > 1)
        and refuse(model, machine, layout, batch) is None
    ]


def best(case: Case) -> planner.Plan:
    """Return the layout that is fastest on the cluster, of those that fit there."""
    fits = [plan for plan in grid(case) if case.needs(plan) <= case.machine["memory"]]
    return min(fits, key=lambda plan: case.real(plan).seconds)


def credit(times: float) -> float:
    """Return the credit for a step that takes `times` the best one: 1 up to `NEAR`, linear, 0 from `FAR` on."""
    return min(1.0, max(0.0, (FAR - times) / (FAR - NEAR)))


class Trial(NamedTuple):
    """A layout tried on a cluster. `seconds`: None if it doesn't run there. `why`: what is worth knowing, in words."""

    layout: Said | None
    seconds: float | None
    why: str


def score(function: Callable, cases: Iterable[Case], points: float, unseen: Sequence[Case] = ()) -> float:
    """Return the points out of `points` for the choices `function(model, machine, batch, tried)`, and print each one's.

    `unseen`: clusters drawn for this submission. A table of `cases`, which are public, is worth little on them, and
    `cases` give no larger share of the points than `unseen` over `SURE`. They don't give the points themselves, because
    luck decides some of them: the solution gets 97% on average.
    Raises `NotYet` if the choices are worth nothing.
    """
    cases = list(cases)
    rounds = [tries(function, case) for case in cases]
    if all(trial.layout is None for trials in rounds for trial in trials):
        raise NotYet(rounds[0][0].why)
    worths = [worth(case, trials) for case, trials in zip(cases, rounds, strict=True)]
    share = sum(worths) / len(cases)
    elsewhere = sum(worth(case, tries(function, case)) for case in unseen) / len(unseen) if unseen else 1.0
    earned = round(points * min(share, elsewhere / SURE), 2)
    lines = [f"{earned:g} of {points:g} points"]
    if elsewhere / SURE < share:
        lines[0] += f", because on {len(unseen)} clusters drawn for this submission it gets only {elsewhere:.0%}"
    for case, trials, value in zip(cases, rounds, worths, strict=True):
        lines.append(f"{value:4.0%}  {case}; the best takes {case.real(best(case)).seconds:.3g} s")
        lines += [f"      trial {number}: {trial.why}" for number, trial in enumerate(trials, 1)]
    if not earned:
        raise NotYet("\n".join(lines))
    print("\n".join(fill(line, LINE, subsequent_indent=" " * 8, break_on_hyphens=False) for line in lines))
    return earned


def tries(function: Callable, case: Case) -> list[Trial]:
    """Return the trials of a learner's function on a cluster."""
    trials: list[Trial] = []
    for _ in range(TRIALS):
        tried = [{"layout": each.layout, "seconds": each.seconds} for each in trials if each.layout]
        try:
            trials.append(judged(case, _chosen(function, case, tried)))
        except NotYet as error:
            trials.append(Trial(None, None, str(error)))
    return trials


def worth(case: Case, trials: Iterable[Trial]) -> float:
    """Return what the fastest of the trials is worth, from 0 to 1."""
    seconds = [trial.seconds for trial in trials if trial.seconds is not None]
    return credit(min(seconds) / case.real(best(case)).seconds) if seconds else 0.0


def judged(case: Case, said: Said) -> Trial:
    """Return the trial of the layout `said`."""
    model, machine, layout = _model(case.model), _machine(case.machine), _layout(said)
    words = described(said)
    if reason := refuse(model, machine, layout, case.batch):
        largest = f" GB; most of it {_largest(model, layout)}" if reason.startswith("needs") else ""
        return Trial(said, None, f"{words}: {reason}{largest}")
    plan, least = planner.Plan(layout, costs.memory(model, layout), costs.step(model, machine, layout)), best(case)
    if (needed := case.needs(plan)) > case.machine["memory"]:
        held = f"{plan.memory.total / GB:.3g} GB on paper are {needed / GB:.3g} GB here"
        return Trial(said, None, f"{words}: out of memory; {held}, most of it {_largest(model, layout)}")
    own, fastest = case.real(plan), case.real(least)
    seconds = f"{words}: {own.seconds:.3g} s, {plan.step.seconds:.3g} s on paper"
    if own.seconds <= NEAR * fastest.seconds:
        return Trial(said, own.seconds, f"{seconds}; as good as the best")
    return Trial(said, own.seconds, f"{seconds}; {_most_of_it(own, layout, fastest, least, machine)}")


def _largest(model: Model, layout: costs.Layout) -> str:
    held = costs.memory(model, layout)
    most = max(held._fields, key=lambda name: getattr(held, name))
    return f"{'optimizer state' if most == 'optimizer' else most}, {getattr(held, most) / GB:.3g} GB"


def _most_of_it(
    own: costs.Step, layout: costs.Layout, fastest: costs.Step, least: planner.Plan, machine: Machine
) -> str:
    """Return which part of the step exceeds that of the best plan, `fastest`, by most, and why."""
    m, near = layout.num_micro_batches, ranks_near(machine.gpus_per_node, layout.tp, layout.dp)
    once = f"dp {layout.dp}, {near} of them in a node"
    often = f"stage {layout.stage} sends for each of {m} micro-batches"
    why = {
        "compute": f"the last of pp {layout.pp} ranks computes all logits, and the others wait for it",
        "tensor": f"{_both(layout)}; the best plan has {_both(least.layout)}",
        "data": often if layout.stage >= 2 and m > 1 else once,
        "pipeline": f"pp {layout.pp}, {m} micro-batches",
        "bubble": f"pp {layout.pp} with {m} micro-batch{'es' if m > 1 else ''}",
    }
    if layout.recompute == "full" != least.layout.recompute:
        why["compute"] = f"full recomputation does the forward pass twice; the best plan has {_both(least.layout)}"
    excess = {name: getattr(own, name) - getattr(fastest, name) for name in why}
    most = max(excess, key=lambda name: excess[name])
    return f"{excess[most]:.3g} s more {PARTS[most]}: {why[most]}"


PARTS = {
    "compute": "to compute",
    "tensor": "exposed tensor-parallel communication",
    "data": "exposed data-parallel communication",
    "pipeline": "for messages between stages",
    "bubble": "bubble",
}


def _both(layout: costs.Layout) -> str:
    return f"tp {layout.tp}, {'no' if layout.recompute == 'none' else layout.recompute} recomputation"


def _chosen(function: Callable, case: Case, tried: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the layout that a learner's function chooses, with plain numbers. Raise `NotYet` if it is no layout."""
    call = f"{function.__name__}(model, machine, {case.batch}, tried)"

    @wraps(function)
    def choose(*args: Any) -> list[Any]:
        return [own(__name__, function, *args)]

    (chosen,) = answer(choose, dict(case.model), _copy(case.machine), case.batch, tried, call=call, run=operator.call)
    if isinstance(chosen, Refusal):
        raise NotYet(f"{call}: {chosen.words}")
    if chosen is None:
        raise NotYet(f"{call} returns None: is its `return` missing, or does it miss the layouts that fit?")
    if not isinstance(chosen, Mapping):
        raise NotYet(f"{call} returns {brief(chosen)}; a layout is a dict with {', '.join(FIELDS)}")
    if missing := [name for name in FIELDS if name not in chosen]:
        raise NotYet(f"{call} returns {brief(dict(chosen))}; its {missing[0]} is missing")
    if unknown := [name for name in chosen if name not in FIELDS]:
        raise NotYet(f"{call} returns a layout with {unknown[0]!r}; a layout has {', '.join(FIELDS)} only")
    layout = {name: chosen[name] if name == "recompute" else _whole(chosen[name], name, call) for name in FIELDS}
    for name, known in (("recompute", RECOMPUTE), ("stage", memory.STAGES)):
        if layout[name] not in known:
            choices = ", ".join(map(str, known))
            raise NotYet(f"{call} returns an invalid layout: its {name} is {brief(layout[name])}, not one of {choices}")
    return layout


def _whole(value: Any, name: str, call: str) -> int:
    """Return a whole number of any type as an int. Raise `NotYet` if `value` is not whole."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):  # not a number, nan, and inf
        whole = int(cast(SupportsInt, value)) if isinstance(value, Real) else operator.index(value)
        if whole == value:
            return whole
    raise NotYet(f"{call} returns an invalid layout: its {name} is {brief(value)}, not a whole number")


def without_the_library() -> contextlib.AbstractContextManager[None]:
    """Refuse, inside this context, what answers this exercise.

    Runs beside the learner's code. What `once_around` and `message_seconds` need stays.
    """
    return refusing_functions(*_answers())


@cache
def _answers() -> tuple[Any, ...]:
    """Return the functions that answer a part: the planner's, its models', and those of these checks."""
    modules = (planner, costs, layout_of_a_model, memory, models)
    given = {costs.messages, costs.message, costs.tokens_of, planner.near}
    functions = [each for module in modules for each in vars(module).values() if _is_of(module, each)]
    functions += [flat.flat, *_methods(flat.Flat), *_methods(Model), *_methods(costs.Layout)]
    mine: tuple[Any, ...] = (best, judged, tries, score, worth, state, _grid.__wrapped__, grid, Case.real, Case.needs)
    mine += (_layer_params, _parameters, _layer_flops, _flops, _state, _activations, _buffers, _compute, _tensor)
    mine += (_bubble, _data, check_model, check_memory, check_time)
    return tuple(each for each in dict.fromkeys((*functions, *mine)) if each not in given)


def _is_of(module: Any, thing: Any) -> bool:
    return inspect.isfunction(thing) and thing.__module__ == module.__name__ and not thing.__code__.co_freevars


def _methods(owner: type) -> list[Any]:
    """Return the functions of a class, with those behind its properties."""
    inner = (getattr(each, "fget", None) or getattr(each, "func", None) or each for each in vars(owner).values())
    return [each for each in inner if inspect.isfunction(each) and not each.__code__.co_freevars]


# Words


def _shape(model: Said) -> str:
    return f"{_model(model).name} ({model['layers']} layers, hidden {model['hidden']})"


def _where(machine: Said) -> str:
    return f"{machine['nodes']} x {machine['gpus_per_node']} GPUs of {machine['memory'] / GB:g} GB"


def _short(number: float) -> str:
    return f"{number:,.0f}" if abs(number) < 1e15 else f"{number:.6g}"


def _copy(machine: Said) -> dict[str, Any]:
    """Return a copy that the learner's code may change."""
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in machine.items()}


# Models, machines and layouts, at random


def random_models(seed: int, how_many: int = 6) -> list[Said]:
    """Return models for part a."""
    random = Random(seed)
    return [_random_model(random) for _ in range(how_many)]


def random_layouts(seed: int, how_many: int = 12) -> list[tuple[Said, Said]]:
    """Return pairs (model, layout) for part b."""
    return [(model, layout) for model, _, layout in random_steps(seed, how_many)]


def random_steps(seed: int, how_many: int = 12) -> list[tuple[Said, Said, Said]]:
    """Return (model, machine, layout) for parts b and c. Every twelve cover all stages and kinds of recomputation.

    Some pipelines have fewer micro-batches than ranks. One step in three has little compute to hide behind.
    """
    random = Random(seed)
    cases: list[tuple[Said, Said, Said]] = []
    for index in range(how_many):
        pp = random.choice((2, 4, 8)) if index % 5 else 1
        tp, dp = random.choice((2, 4, 8) if index % 3 else (1, 2, 4)), 2 ** random.randint(1, 5)
        model, machine = _random_model(random), _random_machine(random, nodes=max(1, dp * tp * pp // 8))
        if index % 3 == 1:
            machine["between"]["beta"], machine["inside"]["beta"] = 1 / 1e9, 1 / 5e9
        layout = {
            "dp": machine["nodes"] * 8 // (tp * pp),
            "tp": tp,
            "pp": pp,
            "stage": index % 4,
            "micro_batch": random.choice((1, 2, 4)),
            "num_micro_batches": random.choice((random.randint(1, pp), random.randint(2, 8) * pp)),
            "recompute": RECOMPUTE[index // 4 % 3],
        }
        cases.append((model, machine, layout))
    return cases


def _random_model(
    random: Random, hidden: Sequence[int] = (2048, 4096, 5120, 8192), sequence: int = 0
) -> dict[str, Any]:
    """Return a model of usual width and depth; kv_heads, ffn and the vocabulary vary."""
    width = random.choice(hidden)
    return {
        "layers": random.choice({2048: (16, 24), 4096: (32, 40), 5120: (40, 48)}.get(width, (64, 80))),
        "hidden": width,
        "heads": width // 128,
        "kv_heads": random.choice((4, 8)),
        "ffn": 256 * round(width * random.uniform(2.6, 4) / 256),
        "vocabulary": 2 ** random.randint(15, 18),
        "sequence": sequence or random.choice((2048, 4096, 8192)),
    }


def _random_machine(
    random: Random,
    nodes: int,
    memory_gb: int = 80,
    inside: Sequence[float] = (200, 300, 450),
    between: Sequence[float] = (25, 50),
    gpus_per_node: int = 8,
) -> dict[str, Any]:
    """Return a machine of 8-GPU nodes by default. `inside`, `between`: rates that a link may have, in GB/s."""
    return {
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "memory": memory_gb * GB,
        "peak": random.choice((312e12, 500e12, 989e12)),
        "fraction": random.choice((0.45, 0.5, 0.55, 0.6)),
        "inside": {"alpha": 3e-6, "beta": 1 / (random.choice(inside) * 1e9)},
        "between": {"alpha": 14e-6, "beta": 1 / (random.choice(between) * 1e9)},
    }


@cache
def random_cases(seed: int, of_each: int = 1) -> tuple[Case, ...]:
    """Return cases to choose for: `of_each` of each of the five kinds. On paper none of them shows its best layout."""
    random = Random(seed)
    return tuple(_surprising(random, *links) for _ in range(of_each) for links in LINKS.values())


def _surprising(random: Random, inside: Sequence[float], between: Sequence[float]) -> Case:
    """Return a case in which the fastest layout on paper, with memory to spare, takes `APART` times the best step."""
    while True:
        case = _case(random, inside, between)
        spare = [plan for plan in grid(case) if max(FACTORS["memory"]) * plan.memory.total <= case.machine["memory"]]
        for _ in range(30 if spare else 0):
            case = case._replace(surprises=Surprises(*(random.choice(each) for each in FACTORS.values())))
            paper = min(spare, key=lambda plan: plan.step.seconds)
            if case.real(paper).seconds >= APART * case.real(best(case)).seconds:
                return case


def _case(random: Random, inside: Sequence[float], between: Sequence[float]) -> Case:
    """Return a case with these rates. All else is drawn by itself, so no few layouts are good in all cases alike."""
    machine = _random_machine(
        random,
        random.choice((2, 4, 8)),
        random.choice((24, 32, 48, 80)),
        inside,
        between,
        random.choice((4, 8, 16)),
    )
    sequence = random.choice((2048, 4096, 8192, 16384, 32768))
    tokens = random.choice((1 / 4, 1 / 2, 1, 2, 4)) * 8192  # of a step, for each GPU
    batch = machine["nodes"] * machine["gpus_per_node"] * tokens / sequence
    return Case(_random_model(random, (4096, 5120, 8192), sequence), machine, max(1, int(batch)))


PCIE, NVLINK, ETHERNET, NDR = (20, 25), (200, 300, 450), (1, 1.5, 2, 3), (25, 50)  # GB/s
LINKS = {  # the rates that a GPU may have in a node, and between nodes
    "slow links": (PCIE, (3, 6)),
    "a slow network": (NVLINK, ETHERNET),
    "a slow network, and slower links in the node": ((50, 100), ETHERNET),
    "slow links in the node": (PCIE, NDR),
    "fast links": (NVLINK, NDR),
}

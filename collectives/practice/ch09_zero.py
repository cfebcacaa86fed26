"""Checks of exercise 09: a rank's shard, its update in mixed precision, and the step of ZeRO-2 on real ranks.

The truth in part c is a DDP that trains the same model on the same batches. Every rank all-reduces all gradients and
updates everything by the same arithmetic, so the two agree to the bit. The check computes it in its own process, for
all ranks together. The ranks, where the learner's code runs, only report what they see. A rank gets the parameters and
its own rows, but no seed, so it can't compute the other ranks' gradients.
"""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np
import torch

from ..algorithms import ring
from ..execute import scratch, view
from ..measure.held import BytesHeld
from ..measure.wire import BytesSent
from ..ranks import PerRank
from ..schedule import REDUCE, Schedule
from ..training import memory, tiny
from ..training.sharded import Unit
from .checks import NotYet, answer, call_in_words, counted, own_answer, refusing_functions
from .on_ranks import finished, numbers_in, run_on_ranks, witnessed, witnessed_terms

HOLDS = ("execute", "schedule", "algorithms.ring")  # see `wall`
ON_RANKS = (
    "measure.held",
    "training.memory.shard_size",
    "training.sharded.Unit",
    "training.tiny",
    ".Reductions",
    ".TrainedUnit",
    ".adam",
    "._train",
    "._plain",
    "._model",
    "._new_state",
    "._written",
    "._backward",
    "._update",
    "._seen",
    "._gradients",
    "._known",
    "._note_parameters",
)

STEPS = 2
LR, BETA_1, BETA_2, EPSILON = 0.01, 0.9, 0.999, 1e-8  # Adam's
RTOL, ATOL = 1e-4, 1e-7  # the rounding of a few fp32 operations, far finer than bf16's
INNER = 4, 3  # the blocks' inner widths, in turn: an answer that takes one unit's length for all has wrong shards
OTHERS = 0.03, 0.6, 0.95, 1e-4  # settings that a learner's update gets, too


@dataclass
class State:
    """What the optimizer keeps for a rank's shard: fp32 tensors of its length, and the number of updates so far.

    `master`: the parameters in full precision. `mean`, `square`: Adam's running means of the gradients and of their
    squares.
    """

    master: torch.Tensor
    mean: torch.Tensor
    square: torch.Tensor
    steps: int = 0


PARTS = ("mean", "square", "master")  # of a state; each depends on those before it


def adam(
    state: State,
    summed: torch.Tensor,
    world_size: int,
    lr: float = LR,
    beta_1: float = BETA_1,
    beta_2: float = BETA_2,
    epsilon: float = EPSILON,
) -> torch.Tensor:
    """Update a state in fp32 by the gradients' mean over ranks; return the new parameters in bf16.

    Adam (Kingma and Ba, 2014) without weight decay. Every operation rounds each element by itself, so updating a shard
    gives the same bits as updating the whole.
    """
    gradient = summed.float() / world_size
    state.steps += 1
    state.mean = beta_1 * state.mean + (1 - beta_1) * gradient
    state.square = beta_2 * state.square + (1 - beta_2) * gradient * gradient
    mean, square = state.mean / (1 - beta_1**state.steps), state.square / (1 - beta_2**state.steps)
    state.master = state.master - lr * mean / (square.sqrt() + epsilon)
    return state.master.bfloat16()


def without_the_library() -> contextlib.AbstractContextManager[None]:
    """Refuse, inside this context, to make and to update shards by the checks' own state and Adam."""
    return refusing_functions(adam, _new_state)


# Part a: what a rank owns


def check_bounds(function: Callable, num_elements: int, world_size: int) -> None:
    """Check that `function(num_elements, rank, world_size)` gives where each rank's shard begins and ends."""
    size = memory.shard_size(num_elements, world_size)
    bounds = [_bounds(function, num_elements, rank, world_size) for rank in range(world_size)]
    lengths = [end - begin for begin, end in bounds]
    call = f"{function.__name__} of {num_elements} elements on {world_size} ranks gives"
    for rank, (begin, end) in enumerate(bounds):
        if (begin, end) == (rank * size, (rank + 1) * size):
            continue
        if all(end == (rank + 1) * size - 1 for rank, (_, end) in enumerate(bounds)):
            raise NotYet(f"{call} rank {rank} {begin} to {end}; the end is the first element that is not in the shard")
        if len(set(lengths)) > 1:
            raise NotYet(f"{call} shards of {_listed(lengths)} elements; all must be equally long, padding included")
        if sum(lengths) < num_elements:
            lost = num_elements - sum(lengths)
            fault = f"{lost} element{' belongs' if lost == 1 else 's belong'} to no rank"
            raise NotYet(f"{call} shards of {lengths[0]}, so {fault}: round the length of a shard up, and pad")
        if sum(lengths) >= num_elements + world_size:
            raise NotYet(f"{call} shards of {lengths[0]}; {size} are enough, padding included")
        where = f"rank {rank} elements {begin} to {end}; it has {rank * size} to {(rank + 1) * size}"
        raise NotYet(f"{call} {where}")


def _bounds(function: Callable, *args: int) -> tuple[int, int]:
    call = call_in_words(function, args)
    result = answer(function, *args)  # a thousand ranks ask, and a crossing by `own` takes longer
    try:
        begin, end = map(operator.index, result)
    except (TypeError, ValueError):
        raise NotYet(f"{call} returns {brief(result)}; return two whole numbers, begin and end") from None
    return begin, end


def _listed(lengths: list[int]) -> str:
    return f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}"


def check_state(function: Callable, num_elements: int, world_size: int) -> None:
    """Check that `function(parameters, rank, world_size)` makes the optimizer's state of that rank's shard alone."""
    flat = torch.linspace(-3, 3, memory.shard_size(num_elements, world_size) * world_size).bfloat16()
    size = len(flat) // world_size
    for rank in range(world_size):
        call = f"{function.__name__}(<{len(flat)} parameters>, {rank}, {world_size})"
        state = own_answer(__name__, function, flat, rank, world_size, call=call)
        if not isinstance(state, State):
            raise NotYet(f"{call} returns {brief(state)}; return State(master=..., mean=..., square=...)")
        own = flat[rank * size : (rank + 1) * size].float()
        right = {"master": own, "mean": torch.zeros(size), "square": torch.zeros(size)}
        for name, want in right.items():
            got = _of_state(state, name, size, call)
            if not torch.equal(got, want):
                what = f"this rank's shard of the parameters, {_numbers(own)}" if name == "master" else "zeros"
                raise NotYet(f"{call}: its {name} is {_numbers(got)}; it must be {what}")
            if got.untyped_storage().nbytes() > want.nbytes:
                raise NotYet(
                    f"{call}: its {name} has {size} numbers, but keeps {got.untyped_storage().nbytes()} bytes alive, "
                    f"not {want.nbytes}: a slice is a view of the whole buffer. Slice first and convert then, or clone"
                )
        if state.mean.data_ptr() == state.square.data_ptr():
            raise NotYet(f"{call}: its mean and its square are the same tensor; writing to one changes both")


def _of_state(state: State, name: str, size: int, call: str) -> torch.Tensor:
    """Return a tensor of a learner's state; raise `NotYet` unless it is fp32 [size]."""
    got = getattr(state, name)
    if not isinstance(got, torch.Tensor):
        raise NotYet(f"{call}: its {name} is {brief(got)}, which is not a tensor")
    if got.shape != (size,):
        raise NotYet(f"{call}: its {name} has the shape {list(got.shape)}; the shard has {size} elements")
    if got.dtype != torch.float32:
        raise NotYet(f"{call}: its {name} is {got.dtype}; the optimizer works in torch.float32")
    return got


# Part b: the update of a shard


def check_update(
    function: Callable,
    world_size: int,
    updates: int = 1,
    size: int = 6,
    seed: int = 0,
    settings: tuple[float, ...] = (),
) -> None:
    """Check `updates` calls of `function(state, summed, world_size, *settings)` against Adam in fp32.

    The gradients are random, except that the last parameter's are zero. `settings`: lr, beta_1, beta_2, epsilon, if
    they are not to be Adam's own.
    """
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(size, generator=generator).bfloat16()
    gradients = [torch.randn(size, generator=generator).bfloat16() for _ in range(updates)]
    state, right = _new_state(start), _new_state(start)
    names = "lr", "beta_1", "beta_2", "epsilon"
    words = "".join(f", {name}={value:g}" for name, value in zip(names, settings, strict=False))
    for number, summed in enumerate(gradients, 1):
        summed[-1] = 0
        call = f"{function.__name__} on {world_size} rank{'s' * (world_size > 1)}{words}, update number {number}"
        before = State(right.master, right.mean, right.square, right.steps)
        want = adam(right, summed, world_size, *settings)
        got = own_answer(__name__, function, state, summed.clone(), world_size, *settings, call=call, in_place=True)
        _check_state_after(state, right, before, summed, world_size, call, settings)
        _check_returned(got, want, state.master, call)


def _new_state(parameters: torch.Tensor) -> State:
    master = parameters.float()
    return State(master, torch.zeros_like(master), torch.zeros_like(master))


def _check_returned(got: Any, want: torch.Tensor, master: torch.Tensor, call: str) -> None:
    """Check that an update returns the new parameters for the layers."""
    if not isinstance(got, torch.Tensor):
        raise NotYet(f"{call} returns a value of type {type(got).__name__}; return the new parameters, a tensor")
    if got.dtype != torch.bfloat16:
        raise NotYet(f"{call} returns {got.dtype}; the layers compute in torch.bfloat16: round what you return")
    if got.shape != want.shape:
        raise NotYet(f"{call} returns a tensor of shape {list(got.shape)}; the shard has {len(want)} elements")
    right = master.bfloat16()  # rounded from the learner's own master
    if not torch.equal(got, right):
        at = int((got != right).nonzero()[0])
        raise NotYet(
            f"{call} returns {got[at].item():g} as element {at}; the new master, rounded, is {right[at].item():g} there"
        )


def _check_state_after(
    got: State,
    want: State,
    before: State,
    summed: torch.Tensor,
    world_size: int,
    call: str,
    settings: tuple[float, ...],
) -> None:
    """Check what an update leaves in the state, and name the slip if it is a common one."""
    _check_steps(got, want, call)
    for name in PARTS:
        mine, right = _of_state(got, name, len(summed), call), getattr(want, name)
        if _near(mine, right):
            continue
        if mine.isnan().any() and not right.isnan().any():
            where = int(mine.isnan().nonzero()[0])
            raise NotYet(
                f"{call} leaves nan in state.{name}, at element {where}, whose gradients are 0: add epsilon to the "
                "root, so that nothing is divided by 0"
            )
        some_slips = partial(_own_settings, settings) if settings else _slips
        slips = some_slips(name, before, want, summed, world_size)
        hint = next((f": {words}" for words, value in slips.items() if _near(mine, value)), "")
        at = int((~torch.isclose(mine, right, rtol=RTOL, atol=ATOL)).nonzero()[0])
        found, due = (f"{each[at].item():.7g}" for each in (mine, right))
        raise NotYet(f"{call} leaves state.{name}[{at}] at {found}, but it must be {due}{hint}")


def _own_settings(
    settings: tuple[float, ...], name: str, before: State, want: State, summed: torch.Tensor, world_size: int
) -> dict[str, torch.Tensor]:
    """Return what an update leaves that has settings of its own, or epsilon under the root, as `_slips` does."""
    state = State(before.master, before.mean, before.square, before.steps)
    adam(state, summed, world_size)
    slips = {"use the lr, the betas and the epsilon that the call gives": getattr(state, name)}
    if name == "master":
        lr, beta_1, beta_2, epsilon = settings
        mean, square = want.mean / (1 - beta_1**want.steps), want.square / (1 - beta_2**want.steps)
        slips["epsilon is added after the root, not under it"] = before.master - lr * mean / (square + epsilon).sqrt()
    return slips


def _check_steps(got: State, want: State, call: str) -> None:
    if got.steps != want.steps:
        raise NotYet(f"{call} leaves state.steps at {got.steps}; it counts the updates, this one too: {want.steps}")


def _near(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Return whether two tensors agree up to rounding."""
    return torch.allclose(got, want, rtol=RTOL, atol=ATOL)


def _slips(name: str, before: State, want: State, summed: torch.Tensor, world_size: int) -> dict[str, torch.Tensor]:
    """Return {a slip in words: the tensor it leaves in this part of the state}."""
    slips = {f"it is still as it was; put the new one into state.{name}": getattr(before, name)}
    total, mean = summed.float(), summed.float() / world_size
    gradients = {
        "the sum was not divided by the number of ranks": total,
        "a division in bf16 rounds: go to fp32 first, then divide": (summed / world_size).float(),
    }
    if name == "mean":
        slips |= {words: BETA_1 * before.mean + (1 - BETA_1) * gradient for words, gradient in gradients.items()}
        slips["0.9 of it is the old mean, 0.1 the new gradient"] = (1 - BETA_1) * before.mean + BETA_1 * mean
    elif name == "square":
        slips |= {words: BETA_2 * before.square + (1 - BETA_2) * gradient**2 for words, gradient in gradients.items()}
        slips["the gradient was not squared"] = BETA_2 * before.square + (1 - BETA_2) * mean
        slips["it takes the squares of the gradients, not of their mean"] = (
            BETA_2 * before.square + (1 - BETA_2) * want.mean**2
        )
    else:
        move = want.master - before.master
        uncorrected = LR * want.mean / (want.square.sqrt() + EPSILON)
        squares = want.square / (1 - BETA_2**want.steps)
        no_root = move * (squares.sqrt() + EPSILON) / (squares + EPSILON)
        slips |= {
            "against the gradient it goes downhill: subtract": before.master - move,
            "both means begin at 0 and are too small at first: divide each by 1 - beta**steps": (
                before.master - uncorrected
            ),
            "divide by the root of the squares": before.master + no_root,
            "it was rounded to bf16; update the fp32 master, and round only what you return": (
                want.master.bfloat16().float()
            ),
        }
    return slips


def check_small_updates(function: Callable, world_size: int, updates: int = 30, start: float = 5.0) -> None:
    """Check that updates too small for bf16 add up, from `start`: each moves a parameter by about a learning rate.

    The mean gradients are 1 and -1 all the time, and 2 or -2 but for each third time, when they are -1/2 or 1/2.
    """
    size = 4
    state = _new_state(torch.full((size,), start).bfloat16())
    right = _new_state(torch.full((size,), start).bfloat16())
    call = f"{function.__name__} on {world_size} ranks"
    for update in range(updates):
        most = 2 if update % 3 < 2 else -0.5
        summed = world_size * torch.tensor([1, -1, most, -most]).bfloat16()
        got = own_answer(__name__, function, state, summed.clone(), world_size, call=call, in_place=True)
        want = adam(right, summed, world_size)
    _check_steps(state, right, f"{call}, called {updates} times,")
    _of_state(state, "master", size, call)
    if not isinstance(got, torch.Tensor) or got.shape != want.shape:
        raise NotYet(f"{call} returns {brief(got)}; return the new parameters, a tensor of the shard's length")
    if not torch.allclose(got.float(), want.float(), rtol=2**-8) or not _near(state.master, right.master):
        spacing = 2.0 ** (np.floor(np.log2(abs(start))) - 7)  # of bf16 numbers: 8 significant bits
        hint = ""
        if torch.equal(got.float(), torch.full((size,), start)):
            hint = (
                f". Nothing has moved: bf16 numbers are {spacing:g} apart there, and rounding drops anything below "
                "half of that. You update the bf16 parameters instead of the fp32 masters: keep state.master in fp32 "
                "from one update to the next, and round only what you return"
            )
        if torch.equal(got.float(), want.float()) and not hint:
            place = int((~torch.isclose(state.master, right.master)).nonzero()[0])
            raise NotYet(
                f"{call}: {updates} updates bring state.master[{place}] from {start:g} to {state.master[place]:.6g}; "
                f"it must be {right.master[place]:.6g}"
            )
        place = int((got != want).nonzero()[0])
        raise NotYet(
            f"{call}: {updates} updates of {LR:g} each bring a parameter from {start:g} to {got[place].item():g}; "
            f"it must be {want[place].item():g}{hint}"
        )


def _numbers(tensor: torch.Tensor) -> str:
    """Return the first three numbers of a tensor, as text."""
    shown = ", ".join(f"{value:.5g}" for value in tensor[:3].tolist())
    return f"[{shown}{', ...' if len(tensor) > 3 else ''}]"


# Part c: the step on real ranks


class Task(NamedTuple):
    """The training of part c: `tiny.model` of this size, with `micro` backward passes before each of `STEPS` steps.

    `watched`: whether to watch memory, which doubles the time. `seed`: of the model and of the batches.
    """

    width: int = tiny.WIDTH
    depth: int = 4
    micro: int = 1
    watched: bool = False
    seed: int = 0


class Trained(NamedTuple):
    """What a rank saw of a training run.

    `losses`: one for each backward pass. The others are for each step. `sums`: {unit: the gradients that `update`
    got}. `own`: {unit: this rank's gradients alone}, for DDP only. `parameters`: for each unit, what the layers hold
    after the step. `flat`: for each unit, what `unit.parameters` holds. `sent`: bytes. `collectives`: the backend's own
    that the code called. `late`: see `Reductions`. Only if watched: `rest`, bytes of gradients when the step begins,
    and `peak`, the most bytes of gradients at any time.
    """

    losses: list[float]
    sums: list[dict[int, np.ndarray]]
    own: list[dict[int, np.ndarray]]
    parameters: list[list[np.ndarray]]
    flat: list[list[np.ndarray]]
    sent: list[int]
    collectives: list[str]
    rest: list[int]
    late: int = 0
    peak: int = 0


class TrainedUnit(Unit):
    """A unit and what this exercise adds to it.

    `state`: the optimizer's, of this rank's shard; in DDP, of the whole unit. `own`: in DDP only, this rank's gradients
    alone.
    """

    state: State
    own: torch.Tensor | Any


Outcome = tuple[Trained, Trained]  # DDP's and the learner's
Batch = tuple[torch.Tensor, torch.Tensor]  # inputs and targets


def check_step(arrived: Callable, step: Callable, world_size: int, **task: Any) -> list[Outcome]:
    """Check on real ranks that the learner's step matches DDP's to the bit; return what each rank saw."""
    work = Task(**task)
    everyone = _on_ranks(arrived, step, world_size, work)
    outcomes = list(zip(_ddp(world_size, work._replace(watched=False)), everyone, strict=True))
    for number in range(STEPS):
        for check in (_check_sums, _check_parameters):
            for rank, (ddp, mine) in enumerate(outcomes):
                check(f"with {world_size} ranks, step {number}", number, rank, world_size, ddp, mine)
    for rank, (ddp, mine) in enumerate(outcomes):
        for number, (want, got) in enumerate(zip(ddp.losses, mine.losses, strict=True)):
            if got != want:
                where = f"with {world_size} ranks, the loss of backward pass {number} on rank {rank}"
                raise NotYet(f"{where} is {got:.6g}; DDP's is {want:.6g}")
    least, told = (sum(sum(trained.sent) for trained in each) for each in zip(*outcomes, strict=True))
    witnessed(everyone, max(least / work.micro, told), told)  # one reduction a step is enough
    witnessed_terms(everyone, _truth(world_size, work._replace(watched=False))[1])
    return outcomes


def _check_sums(where: str, number: int, rank: int, world_size: int, ddp: Trained, mine: Trained) -> None:
    """Check the gradients that a rank hands to `update` in a step."""
    for unit, whole in ddp.sums[number].items():
        got = mine.sums[number].get(unit)
        if got is None:
            raise NotYet(f"{where}: rank {rank} has not called update for unit {unit}; update every unit")
        shards = whole.reshape(world_size, -1)
        want, own = shards[rank], ddp.own[number][unit].reshape(world_size, -1)[rank]
        if not np.array_equal(got, want):
            element = np.flatnonzero(got != want)[0]
            raise NotYet(
                f"{where}: for unit {unit}, rank {rank} gives update {got[element]:.6g} as element {element}, but the "
                f"sum of its shard is {want[element]:.6g} there; {_wrong_sum(got, own, shards, rank, number)}"
            )


def _wrong_sum(got: np.ndarray, own: np.ndarray, shards: np.ndarray, rank: int, number: int) -> str:
    """Return, in words, what `update` got instead of the sum. `own`: this rank's own gradients of its shard."""
    world_size, want = len(shards), shards[rank]
    others = [other for other in range(world_size) if np.array_equal(got, shards[other])]
    if np.array_equal(got, own):
        return f"these are rank {rank}'s own gradients alone: did it reduce anything?"
    if others:
        return f"this is the shard of rank {others[0]}: rank r keeps chunk r"
    if np.allclose(got, want / world_size, rtol=0.01):
        return "this is the mean already; `update` divides by the number of ranks, so hand it the sum"
    if np.allclose(got, want * world_size, rtol=0.02):
        return "this is the number of ranks times the sum: does it reduce something twice?"
    if np.allclose(got, want, rtol=0.02, atol=0.02 * abs(want).max()):
        return (
            "this is the sum up to rounding, but not to the bit: reduce every backward pass by itself with "
            "ring.reduce_scatter, in bf16, as soon as a unit is complete, and add up the shards in bf16"
        )
    if number:
        return "step 0 was right: does it clean up? (set unit.gradients and unit.reduced back to None)"
    return (
        "is a unit reduced once in each backward pass, when it is complete, is chunk r kept on rank r, and "
        "do the shards of all passes add up? Does it set unit.gradients back to None afterwards?"
    )


def _check_parameters(where: str, number: int, rank: int, world_size: int, ddp: Trained, mine: Trained) -> None:
    """Check the parameters that the layers of a rank compute with after a step."""
    for unit, want in enumerate(ddp.parameters[number]):
        got, flat, whole = mine.parameters[number][unit], mine.flat[number][unit], ddp.flat[number][unit]
        if np.array_equal(got, want):
            continue
        if len(flat) == len(whole) and np.array_equal(flat[: len(want)], want):
            raise NotYet(
                f"{where}: on rank {rank} unit.parameters of unit {unit} is right, but it is a new tensor, and the "
                "layers look at the old one: write into it, as in unit.parameters[begin:end] = ..."
            )
        size = len(whole) // world_size
        old = mine.parameters[number - 1][unit] if number else None
        wrong = sorted({place // size for place in np.flatnonzero(got != want).tolist()})
        fault = f"{where}: after it, the parameters of unit {unit} on rank {rank} differ from DDP's"
        if rank in wrong:
            hint = "write what update returns into unit.parameters[begin:end]"
            raise NotYet(f"{fault}, even in its own shard: {hint}")
        them = f"shard{'s' * (len(wrong) > 1)} {' and '.join(map(str, wrong))}"
        pieces = [slice(shard * size, (shard + 1) * size) for shard in wrong]
        stale = old is not None and all(np.array_equal(got[piece], old[piece]) for piece in pieces)
        unmoved = "; nothing there has changed since the step before" if stale else ""
        raise NotYet(f"{fault}, and from rank {wrong[0]}'s, in {them}: did it gather them?{unmoved}")


def check_memory(arrived: Callable, step: Callable, world_size: int, **task: Any) -> None:
    """Check that a right step keeps only a rank's shard of the gradients, and at most one unit's in full at a time.

    Each rank reports what it holds, beside the learner's code; nothing outside can contradict that. Gradients that are
    kept in anything but tensors are not counted, so each unit must also be reduced when it is complete: what leaves a
    rank can't wait in it.
    """
    outcomes = check_step(arrived, step, world_size, watched=True, **task)
    units = _unit_sizes(Task(**task))
    sizes = [memory.shard_size(sum(unit), world_size) * world_size for unit in units]
    shards = [size // world_size * 2 for size in sizes]  # bytes in bf16
    most = max(
        2 * size + max(2 * max(unit), shard) + sum(shards[number + 1 :])
        for number, (unit, size, shard) in enumerate(zip(units, sizes, shards, strict=True))
    )
    for rank, (_, mine) in enumerate(outcomes):
        who = f"with {world_size} ranks, rank {rank} holds"
        rest = max(mine.rest)
        if rest > sum(shards):
            hint = "does it free the full buffer? A slice is a view, and keeps all of it alive"
            if rest == 2 * sum(shards):
                hint = "does it keep them in fp32, or twice?" if world_size > 2 else f"{hint}. Or is the shard in fp32?"
            raise NotYet(
                f"{who} {rest:,} bytes of gradients after the backward pass; its shard is {sum(shards):,}: {hint}"
            )
        if mine.peak > most:
            raise NotYet(
                f"{who} up to {mine.peak:,} bytes of gradients in the backward pass; with one unit in full at a time "
                f"it is {most:,}: does it reduce each unit as soon as it is complete, and does the last `step` leave "
                "no gradients behind?"
            )
        if mine.late:
            raise NotYet(
                f"with {world_size} ranks, rank {rank} still has {mine.late:,} bytes of complete gradients to send "
                "when the next ones arrive, or when the backward pass ends: reduce each unit as soon as it is complete"
            )


def check_traffic(arrived: Callable, step: Callable, world_size: int, **task: Any) -> None:
    """Check that a right step sends exactly as many bytes from every rank as DDP does."""
    for rank, (ddp, mine) in enumerate(check_step(arrived, step, world_size, **task)):
        for number, (want, got) in enumerate(zip(ddp.sent, mine.sent, strict=True)):
            if got == want:
                continue
            hint = ""
            if 2 * got == 3 * want:
                hint = ": does it all-reduce where a reduce-scatter is enough, or send gradients in fp32?"
            elif got > 1.5 * want:
                hint = ": reduce a unit once, when unit.collect says that all its gradients have arrived"
            raise NotYet(
                f"with {world_size} ranks, rank {rank} sends {got / want:.3g} times what DDP sends, {got:,} bytes in "
                f"step {number} instead of {want:,}{hint}"
            )


def _unit_sizes(task: Task) -> list[list[int]]:
    """Return the number of elements of each tensor of each unit."""
    return [[tensor.numel() for tensor in block.parameters()] for block in _model(task)]


def _on_ranks(arrived: Callable, step: Callable, world_size: int, task: Task) -> list[Trained]:
    """Train with the learner's step on real ranks; return what each rank saw."""
    batches = PerRank([_batches(rank, world_size, task) for rank in range(world_size)])
    start = [tensor.detach() for tensor in _model(task).parameters()]
    everyone = run_on_ranks(_train, world_size, arrived, step, task._replace(seed=0), start, batches, kind=Trained)
    for rank, mine in enumerate(everyone):
        if mine.collectives:
            names = ", ".join(f"dist.{name}" for name in mine.collectives)
            raise NotYet(
                f"rank {rank} calls torch's own {names}, whose bytes the check can't count; use "
                "execute(ring.reduce_scatter(world_size), ...) and execute(ring.all_gather(world_size), ...)"
            )
    return everyone


def _batches(rank: int, world_size: int, task: Task) -> list[Batch]:
    """Return a rank's batches, one for each backward pass."""
    made = partial(tiny.batch, width=task.width, dtype=torch.bfloat16, seed=task.seed)
    return [made(number, rank, world_size) for number in range(STEPS * task.micro)]


def _model(task: Task) -> torch.nn.Sequential:
    return tiny.model(task.depth, task.width, dtype=torch.bfloat16, seed=task.seed, inner=INNER)


def _seen() -> Trained:
    return Trained([], [], [], [], [], [], [], [])


def _ddp(world_size: int, task: Task) -> list[Trained]:
    """Return what each rank sees when DDP trains: all-reduce every complete unit, and update it everywhere."""
    return _truth(world_size, task)[0]


RUNS = 2  # of neighbouring numbers, in each shard, that a check looks for on the wire


@lru_cache(maxsize=64)  # the same checks grade a whole class
def _truth(world_size: int, task: Task) -> tuple[list[Trained], list[set[bytes]]]:
    """Return what `_ddp` does, and what ZeRO-2 must send: some rank's terms of each sum, and what an update changes."""
    models = [_model(task) for _ in range(world_size)]
    everyone = [[TrainedUnit(module, rank, world_size) for module in model] for rank, model in enumerate(models)]
    for units in everyone:
        for unit in units:
            unit.state, unit.own = _new_state(unit.parameters.clone()), None
            for tensor in unit.tensors:
                tensor.register_post_accumulate_grad_hook(partial(_written, unit.collect))
    seen = [_seen() for _ in everyone]
    random, terms = np.random.default_rng((task.seed, STEPS)), list[set[bytes]]()
    batches = [iter(_batches(rank, world_size, task)) for rank in range(world_size)]
    schedule = ring.all_reduce(world_size)
    sizes = [len(unit.parameters) for unit in everyone[0]]
    with _one_thread():
        for _ in range(STEPS):
            for _ in range(task.micro):
                for rank, model in enumerate(models):
                    seen[rank].losses.append(_backward(model, *next(batches[rank])))
                for same in zip(*everyone, strict=True):  # one unit, on every rank
                    terms += _runs([unit.gradients for unit in same], world_size, random)
                    for unit in same:
                        unit.own = unit.gradients.clone() if unit.own is None else unit.own + unit.gradients
                    _carry_out(schedule, [unit.gradients for unit in same])
                    for unit in same:
                        unit.reduced = unit.gradients if unit.reduced is None else unit.reduced + unit.gradients
                        unit.gradients = None
            for rank, (units, trained) in enumerate(zip(everyone, seen, strict=True)):
                trained.sums.append({number: _plain(unit.reduced) for number, unit in enumerate(units)})
                trained.own.append({number: _plain(unit.own) for number, unit in enumerate(units)})
                for unit in units:
                    unit.parameters.copy_(adam(unit.state, unit.reduced, world_size))
                    unit.reduced = unit.own = None
                _note_parameters(trained, units)
                if not rank:  # after an update all ranks hold the same
                    for unit in units:
                        terms += _runs([unit.parameters, unit.state.master], world_size, random)
                bytes_once = sum(int(counted(schedule, size, 2).bytes_sent[rank]) for size in sizes)
                trained.sent.append(task.micro * bytes_once)
    return seen, terms


def _runs(buffers: list[torch.Tensor], world_size: int, random: np.random.Generator) -> list[set[bytes]]:
    """Return the bytes that show `RUNS` places of each shard on the wire: four neighbours in any of `buffers`.

    They may also travel in fp32. Places with zeros are left out.
    """
    size, found = len(buffers[0]) // world_size, []
    for place in np.add.outer(size * np.arange(world_size), random.integers(size - 3, size=RUNS)).flat:
        four = [buffer[place : place + 4].clone() for buffer in buffers]
        if all(numbers.all() for numbers in four):
            found.append({each.view(torch.uint8).numpy().tobytes() for n in four for each in (n, n.float())})
    return found


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute as it does on a rank, to the bit, inside this context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _carry_out(schedule: Schedule, buffers: list[torch.Tensor]) -> None:
    """Do what `execute` does on all ranks, in this process."""
    bounds = schedule.bounds(len(buffers[0])).tolist()
    for step in schedule:
        arriving = [(t, view(buffers[t.src], bounds, t.chunk, t.count).clone()) for t in step]
        for transfer, chunk in arriving:
            place = view(buffers[transfer.dst], bounds, transfer.lands, transfer.count)
            place.add_(chunk) if transfer.combine == REDUCE else place.copy_(chunk)


def _train(
    rank: int,
    world_size: int,
    arrived: Callable,
    step: Callable,
    task: Task,
    start: list[torch.Tensor],
    batches: list[Batch],
) -> Trained:
    """Train from `start` for `STEPS` steps with these functions. Runs beside the learner's code, and only observes."""
    model = _model(task)  # for its layers alone
    for tensor, numbers in zip(model.parameters(), start, strict=True):
        tensor.data.copy_(numbers)
    units = [TrainedUnit(module, rank, world_size) for module in model]
    reductions = Reductions(world_size)
    for unit in units:
        unit.state = _new_state(unit.parameters[unit.mine].clone())
        for tensor in unit.tensors:
            hook = partial(_written, arrived, rank, world_size, unit)
            tensor.register_post_accumulate_grad_hook(partial(reductions.watched, hook, unit))
    seen, left = _seen(), iter(batches)
    held = BytesHeld(
        lambda: {
            "gradients": _gradients(units),
            # known: what this rank was handed, used or not, and the scratch area that `execute` keeps
            "known": [*start, *chain(*batches), *_known(units), scratch(0, like=units[0].parameters)],
        }
    )
    with held if task.watched else contextlib.nullcontext():
        for _ in range(STEPS):
            seen.sums.append({})
            sent = reductions.sent = BytesSent(follow=True)
            for _ in range(task.micro):
                with sent, reductions.of_a_pass():
                    seen.losses.append(_backward(model, *next(left)))
            # whatever is not a parameter, a state or a batch now can only be gradients, wherever it is kept
            seen.rest.append(held.now["gradients"] + held.now["other"])
            with sent:
                _written(step, rank, world_size, units, partial(_update, units, seen, rank))
                _note_parameters(seen, units)
            finished(rank, sent)
            seen.sent.append(sent.total)
            seen.collectives.extend(set(sent.collectives) - set(seen.collectives))
    return seen._replace(late=reductions.late, peak=held.most.get("gradients", 0))


class Reductions:
    """How far a rank is behind with what it must send in a backward pass.

    However units are reduced, a rank sends the other ranks' shards of each, its own terms or sums with them, in bf16.
    `sent`: the meter of what it sends. `late`: the most bytes of complete units that were not sent when another
    gradient had arrived, or at the end of a pass.
    """

    def __init__(self, world_size: int):
        self.world_size, self.sent, self.late = world_size, BytesSent(), 0

    @contextlib.contextmanager
    def of_a_pass(self) -> Iterator[None]:
        """Expect every unit once in this context."""
        self._due, self._before = 0, self.sent.total
        self._arrived: Counter[int] = Counter()
        yield
        self._look()

    def watched(self, hook: Callable, unit: Unit, tensor: torch.Tensor) -> None:
        """Call the hook for a gradient that has arrived."""
        hook(tensor)
        self._look()
        self._arrived[id(unit)] += 1
        if self._arrived[id(unit)] == len(unit.tensors):
            num_elements = sum(each.numel() for each in unit.tensors)
            self._due += 2 * (num_elements - len(unit.parameters) // self.world_size)

    def _look(self) -> None:
        over = 0 if self.sent.unfinished else self.sent.total - self._before  # what nobody receives yet isn't sent
        self.late = max(self.late, self._due - over)


def _note_parameters(seen: Trained, units: list[TrainedUnit]) -> None:
    """Record what the layers hold, and what `unit.parameters` holds."""
    seen.parameters.append([np.concatenate([_plain(tensor) for tensor in unit.tensors]) for unit in units])
    seen.flat.append([_plain(unit.parameters) for unit in units])


def _backward(model: torch.nn.Module, *batch: torch.Tensor) -> float:
    """Run a forward and a backward pass; return the loss."""
    loss = tiny.loss(model, *batch)
    loss.backward()
    return float(loss.item())


def _written(function: Callable, *args: Any) -> None:
    """Call a learner's function; raise `NotYet` if it is not written yet."""
    try:
        function(*args)
    except NotImplementedError:
        raise NotYet(f"{function.__name__} is not written yet") from None


def _update(
    units: list[TrainedUnit], seen: Trained, rank: int, state: State, summed: torch.Tensor, world_size: int
) -> torch.Tensor:
    """Update like `adam`, and record the gradients: this is the `update` that the learner's step gets."""
    number = next((number for number, unit in enumerate(units) if unit.state is state), None)
    if number is None:
        raise NotYet(f"rank {rank} gives update a state that is not unit.state")
    if not isinstance(summed, torch.Tensor):
        raise NotYet(f"for unit {number}, rank {rank} gives update {brief(summed)}; hand it a tensor with sums")
    if summed.shape != state.master.shape:
        raise NotYet(
            f"for unit {number}, rank {rank} gives update a tensor of shape {list(summed.shape)}; its shard has "
            f"{len(state.master)} elements"
        )
    if number in seen.sums[-1]:
        raise NotYet(f"rank {rank} calls update twice for unit {number} in one step")
    seen.sums[-1][number] = _plain(summed)
    return adam(state, summed, world_size)


def _gradients(units: list[TrainedUnit]) -> list[torch.Tensor]:
    """Return the gradients that units and their tensors hold, under whatever names."""
    known = {id(tensor) for tensor in _known(units)}
    held = [value for unit in units for value in vars(unit).values() if isinstance(value, torch.Tensor)]
    held += [tensor.grad for unit in units for tensor in unit.tensors if tensor.grad is not None]
    return [tensor for tensor in held if id(tensor) not in known]


def _known(units: list[TrainedUnit]) -> list[torch.Tensor]:
    states = [unit.state for unit in units]
    return [unit.parameters for unit in units] + [t for s in states for t in (s.master, s.mean, s.square)]


def _plain(tensor: torch.Tensor) -> np.ndarray:
    """Return a flat copy of a tensor's numbers in fp32, which represents every bf16 exactly."""
    return numbers_in("a unit's tensor", tensor).astype(np.float32).ravel()

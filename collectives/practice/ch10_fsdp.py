"""Checks of exercise 10: FSDP from hooks on real ranks, what a stage holds and sends, and which stage to choose.

The truth in part a is a DDP that trains the same model on the same batches. It adds the gradients in the order of the
ranks, as the collectives here do, so the two agree to the bit. The check computes it in its own process, for all ranks
together; the ranks, where the learner's code runs, only report what they see. A rank gets its own rows and its own
shards, but no seed, so it can't compute what only the other ranks have.

The truth in parts b and c comes from `training.memory` and from the bytes that ring schedules send. A **model** and a
**machine** are plain dicts, in the form that the learner's functions receive:

    model = {"num_params": 8_030_261_248, "block_params": 218_112_000, "sequences": 8, "sequence_bytes": 6 * 10**9}
    machine = {"world_size": 64, "memory": 72 * 10**9}
"""

from __future__ import annotations

import contextlib
import gc
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from ..algorithms import ring
from ..measure.held import BytesHeld
from ..measure.wire import BytesSent
from ..ranks import PerRank
from ..training import memory, tiny, traffic
from ..training.sharded import Unit
from . import checks, wall
from .checks import (
    Answered,
    NotYet,
    brief,
    check_rows,
    number_of,
    own_answer,
    refusing_functions,
    sent_by_a_rank,
)
from .on_ranks import numbers_in, run_on_ranks, witnessed, witnessed_terms

WITHOUT = ("torch.distributed.fsdp",)
HOLDS = (".LLAMA_8B", ".LLAMA_70B", ".EIGHT_NODES")  # see `wall`
ON_RANKS = (
    "measure.held",
    "training.memory.shard_size",
    "training.sharded.Unit",
    "training.tiny",
    ".FSDP",
    ".ShardedUnit",
    ".Work",
    "._Watch",
    "._train",
    "._update",
    "._added",
    "._nothing",
)

# Part a: FSDP from hooks


STEPS = 2
LR = 0.05


class Task(NamedTuple):
    """The training of part a: `tiny.model(depth, width)` on `STEPS` batches. `seed`: of the model and the batches."""

    width: int = tiny.WIDTH
    depth: int = 4
    seed: int = 0


class Seen(NamedTuple):
    """What a rank saw of a training run, step by step.

    `losses`: one a step. `shards`: this rank's shard of each unit's parameters after the step. `events`: what began and
    ended, such as "gather 1" (launched), "gathered 1" (waited for), "forward 1" and "forward done 1". `parameters`,
    `gradients`: the most units whose full parameters, and gradients, existed at a time. `left`: units whose full
    parameters or gradients existed after the step. `sent`: bytes. `collectives`: the backend's own that were called.
    `kept`: the most bytes of other tensors that hooks kept from one to the next.
    """

    losses: list[float]
    shards: list[list[np.ndarray]]
    events: list[list[str]]
    parameters: int
    gradients: int
    left: int
    sent: list[int]
    collectives: list[str]
    kept: int = 0


class ShardedUnit(Unit):
    """A layer whose parameters this rank holds a shard of, and in full only for a while.

    `shard`: this rank's shard, [n]. `parameters`: all of them, [world_size * n]; the layer computes with these. Their
    memory exists from `allocate()` to `free()`. `gradients`: all of this rank's own, laid out the same, or None.
    `grad`: None; this rank's shard of their mean over all ranks belongs here.
    """

    def __init__(self, module: torch.nn.Module, rank: int, world_size: int):
        super().__init__(module, rank, world_size)
        self.shard = self.parameters[self.mine].clone()
        self.grad: torch.Tensor | Any = None
        self.is_arriving = False  # a gather writes to the parameters, and nobody has waited for it
        self.free()

    def allocate(self) -> None:
        """Make memory for the full parameters, unless they have it. What is in it is arbitrary."""
        if not self.is_whole:
            self.parameters.untyped_storage().resize_(self.parameters.numel() * self.parameters.element_size())

    def free(self) -> None:
        """Let go of the memory of the full parameters; raise `NotYet` while a gather writes to it."""
        if self.is_arriving:
            raise NotYet("a unit is freed while its gather is under way: wait() for the gather first")
        self.parameters.untyped_storage().resize_(0)

    @property
    def is_whole(self) -> bool:
        """Whether the full parameters have memory."""
        return self.parameters.untyped_storage().nbytes() > 0


class Work:
    """A collective under way. `wait()` returns when it is done."""

    def __init__(self, requests: list[Any], finish: Callable[[], None], buffers: list[torch.Tensor]):
        self._requests, self._finish, self._buffers = requests, finish, buffers

    def wait(self) -> None:
        """Wait until the collective is done; waiting twice is once too many, but harmless."""
        requests, self._requests = self._requests, []
        for request in requests:
            request.wait()
        finish, self._finish, self._buffers = self._finish, _nothing, []
        finish()


def _nothing() -> None:
    pass


class FSDP:
    """What the learner's hooks get: a model's units, two collectives, and room for what is under way.

    `units`: the layers, in the order of the forward pass. `works`, `reductions`: a dict and a list, empty at first; the
    learner's. Launch a collective on all ranks in the same order.
    """

    def __init__(self, model: torch.nn.Sequential, rank: int, world_size: int):
        self.rank, self.world_size = rank, world_size
        self.units = [ShardedUnit(module, rank, world_size) for module in model]
        self.works: dict[int, Work] = {}
        self.reductions: list[Any] = []
        self._launched: list[Work] = []  # kept: gloo hangs on a request that is forgotten before it is done
        self._ready: set[int] = set()  # units whose parameters are gathered
        self._reducing: set[int] = set()  # units whose gradients a reduction still reads
        self._computed: dict[int, weakref.ref] = {}  # the last gradients of each unit, which it may have let go
        self._watch = _Watch(self)

    def all_gather(self, output: torch.Tensor, shard: torch.Tensor) -> Work:
        """Launch an all-gather of the ranks' shards [n] into `output` [world_size * n]; return at once.

        As `dist.all_gather_into_tensor(output, shard, async_op=True)`.
        """
        number = self._unit(output, "parameters", "all_gather writes to")
        unit, size = self.units[number], len(self.units[number].shard)
        if not unit.is_whole:
            raise NotYet(f"rank {self.rank} gathers unit {number} into parameters without memory: allocate() it first")
        if not isinstance(shard, torch.Tensor) or shard.shape != (size,):
            raise NotYet(f"rank {self.rank} gathers unit {number} from something other than its shard")
        if unit.is_arriving:
            raise NotYet(f"rank {self.rank} gathers unit {number} while its gather is under way: launch it once")
        self._watch.note("gather", number)
        self._ready.discard(number)
        unit.is_arriving = True
        pieces = list(output.view(self.world_size, size))
        pieces[self.rank].copy_(shard)
        sent = shard.clone()  # the shard may change, and what is under way may not
        return self._exchange([sent] * self.world_size, pieces, partial(self._gathered, number))

    def _gathered(self, number: int) -> None:
        self.units[number].is_arriving = False
        if self.units[number].is_whole:
            self._ready.add(number)
        self._watch.note("gathered", number)

    def reduce_scatter(self, output: torch.Tensor, gradients: torch.Tensor) -> Work:
        """Launch a reduce-scatter that adds the ranks' `gradients` [world_size * n]; this rank's part goes to `output`.

        As `dist.reduce_scatter_tensor(output, gradients, async_op=True)`. Holds `gradients` until it is waited for.
        """
        number = self._unit(gradients, "gradients", "reduce_scatter reads")
        size = len(self.units[number].shard)
        if not isinstance(output, torch.Tensor) or output.shape != (size,):
            raise NotYet(f"rank {self.rank}, unit {number}: reduce_scatter writes to a tensor like unit.shard")
        self._watch.note("reduce", number)
        self._reducing.add(number)
        parts = list(gradients.view(self.world_size, size))
        terms = [part if rank == self.rank else torch.empty_like(part) for rank, part in enumerate(parts)]
        return self._exchange(parts, terms, partial(self._reduced, number, output, terms))

    def _reduced(self, number: int, output: torch.Tensor, terms: list[torch.Tensor]) -> None:
        output.copy_(_added(terms))
        self._reducing.discard(number)
        self._watch.note("reduced", number)

    def _exchange(self, parts: list[torch.Tensor], places: list[torch.Tensor], finish: Callable[[], None]) -> Work:
        """Send part r to rank r, and receive from it into place r."""
        tag = len(self._launched)  # a collective's own: every rank launches in the same order
        requests = []
        for distance in range(1, self.world_size):
            dst, src = (self.rank + distance) % self.world_size, (self.rank - distance) % self.world_size
            requests.append(dist.isend(parts[dst], dst, tag=tag))
            requests.append(dist.irecv(places[src], src, tag=tag))
        self._launched.append(Work(requests, finish, [*parts, *places]))
        return self._launched[-1]

    def _unit(self, tensor: Any, name: str, does: str) -> int:
        """Return the number of the unit whose buffer this is; raise `NotYet` if it is none's."""
        for number, unit in enumerate(self.units):
            theirs = [getattr(unit, name)]
            if name == "gradients" and number in self._computed:
                theirs.append(self._computed[number]())
            if tensor is not None and any(tensor is each for each in theirs):
                return number
        hint = "; to divide first, divide unit.gradients itself" if name == "gradients" else ""
        raise NotYet(f"rank {self.rank}: {does} unit.{name}; this is another tensor, or None{hint}")


def _added(terms: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum of the ranks' terms, in the order of the ranks: floats don't add up the same in another."""
    total = terms[0].clone()
    for term in terms[1:]:
        total += term
    return total


class _Watch:
    """What happens on a rank: the events, how many units are whole, and what else the hooks keep."""

    def __init__(self, fsdp: FSDP):
        self.fsdp = fsdp
        self.events: list[str] = []
        self.parameters = self.gradients = self.kept = 0
        self.held = BytesHeld(lambda: {"given": self._given()})  # watches the hooks alone, so it sees no activations
        self._lasting = [each for unit in fsdp.units for each in (unit.parameters, unit.shard)]
        self._full = max(unit.parameters.numel() * unit.parameters.element_size() for unit in fsdp.units)
        shards = [unit.shard.nbytes for unit in fsdp.units]
        self._needed = sum(shards) + max(shards)
        self._complete: set[int] = set()  # units whose gradients this rank has, and hasn't seen reduced

    def _given(self) -> list[torch.Tensor]:
        """Return the tensors that a unit and a collective under way hold by rights: none is larger than a unit."""
        passing = [unit.gradients for unit in self.fsdp.units]
        passing += [each for work in self.fsdp._launched for each in work._buffers]
        tensors = [each for each in self._lasting + passing if isinstance(each, torch.Tensor)]
        return [each for each in tensors if each.untyped_storage().nbytes() <= self._full]

    def keeps(self) -> None:
        """Note how many bytes hooks keep until the next one, besides what they are given."""
        if self.kept <= self._needed < self.held.now["other"]:
            gc.collect()  # objects that only refer to each other keep nothing
        self.kept = max(self.kept, self.held.now["other"])

    def note(self, event: str, number: int) -> None:
        self.events.append(f"{event} {number}")
        if event == "backward done":
            self._complete.add(number)
        elif event == "reduced":
            self._complete.discard(number)
        self.parameters = max(self.parameters, sum(unit.is_whole for unit in self.fsdp.units))
        self.gradients = max(self.gradients, len(self.with_gradients()))

    def with_gradients(self) -> set[int]:
        """Return the units whose full gradients exist: those that have them, and those that are not reduced yet.

        The latter count under whatever name, or in whatever form, a rank keeps them: they have not left it.
        """
        having = {k for k, unit in enumerate(self.fsdp.units) if unit.gradients is not None}
        return self.fsdp._reducing | self._complete | having

    def computes(self, event: str, number: int) -> None:
        """Note that a unit computes now; raise `NotYet` unless its parameters are there."""
        fsdp, unit = self.fsdp, self.fsdp.units[number]
        where = f"rank {fsdp.rank}: unit {number} is about to compute ({event})"
        if not unit.is_whole:
            raise NotYet(f"{where}, but its parameters have no memory: gather it, and don't free it before")
        if number not in fsdp._ready:
            raise NotYet(f"{where}, but nobody has waited for its gather since it was allocated: wait() for it first")
        self.note(event, number)


def _train(
    rank: int,
    world_size: int,
    before_forward: Callable,
    after_forward: Callable,
    before_backward: Callable,
    after_backward: Callable,
    finish: Callable,
    task: Task,
    shards: list[torch.Tensor],
    batches: list[tuple[torch.Tensor, torch.Tensor]],
) -> Seen:
    """Train for `STEPS` steps with these hooks. Runs beside the learner's code, and only observes."""
    model = tiny.model(task.depth, task.width)  # for its layers alone: the ranks' shards hold other parameters
    fsdp = FSDP(model, rank, world_size)
    for unit, shard in zip(fsdp.units, shards, strict=True):
        unit.shard.copy_(shard)
    watch = fsdp._watch

    def call(hook: Callable, *number: int) -> None:
        try:
            with watch.held:
                hook(fsdp, *number)
        except NotImplementedError:
            raise NotYet(f"{hook.__name__} is not written yet") from None
        fsdp._ready = {k for k in fsdp._ready if fsdp.units[k].is_whole}
        watch.keeps()

    def forward(number: int, *_: Any) -> None:
        call(before_forward, number)
        watch.computes("forward", number)

    def forward_done(number: int, _module: Any, _inputs: Any, output: torch.Tensor) -> None:
        watch.note("forward done", number)
        call(after_forward, number)
        output.register_hook(lambda _: backward(number))

    def backward(number: int) -> None:
        call(before_backward, number)
        watch.computes("backward", number)

    def arrived(number: int, tensor: torch.nn.Parameter) -> None:
        complete = fsdp.units[number].collect(tensor)
        watch.held.track([fsdp.units[number].gradients])
        if complete:
            fsdp._computed[number] = weakref.ref(fsdp.units[number].gradients)
            watch.note("backward done", number)
            call(after_backward, number)

    for number, unit in enumerate(fsdp.units):
        unit.module.register_forward_pre_hook(partial(forward, number))
        unit.module.register_forward_hook(partial(forward_done, number))
        for tensor in unit.tensors:
            tensor.register_post_accumulate_grad_hook(partial(arrived, number))

    seen = Seen([], [], [], 0, 0, 0, [], [])
    for inputs, targets in batches:
        watch.events = []
        with BytesSent() as sent:
            loss = tiny.loss(model, inputs, targets)
            loss.backward()
            call(finish)
            seen.losses.append(float(loss.item()))
            left = {k for k, unit in enumerate(fsdp.units) if unit.is_whole} | watch.with_gradients()
            for number, unit in enumerate(fsdp.units):
                _update(rank, number, unit)
            whose = f"rank {rank}: the shard of unit"
            seen.shards.append([numbers_in(f"{whose} {n}", unit.shard) for n, unit in enumerate(fsdp.units)])
        seen.sent.append(sent.total)
        seen.collectives.extend(set(sent.collectives) - set(seen.collectives))
        seen.events.append(watch.events)
        seen = seen._replace(left=max(seen.left, len(left)))
    return seen._replace(parameters=watch.parameters, gradients=watch.gradients, kept=watch.kept)


def _update(rank: int, number: int, unit: ShardedUnit) -> None:
    """Take a step of SGD on a shard; raise `NotYet` if it has no gradient."""
    if not isinstance(unit.grad, torch.Tensor) or unit.grad.shape != unit.shard.shape:
        raise NotYet(
            f"rank {rank}: after finish, unit {number} has {brief(unit.grad)} as its grad; it must be this rank's "
            "shard of the gradients' mean"
        )
    unit.shard -= LR * unit.grad
    unit.grad = None


# The mean of the ranks' terms, to the bit. The course's DDP divides the sum; torch's and chapter 8's divide first.
MEANS: tuple[Callable[[list[torch.Tensor], int], torch.Tensor], ...] = (
    lambda terms, count: _added(terms) / count,
    lambda terms, count: _added([term / count for term in terms]),
    lambda terms, count: _added([term * (1 / count) for term in terms]),
    lambda terms, count: _added(terms) * (1 / count),
)


PAIRS = 2  # of neighbouring numbers, in each buffer that a rank sends from, that a check looks for on the wire


@lru_cache(maxsize=64)  # the same checks grade a whole class
def _truth(world_size: int, task: Task, means: int = 0) -> tuple[list[Seen], list[set[bytes]]]:
    """Return the losses and the shards that each rank sees when DDP trains, and bytes that each rank of FSDP must send.

    `means`: which of `MEANS`. The bytes are of its shards, and of its gradients, divided or not: as torch's first FSDP
    does, some halve them before the sum, and divide the rest after it.
    """
    models = [tiny.model(task.depth, task.width, seed=task.seed) for _ in range(world_size)]
    everyone = [[Unit(module, rank, world_size) for module in model] for rank, model in enumerate(models)]
    for units in everyone:
        for unit in units:
            for tensor in unit.tensors:
                tensor.register_post_accumulate_grad_hook(partial(_collected, unit))
    seen = [Seen([], [], [], 0, 0, 0, [], []) for _ in everyone]
    random, terms = np.random.default_rng((task.seed, STEPS)), list[set[bytes]]()
    with _one_thread():
        for step in range(STEPS):
            for rank, model in enumerate(models):
                loss = tiny.loss(model, *_batches(rank, world_size, task)[step])
                loss.backward()
                seen[rank].losses.append(loss.item())
            for same in zip(*everyone, strict=True):  # one unit, on every rank
                for rank, unit in enumerate(same):
                    parts = list(unit.gradients.view(world_size, -1))
                    away = parts[:rank] + parts[rank + 1 :]
                    terms += _pairs([unit.parameters[unit.mine]], random)
                    for each in away:
                        terms += _pairs([each, each / 2, each / world_size, each * (1 / world_size)], random)
                mean = MEANS[means]([unit.gradients for unit in same], world_size)
                for unit in same:
                    unit.parameters -= LR * mean
                    unit.gradients = None
            for rank, units in enumerate(everyone):
                seen[rank].shards.append([unit.parameters[unit.mine].numpy().copy() for unit in units])
    return seen, terms


def _pairs(forms: list[torch.Tensor], random: np.random.Generator) -> list[set[bytes]]:
    """Return `PAIRS` neighbours at random, each as its bytes in all forms; fewer if there are zeros among them."""
    pairs = [
        [form[place : place + 2].numpy() for form in forms] for place in random.integers(len(forms[0]) - 1, size=PAIRS)
    ]
    return [{form.tobytes() for form in pair} for pair in pairs if pair[0].all()]


def _collected(unit: Unit, tensor: torch.nn.Parameter) -> None:
    unit.collect(tensor)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute as it does on a rank, to the bit, inside this context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _batches(rank: int, world_size: int, task: Task) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return a rank's batches, one a step."""
    steps = range(STEPS)
    return [tiny.batch(step, rank, world_size, width=task.width, seed=task.seed) for step in steps]


def _shards(world_size: int, task: Task) -> list[list[torch.Tensor]]:
    """Return each rank's shards of the initial parameters, one of each unit."""
    units = [Unit(module, 0, world_size) for module in tiny.model(task.depth, task.width, seed=task.seed)]
    wholes = [unit.parameters.view(world_size, -1) for unit in units]
    return [[whole[rank].clone() for whole in wholes] for rank in range(world_size)]  # no view of the whole


Hooks = tuple[Callable, Callable, Callable, Callable, Callable]


def check_losses(*hooks: Callable, world_size: int, **task: Any) -> list[Seen]:
    """Check on real ranks that these five hooks train as DDP does, to the bit; return what each rank saw."""
    order = Task(**task)
    own = PerRank(_shards(world_size, order)), PerRank(_batches(rank, world_size, order) for rank in range(world_size))
    everyone = run_on_ranks(_train, world_size, *hooks, order._replace(seed=0), *own, kind=Seen)
    for rank, mine in enumerate(everyone):
        if mine.collectives:
            names = ", ".join(f"dist.{name}" for name in mine.collectives)
            raise NotYet(f"rank {rank} calls {names}; use fsdp.all_gather and fsdp.reduce_scatter, which are counted")
        if [len(mine.losses), len(mine.shards), len(mine.events), len(mine.sent)] != [STEPS] * 4:
            raise NotYet(f"with {world_size} ranks, rank {rank} doesn't report {STEPS} steps")
    means = _means_of(everyone, world_size, order)
    least = sum(sum(_bytes_allowed(world_size, order)[0] for _ in range(STEPS)) for _ in everyone)
    witnessed(everyone, least / 3)  # one reduction of every gradient, whatever is kept
    witnessed_terms(everyone, _truth(world_size, order, means)[1])
    return everyone


def _means_of(everyone: list[Seen], world_size: int, task: Task) -> int:
    """Return by which of `MEANS` the ranks trained; raise `NotYet` where the last of them stops fitting."""
    left = list(range(len(MEANS)))
    for step in range(STEPS):
        faults = {}
        for means in left:
            try:
                _check_step(step, everyone, _truth(world_size, task, means)[0], world_size)
            except NotYet as fault:
                faults[means] = fault
        left = [means for means in left if means not in faults]
        if not left:
            raise faults[min(faults)]
    return left[0]


def _check_step(step: int, everyone: list[Seen], right: list[Seen], world_size: int) -> None:
    """Check the ranks' losses and shards in one step."""
    for rank, (ddp, mine) in enumerate(zip(right, everyone, strict=True)):
        where = f"with {world_size} ranks, step {step}, rank {rank}"
        if mine.losses[step] != ddp.losses[step]:
            early = ". Step 0's is right: are parameters from before the update used after it?" if step else ""
            raise NotYet(f"{where}: the loss is {mine.losses[step]:.9g}; DDP's is {ddp.losses[step]:.9g}{early}")
        _check_shards(where, mine.shards[step], ddp.shards[step], world_size)


def _check_shards(where: str, got: list[np.ndarray], want: list[np.ndarray], world_size: int) -> None:
    """Check a rank's shards of all units after a step; name the slip if it is a common one."""
    if [shard.shape for shard in got] != [shard.shape for shard in want]:
        raise NotYet(f"{where}: the shards don't have the shapes that they began with")
    for number, (mine, right) in enumerate(zip(got, want, strict=True)):
        if not np.array_equal(mine, right):
            element = int(np.flatnonzero(mine != right)[0])
            close = np.allclose(mine, right, rtol=1e-4, atol=1e-6)
            hint = (
                ": this is DDP's up to rounding. Let reduce_scatter add, then divide by the number of ranks"
                if close
                else f": is unit.grad the mean, the sum over all {world_size} ranks divided by {world_size}, and were "
                "the old gradients dropped (unit.gradients = None)?"
            )
            raise NotYet(
                f"{where}: after the update, element {element} of unit {number}'s shard is {mine[element]:.9g}; DDP's "
                f"is {right[element]:.9g}{hint}"
            )


def check_memory(*hooks: Callable, world_size: int, **task: Any) -> None:
    """Check that right hooks hold at most two units in full at a time, and none after the step.

    Gradients count until their reduction is waited for, in whatever form a rank keeps them. What hooks keep in tensors
    of their own may be no more than the shards of all gradients and one more, to work with. Each rank reports this,
    beside the learner's code; nothing outside can contradict that.
    """
    shards = [4 * memory.shard_size(size, world_size) for size in _unit_sizes(Task(**task))]
    for rank, mine in enumerate(check_losses(*hooks, world_size=world_size, **task)):
        who = f"with {world_size} ranks, rank {rank} holds"
        if mine.parameters > 2:
            raise NotYet(
                f"{who} the full parameters of {mine.parameters} units at a time; 2 are enough, the one that computes "
                "and the next: free() each as soon as it has computed, and gather no further ahead"
            )
        if mine.gradients > 2:
            raise NotYet(
                f"{who} the full gradients of {mine.gradients} units at a time; 2 are enough, the one that computes "
                "and the one before it: wait for its reduction when the next gradients are complete, and drop them"
            )
        if mine.left:
            raise NotYet(
                f"{who} {mine.left} unit{'s' * (mine.left > 1)} in full after the step; then only shards may be left: "
                "free the parameters, wait for all reductions, and set unit.gradients to None"
            )
        if mine.kept > sum(shards) + max(shards):
            raise NotYet(
                f"{who} {mine.kept:,} bytes in tensors of its own from one hook to the next, where "
                f"{sum(shards) + max(shards):,} are allowed, the shards of all gradients and one more: does it keep "
                "parameters or gradients in full under other names?"
            )


def check_overlap(*hooks: Callable, world_size: int, **task: Any) -> None:
    """Check by the order of events that right hooks communicate while units compute."""
    last = Task(**task).depth - 1
    for rank, mine in enumerate(check_losses(*hooks, world_size=world_size, **task)):
        for step, events in enumerate(mine.events):
            where = f"with {world_size} ranks, rank {rank}, step {step}"
            turn = events.index(f"forward done {last}")
            for number in range(last):
                _check_beside(where, events[:turn], "gather", number + 1, f"forward {number}", f"forward done {number}")
            for number in range(last, 0, -1):
                during = f"backward {number}", f"backward done {number}"
                freed = events.index(f"forward done {number - 1}")  # the earliest that it may be gathered again
                _check_beside(where, events[freed:], "gather", number - 1, *during)
                during = f"backward {number - 1}", f"backward done {number - 1}"
                _check_beside(where, events[turn:], "reduce", number, *during)


def _check_beside(where: str, events: list[str], what: str, number: int, begins: str, ends: str) -> None:
    """Check that unit `number` is gathered, or reduced, from before another unit computes until after it has."""
    past = {"gather": "gathered", "reduce": "reduced"}[what]
    start, end = _position(events, begins), _position(events, ends)
    early = [place for place, event in enumerate(events[:start]) if event == f"{what} {number}"]
    launched = early[-1] if early else _position(events, f"{what} {number}")
    waited = launched + _position(events[launched:], f"{past} {number}")
    computing = f"unit {begins.split()[1]} computes ({begins.split()[0]})"
    if launched == len(events):
        raise NotYet(f"{where}: unit {number} isn't {past} in that pass; launch its {what} before {computing}")
    if launched > start:
        raise NotYet(f"{where}: the {what} of unit {number} is launched only after {computing}; launch it before")
    if waited < end:
        raise NotYet(
            f"{where}: the {what} of unit {number} is waited for before {computing}, so nothing overlaps: wait only "
            "when its result is needed"
        )


def _position(events: list[str], event: str) -> int:
    """Return when an event happens first; after all others if it doesn't."""
    return events.index(event) if event in events else len(events)


def _unit_sizes(task: Task) -> list[int]:
    """Return the number of parameters of each unit."""
    return [sum(tensor.numel() for tensor in block.parameters()) for block in tiny.model(task.depth, task.width)]


def _bytes_allowed(world_size: int, task: Task) -> tuple[float, float]:
    """Return the fewest and the most bytes a rank may send in a step: the last unit may stay between the passes."""
    shards = [4 * memory.shard_size(size, world_size) * (world_size - 1) for size in _unit_sizes(task)]
    return 3 * sum(shards) - shards[-1], 3 * sum(shards)


def check_traffic(*hooks: Callable, world_size: int, **task: Any) -> None:
    """Check that right hooks gather each unit once a pass and reduce it once, and send nothing else."""
    everyone = check_losses(*hooks, world_size=world_size, **task)
    order = Task(**task)
    least, most = _bytes_allowed(world_size, order)
    for rank, mine in enumerate(everyone):
        for step, sent in enumerate(mine.sent):
            where = f"with {world_size} ranks, rank {rank}, step {step}"
            if not least <= sent <= most:
                fault = (
                    "does it launch a gather twice, of a unit that is there or under way?"
                    if sent > most
                    else "does it keep parameters between the passes?"
                )
                raise NotYet(
                    f"with {world_size} ranks, rank {rank} sends {sent:,} bytes in step {step}; two gathers and a "
                    f"reduce-scatter of every unit are {most:,.0f} (the last unit may stay: {least:,.0f}): {fault}"
                )
            for number in range(order.depth):
                _check_counts(where, mine.events[step], number, is_last=number == order.depth - 1)
    witnessed(everyone, STEPS * world_size * least, STEPS * world_size * most)


def _check_counts(where: str, events: list[str], number: int, is_last: bool) -> None:
    """Check how often a unit is gathered and reduced in a step. The last one may stay between the passes."""
    gathers, reductions = events.count(f"gather {number}"), events.count(f"reduce {number}")
    if gathers not in ((1, 2) if is_last else (2,)):
        raise NotYet(f"{where}: unit {number} is gathered {gathers} times; gather it once in each pass")
    if reductions != 1:
        raise NotYet(f"{where}: unit {number} is reduced {reductions} times; reduce it once")


# Part b: what a stage holds and sends


Model = Mapping[str, Any]
Machine = Mapping[str, Any]
Choice = tuple[int, int] | str  # (stage, micro-batches), or NONE

GB = 1e9
NONE = "none"  # the answer where nothing fits
STAGES = tuple(memory.STAGES)
RECIPE = memory.MIXED_ADAM
BF16 = RECIPE.parameters

LLAMA_8B = {"num_params": 8_030_261_248, "block_params": 218_112_000, "sequences": 8, "sequence_bytes": 6 * 10**9}
LLAMA_70B = {"num_params": 70_553_706_496, "block_params": 855_654_400, "sequences": 8, "sequence_bytes": 14 * 10**9}
"""Llama 3, with a GPU's share of the batch in a step: so many sequences of 8,192 tokens, and what the backward pass
needs of one of them if layers are recomputed."""

EIGHT_NODES = {"world_size": 64, "memory": 72 * 10**9}
"""The running case: 8 nodes of 8 H100 of 80 GB, less a reserve of 8 GB."""


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, to count by the library. Runs beside the learner's code."""
    counts = memory.at_rest, memory.of_units, memory.at_peak, traffic.step, traffic.sent, needs, passes, sends, best
    with checks.without_the_library(), refusing_functions(*counts), wall.without(*WITHOUT):
        yield


class Need(NamedTuple):
    """Bytes that a rank needs at its peak: its own share, two blocks that are whole, and activations."""

    parameters: float
    gradients: float
    optimizer: float
    whole: float
    activations: float

    @property
    def total(self) -> float:
        """Return the sum of all parts, in bytes."""
        return sum(self)


IN_WORDS = ("parameters", "gradients", "optimizer state", "two blocks whole", "activations")  # the parts of a `Need`


def micro_batches(model: Model) -> list[int]:
    """Return the numbers of micro-batches that a model's sequences can be cut into: powers of two."""
    return [2**power for power in range(model["sequences"].bit_length()) if model["sequences"] % 2**power == 0]


def needs(model: Model, world_size: int, stage: int, micro: int) -> Need:
    """Return what a rank needs at its peak, in bytes, if it trains `micro` micro-batches one after the other.

    A rank always holds its shares (`memory.at_rest`). Two blocks hold whole what the stage shards of parameters and
    gradients: one computes, while the next is gathered or the one before it reduced.
    """
    sharded = RECIPE.gradients * (stage >= 2) + RECIPE.parameters * (stage >= 3)
    activations = model["sequences"] // micro * model["sequence_bytes"]
    held = memory.at_rest(model["num_params"], world_size, stage, RECIPE)
    return Need(*held, 2 * sharded * model["block_params"], activations)


def passes(stage: int, micro: int) -> int:
    """Return how often all parameters, or all gradients, go around a ring in a step.

    Stages 0 and 1 add up the micro-batches' gradients first. From stage 2 on a rank keeps only its shard between two
    micro-batches, so it reduces those of each; at stage 3 it also gathers the parameters twice for each.
    """
    of_a_step = sum(traffic.PASSES[name] for name, _ in traffic.COLLECTIVES[stage])
    if stage < 2:
        return of_a_step
    return of_a_step * micro if stage == 3 else of_a_step - 1 + micro


def sends(model: Model, world_size: int, stage: int, micro: int) -> float:
    """Return the bytes that a rank sends in a step. A ring's all-gather sends as much as its reduce-scatter."""
    return passes(stage, micro) * sent_by_a_rank(ring.all_gather)(model["num_params"], BF16, world_size)


def check_peak(function: Callable, cases: Iterable[tuple[Model, int]]) -> None:
    """Check that `function(model, world_size, stage, micro)` is a rank's peak in bytes.

    `cases`: (model, world_size).
    """
    rows = []
    for model, world_size in cases:
        for stage in STAGES:
            for micro in micro_batches(model):
                call = f"{function.__name__}(model, {world_size}, {stage}, {micro}), for {described(model)},"
                got = number_of(own_answer(__name__, function, dict(model), world_size, stage, micro, call=call), call)
                need = needs(model, world_size, stage, micro)
                words = f"{call} returns {got:,.0f}, but a rank needs {need.total:,.0f} bytes: {_parts(need)}"
                rows.append(Answered(words, got, need.total, _peak_slips(need, model, world_size, stage)))
    check_rows(rows, words=lambda row: row.call)


def _peak_slips(need: Need, model: Model, world_size: int, stage: int) -> dict[str, float]:
    """Return the usual mistakes in a peak, each with the number of bytes that it gives."""
    block = model["block_params"]
    gradients, parameters = 2 * RECIPE.gradients * block, 2 * RECIPE.parameters * block
    everything = model["sequences"] * model["sequence_bytes"]
    by_4 = RECIPE.moments / RECIPE.optimizer
    at_stage_3 = memory.at_rest(model["num_params"], world_size, 3, RECIPE)

    def total(**parts: float) -> float:
        return need._replace(**parts).total

    return {
        "this is in GB; return bytes": need.total / GB,
        "the activations are missing": total(activations=0),
        "only one micro-batch's activations are there at a time": total(activations=everything),
        "a micro-batch has several sequences; this counts the activations of one": total(
            activations=model["sequence_bytes"]
        ),
        "activations are each rank's own: no stage shards them": total(activations=need.activations / world_size),
        "the blocks that are whole for a while are missing": total(whole=0),
        "two blocks are whole at a time, and each of their elements takes 2 bytes": total(whole=need.whole / 2),
        "the gradients of the blocks that are whole are missing": total(whole=parameters if stage >= 3 else 0),
        "the parameters of the blocks that are whole are missing": total(whole=gradients if stage >= 2 else 0),
        "at stage 2 every rank holds all parameters, so add only the blocks' gradients": total(
            whole=gradients + parameters if stage >= 2 else 0
        ),
        "at stage 2 the gradients are sharded too: two blocks' are whole for a while": total(
            whole=gradients + parameters if stage >= 3 else 0
        ),
        "add the blocks only to what is sharded; what is held whole contains them already": total(
            whole=gradients + parameters
        ),
        "the parameters are not sharded at stage 2": total(
            parameters=at_stage_3.parameters if stage >= 2 else need.parameters
        ),
        "the parameters are whole at stage 2; only stage 3 shards them": total(
            parameters=at_stage_3.parameters if stage >= 2 else need.parameters,
            whole=gradients + parameters if stage >= 2 else 0,
        ),
        "the gradients are not sharded at stage 1": total(
            gradients=at_stage_3.gradients if stage >= 1 else need.gradients
        ),
        "16 bytes are what a parameter costs in all; the optimizer's part is 12": total(
            optimizer=need.optimizer * 16 / RECIPE.optimizer
        ),
        "the optimizer's copy of the parameters in fp32 is missing": total(optimizer=need.optimizer * by_4),
        "the optimizer's state is not sharded at stage 0": total(optimizer=at_stage_3.optimizer),
    }


def check_sent(function: Callable, cases: Iterable[tuple[Model, int]]) -> None:
    """Check that `function(model, world_size, stage, micro)` is the bytes a rank sends in a step.

    `cases`: (model, world_size). The right number is counted on the ring's schedule.
    """
    rows = []
    for model, world_size in cases:
        for stage in STAGES:
            for micro in micro_batches(model):
                call = f"{function.__name__}(model, {world_size}, {stage}, {micro}), for {described(model)},"
                got = number_of(own_answer(__name__, function, dict(model), world_size, stage, micro, call=call), call)
                want = sends(model, world_size, stage, micro)
                words = f"{call} returns {got:,.0f}, but a rank sends {want:,.0f} bytes"
                rows.append(Answered(words, got, want, _sent_slips(want, model, world_size, stage, micro)))
    check_rows(rows, words=lambda row: row.call)


def _sent_slips(want: float, model: Model, world_size: int, stage: int, micro: int) -> dict[str, float]:
    """Return the usual mistakes in the bytes of a step, each with the number that it gives."""
    once = (world_size - 1) / world_size * BF16 * model["num_params"]  # a reduce-scatter, or an all-gather

    def by_stage(*rounds: float) -> float:
        """Return the bytes of so many passes round the ring. Right are 2, 2, micro + 1 and 3 micro."""
        return rounds[stage] * once

    return {
        "these are elements, not bytes": want / BF16,
        "this is in GB; return bytes": want / GB,
        "this leaves out the factor (P-1)/P: a rank never sends all of its P chunks": want
        * (world_size / (world_size - 1)),
        "this counts all ranks together; count one rank": want * world_size,
        "this counts 4 bytes each; what travels is in bfloat16": 2 * want,
        "stage 1 doesn't all-reduce: a reduce-scatter is enough, and then an all-gather": by_stage(
            2, 3, micro + 1, 3 * micro
        ),
        "stages 1 and 2 also share the updated parameters: an all-gather is missing": by_stage(2, 1, micro, 3 * micro),
        "an all-reduce is a reduce-scatter and an all-gather; this counts it once": by_stage(
            1, 2, micro + 1, 3 * micro
        ),
        "stage 3 gathers before the forward pass and again before the backward pass: this counts one gather": by_stage(
            2, 2, micro + 1, 2 * micro
        ),
        "stage 3 doesn't all-reduce, and the next forward pass gathers what the update changed: one too many": by_stage(
            2, 2, micro + 1, 4 * micro
        ),
        "from stage 2 on, each micro-batch's gradients are reduced; this counts one reduction a step": by_stage(
            2, 2, 2, 2 * micro + 1
        ),
        "this counts a step of one micro-batch; from stage 2 on, each one communicates": by_stage(2, 2, 2, 3),
        "at stage 2, each micro-batch's gradients are reduced: only shards may rest between two": by_stage(
            2, 2, 2, 3 * micro
        ),
        "at stage 3, each micro-batch gathers and reduces": by_stage(2, 2, micro + 1, 3),
        "stages 0 and 1 add up the micro-batches' gradients before they communicate, once a step": by_stage(
            2 * micro, micro + 1, micro + 1, 3 * micro
        ),
        "stage 2 gathers the updated parameters once a step, not for each micro-batch": by_stage(
            2, 2, 2 * micro, 3 * micro
        ),
        "every stage sends the same for each micro-batch": by_stage(2 * micro, 2 * micro, 2 * micro, 3 * micro),
    }


# Part c: the choice


def _total(model: Model, world_size: int, stage: int, micro: int) -> float:
    return needs(model, world_size, stage, micro).total


def _passes(model: Model, world_size: int, stage: int, micro: int) -> int:
    """Stand for the bytes sent: of one model on one machine, they are proportional to the passes, and these exact."""
    return passes(stage, micro)


def best(
    model: Model,
    machine: Machine,
    needed: Callable[[Model, int, int, int], float] = _total,
    cost: Callable[[Model, int, int, int], Any] = _passes,
    fits: Callable[[float, float], bool] = operator.le,
    stages: Iterable[int] = STAGES,
    ties: tuple[int, int] = (1, 1),
    only: int | None = None,
) -> Choice:
    """Return the (stage, micro-batches) that fits and sends the fewest bytes, or `NONE`.

    Ties go to the fewest micro-batches, then to the stage that shards least. The other parameters model a learner's
    mistakes: `needed` and `cost` count something else, `fits` compares otherwise, `stages` leaves some out, `ties` has
    the signs of micro-batches and stage, and `only` is the one number of micro-batches that is looked at.
    """
    world_size, (more, further) = machine["world_size"], ties
    possible = [
        (stage, micro)
        for stage in stages
        for micro in micro_batches(model)
        if only in (None, micro) and fits(needed(model, world_size, stage, micro), machine["memory"])
    ]

    def key(choice: tuple[int, int]) -> tuple:
        stage, micro = choice
        return cost(model, world_size, stage, micro), more * micro, further * stage

    return min(possible, key=key, default=NONE)


def check_choice(function: Callable, cases: Iterable[tuple[Model, Machine]], ties: bool = False) -> None:
    """Check that all choices of `function(model, machine)` are right.

    The right choice is `best`. With `ties`, any that fits and sends as few bytes is right too. The error names the
    first wrong choice and its reason, and the mistake that explains all choices if there is one.
    """
    cases = list(cases)
    chosen = [_chosen(function, *case) for case in cases]
    wrong = [index for index, case in enumerate(cases) if why_wrong(*case, chosen[index], ties)]
    if not wrong:
        return
    model, machine = cases[wrong[0]]
    slip = next((words for words, other in SLIPS.items() if [other(*case) for case in cases] == chosen), "")
    if not slip and not any(why_wrong(*cases[index], chosen[index], ties=True) for index in wrong):
        slip = (
            "of choices that send the same, fewer micro-batches come first, then the lower stage. Equal numbers of "
            "bytes may differ in the last digit as floats; `round` them before you compare"
        )
    raise NotYet(
        f"{described(model)}, on {_machine(machine)}: {function.__name__} returns {chosen[wrong[0]]!r}, but "
        f"{why_wrong(model, machine, chosen[wrong[0]], ties)}. {len(cases) - len(wrong)} of {len(cases)} choices are "
        f"right{slip and f': {slip}'}"
    )


def _chosen(function: Callable, model: Model, machine: Machine) -> Choice:
    call = f"{function.__name__}(model, machine) for {described(model)}, on {_machine(machine)},"
    try:
        returned = own_answer(__name__, function, dict(model), dict(machine), call=call)
    except NotYet as error:
        nothing = f" Where nothing fits, the answer is {NONE!r}" if "returns None" in str(error) else ""
        raise NotYet(f"{error}{nothing}") from None
    if isinstance(returned, str) and returned == NONE:
        return NONE
    try:
        stage, micro = map(operator.index, returned)
    except (TypeError, ValueError):
        stage, micro = -1, -1
    if stage not in STAGES or micro not in micro_batches(model):
        raise NotYet(
            f"{call} returns {brief(returned)}; return (stage, micro_batches), a stage from 0 to 3 and one of "
            f"{', '.join(map(str, micro_batches(model)))}, or {NONE!r}"
        )
    return stage, micro


def why_wrong(model: Model, machine: Machine, chosen: Choice, ties: bool = False) -> str:
    """Return why this choice is wrong, in words; "" if it is right."""
    right, world_size = best(model, machine), machine["world_size"]
    if chosen == right:
        return ""
    if isinstance(chosen, str):
        assert not isinstance(right, str)  # it differs from the choice
        return f"{_named(right)} fits: it needs {_of(needs(model, world_size, *right), machine)}"
    need = needs(model, world_size, *chosen)
    if need.total > machine["memory"]:
        nothing = "; nothing does" if isinstance(right, str) else ""
        return f"it doesn't fit: it needs {_of(need, machine)}: {_parts(need)}{nothing}"
    assert not isinstance(right, str)  # the chosen one fits
    times = sends(model, world_size, *chosen) / sends(model, world_size, *right)
    if times > 1:
        return f"{_named(right)} fits too, and this sends {times:.3g} times its bytes"
    rule = "fewer micro-batches first, then the lower stage"
    return "" if ties else f"{_named(right)} fits too and sends as many bytes: {rule}"


def _named(choice: tuple[int, int]) -> str:
    stage, micro = choice
    return f"stage {stage} with {micro} micro-batch{'es' * (micro > 1)}"


def _without(*parts: str) -> Callable[[Model, int, int, int], float]:
    """Return a function that gives the bytes needed without these `parts` of a `Need`."""
    return lambda *case: needs(*case)._replace(**dict.fromkeys(parts, 0)).total


def _all_sequences(model: Model, world_size: int, stage: int, micro: int) -> float:
    return needs(model, world_size, stage, 1).total


def _once_a_step(model: Model, world_size: int, stage: int, micro: int) -> float:
    return passes(stage, 1)


def _by_stage(model: Model, world_size: int, stage: int, micro: int) -> float:
    return stage


SLIPS: dict[str, Callable[[Model, Machine], Choice]] = {
    "you choose stage 3 wherever it fits; do you need to?": partial(best, stages=(3,)),
    "you know two stages only, 0 and 3": partial(best, stages=(0, 3)),
    "you take the lowest stage that fits; many micro-batches may make it send more than a higher one": partial(
        best, cost=_by_stage
    ),
    "you try one micro-batch only; more of them need less memory": partial(best, only=1),
    "what needs all memory, to the byte, fits": partial(best, fits=operator.lt),
    "of choices that send the same you take the one with most micro-batches": partial(best, ties=(-1, 1)),
    "of choices that send the same you take the one that shards most": partial(best, ties=(1, -1)),
    "you count a step's bytes as if it had one micro-batch": partial(best, cost=_once_a_step),
    "you leave out the blocks that are whole for a while": partial(best, needed=_without("whole")),
    "you leave out the activations": partial(best, needed=_without("activations")),
    "you leave out the optimizer's state": partial(best, needed=_without("optimizer")),
    "you count the activations of all micro-batches together": partial(best, needed=_all_sequences),
}
"""Mistakes in words, and the choice that each leads to."""


# Words, and cases at random


def described(model: Model) -> str:
    """Return a model in words, such as "8.03B parameters (blocks of 0.218B, 8 sequences of 6 GB)"."""
    params, block = (f"{model[name] / 1e9:.4g}B" for name in ("num_params", "block_params"))
    sequences = f"{model['sequences']} sequences of {_gb(model['sequence_bytes'])} GB"
    return f"{params} parameters (blocks of {block}, {sequences})"


def _machine(machine: Machine) -> str:
    return f"{machine['world_size']} ranks of {_gb(machine['memory'])} GB"


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / GB:.4g}"


def _of(need: Need, machine: Machine) -> str:
    return f"{need.total:,.0f} bytes of {machine['memory']:,}"


def _parts(need: Need) -> str:
    """Return the parts of a need in words."""
    return ", ".join(f"{words} {_gb(part)} GB" for words, part in zip(IN_WORDS, need, strict=True) if part)


def random_models(seed: int, how_many: int = 6) -> list[tuple[Model, int]]:
    """Return `how_many` pairs (model, world_size)."""
    random = Random(seed)
    return [_random_model(random) for _ in range(how_many)]


def _random_model(random: Random) -> tuple[Model, int]:
    """Return a model and a world size. Its batch is small against its sharded state, or up to 16 times as large."""
    world_size = 8 * random.choice((1, 2, 4, 8, 16))
    num_params = int(10 ** random.uniform(9, 11) / world_size) * world_size
    state = memory.at_rest(num_params, world_size, 3, RECIPE).total
    return {
        "num_params": num_params,
        "block_params": int(num_params * 10 ** random.uniform(-2, -1.2)),
        "sequences": random.choice((4, 8, 16)),
        "sequence_bytes": int(state * 10 ** random.uniform(-1.3, 0)),
    }, world_size


def random_cases(seed: int, of_each: int = 8) -> list[tuple[Model, Machine]]:
    """Return models and machines to choose for, in random order.

    Every stage, and `NONE`, is right at least `of_each` times, and every mistake in `SLIPS` is wrong at least twice. In
    one case of three the right choice needs all memory, to the byte.
    """
    random = Random(seed)
    cases: list[tuple[Model, Machine]] = []
    rights: list[int | str] = [*STAGES, NONE]
    for right in rights:
        cases += _cases(random, of_each, partial(_is_right, right))
    for slip in SLIPS.values():
        known = sum(_tells(slip, *case) for case in cases)
        cases += _cases(random, 2 - known, partial(_tells, slip))
    random.shuffle(cases)
    return cases


def _is_right(stage: int | str, model: Model, machine: Machine) -> bool:
    choice = best(model, machine)
    return stage == (choice if isinstance(choice, str) else choice[0])


def _tells(slip: Callable[[Model, Machine], Choice], model: Model, machine: Machine) -> bool:
    return slip(model, machine) != best(model, machine)


def _cases(random: Random, count: int, wanted: Callable[[Model, Machine], bool]) -> list[tuple[Model, Machine]]:
    """Return `count` random cases that are `wanted`, at most one of a model."""
    found: list[tuple[Model, Machine]] = []
    while len(found) < count:
        model, world_size = _random_model(random)
        exactly = len(found) % 3 == 0
        sizes = _memories(random, model, world_size, exactly)
        machines = [{"world_size": world_size, "memory": size} for size in sizes]
        possible = [(model, machine) for machine in machines if wanted(model, machine)]
        found += random.sample(possible, min(1, len(possible)))
    return found


def _memories(random: Random, model: Model, world_size: int, exactly: bool) -> list[int]:
    """Return one memory size for each right choice that a model has.

    A choice is right from the bytes that it needs up to those that a better one needs: `exactly` the former, or any
    size between. The last size is too small for every choice.
    """
    options = [(passes(stage, micro), micro, stage) for stage in STAGES for micro in micro_batches(model)]
    sizes, upper = [], 2 * int(needs(model, world_size, 0, 1).total)
    for _, micro, stage in sorted(options):
        need = int(needs(model, world_size, stage, micro).total)
        if need < upper:
            sizes.append(need if exactly else random.randrange(need, upper))
            upper = need
    return [*sizes, upper - 1 if exactly else random.randrange(upper // 2, upper)]

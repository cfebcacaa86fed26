"""A pipeline schedule on real ranks: each runs its own list, in order, and sends activations and gradients on.

    stages = {stage: blocks[stage] for stage in schedule.stages_of(rank)}
    pipeline = Pipeline(schedule, stages, loss)    # on every rank
    pipeline.step(inputs, targets)                 # .grad of every parameter is that of the model in one piece

A result leaves as soon as it is there and nobody waits for it to arrive (isend); what an operation takes is waited for
(recv). Messages from one rank to another arrive in the order in which the sender's list makes them, so none has to say
which it is; one that comes early is kept until its turn. The two of an F&B run one after the other here.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from .pipeline import KINDS, B, F, I, Operation, PipelineError, PipelineSchedule, W, check
from .timeline import Span

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # output, target -> their mean loss, a scalar
Like = tuple[torch.dtype, tuple[int, ...]]  # dtype and shape
Outputs = list[tuple[nn.Module, torch.Tensor]]  # of the modules that have weights of their own

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)  # of activations, by their number in a label
MOST_DIMS = 8


class Forward(NamedTuple):
    """What a forward keeps for its backward: its input, its output (of the last stage the loss), outputs within."""

    input: torch.Tensor
    output: torch.Tensor
    within: Outputs


class Use(NamedTuple):
    """What I leaves for W: the output of a module and its gradient. `module`: None for the whole stage."""

    module: nn.Module | None
    output: torch.Tensor
    gradient: torch.Tensor | None


class Sent(NamedTuple):
    """A message under way: the tensor must live until its receiver has it. `taker`: the operation that takes it."""

    work: dist.Work
    tensor: torch.Tensor
    taker: Operation


class Pipeline:
    """This rank's part of a model that is trained by `schedule`.

    `stages`: the modules of the stages that `schedule` gives to this rank, by number; each takes one tensor, and
    returns one. `loss(output, target)`: the mean over the rows of a micro-batch. `group`: of all ranks by default.
    `checked=False` runs what `check` refuses: then a deadlock shows on the ranks themselves.

    After a step, `most_held` is the most forwards that waited for their backward at once, and `spans` say when each
    operation computed, by a clock that the processes of one machine share: `Timeline.measured` takes those of all.

    I and W do each product of B once, except in an autograd.Function written in Python that gives the gradients of an
    input and of a weight: it is called for both, and computes both each time.

    The outputs of a stage that go to one rank in a step must be alike, in dtype and shape: ValueError otherwise.

    ValueError for stages that are not the schedule's, PipelineError for a schedule that cannot be run.
    """

    def __init__(
        self,
        schedule: PipelineSchedule,
        stages: Mapping[int, nn.Module],
        loss: Loss,
        group: dist.ProcessGroup | None = None,
        checked: bool = True,
    ):
        if checked:
            check(schedule)
        self.schedule, self.stages, self.loss = schedule, dict(stages), loss
        self.group = group or dist.group.WORLD
        self.rank = dist.get_rank(self.group)
        if dist.get_world_size(self.group) != schedule.world_size:
            given = dist.get_world_size(self.group)
            raise ValueError(f"{schedule.name} is for {schedule.world_size} ranks, but the group has {given}")
        if sorted(stages) != schedule.stages_of(self.rank):
            wanted = schedule.stages_of(self.rank)
            raise ValueError(f"rank {self.rank} has the stages {wanted} in {schedule.name}, not {sorted(stages)}")
        self.names = dist.get_process_group_ranks(self.group)
        self.channels = _channels(schedule, self.group)
        self.most_held, self.spans = 0, []

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Forward and backward of a batch, the same one on every rank; gradients are added to `.grad`.

        `inputs`, `targets`: [rows, ...], cut into micro-batches along the rows, whose number they must divide by.
        Returns this rank's part of the mean loss: the parts of all ranks sum to it.
        """
        count = self.schedule.num_micro_batches
        if len(inputs) % count or len(inputs) != len(targets):
            raise ValueError(f"{len(inputs)} inputs, {len(targets)} targets do not divide into {count} micro-batches")
        self.inputs, self.targets = inputs.chunk(count), targets.chunk(count)
        self.forwards: dict[tuple[int, int], Forward] = {}
        self.late: dict[Operation, list[Use]] = {}  # by I: what its W takes
        self.here: dict[Operation, torch.Tensor] = {}  # results that have arrived, or were made here for a stage here
        self.sent: list[Sent] = []
        self.told: dict[tuple[int, int], Like] = {}  # by stage and rank: what its output is like, once said to the rank
        self.heard: dict[tuple[int, int], Like] = {}  # or heard from it
        self.expected = {src: deque(self._messages(src)) for src in range(self.schedule.world_size)}
        self.losses: list[torch.Tensor] = []
        self.most_held, self.spans = 0, []
        earlier = self._set_aside()
        does = {F: self._forward, B: self._backward, I: self._backward_input, W: self._backward_weights}
        for operation in self.schedule.orders[self.rank]:
            does[operation.kind](operation)
        for message in self.sent:
            message.work.wait()
        self._add_copies()
        for weight, gradient in earlier:
            weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        self.sent = []
        return float(sum(self.losses))

    # --- the four operations ---

    def _forward(self, operation: Operation) -> None:
        _, stage, micro_batch = operation
        taken = self._take(operation).requires_grad_() if stage else self.inputs[micro_batch]
        within: Outputs = []
        splits = self.schedule.backward(stage, micro_batch).kind == I
        recorded = _recorded(self.stages[stage], within) if splits else contextlib.nullcontext()
        with self._timed(operation), recorded:
            output = self.stages[stage](taken)
            if not isinstance(output, torch.Tensor):
                raise ValueError(f"stage {stage} must return one tensor, not a {type(output).__name__}")
            if stage + 1 == self.schedule.num_stages:
                output = self.loss(output, self.targets[micro_batch]) / self.schedule.num_micro_batches
                self.losses.append(output.detach())
        self.forwards[stage, micro_batch] = Forward(taken, output, within)
        self.most_held = max(self.most_held, len(self.forwards) + len(self.late))
        self._give(operation, output.detach())

    def _backward(self, operation: Operation) -> None:
        forward, gradient = self._turn(operation)
        with self._timed(operation):
            if forward.output.requires_grad:  # the first stage may have no weights
                _scalar(forward.output, gradient).backward()
        self._give(operation, forward.input.grad)

    def _backward_input(self, operation: Operation) -> None:
        """The gradient of the input and, on the way to it, those of the outputs within; of no weight."""
        forward, gradient = self._turn(operation)
        outputs = [output for _, output in forward.within]
        wanted = [*outputs, forward.input] if operation.stage else outputs
        with self._timed(operation):
            scalar = _scalar(forward.output, gradient)
            found = torch.autograd.grad(scalar, wanted, retain_graph=True, allow_unused=True) if wanted else ()
        uses = [Use(*within, its) for within, its in zip(forward.within, found, strict=False)]  # but for the input's
        self.late[operation] = [Use(None, forward.output, gradient), *uses]
        self._give(operation, found[-1] if operation.stage else None)

    def _backward_weights(self, operation: Operation) -> None:
        """The gradient of each weight, from those of the outputs that it goes into, without going on from there."""
        uses = self.late.pop(operation._replace(kind=I))
        with self._timed(operation):
            for weight in self.stages[operation.stage].parameters():
                gradient = _weight_gradient(weight, uses) if weight.requires_grad else None
                if gradient is not None:
                    weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)

    def _turn(self, operation: Operation) -> tuple[Forward, torch.Tensor | None]:
        """What a backward begins with: its forward, and the gradient of that one's output (None for the loss)."""
        _, stage, micro_batch = operation
        if (stage, micro_batch) not in self.forwards:
            raise PipelineError(f"rank {self.rank}: {operation} comes before the forward of its micro-batch")
        gradient = self._take(operation) if stage + 1 < self.schedule.num_stages else None
        return self.forwards.pop((stage, micro_batch)), gradient

    @contextlib.contextmanager
    def _timed(self, operation: Operation) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.spans.append(Span(str(operation), "", begin, seconds, KINDS[operation.kind], f"rank {self.rank}"))

    # --- between the stages ---

    def _give(self, operation: Operation, result: torch.Tensor | None) -> None:
        """Send the result to the rank that takes it, if any does."""
        taker = self.schedule.feeds(operation)
        if taker is None:
            return
        dst = self.schedule.rank_of(taker)
        if dst == self.rank:
            self.here[operation] = result
            return
        if operation.kind == F:
            self._tell(operation.stage, result, dst, taker)
        self._send(result.contiguous(), dst, taker)

    def _tell(self, stage: int, output: torch.Tensor, dst: int, taker: Operation) -> None:
        """Label the first output of a stage that `dst` gets in this step; those after it must be like it."""
        like = output.dtype, tuple(output.shape)
        if (stage, dst) not in self.told:
            self.told[stage, dst] = like
            self._send(_label(output), dst, taker)
        elif like != self.told[stage, dst]:
            first = self.told[stage, dst]
            raise ValueError(f"stage {stage} returns {like} for micro-batch {taker.micro_batch}, and {first} before")

    def _send(self, tensor: torch.Tensor, dst: int, taker: Operation) -> None:
        work = dist.isend(tensor, self.names[dst], self.channels[self.rank, dst])
        self.sent.append(Sent(work, tensor, taker))

    def _take(self, operation: Operation) -> torch.Tensor:
        """The result of another stage that `operation` works on: wait until it has arrived."""
        source = self.schedule.needs(operation)[0]
        src = self.schedule.rank_of(source)
        while source not in self.here:
            if not self.expected[src]:
                raise PipelineError(f"rank {self.rank}: {operation} takes {source}, which rank {src} never sends")
            self._receive(src, self.expected[src].popleft())
        return self.here.pop(source)

    def _receive(self, src: int, source: Operation) -> None:
        """The next message from `src`, which is the result of `source`.

        Stages differ, so only the sender can know an activation's shape: its first one in a step comes after a label
        that says it for all. A gradient has the shape of what was sent the other way.
        """
        channel, device = self.channels[src, self.rank], self.inputs[0].device
        if source.kind == F and (source.stage, src) not in self.heard:
            label = torch.empty(2 + MOST_DIMS, dtype=torch.int64, device=device)
            dist.recv(label, self.names[src], channel)
            self.heard[source.stage, src] = _labelled(label)
        dtype, shape = self.heard[source.stage, src] if source.kind == F else self.told[source.stage - 1, src]
        self.here[source] = torch.empty(shape, dtype=dtype, device=device)
        dist.recv(self.here[source], self.names[src], channel)
        under_way = []
        for message in self.sent:
            if self._was_taken(message, src, source):
                message.work.wait()  # returns at once
            else:
                under_way.append(message)
        self.sent = under_way

    def _was_taken(self, message: Sent, src: int, source: Operation) -> bool:
        """Whether `src` must have had a message of ours before it could do `source`: then its tensor may go."""
        place = self.schedule.position
        return self.schedule.rank_of(message.taker) == src and place[message.taker] <= place[source]

    def _messages(self, src: int) -> list[Operation]:
        """The operations of `src` whose results come here, in order."""
        takers = [(operation, self.schedule.feeds(operation)) for operation in self.schedule.orders[src]]
        return [source for source, taker in takers if taker and self.schedule.rank_of(taker) == self.rank != src]

    def _set_aside(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """The gradients of earlier steps, taken off the weights where `_add_copies` would add them up once more."""
        weights = [weight for module in self.stages.values() for weight in module.parameters()]
        earlier = [(weight, weight.grad) for weight in weights if weight.grad is not None]
        if len(self.schedule.routes) == 1:
            return []
        for weight, _ in earlier:
            weight.grad = None
        return earlier

    def _add_copies(self) -> None:
        """Where several ranks have a copy of a stage, add up their gradients, each of its own micro-batches."""
        for stage, module in sorted(self.stages.items()):
            weights = [weight for weight in module.parameters() if weight.grad is not None]
            if not weights:
                continue
            mine = torch.cat([weight.grad.flatten() for weight in weights])
            for other in sorted({route[stage] for route in self.schedule.routes} - {self.rank}):
                theirs = torch.empty_like(mine)
                work = dist.isend(mine, self.names[other], self.channels[self.rank, other])
                dist.recv(theirs, self.names[other], self.channels[other, self.rank])
                work.wait()
                pieces = theirs.split([weight.numel() for weight in weights])
                for weight, piece in zip(weights, pieces, strict=True):
                    weight.grad += piece.view_as(weight)


@contextlib.contextmanager
def _recorded(stage: nn.Module, outputs: Outputs) -> Iterator[None]:
    """Note the tensor that every module within that has weights of its own returns."""

    def note(module: nn.Module, _: tuple, output: torch.Tensor) -> None:
        if isinstance(output, torch.Tensor):
            outputs.append((module, output))

    owners = [module for module in stage.modules() if any(weight.requires_grad for weight in _own(module))]
    handles = [owner.register_forward_hook(note) for owner in owners]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _scalar(output: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """What has `gradient` as its gradient by `output`; None is for a loss, which is its own scalar.

    `output.backward(gradient)` would do the same, but in every fresh process its first call imports sympy: seconds.
    """
    return output if gradient is None else (output * gradient).sum()


def _own(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))


def _weight_gradient(weight: nn.Parameter, uses: list[Use]) -> torch.Tensor | None:
    """The gradient of one weight, from those of the outputs of the modules that own it; None if it is not used.

    If no such module was called, or it returned no tensor, from that of the whole stage's output. A weight that is
    used by its own module and from outside of it, too, would get the gradient of the first use alone.
    """
    mine = [use for use in uses[1:] if any(weight is own for own in _own(use.module))] or uses[:1]
    mine = [use for use in mine if use.gradient is not None or use.module is None]  # the rest had no part in the loss
    if not mine:
        return None
    several = mine if len(mine) > 1 else []  # what comes from one use to another is in its gradient already
    hooks = [use.output.register_hook(lambda _, known=use.gradient: known) for use in several]
    scalar = sum(_scalar(use.output, use.gradient) for use in mine)
    (found,) = torch.autograd.grad(scalar, weight, retain_graph=True, allow_unused=True)
    for hook in hooks:
        hook.remove()
    return found


def _label(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's dtype and shape as a message, which is as long for every tensor."""
    if tensor.dtype not in DTYPES or tensor.dim() > MOST_DIMS:
        raise ValueError(
            f"a stage returns up to {MOST_DIMS} dimensions of {DTYPES}, not {tensor.shape}, {tensor.dtype}"
        )
    unused = [0] * (MOST_DIMS - tensor.dim())
    return torch.tensor([DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *unused], device=tensor.device)


def _labelled(label: torch.Tensor) -> Like:
    """The dtype and the shape that a label says."""
    dtype, dims, *shape = label.tolist()
    return DTYPES[dtype], tuple(shape[:dims])


def _channels(schedule: PipelineSchedule, group: dist.ProcessGroup) -> dict[tuple[int, int], dist.ProcessGroup]:
    """By (src, dst): the group over which these messages go.

    NCCL's run in order, so that one which waits for its receiver would hold up all behind it: there each direction
    between two ranks gets a group of its own. All ranks must call this.
    """
    makers = [(operation, schedule.feeds(operation)) for order in schedule.orders for operation in order]
    pairs = {(schedule.rank_of(source), schedule.rank_of(taker)) for source, taker in makers if taker}
    for owners in zip(*schedule.routes, strict=True):
        pairs |= {(one, other) for one in owners for other in owners}
    pairs = sorted((src, dst) for src, dst in pairs if src != dst)
    if dist.get_backend(group) != "nccl":
        return dict.fromkeys(pairs, group)
    names = dist.get_process_group_ranks(group)
    return {pair: dist.new_group(sorted(names[rank] for rank in pair)) for pair in pairs}

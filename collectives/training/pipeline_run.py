"""Pipeline schedules on real ranks: each runs its own list in order, and sends activations and gradients on.

    stages = {stage: blocks[stage] for stage in schedule.stages_of(rank)}
    pipeline = Pipeline(schedule, stages, loss)    # on every rank
    pipeline.step(inputs, targets)                 # every parameter's .grad equals that of the undivided model

A rank sends a result as soon as it is ready, without waiting for its arrival (isend), and waits for the inputs of each
operation (recv). Messages between two ranks arrive in the order of the sender's list, so they need no tags. A message
that arrives early is kept until an operation takes it. The two operations of an F&B run one after the other here.
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
Channels = dict[tuple[int, int], dist.ProcessGroup | None]  # by (src, dst)
Outputs = list[tuple[nn.Module, torch.Tensor]]  # of the modules that own weights directly

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)  # of activations; a label holds the index
MOST_DIMS = 8


class Forward(NamedTuple):
    """The tensors a forward keeps for its backward: input, output (the loss on the last stage), outputs within."""

    input: torch.Tensor
    output: torch.Tensor
    within: Outputs


class Use(NamedTuple):
    """What I keeps for W: a module's output and its gradient. `module`: None for the whole stage."""

    module: nn.Module | None
    output: torch.Tensor
    gradient: torch.Tensor | None


class Sent(NamedTuple):
    """A message in flight. The tensor must live until the receiver has it. `taker`: the operation that takes it."""

    work: dist.Work
    tensor: torch.Tensor
    taker: Operation


class Pipeline:
    """This rank's part of a model that `schedule` trains.

    `stages`: {stage: module} for the stages that `schedule` gives this rank; each module takes and returns one tensor.
    `loss(output, target)`: the mean over the rows of a micro-batch. `group`: by default all ranks. `checked=False` also
    runs schedules that `check` refuses; a deadlock then hangs the ranks themselves.

    After a step, `most_held` is the peak number of forwards that waited for their backward. `spans` say when each
    operation computed, by a clock that the processes of one machine share: pass all ranks' spans to
    `Timeline.measured`.

    I and W do each matrix product of B once. The exception is a Python autograd.Function that returns the gradients of
    an input and of a weight: both I and W call it, and it computes both gradients each time.

    Within a step, the outputs that a stage sends to one rank must share a dtype and a shape; otherwise `step` raises
    `ValueError`. The constructor raises `ValueError` for stages or a group that don't match the schedule, and
    `PipelineError` for a schedule that can't run.
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
        if (group_size := dist.get_world_size(self.group)) != schedule.world_size:
            raise ValueError(f"{schedule.name} is for {schedule.world_size} ranks, but the group has {group_size}")
        if sorted(stages) != (own_stages := schedule.stages_of(self.rank)):
            raise ValueError(f"rank {self.rank} has the stages {own_stages} in {schedule.name}, not {sorted(stages)}")
        self.names = dist.get_process_group_ranks(self.group)
        self.channels = _channels(schedule, self.group)
        self.most_held = 0
        self.spans: list[Span] = []

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Run forward and backward for a batch, the same on every rank, and add the gradients to `.grad`.

        `inputs`, `targets`: [rows, ...], cut into micro-batches along the rows; raises `ValueError` if the rows don't
        divide evenly. Returns this rank's share of the mean loss; the shares of all ranks sum to the mean.
        """
        count = self.schedule.num_micro_batches
        if len(inputs) % count or len(inputs) != len(targets):
            raise ValueError(f"{len(inputs)} inputs, {len(targets)} targets do not divide into {count} micro-batches")
        self.inputs, self.targets = inputs.chunk(count), targets.chunk(count)
        self.forwards: dict[tuple[int, int], Forward] = {}
        self.late: dict[Operation, list[Use]] = {}  # by I: what its W takes
        self.here: dict[Operation, torch.Tensor] = {}  # results that have arrived, or that a local stage made
        self.sent: list[Sent] = []
        self.told: dict[tuple[int, int], Like] = {}  # by stage and receiving rank: the label sent
        self.heard: dict[tuple[int, int], Like] = {}  # by stage and sending rank: the label received
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
            if forward.output.requires_grad:  # False for a first stage without weights
                _scalar(forward.output, gradient).backward()
        self._give(operation, forward.input.grad)

    def _backward_input(self, operation: Operation) -> None:
        """Compute the gradients of the input and of the outputs within, but of no weight."""
        forward, gradient = self._turn(operation)
        outputs = [output for _, output in forward.within]
        targets = [*outputs, forward.input] if operation.stage else outputs
        with self._timed(operation):
            scalar = _scalar(forward.output, gradient)
            gradients = torch.autograd.grad(scalar, targets, retain_graph=True, allow_unused=True) if targets else ()
        # Not strict: past the first stage, the last gradient is the input's.
        uses = [Use(*within, of_output) for within, of_output in zip(forward.within, gradients, strict=False)]
        self.late[operation] = [Use(None, forward.output, gradient), *uses]
        self._give(operation, gradients[-1] if operation.stage else None)

    def _backward_weights(self, operation: Operation) -> None:
        """Compute each weight's gradient from those of the outputs that it contributes to, and go no further."""
        uses = self.late.pop(operation._replace(kind=I))
        with self._timed(operation):
            for weight in self.stages[operation.stage].parameters():
                gradient = _weight_gradient(weight, uses) if weight.requires_grad else None
                if gradient is not None:
                    weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)

    def _turn(self, operation: Operation) -> tuple[Forward, torch.Tensor | None]:
        """Return what a backward starts from: its forward, and the gradient of that output (None for the loss)."""
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
        """Keep `result` here for the operation that takes it, or send it to its rank."""
        taker = self.schedule.feeds(operation)
        if taker is None:
            return
        assert result is not None  # no operation takes the input gradient of the first stage
        dst = self.schedule.rank_of(taker)
        if dst == self.rank:
            self.here[operation] = result
            return
        if operation.kind == F:
            self._tell(operation.stage, result, dst, taker)
        self._send(result.contiguous(), dst, taker)

    def _tell(self, stage: int, output: torch.Tensor, dst: int, taker: Operation) -> None:
        """Send a label before the first output of a stage to `dst` in this step; later outputs must match it."""
        like = output.dtype, tuple(output.shape)
        if (stage, dst) not in self.told:
            self.told[stage, dst] = like
            self._send(_label(output), dst, taker)
        elif like != self.told[stage, dst]:
            first = self.told[stage, dst]
            raise ValueError(f"stage {stage} returns {like} for micro-batch {taker.micro_batch}, and {first} before")

    def _send(self, tensor: torch.Tensor, dst: int, taker: Operation) -> None:
        work = dist.isend(tensor, self.names[dst], self.channels[self.rank, dst])
        assert work is not None  # it is None only on a rank outside of the group
        self.sent.append(Sent(work, tensor, taker))

    def _take(self, operation: Operation) -> torch.Tensor:
        """Wait for the result of another stage that `operation` needs, and return it."""
        source = self.schedule.needs(operation)[0]
        src = self.schedule.rank_of(source)
        while source not in self.here:
            if not self.expected[src]:
                raise PipelineError(f"rank {self.rank}: {operation} takes {source}, which rank {src} never sends")
            self._receive(src, self.expected[src].popleft())
        return self.here.pop(source)

    def _receive(self, src: int, source: Operation) -> None:
        """Receive the next message from `src`, which is the result of `source`.

        Only the sender knows an activation's shape, so a label with the dtype and shape precedes the first activation
        in a step. A gradient has the shape of the activation that was sent the other way.
        """
        channel, device = self.channels[src, self.rank], self.inputs[0].device
        if source.kind == F and (source.stage, src) not in self.heard:
            label = torch.empty(2 + MOST_DIMS, dtype=torch.int64, device=device)
            dist.recv(label, self.names[src], channel)
            self.heard[source.stage, src] = _labelled(label)
        dtype, shape = self.heard[source.stage, src] if source.kind == F else self.told[source.stage - 1, src]
        self.here[source] = torch.empty(shape, dtype=dtype, device=device)
        dist.recv(self.here[source], self.names[src], channel)
        in_flight = []
        for message in self.sent:
            if self._was_taken(message, src, source):
                message.work.wait()  # returns at once
            else:
                in_flight.append(message)
        self.sent = in_flight

    def _was_taken(self, message: Sent, src: int, source: Operation) -> bool:
        """Check that `src` must have received `message` before it did `source`, so that its tensor can be freed."""
        place = self.schedule.position
        return self.schedule.rank_of(message.taker) == src and place[message.taker] <= place[source]

    def _messages(self, src: int) -> list[Operation]:
        """Return the operations of `src` that send their results to this rank, in order."""
        takers = [(operation, self.schedule.feeds(operation)) for operation in self.schedule.orders[src]]
        return [source for source, taker in takers if taker and self.schedule.rank_of(taker) == self.rank != src]

    def _set_aside(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Remove and return the gradients of earlier steps if there are copies: `_add_copies` would sum them again."""
        weights = [weight for module in self.stages.values() for weight in module.parameters()]
        earlier = [(weight, weight.grad) for weight in weights if weight.grad is not None]
        if len(self.schedule.routes) == 1:
            return []
        for weight, _ in earlier:
            weight.grad = None
        return earlier

    def _add_copies(self) -> None:
        """Sum the gradients of a stage over the ranks that hold a copy; each has those of its own micro-batches."""
        for stage, module in sorted(self.stages.items()):
            gradients = [weight.grad for weight in module.parameters() if weight.grad is not None]
            if not gradients:
                continue
            mine = torch.cat([gradient.flatten() for gradient in gradients])
            for other in sorted({route[stage] for route in self.schedule.routes} - {self.rank}):
                theirs = torch.empty_like(mine)
                work = dist.isend(mine, self.names[other], self.channels[self.rank, other])
                dist.recv(theirs, self.names[other], self.channels[other, self.rank])
                assert work is not None  # it is None only on a rank outside of the group
                work.wait()
                pieces = theirs.split([gradient.numel() for gradient in gradients])
                for gradient, piece in zip(gradients, pieces, strict=True):
                    gradient += piece.view_as(gradient)


@contextlib.contextmanager
def _recorded(stage: nn.Module, outputs: Outputs) -> Iterator[None]:
    """Record the output tensor of every module in `stage` that owns trainable weights."""

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
    """Return a scalar whose gradient by `output` is `gradient`. None stands for a loss, which is a scalar already.

    `output.backward(gradient)` would do the same, but its first call in a process imports sympy, which takes seconds.
    """
    return output if gradient is None else (output * gradient).sum()


def _own(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))


def _weight_gradient(weight: nn.Parameter, uses: list[Use]) -> torch.Tensor | None:
    """Return a weight's gradient from the gradients of its modules' outputs; None if the loss doesn't depend on it.

    If no module that owns the weight returned a tensor, the whole stage's output is used. Limitation: a weight used
    both by its own module and from outside gets only the gradient of its use inside the module.
    """
    mine = [use for use in uses if use.module is not None and any(weight is own for own in _own(use.module))]
    # The loss ignores uses without a gradient.
    mine = [use for use in mine or uses[:1] if use.gradient is not None or use.module is None]
    if not mine:
        return None
    # If one use feeds another, its known gradient already includes that path: the hooks stop it from counting twice.
    several = mine if len(mine) > 1 else []
    hooks = [use.output.register_hook(lambda _, known=use.gradient: known) for use in several]
    scalar = sum(_scalar(use.output, use.gradient) for use in mine)
    (gradient,) = torch.autograd.grad(scalar, weight, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
    for hook in hooks:
        hook.remove()
    return gradient


def _label(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's dtype and shape as a message of fixed length."""
    if tensor.dtype not in DTYPES or tensor.dim() > MOST_DIMS:
        raise ValueError(
            f"a stage must return at most {MOST_DIMS} dimensions of {DTYPES}, not {tensor.shape}, {tensor.dtype}"
        )
    unused = [0] * (MOST_DIMS - tensor.dim())
    return torch.tensor([DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *unused], device=tensor.device)


def _labelled(label: torch.Tensor) -> Like:
    """Return the dtype and shape that a label encodes."""
    dtype, dims, *shape = label.tolist()
    return DTYPES[dtype], tuple(shape[:dims])


def _channels(schedule: PipelineSchedule, group: dist.ProcessGroup | None) -> Channels:
    """Return {(src, dst): the process group that carries these messages}. All ranks must call this.

    NCCL runs a group's messages in order, so one that waits for its receiver would block all those behind it. There,
    each direction between two ranks gets its own group.
    """
    feeds = [(operation, schedule.feeds(operation)) for order in schedule.orders for operation in order]
    pairs = {(schedule.rank_of(source), schedule.rank_of(taker)) for source, taker in feeds if taker}
    for owners in zip(*schedule.routes, strict=True):
        pairs |= {(src, dst) for src in owners for dst in owners}
    links = sorted((src, dst) for src, dst in pairs if src != dst)
    if dist.get_backend(group) != "nccl":
        return dict.fromkeys(links, group)
    names = dist.get_process_group_ranks(group)
    return {link: dist.new_group(sorted(names[rank] for rank in link)) for link in links}

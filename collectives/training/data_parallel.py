"""Data parallelism from scratch: ranks average gradients in buckets while the backward pass is still running.

It does the core of torch's DistributedDataParallel, without unused parameters, mixed dtypes or changing buffers. Every
rank holds the whole model and takes its own part of the batch. The mean of the ranks' gradients is the gradient of the
whole batch if the parts have equal size and each loss is a mean over its part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ..execute import Transport, execute
from ..schedule import Schedule

CAP, FIRST_CAP = 25 * 2**20, 2**20  # bytes: torch's own defaults; a cap that you set holds for the first bucket too


def assign_buckets(
    sizes: Sequence[int],
    cap: int,
    first_cap: int | None = None,
) -> list[list[int]]:
    """Return the indices of each bucket's parameters, in the order of a backward pass.

    `sizes`: bytes of each gradient, in parameter order. `first_cap`: the first bucket's
    cap; torch's `FIRST_CAP` is small, so that the network starts early. As in torch, a
    bucket closes when it has *reached* its cap, not before it would exceed it, so only
    the last can hold less. Raises `ValueError` for a cap below 1 byte.
    """
    first_cap = cap if first_cap is None else first_cap
    if min(cap, first_cap) < 1:
        raise ValueError(f"a cap must be at least 1 byte, not {min(cap, first_cap)}")
    buckets: list[list[int]] = []
    room = 0  # bytes until the current bucket reaches its cap
    for number in reversed(range(len(sizes))):
        if room <= 0:
            room = cap if buckets else first_cap
            buckets.append([])
        buckets[-1].append(number)
        room -= sizes[number]
    return buckets


@dataclass(eq=False)
class Bucket:
    """Gradients that share one all-reduce. `views`: each parameter's gradient, as a view of the flat `buffer`.

    `missing`: the parameters that have no gradient yet. `work`: the all-reduce, once launched.
    """

    buffer: torch.Tensor
    views: dict[nn.Parameter, torch.Tensor]
    missing: set[nn.Parameter] = field(default_factory=set)
    work: dist.Work | None = None

    @classmethod
    def of(cls, parameters: list[nn.Parameter]) -> Bucket:
        """Return an empty bucket for the gradients of `parameters`, laid out in this order."""
        lengths = [parameter.numel() for parameter in parameters]
        buffer = parameters[0].new_zeros(sum(lengths), requires_grad=False)
        parts = zip(parameters, buffer.split(lengths), strict=True)
        return cls(buffer, {parameter: part.view_as(parameter) for parameter, part in parts})


class DataParallel:
    """A module whose gradients are averaged over the ranks of `group`, a bucket at a time.

    Call it like the module. Call `finish()` after each `backward()`, then step the optimizer. All ranks start from rank
    0's parameters. `cap`, `first_cap`: as for `assign_buckets`, in bytes. `algorithm`: by default the backend's own
    all-reduce, which overlaps with the backward pass. With one such as `ring.all_reduce`, its schedule runs at once,
    while the backward pass waits. `transport`: carries the schedule's messages, see `execute`.

    `buckets`: in launch order, which is the same on all ranks.
    """

    def __init__(
        self,
        module: nn.Module,
        cap: int = CAP,
        first_cap: int | None = None,
        algorithm: Callable[[int], Schedule] | None = None,
        group: dist.ProcessGroup | None = None,
        transport: Transport | None = None,
    ):
        self.module, self.group, self.transport = module, group or dist.group.WORLD, transport
        self.schedule = algorithm(dist.get_world_size(self.group)) if algorithm else None
        self.names = {parameter: name for name, parameter in module.named_parameters() if parameter.requires_grad}
        parameters = list(self.names)
        if len({(parameter.dtype, parameter.device) for parameter in parameters}) != 1:
            raise ValueError(
                "a bucket is one buffer: the model needs trainable parameters, all of one dtype and on one device"
            )
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, group=self.group, group_src=0)
        assigned = assign_buckets([parameter.nbytes for parameter in parameters], cap, first_cap)
        self.buckets = [Bucket.of([parameters[number] for number in bucket]) for bucket in assigned]
        for bucket in self.buckets:
            for parameter in bucket.views:
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, bucket))
        self._await_all()

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)

    def _await_all(self) -> None:
        """Prepare for a backward pass: every gradient is missing and every bucket waits for its launch."""
        for bucket in self.buckets:
            bucket.missing, bucket.work = set(bucket.views), None
        self._waiting = deque(self.buckets)

    def _arrived(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        """Put 1/P of a new gradient into its bucket; launch complete buckets. A hook."""
        if parameter not in bucket.missing:
            name = self.names[parameter]
            call = "call finish() after each backward()"
            raise RuntimeError(f"{name} got a second gradient: {call}")
        view = bucket.views[parameter]
        assert parameter.grad is not None  # autograd calls this hook after setting it
        torch.mul(parameter.grad, 1 / dist.get_world_size(self.group), out=view)
        parameter.grad = view  # frees the memory of the original gradient
        bucket.missing.remove(parameter)
        # The backend matches collectives across ranks by call order, not by content.
        # Gradients may arrive in another order on another rank, so even a complete bucket
        # waits for the buckets before it.
        while self._waiting and not self._waiting[0].missing:
            self._launch(self._waiting.popleft())

    def _launch(self, bucket: Bucket) -> None:
        """Launch a bucket's all-reduce; our own schedules also complete it here."""
        if self.schedule:
            group = None if self.transport else self.group
            execute(self.schedule, bucket.buffer, group, transport=self.transport)
        else:
            bucket.work = dist.all_reduce(bucket.buffer, group=self.group, async_op=True)

    def finish(self) -> None:
        """Wait for all buckets. Afterwards every parameter's `grad` is the mean over the ranks.

        Raises `RuntimeError` if a parameter has no gradient yet.
        """
        if self._waiting:
            without = [self.names[parameter] for bucket in self._waiting for parameter in bucket.missing]
            raise RuntimeError(
                f"no gradient yet for {', '.join(sorted(without))}: their buckets cannot be launched. Call finish() "
                "after backward(), and set requires_grad = False on parameters that the loss doesn't depend on"
            )
        for bucket in self.buckets:
            if bucket.work:
                bucket.work.wait()  # only once: a second wait hangs on gloo
        self._await_all()

"""Data parallelism from scratch: gradients averaged over ranks in buckets, while the backward pass is still running.

What torch's DistributedDataParallel does, without what it needs besides (unused parameters, mixed dtypes, buffers that
change). Every rank holds the whole model and has its own part of the batch. The mean of the ranks' gradients is the
gradient of the whole batch, where the parts are of equal size and each loss is a mean over its part.
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

CAP = 25 * 2**20  # bytes: torch's own default


def assign_buckets(sizes: Sequence[int], cap: int, first_cap: int | None = None) -> list[list[int]]:
    """Which parameters share a bucket: taken from the last to the first, a bucket closes once it holds `cap` bytes.

    `sizes`: bytes of each parameter's gradient, in the order of the parameters. `first_cap`: the cap of the bucket that
    is full first, by default the same (torch's is 1 MiB where no cap is given, so that the network starts early).

    Returns the numbers of the parameters in each bucket, from the last to the first, as a backward pass makes their
    gradients. The rule is torch's: a bucket closes when it has *reached* its cap, not before it would exceed it, so
    that only the last one holds less.
    """
    first_cap = cap if first_cap is None else first_cap
    if min(cap, first_cap) < 1:
        raise ValueError(f"a bucket's cap is a number of bytes, at least 1, not {min(cap, first_cap)}")
    buckets, wanted = [], 0  # bytes that the bucket being filled still wants
    for number in reversed(range(len(sizes))):
        if wanted <= 0:
            wanted = cap if buckets else first_cap
            buckets.append([])
        buckets[-1].append(number)
        wanted -= sizes[number]
    return buckets


@dataclass(eq=False)
class Bucket:
    """Gradients that travel together. `views`: where in the flat `buffer` each parameter's gradient lies.

    `missing`: the parameters whose gradient is yet to be made. `work`: the all-reduce, once it is under way.
    """

    buffer: torch.Tensor
    views: dict[nn.Parameter, torch.Tensor]
    missing: set[nn.Parameter] = field(default_factory=set)
    work: dist.Work | None = None

    @classmethod
    def of(cls, parameters: list[nn.Parameter]) -> Bucket:
        """An empty bucket for the gradients of `parameters`, which lie in it in this order."""
        lengths = [parameter.numel() for parameter in parameters]
        buffer = parameters[0].new_zeros(sum(lengths), requires_grad=False)
        parts = zip(parameters, buffer.split(lengths), strict=True)
        return cls(buffer, {parameter: part.view_as(parameter) for parameter, part in parts})


class DataParallel:
    """A module whose gradients are averaged over the ranks of `group`, a bucket at a time.

    Call it like the module; call `finish()` after each `backward()`, then step the optimizer. All ranks begin with rank
    0's parameters. `cap`, `first_cap`: of `assign_buckets`, in bytes. `algorithm`: None for the backend's own
    all-reduce, which runs while the backward pass goes on; or one such as `ring.all_reduce`, whose schedule is executed
    at once, while the backward pass waits. `transport`: how its messages travel, see `execute`.

    `buckets`: in the order in which they are launched, which is the same on all ranks.
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
        self.schedule = algorithm(self.group.size()) if algorithm else None
        self.names = {parameter: name for name, parameter in module.named_parameters() if parameter.requires_grad}
        parameters = list(self.names)
        if len({(parameter.dtype, parameter.device) for parameter in parameters}) != 1:
            raise ValueError(
                "a bucket is one buffer: parameters that need a gradient, at least one, need one dtype and device"
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
        """Before a backward pass: every gradient is missing, every bucket waits for its launch."""
        for bucket in self.buckets:
            bucket.missing, bucket.work = set(bucket.views), None
        self._waiting = deque(self.buckets)

    def _arrived(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        """A gradient is made: put this rank's share of the mean into the bucket, and launch what is complete."""
        if parameter not in bucket.missing:
            raise RuntimeError(f"{self.names[parameter]} got a second gradient: call finish() after each backward()")
        view = bucket.views[parameter]
        torch.mul(parameter.grad, 1 / self.group.size(), out=view)
        parameter.grad = view  # it lives in the bucket from here on; the memory that it was made in is free again
        bucket.missing.remove(parameter)
        # Ranks match collectives by the order of their calls, not by what is in them. Gradients may come in another
        # order on another rank; so a bucket waits for those before it, even if it is complete.
        while self._waiting and not self._waiting[0].missing:
            self._launch(self._waiting.popleft())

    def _launch(self, bucket: Bucket) -> None:
        """Begin a bucket's all-reduce, or do all of it."""
        if self.schedule:
            execute(self.schedule, bucket.buffer, None if self.transport else self.group, transport=self.transport)
        else:
            bucket.work = dist.all_reduce(bucket.buffer, group=self.group, async_op=True)

    def finish(self) -> None:
        """Wait for all buckets: then every parameter's `grad` is the mean over the ranks."""
        if self._waiting:
            without = [self.names[parameter] for bucket in self._waiting for parameter in bucket.missing]
            raise RuntimeError(
                f"no gradient yet for {', '.join(sorted(without))}: their buckets cannot be launched. Call finish() "
                "after backward(); a parameter that takes no part in the loss needs requires_grad = False"
            )
        for bucket in self.buckets:
            if bucket.work:
                bucket.work.wait()  # once: a second wait hangs on gloo
        self._await_all()

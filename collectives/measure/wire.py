"""Bytes on the wire: counts what a rank hands to its process group, to compare with the bytes on paper."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

NAMES = {
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_to_all_single": "all_to_all",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "gather_": "gather",
    "monitored_barrier_": "barrier",
    "reduce_": "reduce",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "scatter_": "scatter",
}
"""Torch's internal name of each operator, and the field's name of the collective."""
MESSAGES = "send", "recv_", "recv_any_source_"
INSIDE = {"monitored_barrier_": 20, "reduce_scatter_": 3}
"""How often an operator uses its group at most, if it makes several of gloo's calls."""


class Unseen(RuntimeError):
    """A use of a process group that no operator of torch's shows, as from another thread, or of the backend itself."""


class BytesSent(TorchDispatchMode):
    """A context that counts every point-to-point send of this rank, including those of libraries.

    `to`: bytes sent, by peer. `messages`: number of sends. `collectives`: number of calls of each of the backend's own
    collectives, such as "all_reduce"; what such a call sends internally isn't visible here. `payloads`: bytes of
    the full buffers of those calls by the same names, S in the formulas: an all-gather's result, a reduce-scatter's
    input.

    Raises `ValueError` for a message to or from a rank that isn't there, where gloo would crash, and for a rank's
    message to itself, which gloo calls a pair that is not connected. Raises `Unseen` at its end if a gloo group was
    used in a way that no operator of torch's shows, as from another thread. That includes groups that are made or
    destroyed meanwhile.
    """

    def __init__(self):
        super().__init__()
        self._blocks: list[_Groups] = []  # one for each `with` block
        self.to: Counter[int] = Counter()
        self.messages = 0
        self.collectives: Counter[str] = Counter()
        self.payloads: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """The bytes sent to all peers."""
        return self.to.total()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False so that torch doesn't wrap the method below: that imports the compiler, seconds per rank."""
        return False

    def __enter__(self):
        self._blocks.append(_Groups())
        return super().__enter__()

    def __exit__(self, kind, error, trace):
        unseen = self._blocks.pop().close()
        super().__exit__(kind, error, trace)
        if unseen and kind is None:
            raise Unseen(
                f"{unseen} of this rank's calls went round what counts its bytes: call the functions of "
                "torch.distributed, and in the thread that counts"
            )

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if is_distributed(types):
            return NotImplemented  # DTensor then dispatches this rank's local operations one by one
        name = operation.__name__.split(".")[0]
        if operation.namespace == "c10d" and name in ("send", "recv_"):
            _check_peer(dist.ProcessGroup.unbox(args[1]), args[2])
        if operation.namespace not in ("c10d", "_c10d_functional"):
            return operation(*args, **(kwargs or {}))
        before = [uses(block.backends) for block in self._blocks]
        result = operation(*args, **(kwargs or {}))
        if name in NAMES or name in MESSAGES:
            for block, then in zip(self._blocks, before, strict=True):
                now = uses(block.backends) - then
                block.seen.update({group: min(count, INSIDE.get(name, 1)) for group, count in now.items()})
        if name == "send":
            tensors, _, peer = args[:3]
            self.to[peer] += _num_bytes(tensors)
            self.messages += 1
        elif name in NAMES:
            name = NAMES[name]
            self.collectives[name] += 1
            self.payloads[name] += max(map(_num_bytes, (*args[:2], result)))  # the larger of input and output
        return result


class _Groups:
    """The gloo groups that there are, or are made until `close`, and how often each is used.

    `backends`: of the groups, which are kept: so a group that is destroyed is still counted. `seen`: uses, by number,
    that need no explanation: those from before, and those that operators of torch's show.
    """

    def __init__(self) -> None:
        self.backends = gloo_backends()
        self.seen = uses(self.backends)
        self._init = None
        if kind := getattr(dist, "ProcessGroupGloo", None):
            self._init = real = kind.__init__

            @functools.wraps(real)
            def noted(backend: Any, *args: Any, **kwargs: Any) -> None:
                real(backend, *args, **kwargs)
                self.backends.append(backend)

            kind.__init__ = noted

    def close(self) -> int:
        """Note no more groups, and return how many uses were not seen."""
        if self._init:
            dist.ProcessGroupGloo.__init__ = self._init  # type: ignore[method-assign]
        return (uses(self.backends) - self.seen).total()


def gloo_backends() -> list[Any]:
    """Return gloo's part of each process group of this rank that has one."""
    if not dist.is_available() or not dist.is_initialized():
        return []
    groups = dist.distributed_c10d._world.pg_map.items()
    return [group._get_backend(torch.device("cpu")) for group, (backend, _) in groups if "gloo" in backend]


def uses(backends: Iterable[Any]) -> Counter[int]:
    """Return how often each of these was used, by its number: gloo itself counts all messages and collectives."""
    return Counter({number: backend._get_sequence_number_for_group() for number, backend in enumerate(backends)})


def _check_peer(group: dist.ProcessGroup, peer: int) -> None:
    world_size = dist.get_world_size()
    if not 0 <= peer < world_size:
        raise ValueError(f"there is no rank {peer}: the ranks are 0 to {world_size - 1}")
    if peer == group.rank():
        raise ValueError(f"rank {dist.get_rank()} can't send to itself or receive from itself: it has the data already")


def is_distributed(types: Iterable[type]) -> bool:
    """Return whether one of `types` is torch's DTensor. Compares names, because importing DTensor takes seconds."""
    return any(kind.__name__ == "DTensor" for kind in types)


def _num_bytes(argument) -> int:
    """Return the bytes of a tensor, or of the tensors in nested lists; 0 for anything else."""
    if isinstance(argument, list | tuple):
        return sum(map(_num_bytes, argument))
    return argument.numel() * argument.element_size() if hasattr(argument, "element_size") else 0

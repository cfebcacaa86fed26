"""Bytes on the wire: counts what a rank hands to its process group, to compare with the bytes on paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

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

    Raises `ValueError` for a message to or from a rank that isn't there, where gloo would crash. Raises `Unseen` at its
    end if a gloo group was used in a way that no operator of torch's shows, as from another thread.
    """

    def __init__(self):
        super().__init__()
        self._uses: list[Counter[str]] = []  # of each gloo group, before each `with` block and by operators in it
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
        self._uses.append(uses())
        return super().__enter__()

    def __exit__(self, kind, error, trace):
        unseen = (uses() - self._uses.pop()).total()
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
            _check_peer(args[2])
        if operation.namespace not in ("c10d", "_c10d_functional"):
            return operation(*args, **(kwargs or {}))
        before = uses()
        result = operation(*args, **(kwargs or {}))
        if name in NAMES or name in MESSAGES:
            made = uses() - before
            for each in self._uses:
                each.update({group: min(count, INSIDE.get(name, 1)) for group, count in made.items()})
        if name == "send":
            tensors, _, peer = args[:3]
            self.to[peer] += _num_bytes(tensors)
            self.messages += 1
        elif name in NAMES:
            name = NAMES[name]
            self.collectives[name] += 1
            self.payloads[name] += max(map(_num_bytes, (*args[:2], result)))  # the larger of input and output
        return result


def uses() -> Counter[str]:
    """Return how often each gloo group of this rank was used: gloo itself numbers all messages and collectives."""
    if not dist.is_available() or not dist.is_initialized():
        return Counter()
    groups = dist.distributed_c10d._world.pg_map.items()
    return Counter(
        {
            group.group_name: group._get_sequence_number_for_group()  # type: ignore[attr-defined]
            for group, (backend, _) in groups
            if backend == "gloo"
        }
    )


def _check_peer(peer: int) -> None:
    world_size = dist.get_world_size()
    if not 0 <= peer < world_size:
        raise ValueError(f"there is no rank {peer}: the ranks are 0 to {world_size - 1}")


def is_distributed(types: Iterable[type]) -> bool:
    """Return whether one of `types` is torch's DTensor. Compares names, because importing DTensor takes seconds."""
    return any(kind.__name__ == "DTensor" for kind in types)


def _num_bytes(argument) -> int:
    """Return the bytes of a tensor, or of the tensors in nested lists; 0 for anything else."""
    if isinstance(argument, list | tuple):
        return sum(map(_num_bytes, argument))
    return argument.numel() * argument.element_size() if hasattr(argument, "element_size") else 0

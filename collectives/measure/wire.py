"""Count what a rank hands to its process group: the bytes on the wire, to set beside the bytes on paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch.utils._python_dispatch import TorchDispatchMode

NAMES = {
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "all_gather_into_tensor": "all_gather",
    "all_reduce": "all_reduce",
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
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "scatter_": "scatter",
}
"""What torch calls a collective inside, and the field's name for it."""


class BytesSent(TorchDispatchMode):
    """A context in which every point-to-point send of this rank is counted, whoever makes it.

    `to`: bytes sent, by peer. `messages`: how many sends. `collectives`: how often each collective of the backend's
    own (such as "all_reduce") was called; what such a call sends inside cannot be seen from here. `payloads`: the bytes
    of the full buffers of those calls, S in the formulas, by the same names: what all ranks have together of an
    all-gather's result, of a reduce-scatter's input.
    """

    def __init__(self):
        super().__init__()
        self.to: Counter[int] = Counter()
        self.messages = 0
        self.collectives: Counter[str] = Counter()
        self.payloads: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Bytes sent to all peers together."""
        return self.to.total()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not wrap the method below for torch.compile: that would import the compiler, seconds in every rank."""
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if is_distributed(types):
            return NotImplemented  # it then calls, one by one, what this rank does with its own part
        result = operation(*args, **(kwargs or {}))
        if operation.namespace in ("c10d", "_c10d_functional"):
            name = operation.__name__.split(".")[0]
            if name == "send":
                tensors, _, peer = args[:3]
                self.to[peer] += _num_bytes(tensors)
                self.messages += 1
            elif name in NAMES:
                name = NAMES[name]
                self.collectives[name] += 1
                self.payloads[name] += max(map(_num_bytes, (*args[:2], result)))  # of what goes in and what comes out
        return result


def is_distributed(types: Iterable[type]) -> bool:
    """Whether one of these is torch's DTensor, which takes seconds to import only to ask."""
    return any(kind.__name__ == "DTensor" for kind in types)


def _num_bytes(argument) -> int:
    """The bytes of a tensor, or of the tensors in a list of lists; 0 for anything else."""
    if isinstance(argument, list | tuple):
        return sum(map(_num_bytes, argument))
    return argument.numel() * argument.element_size() if hasattr(argument, "element_size") else 0

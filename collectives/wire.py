"""Count what a rank hands to its process group: the bytes on the wire, to set beside the bytes on paper."""

from __future__ import annotations

from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode


class BytesSent(TorchDispatchMode):
    """A context in which every point-to-point send of this rank is counted, whoever makes it.

    `to`: bytes sent, by peer. `messages`: how many sends. `collectives`: how often each collective of the backend's
    own (such as "allreduce_") was called; what such a call sends inside cannot be seen from here.
    """

    def __init__(self):
        super().__init__()
        self.to: Counter[int] = Counter()
        self.messages = 0
        self.collectives: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Bytes sent to all peers together."""
        return self.to.total()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not wrap the method below for torch.compile: that would import the compiler, seconds in every rank."""
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.namespace == "c10d":
            name = operation.__name__.split(".")[0]
            if name == "send":
                (tensor,), _, peer = args[:3]
                self.to[peer] += tensor.numel() * tensor.element_size()
                self.messages += 1
            elif not name.startswith("recv"):
                self.collectives[name] += 1
        return operation(*args, **(kwargs or {}))

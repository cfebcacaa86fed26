"""Count what a rank's tensors hold: the bytes in memory, to set beside the bytes on paper."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .wire import is_distributed


class BytesHeld(TorchDispatchMode):
    """A context in which the memory of every tensor that an operation touches is watched for as long as it lives.

        with BytesHeld(lambda: {"parameters": model.parameters()}) as held:
            loss(model, batch).backward()
        held.peak  # {"parameters": 4096, "other": 18432}

    `kinds()` says which tensors there are of each kind at the moment; what belongs to none is "other": activations,
    buffers of collectives, temporaries. Tensors that share memory are counted once, and of a DTensor what this rank
    holds of it. `now`: bytes of each kind.
    `peak`: the same at the moment when all of them together were most. `most`: the most of each kind at any moment.
    """

    def __init__(self, kinds: Callable[[], Mapping[str, Iterable[torch.Tensor]]] = dict):
        super().__init__()
        self.kinds = kinds
        self.peak: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self._storages: weakref.WeakSet = weakref.WeakSet()

    @property
    def now(self) -> dict[str, int]:
        """Bytes of each kind at this moment, and of "other"."""
        seen, sizes = set(), {}
        for kind, tensors in self.kinds().items():
            storages = {id(storage): storage for storage in map(torch.Tensor.untyped_storage, tensors)}
            sizes[kind] = sum(storage.nbytes() for key, storage in storages.items() if key not in seen)
            seen |= set(storages)
        sizes["other"] = sum(storage.nbytes() for storage in self._storages if id(storage) not in seen)
        return sizes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As in `wire.BytesSent`: do not import the compiler."""
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if is_distributed(types):
            return NotImplemented  # as in `wire.BytesSent`: its own storage has the size of the whole, and no memory
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor):
                self._storages.add(leaf.untyped_storage())
        self._notice()
        return result

    def _notice(self) -> None:
        sizes = self.now
        if sum(sizes.values()) > sum(self.peak.values()):
            self.peak = sizes
        self.most = {kind: max(size, self.most.get(kind, 0)) for kind, size in sizes.items()}

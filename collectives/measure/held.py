"""Bytes in memory: counts what a rank's tensors hold, to compare with the bytes on paper."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .wire import is_distributed


class BytesHeld(TorchDispatchMode):
    """A context that tracks the memory of every tensor that an operation touches, for as long as the tensor lives.

        with BytesHeld(lambda: {"parameters": model.parameters()}) as held:
            loss(model, batch).backward()
        held.peak  # {"parameters": 4096, "other": 18432}

    `kinds()` returns the current tensors of each kind. All others count as "other": activations, buffers of
    collectives, temporaries. Tensors that share memory count once, and a DTensor counts with this rank's shard.
    `now`: bytes of each kind. `peak`: the same at the moment of the largest total. `most`: each kind's own maximum.
    """

    def __init__(self, kinds: Callable[[], Mapping[str, Iterable[torch.Tensor]]] = dict):
        super().__init__()
        self.kinds = kinds
        self.peak: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self._storages: weakref.WeakSet = weakref.WeakSet()

    @property
    def now(self) -> dict[str, int]:
        """The current bytes of each kind and of "other"."""
        seen, sizes = set(), {}
        for kind, tensors in self.kinds().items():
            storages = {id(storage): storage for storage in map(torch.Tensor.untyped_storage, tensors)}
            sizes[kind] = sum(storage.nbytes() for key, storage in storages.items() if key not in seen)
            seen |= set(storages)
        sizes["other"] = sum(storage.nbytes() for storage in self._storages if id(storage) not in seen)
        return sizes

    def track(self, tensors: Iterable[torch.Tensor]) -> None:
        """Track these tensors too, which operations outside this context made."""
        for tensor in tensors:
            self._storages.add(tensor.untyped_storage())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False so that torch doesn't import its compiler, as in `wire.BytesSent`."""
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if is_distributed(types):
            return NotImplemented  # as in `wire.BytesSent`: a DTensor's storage has the global size but no memory
        result = operation(*args, **(kwargs or {}))
        self.track(leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor))
        self._notice()
        return result

    def _notice(self) -> None:
        sizes = self.now
        if sum(sizes.values()) > sum(self.peak.values()):
            self.peak = sizes
        self.most = {kind: max(size, self.most.get(kind, 0)) for kind, size in sizes.items()}

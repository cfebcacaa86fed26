"""Bytes on the wire: counts what a rank hands to its process group, to compare with the bytes on paper."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
    "monitored_barrier_": "monitored_barrier",
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
GLOO: Any = getattr(dist, "ProcessGroupGloo", None)
CARRY = GLOO, getattr(dist, "ProcessGroupNCCL", None)  # torch also has a backend that drops what is sent


class Unseen(RuntimeError):
    """A use of a gloo group, while bytes are counted, that no operator shows: by a thread, or of the backend itself."""


class BytesSent(TorchDispatchMode):
    """A context that counts every point-to-point send of this rank, including those of libraries.

    `to`: bytes sent, by peer, whatever the group. `messages`: number of sends. `collectives`: number of calls of each
    of the backend's own collectives, such as "all_reduce"; what such a call sends internally isn't visible here.
    `payloads`: bytes of the full buffers of those calls by the same names, S in the formulas: an all-gather's result, a
    reduce-scatter's input. `unfinished`: the peers of sends over gloo that nobody has waited for. Only a meter made
    with `follow` knows them, because it has to keep their requests, and so their tensors, until the next operator.

    Raises `ValueError` for a message to or from a rank that isn't there, where gloo would crash, and for a rank's
    message to itself, which gloo calls a pair that is not connected. Also raises it for a group over another backend
    than those in `CARRY`, unless the whole world was over that one when the counting began. Raises `Unseen` at its end
    if a gloo group was used in a way that no operator of torch's shows, as from another thread, even while an operator
    runs. That includes groups that are made or destroyed meanwhile.
    """

    def __init__(self, follow: bool = False):
        super().__init__()
        self.follow = follow
        self._blocks: list[GroupsUsed] = []  # one for each `with` block
        self.to: Counter[int] = Counter()
        self.messages = 0
        self.collectives: Counter[str] = Counter()
        self.payloads: Counter[str] = Counter()
        self._under_way: list[tuple[int, dist.Work]] = []

    @property
    def unfinished(self) -> list[int]:
        """The peers of sends that nobody has waited for, if the meter was made with `follow`."""
        self._settle()
        return [peer for peer, _ in self._under_way]

    def _settle(self) -> None:
        """Forget the sends that are over: a request keeps its tensor in memory."""
        self._under_way = [(peer, work) for peer, work in self._under_way if not work.is_completed()]

    @property
    def total(self) -> int:
        """The bytes sent to all peers."""
        return self.to.total()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False so that torch doesn't wrap the method below: that imports the compiler, seconds per rank."""
        return False

    def __enter__(self):
        self._blocks.append(GroupsUsed())
        return super().__enter__()

    def __exit__(self, kind, error, trace):
        unseen = self._blocks.pop().close()
        super().__exit__(kind, error, trace)
        if unseen and kind is None:
            raise Unseen(
                f"{unseen} of this rank's calls went round what counts its bytes: call the functions of "
                "torch.distributed, and in the thread in which your function was called"
            )

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if is_distributed(types):
            return NotImplemented  # DTensor then dispatches this rank's local operations one by one
        group = _group_of(args) if operation.namespace in ("c10d", "_c10d_functional") else None
        if group is None:
            return operation(*args, **(kwargs or {}))
        name = operation.__name__.split(".")[0]
        self._settle()
        backend = _carrier(group, args, {block.world for block in self._blocks})
        if name in ("send", "recv_"):
            _check_peer(group, args[2])
        before, begun = [uses(block.backends) for block in self._blocks], _used(backend) if type(backend) is GLOO else 0
        result = operation(*args, **(kwargs or {}))
        own = _own_uses(name, args, group)
        for block, then in zip(self._blocks, before, strict=True):
            now = uses(block.backends) - then
            block.seen.update({n: min(now[n], own) for n, each in enumerate(block.backends) if each is backend})
        if name == "send" and (type(backend) is not GLOO or _used(backend) > begun):  # NCCL counts no messages
            tensors, peer = args[0], dist.get_global_rank(group, args[2])  # the operator has the rank within the group
            self.to[peer] += _num_bytes(tensors)
            self.messages += 1
            if self.follow and type(backend) is GLOO:
                self._under_way.append((peer, dist.Work.unbox(result)))
        elif name in NAMES:
            name = NAMES[name]
            self.collectives[name] += 1
            self.payloads[name] += max(map(_num_bytes, (*args[:2], result)))  # the larger of input and output
        return result


_NOTED: list[Any] = []  # gloo's backends that any `GroupsUsed` of this process has seen being made


class GroupsUsed:
    """The gloo groups that there are, or are made until `close`, and how often each is used.

    `backends`: of the groups, which are kept: so a group that is destroyed is still counted. They begin with those that
    an earlier list has noted, of which torch's own list may have none. `seen`: uses, by number,
    that need no explanation: those from before, and those that operators of torch's show. `world`: the kind of backend
    of the default group, with which one process can act as a rank among others that aren't there.
    """

    def __init__(self) -> None:
        self.backends = gloo_backends()
        self.backends += [each for each in _NOTED if not any(each is other for other in self.backends)]
        self.world = type(_on_cpu(world)) if (world := dist.group.WORLD) else None
        self.seen = uses(self.backends)
        self._made_by: list[tuple[Any, str, Any]] = []
        if GLOO:
            self._note(GLOO, "__init__", lambda backend, _: backend)
            for name in ("split_group", "merge_remote_group"):  # these make a backend without calling its class
                self._note(dist.ProcessGroup, name, lambda _, group: group and _on_cpu(group))

    def _note(self, owner: Any, name: str, made: Callable[[Any, Any], Any]) -> None:
        """Let a method of torch's note the backend that it makes. `made(self, result)`: which that is."""
        real = getattr(owner, name)

        @functools.wraps(real)
        def noted(first: Any, *args: Any, **kwargs: Any) -> Any:
            result = real(first, *args, **kwargs)
            if isinstance(backend := made(first, result), GLOO):  # of a subclass, too
                self.backends.append(backend)
                _NOTED.append(backend)
            return result

        self._made_by.append((owner, name, real))
        setattr(owner, name, noted)

    def close(self) -> int:
        """Note no more groups, and return how many uses were not seen."""
        for owner, name, real in self._made_by:
            setattr(owner, name, real)
        return (uses(self.backends) - self.seen).total()


def gloo_backends() -> list[Any]:
    """Return gloo's part of each process group of this rank that has one."""
    if not dist.is_available() or not dist.is_initialized():
        return []
    groups = dist.distributed_c10d._world.pg_map.items()
    return [_on_cpu(group) for group, (backend, _) in groups if "gloo" in backend]


def uses(backends: Iterable[Any]) -> Counter[int]:
    """Return how often each of these was used, by its number: gloo itself counts all messages and collectives."""
    return Counter({number: _used(backend) for number, backend in enumerate(backends)})


def _used(backend: Any) -> int:
    return GLOO._get_sequence_number_for_group(backend)  # and not what a class of one's own says


def _group_of(args: Iterable[Any]) -> dist.ProcessGroup | None:
    """Return the process group among an operator's arguments; functional operators have its name. None if none has."""
    name: Any = None
    for each in args:
        if isinstance(each, torch.ScriptObject) and each._type().qualified_name().endswith(".ProcessGroup"):
            return dist.ProcessGroup.unbox(each)
        name = each if isinstance(each, str) else name  # the last text: one before it names the reduction
    return None if name is None else dist.distributed_c10d._resolve_process_group(name)


def _carrier(group: dist.ProcessGroup, args: Iterable[Any], worlds: set[Any]) -> Any:
    """Return the backend that carries the tensors in `args`; raise `ValueError` if not in `CARRY` or `worlds`.

    torch has a backend, and a kind of tensor, of which a send sends nothing.
    """
    device = next((tensor.device for tensor in _tensors(args)), torch.device("cpu"))
    try:
        backend = _part(group, device)
    except RuntimeError:  # such as for tensors on "meta", which have no numbers
        raise ValueError(f"a process group carries no tensors on {device}") from None
    if type(group) is not dist.ProcessGroup or type(backend) not in {*CARRY, *worlds}:
        kinds = type(group).__name__, type(backend).__name__
        raise ValueError("bytes are counted over gloo and NCCL alone; this group is a {} over {}".format(*kinds))
    return backend


def _part(group: dist.ProcessGroup, device: torch.device) -> Any:
    """Return a group's backend for tensors on a device."""
    backend: Any = group._get_backend(device)
    wrapped = type(backend).__name__ == "_ProcessGroupWrapper"  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
    return backend.wrapped_pg if wrapped else backend


def _on_cpu(group: dist.ProcessGroup) -> Any:
    """Return a group's backend for tensors on the CPU; None if it has none, as over NCCL."""
    try:
        return _part(group, torch.device("cpu"))
    except RuntimeError:
        return None


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    """Yield a tensor, or the tensors in nested lists."""
    if isinstance(argument, list | tuple):
        for each in argument:
            yield from _tensors(each)
    elif isinstance(argument, torch.Tensor):
        yield argument


def _own_uses(name: str, args: tuple, group: dist.ProcessGroup) -> int:
    """Return how often gloo counts an operator's own use of its group: measured with torch 2.13, and no more."""
    if name == "monitored_barrier_":  # rank 0 hears from each other rank, and answers it
        return 2 * (group.size() - 1) if group.rank() == 0 else 2
    if name == "reduce_scatter_":  # a reduce to each rank
        return group.size()
    if name.startswith("reduce_scatter_tensor_coalesced"):  # one for each tensor
        return len(args[0])
    return int(name in NAMES or name in MESSAGES)


def _check_peer(group: dist.ProcessGroup, peer: int) -> None:
    if not 0 <= peer < group.size():
        raise ValueError(f"there is no rank {peer}: the ranks are 0 to {group.size() - 1}")
    if peer == group.rank():
        raise ValueError(f"rank {dist.get_rank()} can't send to itself or receive from itself: it has the data already")


def is_distributed(types: Iterable[type]) -> bool:
    """Return whether one of `types` is torch's DTensor. Compares names, because importing DTensor takes seconds."""
    return any(kind.__name__ == "DTensor" for kind in types)


def _num_bytes(argument: Any) -> int:
    """Return the bytes of a tensor, or of the tensors in nested lists; 0 for anything else.

    A subclass of Tensor isn't asked for its size: it may have a method of its own that says it.
    """
    with torch._C.DisableTorchFunctionSubclass():
        return sum(torch.Tensor.numel(each) * torch.Tensor.element_size(each) for each in _tensors(argument))

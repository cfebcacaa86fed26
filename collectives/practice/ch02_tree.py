"""Checks of exercise 02: a broadcast and a reduce as schedules, and a reduce on real ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from .. import contracts
from ..algorithms import tree
from ..contracts import Contract, ranks_in_words
from ..draw import draw
from ..schedule import REDUCE, Schedule, Transfer
from .checks import DRAWN, NotYet, call_in_words, check_kept, show, steps_of
from .on_ranks import Outcome, on_ranks, same, unlike, witnessed, witnessed_sums

HOLDS = ("schedule", *DRAWN)  # see `wall`

# Schedules


def check_rooted(function: Callable, contract: Contract, world_size: int, *root: int) -> Schedule:
    """Check that `function(world_size, *root)` gives the steps of a schedule that keeps `contract`; return it.

    The buffer is a single chunk; without `root`, the root is rank 0. Draw a schedule that breaks its contract.
    """
    call = call_in_words(function, [world_size, *root])
    steps = steps_of(function, world_size, *root)
    remark = lambda schedule, _: _added(schedule, contract)  # noqa: E731
    return check_kept(steps, call, contract, world_size, 1, remark, root=root[0] if root else 0)


def _added(schedule: Schedule, contract: Contract) -> str:
    """Return a remark on a broadcast that adds; "" for any other schedule."""
    adds = any(transfer.combine == REDUCE for step in schedule for transfer in step)
    remark = " In a broadcast, what arrives replaces what was there: combine is 'copy', not 'reduce'."
    return remark if adds and contract is contracts.broadcast else ""


def check_fewest_steps(schedule: Schedule, contract: Contract) -> None:
    """Check that `schedule` keeps `contract` in the fewest possible steps, with one message at a time.

    In a step, a rank may send one message and receive one. The data reaches each rank once, or a sum leaves each rank
    once. Any tree that obeys these rules passes. Steps without a message don't count. Draw a slower schedule.
    """
    _check_one_at_a_time(schedule)
    _check_once(schedule, contract)
    steps = sum(len(step) > 0 for step in schedule)
    enough = len(list(tree.broadcast(schedule.world_size)))
    if steps > enough:
        show(draw(schedule, contract, caption=f"{schedule.name}: right, but {enough} steps are enough"))
        raise NotYet(
            f"{schedule.name} does what it should, but takes {steps} steps; {schedule.world_size} ranks need "
            f"{enough}. {_idle(schedule, contract)}"
        )


def _check_one_at_a_time(schedule: Schedule) -> None:
    for index, step in enumerate(schedule):
        for does, ranks in (("sends", step.src), ("receives", step.dst)):
            for rank, messages in Counter(ranks.tolist()).items():
                if messages > 1:
                    raise NotYet(
                        f"{schedule.name}, step {index}: rank {rank} {does} {messages} messages at once ({step}); "
                        f"a rank {does} one message a step"
                    )


def _check_once(schedule: Schedule, contract: Contract) -> None:
    broadcasts = contract is contracts.broadcast
    what = "receives the data" if broadcasts else "hands on its sum"
    seen: dict[int, int] = {}
    for index, step in enumerate(schedule):
        for rank in (step.dst if broadcasts else step.src).tolist():
            if rank == schedule.root:
                raise NotYet(f"{schedule.name}, step {index}: the root, rank {rank}, {what}; it need not")
            if rank in seen:
                raise NotYet(f"{schedule.name}: rank {rank} {what} in step {seen[rank]} and again in step {index}")
            seen[rank] = index


def _idle(schedule: Schedule, contract: Contract) -> str:
    """Return a sentence on the first step in which fewer ranks send than could."""
    broadcasts, left = contract is contracts.broadcast, schedule.world_size
    have = 1  # ranks with the data
    for index, step in enumerate(schedule):
        could = min(have, left - 1) if broadcasts else left // 2
        if 0 < len(step) < could:
            before = f"{have} ranks have the data" if broadcasts else f"{left} ranks hold a part of the sum"
            do = "1 does" if len(step) == 1 else f"{len(step)} do"
            return f"Before step {index}, {before}; in it {could} of them could send, but only {do}."
        have, left = have + len(step), left - len(step)
    return ""


# Real ranks


def check_sum(function: Callable, buffers: np.ndarray) -> list[Outcome]:
    """Check that `function(rank, world_size, buffer)` leaves the sum of `buffers` in the buffer of rank 0."""
    try:
        outcomes = on_ranks(function, buffers)
    except NotYet as stuck:
        if " sends to, or receives from, rank " in str(stuck):
            hint = "Let a rank send or receive only where it has a partner. Rank 0 has none to send to."
        elif "did not finish" in str(stuck):
            last = len(buffers) - 1
            hint = f"Does every receive have its sender, and every send its receiver? The ranks are 0 to {last}."
        else:
            raise
        raise NotYet(f"{stuck}\n  {hint}") from None
    root, total = outcomes[0], buffers.sum(axis=0)
    if root.buffer.shape == total.shape and same(root.buffer, total):
        witnessed_sums(outcomes, buffers, kept=[len(total)] + [0] * (len(buffers) - 1))
        return outcomes
    who = f"with {len(buffers)} ranks and {len(total)} elements, rank 0"
    if not isinstance(root.returned, str) and root.returned.shape == total.shape and same(root.returned, total):
        raise NotYet(f"{who} returns the sum, but its buffer does not hold it: work in place")
    if total.dtype.kind == "i" and np.allclose(root.buffer, total, rtol=1e-6, atol=0):
        raise NotYet(f"{who} ends with a rounded sum: send and add the buffer's own dtype, {total.dtype}")
    if root.buffer.shape == total.shape and same(root.buffer, buffers[0]):
        raise NotYet(f"{who} ends with what it began with")
    result = summed(root.buffer, len(buffers)) or unlike(root.buffer, total)
    raise NotYet(f"{who} ends with {result}")


def summed(got: np.ndarray, world_size: int) -> str | None:
    """Return, in words, which ranks' `tagged` buffers a sum contains; None if it is no sum of such buffers."""
    sums, left = np.divmod(got, np.arange(len(got)) + 1)
    if left.any() or (sums != sums[0]).any() or not 0 < sums[0] < 10**world_size:
        return None
    counts = sums[0] // 10 ** np.arange(world_size) % 10
    if counts.sum() == counts[0] == 1:
        return "what it began with"
    faults = [f"without {ranks_in_words(counts == 0)}"] if (counts == 0).any() else []
    faults += [f"with {ranks_in_words(counts > 1)} more than once"] if (counts > 1).any() else []
    return f"a sum {' and '.join(faults)}"


def check_tree_traffic(function: Callable, buffers: np.ndarray) -> None:
    """Check that the sum is right, each rank but 0 sends its buffer once, and the tree has the fewest possible steps.

    The check can't see in which order a rank receives, and assumes the best one. Draw a slower tree.
    """
    world_size, one_buffer = len(buffers), buffers[0].nbytes
    outcomes = check_sum(function, buffers)
    for rank, outcome in enumerate(outcomes):
        sent, most = sum(outcome.bytes_to.values()), min(rank, 1)
        if outcome.messages != most or len(outcome.bytes_to) != most or sent != most * one_buffer:
            right = f"its sum once, {one_buffer} bytes" if rank else "nothing: the sum ends there"
            raise NotYet(
                f"with {world_size} ranks, rank {rank} sends {sent} bytes in {outcome.messages} messages; "
                f"it should send {right}"
            )
    parents = {rank: next(iter(outcome.bytes_to)) for rank, outcome in enumerate(outcomes) if rank}
    messages = earliest(parents)
    if len(messages) != len(parents):
        raise NotYet(f"with {world_size} ranks, not every rank's sum reaches rank 0")
    steps = [[t for at, t in messages if at == step] for step in range(1 + max((at for at, _ in messages), default=-1))]
    enough = len(list(tree.reduce(world_size)))
    if len(steps) > enough:
        schedule = Schedule.of(world_size, 1, steps, name=function.__name__, root=0)
        show(draw(schedule, contracts.reduce, caption=f"{function.__name__}: every message as early as possible"))
        raise NotYet(
            f"with {world_size} ranks the sum is right, but takes {len(steps)} steps; {enough} are enough "
            f"(chunk:from→to, as early as possible: {' | '.join(map(str, schedule))})"
        )
    witnessed(outcomes, (world_size - 1) * one_buffer, (world_size - 1) * one_buffer)


def earliest(parents: dict[int, int], rank: int = 0) -> list[tuple[int, Transfer]]:
    """Return the messages that bring `rank` the sum of its subtree, each with the first step in which it can go.

    `parents`: the rank that each rank sends its sum to. A rank receives one message a step, in the order in which they
    are ready.
    """
    children = [child for child, parent in parents.items() if parent == rank]
    below = [(earliest(parents, child), child) for child in children]
    messages, step = [], 0
    for earlier, child in sorted(below, key=lambda pair: how_many_steps(pair[0])):
        step = max(step, how_many_steps(earlier))
        messages += [*earlier, (step, Transfer(child, rank, 0, REDUCE))]
        step += 1
    return messages


def how_many_steps(messages: list[tuple[int, Transfer]]) -> int:
    """Return how many steps these messages take."""
    return 1 + max((step for step, _ in messages), default=-1)

"""Checks of exercise 07: an all-reduce on two levels keeps its contract, and its price is near the best one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from .. import contracts, machines, topology
from ..algorithms import halving_doubling, hierarchical, ring
from ..price import price
from ..schedule import Schedule
from .checks import NotYet, check_kept, steps_of

NODES, RANKS_PER_NODE = 4, 4
MACHINE = topology.two_level(
    NODES, RANKS_PER_NODE, inside=machines.link("NVLink 4 (H100)"), across=machines.link("InfiniBand NDR")
)
SIZES = (8 * 2**20, 32 * 2**20)  # bytes: alphas are a large part of the first price, and a small part of the second


def check_all_reduce(function: Callable, num_nodes: int, ranks_per_node: int, drawn: bool = True) -> Schedule:
    """Check that `function(num_nodes, ranks_per_node)` gives the steps of an all-reduce; return the schedule.

    If `drawn`, draw a wrong one up to the step that goes wrong.
    """
    call = f"{function.__name__}({num_nodes}, {ranks_per_node})"
    world_size = num_nodes * ranks_per_node
    steps = steps_of(function, num_nodes, ranks_per_node)
    return check_kept(
        *(steps, call, contracts.all_reduce, world_size, world_size),
        remark=lambda schedule, _: _alone(schedule, num_nodes, ranks_per_node),
        prefix=f"{call}: ",
        drawn=drawn,
    )


def _alone(schedule: Schedule, num_nodes: int, ranks_per_node: int) -> str:
    """Return a remark on nodes, or on ranks of a node, that never exchange a message; "" if all do."""
    pairs = {(t.src // ranks_per_node, t.dst // ranks_per_node) for step in schedule for t in step}
    if num_nodes > 1 and all(here == there for here, there in pairs):
        return " No message leaves its node: the nodes never exchange data."
    if ranks_per_node > 1 and all(here != there for here, there in pairs):
        return " No message stays in its node: the ranks of a node never exchange data."
    return ""


def best() -> Schedule:
    """Return the best all-reduce known for both `SIZES` together: halving-doubling that starts with near ranks.

    At one size another may be cheaper: at 8 MiB recursive doubling between the nodes wins, and at 32 MiB it loses.
    The library's halving-doubling starts with the farthest rank; reversing the bits of the ranks reverses that.
    """
    schedule = halving_doubling.all_reduce(MACHINE.world_size)
    digits = (MACHINE.world_size - 1).bit_length()
    reversed_bits = [int(f"{rank:0{digits}b}"[::-1], 2) for rank in range(MACHINE.world_size)]
    return replace(schedule.placed(reversed_bits), name="near ranks first")


def check_price(function: Callable, within: float | None = None) -> None:
    """Check what the answer costs on `MACHINE`, at each of `SIZES`.

    Without `within`, it must cost less than the ring through all ranks in order. With it, at most that share more
    than the best (0.25: a quarter more).
    """
    schedule = check_all_reduce(function, NODES, RANKS_PER_NODE, drawn=False)  # a wrong schedule may be cheap
    flat, target = ring.all_reduce(MACHINE.world_size), best()
    for num_bytes in SIZES:
        yours, theirs, least = (price(each, num_bytes, MACHINE).seconds for each in (schedule, flat, target))
        if within is None and yours >= theirs:
            raise NotYet(
                f"for {num_bytes // 2**20} MiB your schedule takes {_us(yours)} and the flat ring {_us(theirs)}. "
                + _where_it_goes(schedule, target, num_bytes)
            )
        if within is not None and yours > (1 + within) * least:
            raise NotYet(
                f"for {num_bytes // 2**20} MiB your schedule takes {_us(yours)}, which is {yours / least - 1:.0%} "
                f"more than the {_us(least)} of the best schedule known for both sizes together; the limit is "
                f"{within:.0%} more. " + _where_it_goes(schedule, target, num_bytes)
            )


def report(function: Callable) -> str:
    """Return the answer's price on `MACHINE` beside the flat ring's and the best: one line for each of `SIZES`."""
    schedule = check_all_reduce(function, NODES, RANKS_PER_NODE)
    rows = {"flat ring": ring.all_reduce(MACHINE.world_size), "yours": schedule, "best known for both": best()}
    lines = []
    for num_bytes in SIZES:
        costs = (f"{name} {_us(price(each, num_bytes, MACHINE).seconds)}" for name, each in rows.items())
        lines.append(f"{num_bytes // 2**20:>3} MiB: " + ", ".join(costs))
    return "\n".join(lines)


def _where_it_goes(schedule: Schedule, target: Schedule, num_bytes: int) -> str:
    """Return, in words, what a schedule pays for messages and its busiest link between nodes, beside the best."""
    waiting = [price(each, 0, MACHINE).seconds for each in (schedule, target)]
    messages = [_messages_in_a_row(each) for each in (schedule, target)]
    seconds = [price(each, num_bytes, MACHINE).seconds for each in (schedule, target)]
    more = seconds[0] - seconds[1]
    alphas = min(max(waiting[0] - waiting[1], 0), more)  # bytes may hide some alphas, when another path is the longest
    words = (
        f"Of the {_us(more)} beyond the best, {alphas * 1e6:,.0f} are alphas and "
        f"{(more - alphas) * 1e6:,.0f} bytes. "
        f"It pays for {messages[0]} messages in a row, {_us(waiting[0])} of alphas alone (the best: "
        f"{messages[1]}, {_us(waiting[1])}). "
    )
    (busiest, most), (_, least) = (_busiest(each, num_bytes) for each in (schedule, target))
    words += (
        f"Of the links that leave a node, {busiest[0]}→{busiest[1]} (ranks) carries the most, {most / 2**20:.3g} MiB "
        f"(in the best none carries more than {least / 2**20:.3g} MiB)."
    )
    pairs = [[(t.src, t.dst) for t in step] for step in schedule]
    if any(len(set(pair)) < len(pair) for pair in pairs):
        words += (
            " In a step you send several messages from one rank to another, and each pays its alpha: send "
            "neighbouring chunks as one message, Transfer(src, dst, chunk, combine, count=...)."
        )
    return words


def _messages_in_a_row(schedule: Schedule) -> int:
    return round(price(schedule, 0, topology.uniform(schedule.world_size, alpha=1, beta=0)).seconds)


def _busiest(schedule: Schedule, num_bytes: int) -> tuple[tuple[int, int], int]:
    """Return the link between nodes that carries the most, as (src, dst), and its bytes."""
    carried = price(schedule, num_bytes, MACHINE).bytes_on_link
    across = {(src, dst): n for (src, dst), n in carried.items() if src // RANKS_PER_NODE != dst // RANKS_PER_NODE}
    busiest = min(across, key=lambda link: (-across[link], link))
    return busiest, across[busiest]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} microseconds"


# Bytes that leave a node


def dealt_out(num_nodes: int, ranks_per_node: int) -> list[int]:
    """Return a bad order of the ranks: every message of a ring crosses to another node."""
    return [node * ranks_per_node + local for local in range(ranks_per_node) for node in range(num_nodes)]


def ring_in_order(num_nodes: int, ranks_per_node: int) -> Schedule:
    return ring.all_reduce(num_nodes * ranks_per_node)


def ring_in_bad_order(num_nodes: int, ranks_per_node: int) -> Schedule:
    return ring_in_order(num_nodes, ranks_per_node).placed(dealt_out(num_nodes, ranks_per_node))


def two_levels(num_nodes: int, ranks_per_node: int) -> Schedule:
    return hierarchical.all_reduce(num_nodes * ranks_per_node, ranks_per_node)


def leaving_a_node(algorithm: Callable) -> Callable:
    """Return the truth for `check_formula`: the bytes that leave node 0 in `algorithm(num_nodes, ranks_per_node)`."""

    def truth(num_bytes: int, num_nodes: int, ranks_per_node: int) -> int:
        schedule = algorithm(num_nodes, ranks_per_node)
        carried = price(schedule, num_bytes, topology.uniform(schedule.world_size, alpha=0, beta=0)).bytes_on_link
        return sum(n for (src, dst), n in carried.items() if src < ranks_per_node <= dst)

    return truth


def slips(want: float, num_bytes: int, num_nodes: int, ranks_per_node: int) -> dict[str, float]:
    """Return {a slip in words: the number it leads to} for the bytes that leave a node."""
    world_size = num_nodes * ranks_per_node
    longer, between = world_size / (world_size - 1), num_nodes / (num_nodes - 1)
    return {
        "`//` has rounded a fraction below 1 down to 0": 0,
        "this is half of it: an all-reduce is a reduce-scatter and an all-gather": want / 2,
        "this is twice as much: do not count bytes that enter the node": want * 2,
        "this counts all nodes together; count one node": want * num_nodes,
        "this is what leaves one rank; how many ranks of the node send to other nodes?": want / ranks_per_node,
        "this counts every rank of the node; how many of them send to other nodes?": want * ranks_per_node,
        "a rank does not send to itself: P - 1 of the ring's P chunks cross each link": want * longer,
        "a node does not send to itself: N - 1 of the N chunks cross": want * between,
        "this counts P ranks where the N nodes count: only one sum leaves each node": want * between / longer,
        "this counts N nodes where the ring has P ranks": want * longer / between,
        "all ranks of the node send, and each sends P - 1 of the P chunks": want * longer / ranks_per_node,
        "this is the whole buffer once: has `//` rounded a factor below 2 down to 1?": num_bytes,
        "this is every rank's whole buffer, as if no rank added anything up on the way": num_bytes * ranks_per_node,
    }


def shard_slips(want: float, num_bytes: int, num_nodes: int, ranks_per_node: int) -> dict[str, float]:
    """Return the slips for the all-reduce on two levels, in which every rank sends to another node."""
    whole = {"every rank sends, but only its shard of S/L": want * ranks_per_node}
    return whole | slips(want, num_bytes, num_nodes, ranks_per_node)


def cases(seed: int, how_many: int = 8) -> list[tuple[int, int, int]]:
    """Return cases `(num_bytes, num_nodes, ranks_per_node)` for a formula; the buffer divides by the ranks."""
    random = Random(seed)
    shapes = [(random.randint(3, 6), random.randint(3, 6)) for _ in range(how_many)]
    return [(random.randint(1, 10**6) * nodes * local, nodes, local) for nodes, local in shapes]

"""Checks of exercise 07: an all-reduce on two levels keeps its contract, and its price is near the best one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import NamedTuple

from .. import contracts, machines, topology
from ..algorithms import halving_doubling, hierarchical, ring
from ..execute import Part
from ..price import Cost, price
from ..schedule import Schedule
from .checks import (
    DRAWN,
    Answered,
    NotYet,
    against_the_schedule,
    call_in_words,
    check_kept,
    check_rows,
    number_of,
    own_answer,
    refusing,
    refusing_schedules,
    steps_of,
)

HOLDS = (".MACHINE", ".SIZES", "schedule", *DRAWN)  # see `wall`

NODES, RANKS_PER_NODE = 4, 4
MACHINE = topology.two_level(
    NODES, RANKS_PER_NODE, inside=machines.link("NVLink 4 (H100)"), across=machines.link("InfiniBand NDR")
)
SIZES = (8 * 2**20, 32 * 2**20)  # bytes: alphas are a large part of the first price, and a small part of the second


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, to make or read a schedule of the library, to execute one, and to price one."""

    with (
        refusing_schedules(),
        refusing(Part, "of", what="execute"),
        refusing(Cost, "__init__", what="price"),
    ):
        yield


def check_all_reduce(function: Callable, num_nodes: int, ranks_per_node: int, drawn: bool = True) -> Schedule:
    """Check that `function(num_nodes, ranks_per_node)` gives the steps of an all-reduce; return the schedule.

    If `drawn`, draw a wrong one up to the step that goes wrong.
    """
    call = f"{function.__name__}({num_nodes}, {ranks_per_node})"
    world_size = num_nodes * ranks_per_node
    steps = steps_of(function, num_nodes, ranks_per_node, checks=__name__)
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


class Price(NamedTuple):
    """What a schedule costs on `MACHINE` for one size, and why.

    `messages`: how many in a row. `waiting`: seconds of their alphas alone. `rank`, `most`: the rank that sends most to
    other nodes, and how many bytes.
    """

    seconds: float
    messages: int
    waiting: float
    rank: int
    most: int


def target(num_bytes: int) -> Price:
    """Return the price of the best all-reduce known for both `SIZES` together.

    It is halving-doubling that starts with near ranks. At one size another may be cheaper: at 8 MiB recursive doubling
    between the nodes wins, and at 32 MiB it loses. The library's halving-doubling starts with the farthest rank;
    reversing the bits of the ranks reverses that.
    """
    digits = (MACHINE.world_size - 1).bit_length()
    reversed_bits = [int(f"{rank:0{digits}b}"[::-1], 2) for rank in range(MACHINE.world_size)]
    return priced(halving_doubling.all_reduce(MACHINE.world_size).placed(reversed_bits), num_bytes)


def priced(schedule: Schedule, num_bytes: int) -> Price:
    """Return the price of an all-reduce on `MACHINE`."""
    cost = price(schedule, num_bytes, MACHINE)
    across = [0] * MACHINE.world_size
    for (src, dst), carried in cost.bytes_on_link.items():
        across[src] += carried * (src // RANKS_PER_NODE != dst // RANKS_PER_NODE)
    in_a_row = round(price(schedule, 0, topology.uniform(schedule.world_size, alpha=1, beta=0)).seconds)
    return Price(cost.seconds, in_a_row, price(schedule, 0, MACHINE).seconds, across.index(max(across)), max(across))


def check_price(function: Callable, within: float | None = None) -> None:
    """Check what the answer costs on `MACHINE`, at each of `SIZES`.

    Without `within`, it must cost less than the ring through all ranks in order. With it, at most that share more
    than the best (0.25: a quarter more).
    """
    schedule = check_all_reduce(function, NODES, RANKS_PER_NODE, drawn=False)  # a wrong schedule may be cheap
    flat = ring.all_reduce(MACHINE.world_size)
    for num_bytes in SIZES:
        yours, best, theirs = priced(schedule, num_bytes), target(num_bytes), priced(flat, num_bytes)
        if within is None and yours.seconds >= theirs.seconds:
            raise NotYet(
                f"for {num_bytes // 2**20} MiB your schedule takes {_us(yours.seconds)} and the flat ring "
                f"{_us(theirs.seconds)}. {_where_it_goes(schedule, yours, best)}"
            )
        if within is not None and yours.seconds > (1 + within) * best.seconds:
            raise NotYet(
                f"for {num_bytes // 2**20} MiB your schedule takes {_us(yours.seconds)}, which is "
                f"{yours.seconds / best.seconds - 1:.0%} more than the {_us(best.seconds)} of the best schedule known "
                f"for both sizes together; the limit is {within:.0%} more. {_where_it_goes(schedule, yours, best)}"
            )


def report(function: Callable) -> str:
    """Return the answer's price on `MACHINE` beside the flat ring's and the best: one line for each of `SIZES`."""
    schedule = check_all_reduce(function, NODES, RANKS_PER_NODE)
    lines = []
    for num_bytes in SIZES:
        yours, best = priced(schedule, num_bytes).seconds, target(num_bytes).seconds
        flat = priced(ring.all_reduce(MACHINE.world_size), num_bytes).seconds
        costs = f"flat ring {_us(flat)}, yours {_us(yours)}, best known for both {_us(best)}"
        lines.append(f"{num_bytes // 2**20:>3} MiB: {costs}")
    return "\n".join(lines)


def _where_it_goes(schedule: Schedule, yours: Price, best: Price) -> str:
    """Return, in words, what a schedule pays for messages and for bytes between nodes, beside the best."""
    more = yours.seconds - best.seconds
    alphas = min(max(yours.waiting - best.waiting, 0), more)  # bytes may hide alphas, if another path is the longest
    words = (
        f"Of the {_us(more)} beyond the best, {alphas * 1e6:,.0f} are for alphas and "
        f"{(more - alphas) * 1e6:,.0f} for bytes. "
        f"It pays for {yours.messages} messages in a row, {_us(yours.waiting)} of alphas alone (the best: "
        f"{best.messages}, {_us(best.waiting)})."
    )
    if yours.most > best.most:
        words += (
            f" To other nodes rank {yours.rank} sends the most, {yours.most / 2**20:.3g} MiB (in the best no rank "
            f"sends more than {best.most / 2**20:.3g} MiB)."
        )
    pairs = [[(t.src, t.dst) for t in step] for step in schedule]
    if any(len(set(pair)) < len(pair) for pair in pairs):
        words += (
            " In a step you send several messages from one rank to another, and each pays its alpha: send "
            "neighbouring chunks as one message, Transfer(src, dst, chunk, combine, count=...)."
        )
    return words


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} microseconds"


# Bytes that leave a node


def round_robin(num_nodes: int, ranks_per_node: int) -> list[int]:
    """Return the places of ranks numbered round-robin over the nodes: every message of a ring leaves its node."""
    return [node * ranks_per_node + local for local in range(ranks_per_node) for node in range(num_nodes)]


def ring_in_order(num_nodes: int, ranks_per_node: int) -> Schedule:
    return ring.all_reduce(num_nodes * ranks_per_node)


def ring_in_bad_order(num_nodes: int, ranks_per_node: int) -> Schedule:
    return ring_in_order(num_nodes, ranks_per_node).placed(round_robin(num_nodes, ranks_per_node))


def two_levels(num_nodes: int, ranks_per_node: int) -> Schedule:
    return hierarchical.all_reduce(num_nodes * ranks_per_node, ranks_per_node)


def leaving_a_node(algorithm: Callable) -> Callable:
    """Return the truth for `check_leaving`: the bytes that leave node 0 in `algorithm(num_nodes, ranks_per_node)`."""

    def truth(num_bytes: int, num_nodes: int, ranks_per_node: int) -> int:
        schedule = algorithm(num_nodes, ranks_per_node)
        carried = price(schedule, num_bytes, topology.uniform(schedule.world_size, alpha=0, beta=0)).bytes_on_link
        return sum(n for (src, dst), n in carried.items() if src < ranks_per_node <= dst)

    return truth


def check_leaving(function: Callable, truth: Callable, cases: Iterable[tuple], slips: Callable) -> None:
    """Check that `function(*case)` is the number `truth(*case)` in all `cases`, without the library's help.

    `slips`: as for `check_formula`.
    """
    rows = []
    for case in cases:
        want, call = truth(*case), call_in_words(function, case)
        result = own_answer(__name__, function, *case, call=call)
        rows.append(Answered(call, number_of(result, call), want, slips(want, *case)))
    check_rows(rows, against_the_schedule)


def slips(want: float, num_bytes: int, num_nodes: int, ranks_per_node: int) -> dict[str, float]:
    """Return {a slip in words: the number it leads to} for the bytes that leave a node."""
    world_size = num_nodes * ranks_per_node
    longer, between = world_size / (world_size - 1), num_nodes / (num_nodes - 1)
    return {
        "something leaves every node; has a fraction become 0?": 0,
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
        "this is the whole buffer once; the factor lies between 1 and 2": num_bytes,
        "this is every rank's whole buffer, as if no rank added anything up on the way": num_bytes * ranks_per_node,
    }


def shard_slips(want: float, num_bytes: int, num_nodes: int, ranks_per_node: int) -> dict[str, float]:
    """Return the slips for the all-reduce on two levels, in which every rank sends to another node."""
    whole = {"every rank sends, but only its shard of S/L": want * ranks_per_node}
    return whole | slips(want, num_bytes, num_nodes, ranks_per_node)


def cases() -> list[tuple[int, int, int]]:
    """Return cases `(num_bytes, num_nodes, ranks_per_node)` for a formula: all small shapes; the buffer divides."""
    return [
        (nodes * local * size, nodes, local) for nodes, local in product(range(2, 8), repeat=2) for size in (1, 999)
    ]

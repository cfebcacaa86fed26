"""Checks for exercise 18: NCCL's log, nccl-tests' table, torchrun's variables, and one function over gloo and NCCL.

The reference values come from the library: `nccl_log.parse` for logs, `bandwidth.parse` for tables, `price.busbw` for
bandwidths. The logs and tables in `ch18_gpus_logs/` were published by others (`SOURCES`); this module generates more in
the same format.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from ..measure import bandwidth, nccl_log
from ..price import algbw, busbw
from ..ranks import PerRank
from .checks import (
    NotYet,
    Refusal,
    answer,
    call_in_words,
    check_formula,
    number_of,
    own,
    own_answer,
    refusing_functions,
)
from .on_ranks import run_on_ranks, stand_ins, witnessed

_FOLDER = Path(__file__).with_name("ch18_gpus_logs")
SOURCES = {
    "issue-1781-before": "NVIDIA/nccl, issue 1781 (2025): two pods on one Kubernetes node, a GPU each. Excerpt",
    "issue-1781-after": "the same issue, the same two pods, after NCCL_HOSTID was set. Excerpt",
    "issue-1052": "NVIDIA/nccl, issue 1052 (2023): two nodes, an H800 each; the beginning of the log. Excerpt",
    "issue-1453": "NVIDIA/nccl, issue 1453 (2024): rank 0 of 24 H100, while nccl-tests ran. Excerpt",
    "mooncake-3484": "kvcache-ai/Mooncake, pull request 3484: an all-reduce on eight ranks, from nccl-tests. Excerpt",
}


def published(name: str) -> str:
    """Return the text of one of `SOURCES`."""
    return (_FOLDER / f"{name}.txt").read_text()


def without_the_library() -> contextlib.AbstractContextManager[None]:
    """Refuse, inside this context, to read logs and tables by the library, and to answer by the checks themselves."""
    return refusing_functions(nccl_log.parse, bandwidth.parse, said, algbw, busbw, environment, place)


def _asked(function: Callable, *args: Any, call: str | None = None) -> tuple[str, Any]:
    """Return the call in words and its result. Unlike in `answer`, None may be right."""

    def boxed(*args: Any) -> tuple[Any]:
        return (own(__name__, function, *args),)

    boxed.__name__ = function.__name__
    call = call or call_in_words(function, args)
    (result,) = answer(boxed, *args, call=call)
    if isinstance(result, Refusal):
        raise NotYet(f"{call}: {result.words}")
    return call, result


# Part a: the log

KEYS = ("version", "channels", "ranks", "nodes")


class Text(NamedTuple):
    """A log or a table, and what to call it."""

    name: str
    text: str


def texts(*names: str) -> list[Text]:
    """Return published logs or tables by name."""
    return [Text(name, published(name)) for name in names]


def made_log(nodes: int, gpus: int, channels: int, seed: int) -> str:
    """Return a generated log of `nodes` x `gpus` ranks in a ring, in the format of NCCL 2.19 and later.

    With an even `seed` all nodes have the same host name, as pods and containers may. With a `seed` that 3 divides,
    algorithms are numbers instead of names.
    """
    random = Random(seed)
    world, alike, in_words = nodes * gpus, seed % 2 == 0, seed % 3 != 0
    local = random.choice(["P2P/CUMEM", "P2P/IPC/read", "SHM/direct/direct"])
    network = random.choice(["NET/Socket/0", "NET/IB/{}/GDRDMA", "NET/IB/{}"])
    version = f"2.{random.randint(19, 29)}.{random.randint(1, 9)}"

    def line(rank: int, message: str) -> str:
        node, gpu = divmod(rank, gpus)
        process = 4000 + 17 * rank if gpu or nodes > 1 else 4000
        return f"{'worker' if alike else f'node{node}'}:{process}:{process + 90} [{gpu}] NCCL INFO {message}"

    lines = []
    for rank in range(world):
        node, gpu = divmod(rank, gpus)
        after, identity = (rank + 1) % world, 0x5500 + rank
        comm = (
            f"comm 0x{identity:x} rank {rank} nRanks {world} nNodes {nodes} localRanks {gpus} localRank {gpu} MNNVL 0"
        )
        small = f"comm 0x{identity + 999:x} rank {gpu} nRanks {gpus} nNodes 1 localRanks {gpus} localRank {gpu} MNNVL 0"
        lines += [line(rank, comm), line(rank, small)]
        kinds = f"{channels} coll channels, 0 collnet channels, 0 nvls channels, {2 * channels} p2p channels"
        lines.append(line(rank, f"{kinds}, 2 p2p channels per peer"))
        for channel in range(channels):
            way = f"Channel {channel:02}/0 : {rank}[{gpu}] -> {after}[{after % gpus}]"
            if after // gpus == node:
                lines.append(line(rank, f"{way} via {local}"))
            else:
                lines.append(line(rank, f"{way} [send] via {network.format(channel % 4)}"))
                lines.append(line(after, f"{way} [receive] via {network.format(channel % 4)}"))
    random.shuffle(lines)
    rings = [line(0, f"Channel {c:02}/{channels:02} : {' '.join(map(str, range(world)))}") for c in range(channels)]
    picks = [line(0, _pick(random, num_bytes, nodes, channels, in_words)) for num_bytes in _SIZES for _ in range(2)]
    return "\n".join([line(0, f"NCCL version {version}+cuda12.4"), *rings, *lines, *picks])


_SIZES = (4, 1024, 262144, 4194304, 1073741824)


def _pick(random: Random, num_bytes: int, nodes: int, channels: int, in_words: bool) -> str:
    """Return the line that NCCL prints for a call of `num_bytes`. The names are those of `ncclAlgoToString`."""
    algorithm = 0 if num_bytes < 1 << 20 else 1 if num_bytes < 1 << 28 else 4 if nodes == 1 else 5
    protocol = 0 if num_bytes < 1 << 12 else 1 if num_bytes < 1 << 20 else 2
    if not in_words:
        return f"{num_bytes} Bytes -> Algo {algorithm} proto {protocol} time {random.uniform(10, 900):.6f}"
    names = {0: "TREE", 1: "RING", 4: "NVLS", 5: "NVLS_TREE"}[algorithm], ("LL", "LL128", "SIMPLE")[protocol]
    return f"AllReduce: {num_bytes} Bytes -> Algo {names[0]} proto {names[1]} channel{{Lo..Hi}}={{0..{channels - 1}}}"


# The lines that the exercise shows.
IN_WORDS = Text(
    "in words",
    "\n".join(
        f"node0:4000:4090 [0] NCCL INFO AllReduce: {num_bytes} Bytes -> Algo {algorithm} proto SIMPLE "
        f"channel{{Lo..Hi}}={{0..{last}}}"
        for num_bytes, algorithm, last in ((4, "RING", 0), (1073741824, "NVLS_TREE", 15))
    ),
)


def made_logs(seed: int, how_many: int = 4) -> list[Text]:
    """Return logs of different sizes, with one host name or several, and algorithms as numbers or names."""
    random = Random(seed)
    shapes = [(random.randint(1, 3), random.choice((2, 4, 8)), random.choice((2, 4, 8))) for _ in range(how_many)]
    return [Text(f"made {n}", made_log(*shape, seed=seed + n)) for n, shape in enumerate(shapes)]


def said(text: str) -> dict[str, Any]:
    """Return the values of `KEYS` in a log, None for what the log does not contain: the right answer."""
    log = nccl_log.parse(text)
    return {"version": log.version, "channels": log.channels, "ranks": log.world_size, "nodes": log.nodes}


def check_basics(function: Callable, keys: Sequence[str], logs: Iterable[Text]) -> None:
    """Check the `keys` of the dictionary that `function(text)` returns: the log's value, or None."""
    for name, text in logs:
        call = f"{function.__name__}(<log {name}>)"
        result = own_answer(__name__, function, text, call=call)
        if not isinstance(result, Mapping):
            raise NotYet(f"{call} returns {brief(result)}; return a dictionary with {', '.join(map(repr, KEYS))}")
        want = said(text)
        for key in keys:
            if key not in result:
                raise NotYet(f"{call} has no {key!r}; where a log doesn't say it, the value is None")
            got = _plain(result[key], f"{call}, {key!r}")
            if isinstance(got, str) and got.isdigit():
                raise NotYet(f"{call}: its {key!r} is the text {got!r}; make it a number: int(...)")
            if got != want[key]:
                why = next((f": {why}" for why, slip in _basic_slips(key, text).items() if slip == got), "")
                raise NotYet(f"{call}: its {key!r} is {got!r}, and the log says {want[key]!r}{why}")


def _plain(result: Any, call: str) -> str | int | float | None:
    """Return a text or None as it is, and anything else as a number; raise `NotYet` if it is none of these.

    Numbers of other types may equal what they aren't: an int8 tensor with a 0 equals 256.
    """
    if result is None or isinstance(result, str):
        return result
    try:
        return number_of(result, call)
    except NotYet:
        raise NotYet(f"{call}: {brief(result)} is not a text, a plain number or None") from None


def _basic_slips(key: str, text: str) -> dict[str, Any]:
    """Return the usual mistakes for a key, each with the value read from the wrong part of the log."""

    def first(pattern: str) -> int | None:
        match = re.search(pattern, text)
        return int(match[1]) if match else None

    hosts = len(set(re.findall(r"(\S+?):\d+:\d+ \[\d+\] NCCL", text)))
    full = re.search(r"NCCL version (\S+)", text)
    highest = max(map(int, re.findall(r" rank (\d+) n[Rr]anks", text)), default=None)
    smallest = min(map(int, re.findall(r"n[Rr]anks (\d+)", text)), default=None)
    nodes = list(map(int, re.findall(r"nNodes (\d+)", text)))
    channels = first(r"(\d+) coll channels")
    names_of_hosts = "these are names: two pods of one node have different ones, and two nodes may have the same. "
    slips: dict[str, dict[str, Any]] = {
        "version": {"what follows the + is CUDA's": full and full[1]},
        "channels": {
            "these are p2p channels, for send and recv": first(r"(\d+) p2p channels"),
            "channels count from 0: this is the last one's number": channels and channels - 1,
        },
        "ranks": {
            "ranks count from 0: this is the highest rank in it": highest,
            "there are several communicators; this is a smaller one": smallest,
            "these are the ranks of one node": first(r"localRanks (\d+)"),
            "these are names of hosts": hosts,
        },
        "nodes": {
            "there are several communicators; this is a smaller one's": min(nodes, default=None),
            names_of_hosts + "What does NCCL itself count?": hosts,
            "these are the ranks of a node": first(r"localRanks (\d+)"),
        },
    }
    return slips[key]


def check_transport(function: Callable, logs: Iterable[Text]) -> None:
    """Check that `function(text, src, dst)` returns the transport from `src` to `dst`, for many pairs."""
    for name, text in logs:
        log = nccl_log.parse(text)
        by_pair = {(each.src, each.dst): each for each in log.connections}
        pairs = sorted(by_pair.keys() | {(dst, src) for src, dst in by_pair} | {(0, (log.world_size or 1) + 1)})
        for src, dst in pairs:
            call, got = _asked(function, text, src, dst, call=f"{function.__name__}(<log {name}>, {src}, {dst})")
            found = by_pair.get((src, dst))
            want = found and found.transport
            if _plain(got, call) != want:
                raise NotYet(f"{call} returns {got!r}; {_wrong_transport(got, found, by_pair.get((dst, src)))}")


def _wrong_transport(got: Any, found: Any, back: Any) -> str:
    if not found:
        words = "no line says how the first sends to the second: return None"
        return words + (f" (the other way round it is {back.transport!r})" if back and got == back.transport else "")
    words = f"the log says 'via {found.via}', which is {found.transport!r}"
    if got == found.via:
        return words + ": what follows says how, or which card"
    if got is None:
        return (
            words + ". A rank stands before the [ ], in which its GPU's number is; and some lines have [send] in them"
        )
    if found.transport.startswith("NET") and got == "NET":
        return words + ": which network?"
    return words


def check_picked(function: Callable, logs: Iterable[Text]) -> None:
    """Check that `function(text, num_bytes)` returns what NCCL picked for this size: (algorithm, protocol)."""
    for name, text in logs:
        picked = {each.num_bytes: (each.algorithm, each.protocol) for each in nccl_log.parse(text).choices}
        for num_bytes in sorted({*picked, 2, 44, 262144}):
            call, got = _asked(function, text, num_bytes, call=f"{function.__name__}(<log {name}>, {num_bytes})")
            want = picked.get(num_bytes)
            got = tuple(_plain(part, call) for part in got) if isinstance(got, tuple | list) else _plain(got, call)
            if got == want:
                continue
            if want is None:
                raise NotYet(f"{call} returns {got!r}; no call in it has {num_bytes} bytes: return None")
            raise NotYet(f"{call} returns {got!r}; NCCL picked {want!r}{_wrong_pick(got, want)}")


def _wrong_pick(got: Any, want: tuple[str, str]) -> str:
    if not isinstance(got, tuple) or len(got) != 2:
        return ": two names are wanted, of the algorithm and of the protocol" if got is not None else ""
    if got == want[::-1]:
        return ": the algorithm comes first"
    plain = tuple(str(part).lower() for part in got)
    if plain == tuple(part.lower() for part in want):
        return ": spelled in this way"
    numbers = str(nccl_log.ALGORITHMS.index(want[0])), str(nccl_log.PROTOCOLS.index(want[1]))
    if plain == numbers:
        return ": older versions print numbers; Tree is algorithm 0, LL protocol 0"
    if plain[0].replace("_", "") == want[0].lower():
        return ": spelled as in the list, without the underscore"
    if plain[0] == "ring" and want[0] == "Tree":
        return ": Tree is algorithm 0, and Ring 1"
    return ""


# Part b: the table


def made_rows(alpha: float, beta: float, seed: int, slow: int | None = None, times: float = 2.0) -> list[tuple]:
    """Return rows (num_bytes, seconds) of a link: alpha + beta S, within 2 %. Row `slow` takes `times` as long."""
    random = Random(seed)
    sizes = [2**power for power in range(10, 31, 2)]
    rows = [(size, (alpha + beta * size) * random.uniform(0.98, 1.02)) for size in sizes]
    if slow is not None:
        rows[slow] = rows[slow][0], rows[slow][1] * times
    return rows


def made_table(rows: Iterable[tuple[int, float]], seed: int = 0) -> str:
    """Return these rows as nccl-tests prints them for an all-reduce on four ranks, with its header and footer."""
    random = Random(seed)
    lines = ["# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 4(factor) warmup iters: 5 iters: 20", "#"]
    lines += [
        "#                                                              out-of-place                       in-place"
    ]
    names = "time   algbw   busbw #wrong"
    lines += [f"#       size         count      type   redop    root     {names}     {names}"]
    for size, seconds in rows:
        cells = []
        for taken in (seconds, seconds * random.uniform(0.8, 0.95)):
            rate = size / taken / 1e9
            cells.append(f"{taken * 1e6:>8.2f} {rate:>7.2f} {rate * 1.5:>7.2f}       0")
        lines.append(f"{size:>12} {size // 4:>13}     float     sum      -1 {cells[0]} {cells[1]}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 11.2"])


def check_table(function: Callable, tables: Iterable[Text]) -> None:
    """Check that `function(text)` returns the out-of-place rows of an nccl-tests table: [(bytes, seconds), ...]."""
    for name, text in tables:
        call = f"{function.__name__}(<table {name}>)"
        result = own_answer(__name__, function, text, call=call)
        pairs = list(result) if isinstance(result, Sequence | np.ndarray) else [result]
        if not all(isinstance(row, Sequence | np.ndarray) and len(row) == 2 for row in pairs):
            raise NotYet(f"{call} returns {brief(result)}; return a list of pairs (bytes, seconds)")
        rows = bandwidth.parse(text, "all_reduce", 8).rows
        if len(pairs) != len(rows):
            raise NotYet(f"{call} has {len(pairs)} rows; the table has {len(rows)} (what begins with # is none)")
        for (size, seconds), row in zip(pairs, rows, strict=True):
            size, seconds = (number_of(each, f"{call}: a row's number") for each in (size, seconds))
            if size != row.num_bytes:
                words = ": those are elements, in the second column" if size == row.count else ""
                raise NotYet(f"{call} has a row of {size:,} bytes; it is {row.num_bytes:,}{words}")
            if abs(seconds - row.seconds) > 1e-9 * row.seconds:
                raise NotYet(
                    f"{call}: {size:,} bytes take {row.seconds:.4g} s, not {seconds:.4g}{_wrong_time(seconds, row)}"
                )


def _wrong_time(seconds: float, row: bandwidth.Timing) -> str:
    if abs(seconds - row.seconds * 1e6) <= 1e-6 * seconds:
        return ": the table has microseconds"
    if 0.5 < seconds / row.seconds < 1:
        return ": that is in-place, further right; take out-of-place"
    return ""


BUS_CASES = [("all_reduce", 2**26, 8e-4, 8), ("all_gather", 2**26, 8e-4, 8), ("reduce_scatter", 2**24, 3e-4, 4)]
BUS_CASES.append(("all_to_all", 2**25, 5e-4, 16))


def check_bandwidths(algorithm: Callable, bus: Callable, cases: Iterable[tuple[str, int, float, int]]) -> None:
    """Check `algorithm(num_bytes, seconds)` and `bus(collective, num_bytes, seconds, world_size)`: bytes a second."""
    cases = list(cases)
    check_formula(algorithm, algbw, [case[1:3] for case in cases], _algbw_slips, __name__)

    def truth(collective: str, num_bytes: int, seconds: float, world_size: int) -> float:
        return busbw(collective, world_size, num_bytes, seconds)

    check_formula(bus, truth, cases, _busbw_slips, __name__)


def _algbw_slips(want: float, num_bytes: int, seconds: float) -> dict[str, float]:
    return {
        "this is in GB/s; bytes a second are asked for": want / 1e9,
        "this is upside down: bytes over seconds": 1 / want,
        "these are bits": want * 8,
        "GB are 1e9 bytes, and bytes are asked for": want / 2**30,
    }


def _busbw_slips(want: float, collective: str, num_bytes: int, seconds: float, world_size: int) -> dict[str, float]:
    plain, around = num_bytes / seconds, (world_size - 1) / world_size
    return {
        "this is algbw: a rank has P - 1 chunks of P to send, and an all-reduce has them to send twice": plain,
        "every collective has the all-reduce's factor here; only an all-reduce goes round twice": plain * 2 * around,
        "an all-reduce goes round twice; it has the others' factor here": plain * around,
        "this multiplies by P / (P - 1); it is the inverse": plain / around * (2 if collective == "all_reduce" else 1),
        "S is the full buffer, of an all-gather what comes out: do not multiply it by P": (
            want * (1 if collective in ("all_reduce", "all_to_all") else world_size)
        ),
        "this has P - 1 where (P - 1)/P belongs": want * world_size,
        "this is in GB/s; bytes a second are asked for": want / 1e9,
    }


def check_fit(function: Callable, cases: Iterable[tuple[float, float, int]], within: float = 0.1) -> None:
    """Check that `function(rows)` returns alpha and beta, each `within` a tenth. `cases`: (alpha, beta, seed)."""
    for alpha, beta, seed in cases:
        call = f"{function.__name__}(rows)"
        result = own_answer(__name__, function, made_rows(alpha, beta, seed), call=call)
        if not isinstance(result, Sequence | np.ndarray) or len(result) != 2:
            raise NotYet(f"{call} returns {brief(result)}; return two numbers, alpha and beta")
        got = [number_of(each, f"{call}: {name}") for each, name in zip(result, ("alpha", "beta"), strict=True)]
        for name, mine, want in zip(("alpha", "beta"), got, (alpha, beta), strict=True):
            if abs(mine - want) > within * want:
                unit = "s" if name == "alpha" else "s a byte"
                why = _wrong_fit(name, got, (alpha, beta), within)
                raise NotYet(f"{call}: {name} is {mine:.3g} {unit}; the rows are from a link with {want:.3g}{why}")


def _wrong_fit(name: str, got: Sequence[float], want: tuple[float, float], within: float) -> str:
    def near(number: float, right: float) -> bool:
        return abs(number - right) <= within * right

    if near(got[0], want[1]) and near(got[1], want[0]):
        return ": the two are in the wrong order"
    if name == "alpha":
        return ". Small rows show alpha; a least squares fit that is not relative hears only the large ones"
    if near(got[1], 1 / want[1]):
        return ": that is a bandwidth; beta is its inverse"
    return ". Alpha is right, so look at large rows, where it hardly counts"


def check_half(function: Callable, cases: Iterable[tuple[float, float]]) -> None:
    """Check that `function(alpha, beta)` is the size in bytes at which latency is half of the time."""

    def slips(want: float, alpha: float, beta: float) -> dict[str, float]:
        return {
            "this is upside down": 1 / want,
            "there bytes take twice as long as alpha: where do they take as long?": want * 2,
            "there bytes take half as long as alpha: where do they take as long?": want / 2,
            "these are seconds: what both take there": 2 * alpha,
            "this multiplies the two; how many bytes take alpha seconds?": alpha * beta,
        }

    check_formula(function, lambda alpha, beta: alpha / beta, cases, slips)


def check_slow(function: Callable, cases: Iterable[tuple[int | None, int]]) -> None:
    """Check that `function(rows)` returns the size whose row is too slow, or None. `cases`: (slow row, seed)."""
    for slow, seed in cases:
        random = Random(seed)
        alpha, beta = random.uniform(5e-6, 4e-5), random.uniform(4e-12, 1e-10)
        rows = made_rows(alpha, beta, seed, slow, times=random.uniform(1.7, 3))
        call, result = _asked(function, rows, call=f"{function.__name__}(rows)")
        got, want = _plain(result, call), None if slow is None else rows[slow][0]
        if got == want:
            continue
        returned = f"where alpha is {alpha:.3g} s and beta {beta:.3g} s a byte, {call} returns {got!r}"
        if slow is None:
            raise NotYet(f"{returned}; every row is within 2 % of what these make: return None")
        expected = alpha + beta * rows[slow][0]
        times = rows[slow][1] / expected
        raise NotYet(f"{returned}; {want} bytes take {times:.2g} times as long as they should{_wrong_slow(got, rows)}")


def _wrong_slow(got: Any, rows: list[tuple[int, float]]) -> str:
    if got == rows[-1][0]:
        return ". The largest row always takes longest: compare with what its size lets you expect"
    if got == rows[0][0]:
        return ". Small rows always have a low bandwidth: alpha is in it"
    return ""


# Part c: what torchrun sets


def environment(node: int, local_rank: int, num_nodes: int, ranks_per_node: int) -> dict[str, str]:
    """Return the variables of a rank that torchrun sets and the exercise needs. Values are text."""
    numbers = {
        "RANK": node * ranks_per_node + local_rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": num_nodes * ranks_per_node,
        "LOCAL_WORLD_SIZE": ranks_per_node,
    }
    return {name: str(number) for name, number in numbers.items()}


def check_environment(function: Callable, cases: Iterable[tuple[int, int]]) -> None:
    """Check `function(node, local_rank, num_nodes, ranks_per_node)` for every rank. `cases`: the last two arguments."""
    for num_nodes, ranks_per_node in cases:
        for node in range(num_nodes):
            for local_rank in range(ranks_per_node):
                call, result = _asked(function, node, local_rank, num_nodes, ranks_per_node)
                if not isinstance(result, Mapping):
                    raise NotYet(f"{call} returns {brief(result)}; return a dictionary of torchrun's variables")
                for name, want in environment(node, local_rank, num_nodes, ranks_per_node).items():
                    if name not in result:
                        raise NotYet(f"{call} has no {name!r}")
                    if str(result[name]) != want:
                        why = _wrong_variable(name, result[name], node, local_rank, num_nodes, ranks_per_node)
                        raise NotYet(f"{call}: its {name} is {result[name]!r}; torchrun sets {want!r}{why}")
                    if not isinstance(result[name], str):
                        raise NotYet(f"{call}: its {name} is a number; an environment variable is text: {want!r}")


def _wrong_variable(name: str, got: Any, node: int, local_rank: int, num_nodes: int, ranks_per_node: int) -> str:
    slips = {
        ("RANK", str(local_rank)): ": that is its number in its node; RANK counts on from node to node",
        ("RANK", str(local_rank * num_nodes + node)): ": ranks fill one node after the other",
        ("LOCAL_RANK", str(node)): ": that is the node",
        ("WORLD_SIZE", str(num_nodes)): ": these are nodes; a rank is a process",
        ("WORLD_SIZE", str(ranks_per_node)): ": these are the ranks of one node",
        ("LOCAL_WORLD_SIZE", str(num_nodes * ranks_per_node)): ": these are the ranks of all nodes",
    }
    return slips.get((name, str(got)), "")


def place(variables: Mapping[str, str], visible: int) -> tuple[str, str]:
    """Return the backend and the device of a rank that sees `visible` GPUs. Raise `ValueError` if they are too few."""
    local_rank = int(variables["LOCAL_RANK"])
    if visible == 0:
        return "gloo", "cpu"
    if visible == 1:
        return "nccl", "cuda:0"
    if local_rank >= visible:
        raise ValueError(f"LOCAL_RANK {local_rank} has no GPU of its own: there are {visible}")
    return "nccl", f"cuda:{local_rank}"


def check_place(function: Callable, cases: Iterable[tuple[int, int, int, int, int]]) -> None:
    """Check `function(environment, visible)`. `cases`: (node, local_rank, num_nodes, ranks_per_node, visible)."""
    for *where, visible in cases:
        variables = environment(*where)
        short = ", ".join(f"{name}={variables[name]}" for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        call = f"{function.__name__}(<{short}>, visible={visible})"
        try:
            want = place(variables, visible)
        except ValueError:
            _check_refused(function, variables, visible, call)
            continue
        result = own_answer(__name__, function, dict(variables), visible, call=call)
        got = tuple(map(str, result)) if isinstance(result, tuple | list) else result
        if got != want:
            raise NotYet(f"{call} returns {result!r}; return {want!r}{_wrong_place(got, variables, visible)}")


def _check_refused(function: Callable, variables: Mapping[str, str], visible: int, call: str) -> None:
    try:
        result = function(dict(variables), visible)
    except ValueError:
        return
    except NotImplementedError:
        raise NotYet(f"{function.__name__} is not written yet") from None
    except Exception as error:
        raise NotYet(f"{call} ends in {type(error).__name__}: {error}; raise a ValueError") from None
    raise NotYet(f"{call} returns {result!r}; there is no GPU for this rank: raise a ValueError")


def _wrong_place(got: Any, variables: Mapping[str, str], visible: int) -> str:
    if not isinstance(got, tuple) or len(got) != 2:
        return ": two texts, backend and device"
    backend, device = got
    if visible == 0:
        return ": NCCL has no use for a rank without a GPU" if backend == "nccl" else ""
    if backend != "nccl":
        return ": between GPUs NCCL is the backend"
    if visible == 1:
        return ": of the one GPU that a rank sees, the number is 0, whichever it is in the machine"
    if device == f"cuda:{variables['RANK']}":
        return f": that is its RANK; this node's GPUs are 0 to {visible - 1}"
    if device in ("cuda", "cuda:0"):
        return ": all ranks of the node would share GPU 0"
    return ""


PLACES = [(0, 0, 1, 2, 2), (0, 1, 1, 2, 2), (1, 1, 2, 4, 4), (1, 3, 2, 4, 1), (0, 1, 1, 2, 0), (0, 3, 1, 4, 2)]


# Part d: one function, over gloo and over NCCL


class Averaged(NamedTuple):
    """What a rank returned, as an array or its type in words; its device; and whether its input is unchanged."""

    numbers: np.ndarray | str
    device: str
    kept: bool


MANY = 100_000  # numbers on a rank: enough for the traffic to show in the bytes counted on the wire


def check_average(function: Callable, world_size: int, seed: int | None = None) -> None:
    """Check over gloo that `function(numbers, device)` is the mean over all ranks, and sends what is on `device`.

    `seed`: use many random numbers.
    """
    _check_averages(function, world_size, "cpu", seed)
    call, sent = f"{function.__name__}(numbers, device)", set(sent_from(function))
    if not sent:
        raise NotYet(
            f"{call} calls none of dist's collectives where `device` is a GPU: the ranks must exchange their numbers "
            "there, too"
        )
    if elsewhere := sorted(sent - {"meta"}):
        raise NotYet(
            f"{call} sends a tensor that is on the {elsewhere[0]}, wherever `device` is; NCCL moves only what is on a "
            "GPU: numbers.to(device)"
        )


def sent_from(function: Callable) -> list[str]:
    """Return the devices of the tensors that `function(numbers, "meta")` gives to `COLLECTIVES`.

    "meta" stands in for a GPU. Runs where the learner's code does.
    """
    devices: list[str] = []

    def noted(*args: Any, **named: Any) -> None:
        devices.extend(leaf.device.type for leaf in tree_leaves((args, named)) if isinstance(leaf, torch.Tensor))

    place = {"get_rank": lambda *_, **__: 0, "get_world_size": lambda *_, **__: 2}
    # "meta" holds no data to copy back; real ranks show all other errors.
    with stand_ins(function, **dict.fromkeys(COLLECTIVES, noted), **place), contextlib.suppress(Exception):
        function(torch.ones(2), "meta")
    return devices


COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "isend", "irecv", "send", "recv"),
)
"""Functions of `torch.distributed` that move tensors between ranks."""


def _average(rank: int, world_size: int, function: Callable, device: str, own: np.ndarray) -> Averaged:
    """Runs beside the learner's code, and only observes."""
    numbers = torch.tensor(own)
    before = numbers.clone()
    if dist.get_backend() == "nccl":
        device = f"cuda:{torch.cuda.current_device()}"
    try:
        result = function(numbers, device)
    except NotImplementedError:
        raise NotYet(f"{function.__name__} is not written yet") from None
    if not isinstance(result, torch.Tensor):
        return Averaged(f"a value of type {type(result).__name__}", "", True)
    return Averaged(result.detach().cpu().flatten().float().numpy(), result.device.type, torch.equal(numbers, before))


def _check_averages(function: Callable, world_size: int, device: str, seed: int | None = None, **named: Any) -> None:
    """Run the learner's function on real ranks, and check the mean that each returns."""
    if seed is None:
        every = np.multiply.outer(10.0 ** np.arange(world_size), [1.0, 2.0]).astype(np.float32)
    else:
        every = np.random.default_rng(seed).standard_normal((world_size, MANY), dtype=np.float32)
    total, mean = every.sum(axis=0), every.mean(axis=0)
    everyone = run_on_ranks(_average, world_size, function, device, PerRank(every), kind=Averaged, **named)
    for rank, (numbers, device, kept) in enumerate(everyone):
        who = f"with {world_size} rank{'s' * (world_size > 1)}, rank {rank}"
        if isinstance(numbers, str):
            raise NotYet(f"{who} returns {numbers}; return the tensor with the means")
        if not _close(numbers, mean):
            slips = {
                "that is the sum": total,
                "that is what it had itself": every[rank],
                "divided twice": mean / world_size,
            }
            why = next((f": {words}" for words, number in slips.items() if _close(numbers, number)), "")
            raise NotYet(f"{who} returns {brief(numbers.tolist())}; the mean is {brief(mean.tolist())}{why}")
        if device != "cpu":
            raise NotYet(f"{who} returns a tensor on the {device}; bring it back: .cpu()")
        if not kept:
            raise NotYet(f"{who}: it changes its argument in place; on the CPU, .to() copies nothing")
    witnessed(everyone, (world_size - 1) * every[0].nbytes)  # half of what an all-reduce sends, as if in 16 bits


def _close(numbers: np.ndarray, want: np.ndarray) -> bool:
    return numbers.shape == want.shape and np.allclose(numbers, want, rtol=1e-5, atol=1e-5)


def num_gpus() -> int:
    """Return the number of GPUs that NCCL can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() and dist.is_nccl_available() else 0


def check_on_gpus(function: Callable) -> None:
    """Check the same over NCCL, one rank a GPU. Without a GPU, print that the check is blocked."""
    gpus = num_gpus()
    if not gpus:
        print("blocked: no GPU on this machine, so nothing was run over NCCL. That is no mistake of yours.")
        return
    _check_averages(function, gpus, "cuda", backend="nccl", timeout=120.0)
    print(f"right, over NCCL on {gpus} GPU{'s' * (gpus > 1)}")

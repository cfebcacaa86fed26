"""Checks for exercise 15: the order in which tokens leave, what fits into an expert's capacity, and the layer on ranks.

In part c every token is a row with a single number at a place of its own, and expert e moves it e places to the right.
So each number that comes back shows whose token it is and which expert answered. The number is random, and only the
token's own rank gets it, so the token must travel. An expert multiplies each place by a random number that no rank has,
so the answers must travel, too: a `_Desk`, in the process that starts the ranks, gives them and counts who asks. Where
the wire is captured, the check looks for both.
"""

from __future__ import annotations

import contextlib
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import chain, pairwise
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from .. import ranks
from ..algorithms import ring
from ..execute import execute
from ..measure.wire import BytesSent
from ..training import experts as library
from . import on_ranks
from .checks import NotYet, call_in_words, generator, own_answer, refusing, refusing_functions
from .on_ranks import PLACES, crossed, is_a, plain, reported, witnessed, witnessed_terms

HOLDS = (
    "execute",
    "schedule",
    "algorithms.ring",
    "algorithms.pairwise",
    "training.conjugate",
    "training.experts.exchange",
    "training.experts._exchanged",
    "training.experts._transposed",
    ".exchange",
)  # see `wall`
ON_RANKS = ("._all_counts_on_rank", "._layer_on_rank", "._without_the_layer", "._array", "._what")


class Case(NamedTuple):
    """A routing of all ranks. `experts`: int [tokens, k] of each rank. `weights`: float of the same shapes."""

    num_experts: int
    experts: list[np.ndarray]
    weights: list[np.ndarray]

    @property
    def share(self) -> int:
        """Return how many experts live on a rank."""
        return self.num_experts // len(self.experts)

    @property
    def first(self) -> np.ndarray:
        """Return the number of each rank's first token among all tokens, and at the end how many tokens there are."""
        return np.cumsum([0, *map(len, self.experts)])

    @property
    def width(self) -> int:
        """Return the width of a row: every token has one place for each expert."""
        return max(1, int(self.first[-1])) * self.num_experts

    def owner(self, number: int) -> tuple[int, int]:
        """Return the rank of token `number`, and its index there."""
        rank = int(np.searchsorted(self.first, number, side="right")) - 1
        return rank, int(number - self.first[rank])


def random_case(sizes: list[int], experts_a_rank: int, k: int, seed: int) -> Case:
    """Return a random routing of `sizes[rank]` tokens on each rank to their `k` best experts. A few are popular."""
    rng = np.random.default_rng(seed)
    num_experts = experts_a_rank * len(sizes)
    liking = rng.normal(scale=2, size=num_experts)
    scores = [rng.normal(size=(size, num_experts)) + liking for size in sizes]
    experts = [np.argsort(-score, axis=1)[:, :k] for score in scores]
    weights = [rng.uniform(0.1, 1, chosen.shape).round(3) for chosen in experts]
    return Case(num_experts, experts, weights)


def choices(num_tokens: int, num_experts: int, k: int, seed: int) -> torch.Tensor:
    """Return the experts that one rank's tokens chose: int64 [tokens, k]."""
    return torch.tensor(random_case([num_tokens], num_experts, k, seed).experts[0])


def without_the_library() -> contextlib.AbstractContextManager[None]:
    """Refuse, inside this context, to sort, to count and to drop tokens by the library."""
    routing: Any = library.Routing
    return refusing_functions(library.send_order, library.within_capacity, routing.load.fget)


# Part a: the order of sending, and back


def check_order(function: Callable, experts: torch.Tensor) -> None:
    """Check that `function(experts)` returns the places of `experts` sorted by expert, in a stable order."""
    call = f"{function.__name__}({_table(experts)})"
    got = _whole(own_answer(__name__, function, experts.clone(), call=call), call, (experts.numel(),))
    flat, k = experts.flatten().numpy(), experts.shape[1]
    want = np.argsort(flat, kind="stable")
    if np.array_equal(got, want):
        return
    if np.array_equal(got, want // k):
        raise NotYet(f"{call}: these are tokens; return places, token x {k} + choice")
    if np.array_equal(got, np.argsort(want)):
        raise NotYet(f"{call} says when each place leaves. Return the inverse: which place leaves first, which next")
    if np.array_equal(got, flat[want]):
        raise NotYet(f"{call}: these are the experts, in order; return their places")
    _check_permutation(got, call)
    for one, other in pairwise(got):
        if flat[one] > flat[other]:
            raise NotYet(
                f"{call} lets place {one}, for expert {flat[one]}, leave before place {other}, for expert {flat[other]}"
            )
        if flat[one] == flat[other] and one > other:
            raise NotYet(
                f"{call} lets place {one} leave before place {other}, both for expert {flat[one]}: tokens for one "
                "expert stay in their order (is the sort stable?)"
            )


def check_counts(function: Callable, experts: torch.Tensor, num_experts: int) -> None:
    """Check that `function(experts, num_experts)` counts the choices of each expert."""
    call = f"{function.__name__}({_table(experts)}, {num_experts})"
    result = own_answer(__name__, function, experts.clone(), num_experts, call=call)
    want = np.bincount(experts.flatten().numpy(), minlength=num_experts)
    got = _whole(result, call)
    if got.shape != want.shape:
        hint = ": an expert that no token has chosen counts too, with 0 tokens" if got.size < want.size else ""
        raise NotYet(f"{call} returns {got.size} numbers; there are {num_experts} experts{hint}")
    if not np.array_equal(got, want):
        wrong = int(np.flatnonzero(got != want)[0])
        hint = " (each choice is one, also a token's second)" if experts.shape[1] > 1 and got.sum() < want.sum() else ""
        raise NotYet(f"{call} counts {got[wrong]} for expert {wrong}, which {want[wrong]} have chosen{hint}")


def check_home(function: Callable, length: int, seed: int) -> None:
    """Check that `function(rows, order)` puts row i, which left as the i-th, back at place `order[i]`.

    The rows are random: they don't show their places.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(length)
    sent = rng.standard_normal((length, 2), dtype=np.float32).astype(float)  # fp32 is precise enough to return them
    call = f"{function.__name__}(rows, order={order.tolist()})"
    got = _tensor(
        own_answer(__name__, function, torch.tensor(sent), torch.tensor(order), call=call), call, torch.Size(sent.shape)
    )
    want = np.empty_like(sent)
    want[order] = sent
    if np.array_equal(got, want):
        return
    if np.array_equal(got, sent):
        raise NotYet(f"{call} leaves the rows in the order of sending: at place 0 is the answer to place {order[0]}")
    if np.array_equal(got, sent[order]):
        raise NotYet(f"{call} applies the order a second time instead of undoing it: place order[i] gets row i")
    wrong = int(np.flatnonzero((got != want).any(axis=1))[0])
    raise NotYet(f"{call}: at place {wrong} there is {_row_in_words(got[wrong], want)}")


def _row_in_words(row: np.ndarray, want: np.ndarray) -> str:
    """Return what this row is. `want`: the right row at each place."""
    places = np.flatnonzero((want == row).all(axis=1))
    if len(places):
        return f"the answer to place {places[0]}"
    return brief(row) if row.any() else "a row of zeros"


# Part b: capacity


def check_kept(function: Callable, experts: torch.Tensor, num_experts: int, places: int) -> None:
    """Check that `function(experts, num_experts, places)` is True where a choice gets a place at its expert."""
    call = f"{function.__name__}({_table(experts)}, {num_experts}, places={places})"
    result = own_answer(__name__, function, experts.clone(), num_experts, places, call=call)
    got = _array(result) if isinstance(result, torch.Tensor | np.ndarray | list | tuple) else np.array(None)
    if got.dtype != bool:
        raise NotYet(f"{call} returns {_what(result)}; return a tensor of True and False")
    if got.shape != tuple(experts.shape):
        raise NotYet(f"{call} returns the shape {list(got.shape)}; return {list(experts.shape)}, as in `experts`")
    turn = np.zeros(got.shape, dtype=int)
    seen: Counter[int] = Counter()
    for place, expert in enumerate(experts.flatten().tolist()):
        turn.flat[place] = seen[expert]
        seen[expert] += 1
    if np.array_equal(got, turn < places):
        return
    if np.array_equal(got, turn <= places):
        raise NotYet(f"{call} keeps one too many of each expert")
    if np.array_equal(got, (turn.max(initial=0) - turn) < places) or _keeps_the_last(got, experts, places):
        raise NotYet(f"{call} keeps the last to come; each expert's places go to the first {places}")
    token, choice = map(int, np.argwhere(got != (turn < places))[0])
    number = turn[token, choice]
    raise NotYet(
        f"{call} {'keeps' if got[token, choice] else 'drops'} choice {choice} of token {token}: before it {number} "
        f"{'has' if number == 1 else 'have'} chosen expert {experts[token, choice]}, which has places for {places}"
    )


def _keeps_the_last(got: np.ndarray, experts: torch.Tensor, places: int) -> bool:
    flat, kept = experts.flatten().numpy(), got.flatten()
    last = np.zeros(flat.size, dtype=bool)
    for expert in set(flat.tolist()):
        last[np.flatnonzero(flat == expert)[::-1][:places]] = True
    return np.array_equal(kept, last)


def check_dropped_and_padded(function: Callable, counts: list[int], places: int) -> None:
    """Check that `function(counts, places)` returns how many tokens are dropped and how many places stay empty."""
    call = call_in_words(function, (counts, places))
    result = own_answer(__name__, function, torch.tensor(counts), places, call=call)
    got = tuple(_whole(list(result) if isinstance(result, tuple) else result, call, (2,)).tolist())
    dropped = sum(max(count - places, 0) for count in counts)
    padded = sum(max(places - count, 0) for count in counts)
    if got == (dropped, padded):
        return
    net = places * len(counts) - sum(counts)
    hints = {
        (padded, dropped): "this is in the wrong order: first the dropped, then the padded",
        (max(-net, 0), max(net, 0)): "an empty place of one expert is of no use to another: look at each by itself",
        (dropped, net): "an empty place of one expert is of no use to another: look at each by itself",
        (dropped, places * len(counts)): "these are all places; how many of them stay empty?",
    }
    hint = f": {hints[got]}" if got in hints else ""
    raise NotYet(f"{call} returns {got[0]} and {got[1]}, but {dropped} are dropped and {padded} places are empty{hint}")


# Part c: real ranks


class Misuse(ValueError):
    """An invalid call of one of part c's tools. The learner sees its message alone, without a traceback."""


EXCHANGES = 8  # calls of `exchange` in one layer that the byte limit allows; two are enough
_comparing: list[int] = []  # bytes that this rank has sent in `exchange` to compare tables: they are not the learner's


def exchange(rows: torch.Tensor, blocks: Any) -> torch.Tensor:
    """Call `collectives.training.experts.exchange` after checking that all ranks have the same table `blocks`.

    Without that check, a rank that expects rows that no rank sends would wait forever. Raises `Misuse`.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    table = torch.stack([torch.as_tensor(row) for row in blocks])  # a tensor, lists, or a list of tensors
    if table.shape != (world_size, world_size):
        raise Misuse(
            f"blocks is a table [src][dst] of {world_size} x {world_size} numbers of rows, not of {list(table.shape)}"
        )
    tables = torch.zeros(world_size, world_size**2, dtype=torch.int64)
    tables[rank] = table.flatten()
    with BytesSent() as sent:
        execute(ring.all_gather(world_size), tables.view(-1))
    _comparing.append(sent.total)
    for other, theirs in enumerate(tables):
        if not torch.equal(theirs, tables[0]):  # every rank sees this, so none is left waiting
            raise Misuse(
                f"ranks 0 and {other} do not have the same table of blocks: {tables[0].view(table.shape).tolist()} "
                f"and {theirs.view(table.shape).tolist()}; a rank can know what others send only if they tell it"
            )
    if len(rows) != table[rank].sum():
        raise Misuse(
            f"rank {rank} gives exchange {len(rows)} rows, but by row {rank} of the table it sends "
            f"{table[rank].tolist()}"
        )
    return library.exchange(rows, table.tolist())


def check_all_counts(function: Callable, world_size: int, num_experts: int, seed: int | None = None) -> None:
    """Check that `function(rank, world_size, mine)` returns the counts of all ranks: int [world_size, num_experts].

    `seed`: use random counts, too large to be sent in fewer bytes.
    """
    want = 100 * np.arange(world_size)[:, None] + np.arange(num_experts) + 1
    want[:, -1] += 2**40  # neither float32 nor int32 holds that
    if seed is not None:
        want = np.random.default_rng(seed).integers(2**40, 2**50, want.shape)
    kind = np.ndarray | str
    everyone = _run(function, world_size, _all_counts_on_rank, function, ranks.PerRank(want), kind=kind)
    for rank, got in enumerate(everyone):
        who = f"{function.__name__} with {world_size} ranks: rank {rank} returns"
        if isinstance(got, str):
            raise NotYet(f"{who} a value of type {got}; return a tensor")
        if got.shape != want.shape:
            raise NotYet(f"{who} a tensor of shape {list(got.shape)}; return {list(want.shape)}, a row for each rank")
        if not np.array_equal(got, want):
            row = int(np.flatnonzero((got != want).any(axis=1))[0])
            owner = [r for r in range(world_size) if np.array_equal(got[row], want[r])]
            what = f"those of rank {owner[0]}" if owner else brief(got[row].tolist())
            raise NotYet(f"{who} in row {row} {what}; the counts of rank {row} belong there")
    if seed is not None:
        witnessed(everyone, (world_size - 1) * want.nbytes)
        columns = generator().integers(num_experts, size=world_size)
        own = [want[rank, column] for rank, column in enumerate(columns)]
        witnessed_terms(everyone, [_on_the_wire(count) for count in own])


def _on_the_wire(count: np.int64) -> set[bytes]:
    """Return how a count may cross: as an int64 or a float64 of a tensor, or pickled, as torch sends objects."""
    return {count.tobytes(), np.float64(count).tobytes(), pickle.encode_long(int(count))}


def _all_counts_on_rank(rank: int, world_size: int, function: Callable, mine: np.ndarray) -> np.ndarray | str:
    """Runs beside the learner's code, and only observes."""
    result = function(rank, world_size, torch.tensor(mine))
    return _array(result) if isinstance(result, list) else plain(result)


class Own(NamedTuple):
    """What a rank knows of a `Case`: the number of its first token, the width, and its own part of everything else.

    `values`: the number in each of its tokens.
    """

    first: int
    width: int
    num_experts: int
    experts: np.ndarray
    weights: np.ndarray
    values: np.ndarray


class Outcome(NamedTuple):
    """What a rank did. `result`: array, or the name of its type."""

    result: np.ndarray | str
    num_bytes: int


def check_layer(function: Callable, case: Case) -> None:
    """Check on real ranks that every token gets the weighted answers of its experts, each asked once, in few bytes.

    `function(rank, world_size, tokens, experts, weights, num_experts, answer)`: tokens float64 [tokens, width],
    experts int64 [tokens, k], weights float64 [tokens, k], `answer(expert, rows)` asks an expert of this rank.
    """
    world_size = len(case.experts)
    desk = _Desk(case)
    parts = ranks.PerRank(desk.own(rank) for rank in range(world_size))
    outcomes = _run(function, world_size, _layer_on_rank, function, parts, kind=Outcome, serve=desk.serve)
    who = f"with {world_size} ranks and {case.num_experts} experts"
    if desk.faults:
        raise NotYet(f"{who}, {desk.faults[min(desk.faults)]}")
    for rank, outcome in enumerate(outcomes):
        got, want = outcome.result, (len(case.experts[rank]), case.width)
        if isinstance(got, str):
            raise NotYet(f"{who}, rank {rank} returns a value of type {got}; return a tensor")
        if got.shape != want:
            raise NotYet(f"{who}, rank {rank} returns a tensor of shape {list(got.shape)}; return {list(want)}")
    if fault := desk.miscounted():
        raise NotYet(f"{who}, {fault}")
    for rank, outcome in enumerate(outcomes):
        for index, row in enumerate(outcome.result / desk.unweighted()):
            if fault := _fault_of(row, rank, index, case):
                raise NotYet(f"{who}, token {index} of rank {rank} {fault}")
    _check_bytes(outcomes, desk, who)
    leaving = [value for value, there in zip(desk.values, chain(*_away(case)), strict=True) if there]
    looked_for = generator().permutation(leaving)[:PLACES]
    witnessed_terms(outcomes, [{value.tobytes(), value.astype(np.float32).tobytes()} for value in looked_for])
    _witnessed_answers(outcomes, desk, who)


def _away(case: Case) -> list[list[set[int]]]:
    """Return for each token of each rank the other ranks that have experts which it chose."""
    return [
        [set(row) - {rank} for row in (experts // case.share).tolist()] for rank, experts in enumerate(case.experts)
    ]


def _check_bytes(outcomes: list[Outcome], desk: _Desk, who: str) -> None:
    """Check that each rank sends at least its rows once, as fp32, and at most a row for each choice, as fp64."""
    case, itemsize, world_size = desk.case, 8, len(outcomes)
    chosen = [np.bincount(experts.flatten() // case.share, minlength=world_size) for experts in case.experts]
    tables = 6 * itemsize * world_size * (world_size + case.num_experts)  # a few numbers about what travels
    away, in_all = _away(case), 0
    for rank, outcome in enumerate(outcomes):
        most = max(chosen[rank].sum(), sum(row[rank] for row in chosen))
        moved = 2 * int(most) * case.width * itemsize
        allowed = moved + tables
        if outcome.num_bytes > allowed:
            raise NotYet(
                f"{who}, rank {rank} sends {outcome.num_bytes:,} bytes; its tokens there and its answers back have "
                f"at most {moved:,}, and the counts may take {tables:,}"
            )
        # A token leaves once, even if others pass it on. An answer leaves every rank that has one for a token.
        rows = sum(map(bool, away[rank])) + sum(rank in there for tokens in away for there in tokens)
        if outcome.num_bytes < (least := rows * case.width * itemsize // 2):
            raise NotYet(
                f"{who}, rank {rank} sends {outcome.num_bytes:,} bytes; its tokens for other ranks and its answers to "
                f"their tokens have at least {least:,}, even as fp32: send whole rows, there and back, with the "
                "process group's own operations"
            )
        in_all += allowed + EXCHANGES * itemsize * world_size**2 * (world_size - 1)  # to compare the tables
    copies = sum(len(there) for tokens in away for there in tokens)  # to each other rank once, and back
    witnessed(outcomes, 2 * copies * case.width * itemsize / 2, in_all)  # as fp32


def _witnessed_answers(outcomes: list[Outcome], desk: _Desk, who: str) -> None:
    """Check that answers really went back, if this run was captured from outside.

    However it travels, an answer leaves the rank that asked the expert and reaches the token's own rank. Each answer
    has its number at a place of its own, where any sum of answers has that number, too.
    """
    messages = crossed(outcomes)
    if messages is None:
        return
    sent, received = _joined(messages, "src"), _joined(messages, "dst")
    looked_for = generator().permutation(_answers_away(desk.case))[:PLACES]
    missing = 0
    for home, index, choice in looked_for.tolist():
        asked = int(desk.case.experts[home][index, choice]) // desk.case.share
        forms = desk.answer_on_the_wire(home, index, choice)
        missing += not all(any(form in data for form in forms) for data in (sent[asked], received[home]))
    if missing > len(looked_for) // 5:  # the same share as for tokens
        raise NotYet(
            f"{who}, {missing} of {len(looked_for)} answers that were looked for on the wire do not cross from the "
            "rank that asks the expert to the token's own rank: send answers back with the process group's own "
            "operations"
        )


def _joined(messages: list[Any], end: str) -> dict[int, bytes]:
    """Return the data of all messages by the rank at one `end`, "src" or "dst"; those of one connection in order."""
    parts: defaultdict[int, list[bytes]] = defaultdict(list)
    for each in sorted(messages, key=lambda each: (each.src, each.dst)):
        parts[getattr(each, end)].append(each.data)
    return defaultdict(bytes, {rank: b"".join(data) for rank, data in parts.items()})


def _answers_away(case: Case) -> np.ndarray:
    """Return (rank, index, choice) of each choice of a token that an expert of another rank answers: int [n, 3]."""
    away = [
        (rank, index, choice)
        for rank, experts in enumerate(case.experts)
        for index, choice in np.argwhere(experts // case.share != rank).tolist()
    ]
    return np.array(away, dtype=int).reshape(-1, 3)


def _run(function: Callable, world_size: int, on_rank: Callable, *args: Any, kind: Any, **named: Any) -> list[Any]:
    try:
        everyone = ranks.run(on_rank, world_size, *args, timeout=on_ranks.patience(), sealed=True, **named)
    except ranks.RanksError as error:
        if "NotImplementedError" in str(error):
            raise NotYet(f"{function.__name__} is not written yet, or calls what is not written yet") from None
        misuse = re.search(rf"{Misuse.__name__}: (.*)", str(error))
        words = misuse[1] if misuse else on_ranks.how_it_failed(error)
        raise NotYet(f"{function.__name__} with {world_size} ranks: {words}") from None
    return reported(everyone, world_size, kind)


def _layer_on_rank(rank: int, world_size: int, function: Callable, own: Own) -> Outcome:
    """Runs beside the learner's code, and only observes."""
    at = torch.arange(len(own.experts))
    tokens = torch.zeros(len(at), own.width, dtype=torch.float64)
    tokens[at, (own.first + at) * own.num_experts] = torch.tensor(own.values)

    def answer(expert: int, rows: torch.Tensor) -> torch.Tensor:
        """Return the answer of expert number `expert`, among those of all ranks, to `rows`: [n, width]."""
        if not isinstance(rows, torch.Tensor) or rows.ndim != 2 or rows.shape[1] != own.width:
            raise Misuse(f"answer(expert, rows) takes rows [n, {own.width}], not {_what(rows)}")
        return torch.tensor(ranks.ask((int(expert), rows.detach().numpy())), dtype=rows.dtype)

    with BytesSent() as sent, _without_the_layer():
        result = plain(
            function(
                rank, world_size, tokens, torch.tensor(own.experts), torch.tensor(own.weights), own.num_experts, answer
            )
        )
    return Outcome(result, sent.total + sent.payloads.total() - sum(_comparing))


def _without_the_layer() -> contextlib.AbstractContextManager[None]:
    """Return a context in which the library's own layer refuses to work."""
    return refusing(library.ExpertParallel, "forward", what="ExpertParallel", error=Misuse)


class _Desk:
    """The experts, outside the ranks, where no code of the learner's runs. Any question may be the learner's own.

    It always answers, so that no rank waits. `values`: the number in each token; `gains`: what is multiplied at each
    place of an answer. `asked`: how often each expert was asked about each token, by (token, expert). `faults`: of each
    rank that asked wrongly, what was wrong first.
    """

    def __init__(self, case: Case):
        drawn = np.random.default_rng()  # not by the seed of the routing, which a rank could find
        self.case = case
        self.values = drawn.uniform(1, 2, case.first[-1]).astype(np.float32).astype(float)  # may travel as fp32
        self.gains = drawn.uniform(1, 2, case.width)
        self.asked: Counter[tuple[int, int]] = Counter()
        self.faults: dict[int, str] = {}

    def own(self, rank: int) -> Own:
        """Return what a rank may know."""
        case = self.case
        first, end = map(int, case.first[rank : rank + 2])
        values = self.values[first:end]
        return Own(first, case.width, case.num_experts, case.experts[rank], case.weights[rank], values)

    def serve(self, rank: int, question: Any) -> np.ndarray:
        """Answer a rank's question, (expert, rows), and note it; raise `NotYet` if `answer` asks no such question."""
        if not is_a(question, tuple[int, np.ndarray]) or question[1].shape[1:] != (self.case.width,):
            raise NotYet(f"rank {rank} asks for something that no expert does: ask by answer(expert, rows)")
        expert, rows = question
        if fault := _wrongly_asked(self.case, self.values, rank, expert, rows):
            self.faults.setdefault(rank, fault)
        else:
            self.asked.update((int(at) // self.case.num_experts, expert) for at in np.nonzero(rows)[1])
        return np.roll(rows, expert % self.case.width, axis=1) * self.gains

    def answer_on_the_wire(self, rank: int, index: int, choice: int) -> set[bytes]:
        """Return how the number in an answer may cross: as fp64 or fp32, weighted there or only at home.

        The expert may be asked, and the weight may have come, in either precision.
        """
        number, expert = int(self.case.first[rank]) + index, self.case.experts[rank][index, choice]
        answer = self.values[number] * self.gains[number * self.case.num_experts + expert]
        weight = self.case.weights[rank][index, choice]
        products = {a * w for a in _in_both(answer) for w in (1.0, *_in_both(weight))}
        return {form(product).tobytes() for product in products for form in (np.float64, np.float32)}

    def miscounted(self) -> str | None:
        """Return which token's expert was not asked about it exactly once; None if each was."""
        for number in range(len(self.values)):
            rank, index = self.case.owner(number)
            for expert in self.case.experts[rank][index].tolist():
                times, about = self.asked[number, expert], f"about token {index} of rank {rank}"
                if not times:
                    asks = f"rank {expert // self.case.share} has that expert and must ask it"
                    return f"expert {expert} is never asked {about}, which has chosen it: {asks}"
                if times > 1:
                    return f"expert {expert} is asked {times} times {about}: ask once for each choice"
        return None

    def unweighted(self) -> np.ndarray:
        """Return the number at each place of all answers, before weights: [width]."""
        return self.gains * np.resize(self.values.repeat(self.case.num_experts), self.case.width)


def _in_both(number: float) -> tuple[float, float]:
    """Return a number as it is, and rounded to fp32."""
    return float(number), float(np.float32(number))


def _wrongly_asked(case: Case, values: np.ndarray, rank: int, expert: int, rows: np.ndarray) -> str | None:
    """Return what is wrong with these rows that a rank sent to an expert; None if all are tokens that chose it."""
    mine = range(rank * case.share, (rank + 1) * case.share)
    if expert not in mine:
        home = expert // case.share
        there = f"it lives on rank {home}" if 0 <= expert < case.num_experts else "there is none"
        return f"rank {rank} asks expert {expert}, but {there}; rank {rank} has {_range(mine)}"
    for row in rows:
        if fault := _misplaced(case, values, row, expert):
            return f"expert {expert} gets {fault}"
    return None


def _misplaced(case: Case, values: np.ndarray, row: np.ndarray, expert: int) -> str | None:
    """Return what is wrong with this row for this expert; None if it is a token that chose it."""
    (at,) = np.flatnonzero(row)[:1] if row.any() else (None,)
    if at is None:
        return "a row of zeros instead of a token"
    number, moved = divmod(int(at), case.num_experts)
    rank, index = case.owner(number)
    if moved or np.count_nonzero(row) > 1 or row[at] != values[number]:
        return f"not token {index} of rank {rank} as it was: send tokens as they are, and weigh the answers at home"
    chosen = case.experts[rank][index].tolist()
    if expert not in chosen:
        return f"token {index} of rank {rank}, which has chosen {_experts(chosen)}"
    return None


def _fault_of(row: np.ndarray, rank: int, index: int, case: Case) -> str | None:
    """Return what is wrong with a token's result, as in "came back with token 3's answer"; None if it is right."""
    number, size = int(case.first[rank]) + index, case.num_experts
    chosen, weights = case.experts[rank][index], case.weights[rank][index]
    want = {number * size + int(expert): float(weight) for expert, weight in zip(chosen, weights, strict=True)}
    got = {int(at): float(row[at]) for at in np.flatnonzero(row)}
    if got.keys() == want.keys() and all(np.isclose(got[at], want[at]) for at in want):
        return None
    if not got:
        return "came back without an answer: its row is all zeros"
    strange = [at for at in got if at // size != number]
    if strange:
        owner, other = case.owner(strange[0] // size)
        whose = f"token {other}'s" if owner == rank else f"the answer to token {other} of rank {owner}"
        return f"came back with {whose} answer" if owner == rank else f"came back with {whose}"
    if lacking := [at % size for at in want if at not in got]:
        return f"came back without the answer of {_experts(lacking)}"
    at = next(at for at in got if at not in want or not np.isclose(got[at], want[at]))
    if at not in want:
        return f"came back with an answer of expert {at % size}, which it has not chosen"
    hints = {1.0: ": the answers are not weighted"}
    if len(want) > 1 and any(np.isclose(got[at], weight) for other, weight in want.items() if other != at):
        hints[round(got[at], 3)] = ": that is the weight of its other choice"
    hint = hints.get(round(got[at], 3), "")
    return f"has the answer of expert {at % size} with weight {got[at]:.3g} instead of {want[at]:.3g}{hint}"


# In words


def _table(experts: torch.Tensor) -> str:
    return f"experts={experts.tolist()}" if experts.numel() <= 16 else f"experts of {experts.shape[0]} tokens"


def _experts(numbers: list[int]) -> str:
    return f"expert{'s' * (len(numbers) > 1)} {' and '.join(map(str, sorted(numbers)))}"


def _range(mine: range) -> str:
    return _experts([mine[0]]) if len(mine) == 1 else f"experts {mine[0]} to {mine[-1]}"


def _what(result: Any) -> str:
    if isinstance(result, torch.Tensor | np.ndarray):
        return f"a tensor of {result.dtype} and shape {list(result.shape)}"
    return brief(result)


def _array(result: Any) -> np.ndarray:
    return result.detach().numpy() if isinstance(result, torch.Tensor) else np.array(result)


def _whole(result: Any, call: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return an answer as an array of whole numbers. Raise `NotYet` if it is none or has another shape."""
    try:
        numbers = _array(result)
    except (TypeError, ValueError):
        numbers = np.array(None)
    if not np.issubdtype(numbers.dtype, np.integer) and not (
        np.issubdtype(numbers.dtype, np.floating) and (numbers == np.floor(numbers)).all()
    ):
        raise NotYet(f"{call} returns {_what(result)}; return whole numbers")
    if shape is not None and numbers.shape != shape:
        raise NotYet(f"{call} returns numbers of shape {list(numbers.shape)}; return {list(shape)}")
    return numbers.astype(np.int64)


def _tensor(result: Any, call: str, shape: torch.Size) -> np.ndarray:
    if not isinstance(result, torch.Tensor | np.ndarray):
        raise NotYet(f"{call} returns {brief(result)}; return a tensor")
    if tuple(result.shape) != tuple(shape):
        raise NotYet(f"{call} returns a tensor of shape {list(result.shape)}; return {list(shape)}")
    return _array(result)


def _check_permutation(got: np.ndarray, call: str) -> None:
    missing = sorted(set(range(len(got))) - set(got.tolist()))
    if missing:
        twice = [place for place, often in Counter(got.tolist()).items() if often > 1]
        more = f", and place {twice[0]} more than once" if twice else ""
        raise NotYet(f"{call}: place {missing[0]} never leaves{more}; each place leaves once")

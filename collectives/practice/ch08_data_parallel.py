"""Checks of exercise 08: buckets within a bound, when they are ready and done, and how near a choice is to the best.

The truth is a timeline of the step. For the fewest or the fastest buckets, it is a search through all ways to cut the
gradients.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from random import Random
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import ranks
from ..draw import draw
from ..training import timeline
from .checks import NotYet, call_in_words, own_answer, refusing_functions, show
from .on_ranks import how_it_failed, numbers_in, patience, reported, stand_ins, witnessed

HOLDS = ()  # see `wall`
ON_RANKS = (".Step", "._noted", "._parallel", "._step_on_rank")

if TYPE_CHECKING:
    import torch

Buckets = Sequence[Sequence[int]]
Slips = dict[str, Any]  # {a slip in words: the value it leads to}
FAIR, GOOD, BEST = 0.20, 0.06, 0.001  # how much longer than the fastest a step may take


def step(
    buckets: Buckets, backward: Sequence[float], sizes: Sequence[int], alpha: float, beta: float
) -> timeline.Timeline:
    """Run a backward pass with its all-reduces: gradient i takes `backward[i]` seconds and has `sizes[i]` bytes.

    An all-reduce of n bytes takes alpha + n beta. It starts when its bucket is full and the one before it is done.
    """
    layers = [timeline.Layer(0.0, seconds, size) for seconds, size in zip(backward, sizes, strict=True)]
    return timeline.run(timeline.data_parallel(layers, buckets, lambda num_bytes: alpha + num_bytes * beta))


def without_the_library() -> contextlib.AbstractContextManager[None]:
    """Refuse, inside this context, to count, to time or to choose buckets by the checks' own functions."""
    return refusing_functions(step, fewest, fastest, timeline.run, timeline.data_parallel)


# Part a


def check_order(function: Callable, cases: Iterable[tuple]) -> None:
    """Check that `function(sizes, bound)` puts every parameter into one bucket, from the last one to the first."""
    for case in cases:
        _buckets_of(function, case)


def check_bound(function: Callable, cases: Iterable[tuple]) -> None:
    """Check that no bucket of `function(sizes, bound)` holds more than `bound` bytes."""
    for case in cases:
        _within_bound(function, *case)


def _within_bound(function: Callable, sizes: Sequence[int], bound: int) -> tuple[str, list[list[int]]]:
    """Return the call in words and the learner's buckets; raise `NotYet` if one holds more than `bound` bytes."""
    call, buckets = _buckets_of(function, (sizes, bound))
    held = [sum(sizes[number] for number in bucket) for bucket in buckets]
    if max(held) > bound:
        fault = f"{call}: bucket {np.argmax(held)} holds {max(held):,} bytes, and {bound:,} are allowed"
        without_last = [total - sizes[bucket[-1]] for total, bucket in zip(held, buckets, strict=True)]
        if max(without_last) < bound:
            fault += ". You close it after it has outgrown the bound: check before you add one more"
        raise NotYet(fault)
    return call, buckets


def check_fewest(function: Callable, cases: Iterable[tuple]) -> None:
    """Check that `function(sizes, bound)` uses the fewest possible buckets within the bound."""
    for sizes, bound in cases:
        call, buckets = _within_bound(function, sizes, bound)
        least = fewest(sizes, bound)
        if len(buckets) == least:
            continue
        fault = f"{call} gives {len(buckets)} buckets, where {least} are enough"
        for number, (bucket, after) in enumerate(pairwise(buckets)):
            held = sum(sizes[each] for each in bucket)
            if held + sizes[after[0]] <= bound:
                exactly = " exactly: a bucket may be full" if held + sizes[after[0]] == bound else ""
                fault += (
                    f": bucket {number} holds {held:,} bytes of {bound:,}, and parameter {after[0]} with its "
                    f"{sizes[after[0]]:,} still fits{exactly}"
                )
                break
        raise NotYet(fault)


def fewest(sizes: Sequence[int], bound: int) -> int:
    """Return the fewest runs of neighbours that `sizes` can be cut into, each at most `bound`; try all cuts."""
    least = [0]
    for end in range(1, len(sizes) + 1):
        least.append(1 + min(least[start] for start in range(end) if sum(sizes[start:end]) <= bound))
    return least[-1]


def _buckets_of(function: Callable, case: tuple, call: str | None = None) -> tuple[str, list[list[int]]]:
    """Return the call in words and the learner's buckets; raise `NotYet` unless they hold every parameter in order.

    `case[0]`: the sizes of the gradients. `call`: the call in words, where the arguments are too long to show.
    """
    call, sizes = call or call_in_words(function, case), case[0]
    result = own_answer(__name__, function, *case, call=call)
    try:
        buckets = [[int(number) for number in bucket] for bucket in result]
    except (TypeError, ValueError):
        raise NotYet(f"{call} returns {brief(result)}, which is not a list of lists of parameter numbers") from None
    if [] in buckets:
        raise NotYet(f"{call}: bucket {buckets.index([])} is empty, and its all-reduce would move nothing")
    order, right_order = [number for bucket in buckets for number in bucket], list(reversed(range(len(sizes))))
    if sorted(order) != sorted(right_order):
        missing = sorted(set(right_order) - set(order))
        twice = sorted({number for number in order if order.count(number) > 1})
        strange = sorted(set(order) - set(right_order))
        fault = f"parameter {missing[0]} is in no bucket" if missing else f"parameter {(twice or strange)[0]} is "
        fault += "" if missing else ("in two buckets" if twice else f"not there: they are 0 to {len(sizes) - 1}")
        raise NotYet(f"{call} returns {brief(buckets)}: {fault}")
    if order == sorted(order) and len(order) > 1:
        raise NotYet(
            f"{call} returns {brief(buckets)}: it begins with parameter 0, but the backward pass makes that gradient "
            "last. Launch the last parameters in the first bucket"
        )
    if order != right_order:
        at = next(place for place, (got, want) in enumerate(zip(order, right_order, strict=True)) if got != want)
        raise NotYet(
            f"{call} returns {brief(buckets)}: parameter {order[at]} comes before parameter {right_order[at]}, whose "
            "gradient is made earlier. Keep to the order of the backward pass, from the last parameter to the first, "
            "within a bucket and from bucket to bucket"
        )
    return call, buckets


def random_bounds(seed: int, how_many: int = 30) -> list[tuple]:
    """Return cases `(sizes, bound)`: bytes of up to 20 gradients, and a bound at least as large as each."""
    random = Random(seed)
    cases = []
    for _ in range(how_many):
        sizes = [random.randint(1, 9) * 4 for _ in range(random.randint(1, 20))]
        cases.append((sizes, max(sizes) + random.randint(0, 8) * 4))
    return cases


# Part b


def check_ready(function: Callable, cases: Iterable[tuple]) -> None:
    """Check that `function(buckets, backward)` returns the second at which each bucket has its last gradient."""
    rows = [(buckets, backward) for buckets, backward, *_ in cases]

    def truth(buckets: Buckets, backward: Sequence[float]) -> list[float]:
        spans = step(buckets, backward, [1] * len(backward), 0, 0).spans
        return [span.start for span in spans if span.kind == "all_reduce"]

    _check_values(function, truth, rows, _ready_slips)


def _ready_slips(buckets: Buckets, backward: Sequence[float]) -> Slips:
    passed = np.cumsum(backward[::-1])[::-1]  # seconds until gradient i is ready
    forward = np.cumsum(backward)
    own = np.array([sum(backward[number] for number in bucket) for bucket in buckets])
    highest, lowest = [max(bucket) for bucket in buckets], [min(bucket) for bucket in buckets]
    return {
        "this lets the gradient of parameter 0 come first; the backward pass begins with the last parameter": (
            forward[highest]
        ),
        "this counts from parameter 0 on; the backward pass begins with the last parameter": forward[lowest],
        "this is when the bucket gets its first gradient; it is full with its last one": passed[highest],
        "this is the end of the whole backward pass; a bucket need not wait for it": [passed[0]] * len(buckets),
        "this counts the bucket's own gradients alone; those of the buckets before it are made first": own,
        "this is when the bucket's last gradient starts; it is ready when it ends": (
            passed[lowest] - np.take(backward, lowest)
        ),
    }


def check_end(function: Callable, cases: Iterable[tuple]) -> None:
    """Check that `function(buckets, backward, sizes, alpha, beta)` returns the second at which the step ends."""
    _check_values(function, lambda *case: step(*case).seconds, cases, _end_slips)


def _end_slips(buckets: Buckets, backward: Sequence[float], sizes: Sequence[int], alpha: float, beta: float) -> Slips:
    held = np.array([sum(sizes[number] for number in bucket) for bucket in buckets])
    ready = np.array([sum(backward[min(bucket) :]) for bucket in buckets])
    each = alpha + held * beta
    total = each.sum()

    def end(seconds: np.ndarray) -> float:
        done = 0.0
        for start, taken in zip(ready, seconds, strict=True):
            done = max(done, start) + taken
        return done

    return {
        "this starts communication after the backward pass; a bucket goes as soon as it is full": ready[-1] + total,
        "this runs all-reduces side by side; each waits for the one before it": (ready + each).max(),
        "this keeps the network busy from the first bucket on; it may have to wait for the next": ready[0] + total,
        "this counts alpha once; every launch pays it": end([alpha, *[0] * (len(held) - 1)] + held * beta),
        "this leaves out alpha": end(held * beta),
        "this counts the last bucket alone; it may have to wait for those before it": ready[-1] + each[-1],
        "this leaves out the backward pass": total,
        "beta is seconds a byte, not a bandwidth: multiply by it": end(alpha + held / beta),
        "this is when the last all-reduce begins; count its own seconds, too": end(each) - each[-1],
        "this is the time after the backward pass; count from its beginning": end(each) - ready[-1],
    }


def _check_values(function: Callable, truth: Callable, cases: Iterable[tuple], slips: Callable) -> None:
    """Check that `function(*case)` is `truth(*case)`, a number or a list of them; name a slip that explains all."""
    rows = []
    for case in cases:
        call, want = call_in_words(function, case), np.array(truth(*case), dtype=float)
        result = own_answer(__name__, function, *case)
        try:
            got = np.array(result, dtype=float)
        except (TypeError, ValueError):
            got = np.array(np.nan)
        if got.shape != want.shape or not np.isfinite(got).all():
            shape = "one number" if want.ndim == 0 else f"{len(want)} numbers, one for each bucket"
            raise NotYet(f"{call} returns {brief(result)}; return {shape}")
        rows.append((call, got, want, slips(*case)))
    for call, got, want, _ in rows:
        if not np.allclose(got, want, rtol=1e-9, atol=0):
            explained = [
                slip for slip in rows[0][3] if all(np.allclose(g, s[slip], rtol=1e-9, atol=0) for _, g, _, s in rows)
            ]
            hint = f": {explained[0]}" if explained else ""
            raise NotYet(f"{call} returns {_rounded(got)}, but it is {_rounded(want)}{hint}")


def _rounded(values: np.ndarray) -> str:
    return f"{values:.6g}" if values.ndim == 0 else brief([float(f"{value:.6g}") for value in values])


def random_steps(seed: int, how_many: int = 12) -> list[tuple]:
    """Return cases `(buckets, backward, sizes, alpha, beta)`, some bound by compute and some by the network."""
    random = Random(seed)
    cases = []
    for _ in range(how_many):
        count = random.randint(4, 12)
        sizes = [random.randint(1, 50) * 1000 for _ in range(count)]
        backward = [random.randint(1, 40) / 1000 for _ in range(count)]
        cuts = sorted(random.sample(range(1, count), random.randint(1, count - 1)))
        numbers = list(reversed(range(count)))
        buckets = [numbers[a:b] for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
        beta = sum(backward) / sum(sizes) * random.choice((0.2, 0.7, 1.0, 2.0))
        cases.append((buckets, backward, sizes, random.randint(1, 20) / 1000, beta))
    return cases


# Part c


def check_choice(function: Callable, cases: Iterable[tuple], within: float, named: str = "") -> None:
    """Check that the step with the buckets of `function(sizes, backward, alpha, beta)` is near the fastest.

    It may take at most (1 + `within`) times as long as with the best buckets. If it takes longer, draw both. `named`:
    the notebook's name of `cases`, such as "MODELS"; without one, the learner doesn't have them.
    """
    lost = []
    for number, case in enumerate(cases):
        sizes, backward, alpha, beta = case
        shown = f"<{len(sizes)} sizes>, <{len(sizes)} times>, {alpha:.3g}, {beta:.3g}"
        words = f"{function.__name__}({f'*{named}[{number}]' if named else shown})"
        call, buckets = _buckets_of(function, case, words)
        yours, target = (step(each, backward, sizes, alpha, beta) for each in (buckets, fastest(*case)))
        lost.append((yours.seconds / target.seconds - 1, call, buckets, case, yours, target))
    regret, call, buckets, case, yours, target = max(lost, key=lambda row: row[0])
    if regret <= within + 1e-9:
        return
    bad = sum(row[0] > within + 1e-9 for row in lost)
    show(draw({"with your buckets": yours.lasting(), "with the best": target.lasting()}))
    many = f"{len(buckets)} bucket{'s' * (len(buckets) > 1)}"
    raise NotYet(
        f"the step takes {regret:.1%} longer than with the best buckets, where {within:.1%} is allowed: "
        f"{yours.seconds:.4g} s instead of {target.seconds:.4g} with the {many} of {call}. {bad} of {len(lost)} cases "
        f"are too slow. {_where_it_goes(buckets, case, yours)}"
    )


def _where_it_goes(buckets: Buckets, case: tuple, yours: timeline.Timeline) -> str:
    """Return a sentence on what makes this step long."""
    sizes, _, alpha, _ = case
    if len(buckets) == 1:
        return "A single bucket begins when the backward pass has ended: nothing overlaps"
    if len(buckets) == len(sizes):
        return f"A bucket for every gradient pays {alpha:.3g} s {len(sizes)} times"
    reduced = [span for span in yours.spans if span.kind == "all_reduce"]
    idle = sum(max(0.0, after.start - before.end) for before, after in pairwise(reduced))
    last = sum(sizes[number] for number in buckets[-1]) / sum(sizes)
    return (
        f"The network is idle for {reduced[0].start:.3g} s before the first bucket and for {idle:.3g} s between "
        f"buckets; {len(buckets) * alpha:.3g} s are alphas; the last bucket, which nothing hides, holds {last:.0%} of "
        "the bytes"
    )


def fastest(sizes: Sequence[int], backward: Sequence[float], alpha: float, beta: float) -> list[list[int]]:
    """Return the fastest buckets: runs of neighbours, from the last parameter to the first.

    Dynamic programming: for each number of gradients, find the earliest second at which their all-reduces are done.
    That suffices, because a later bucket never loses when those before it are done earlier.
    """
    count = len(sizes)
    ready = np.cumsum([0.0, *backward[::-1]])  # [n]: seconds until n gradients are ready
    held = np.cumsum([0, *sizes[::-1]])
    done, cut = [0.0], [0]
    for end in range(1, count + 1):
        ends = [max(done[start], ready[end]) + alpha + (held[end] - held[start]) * beta for start in range(end)]
        cut.append(int(np.argmin(ends)))
        done.append(ends[cut[-1]])
    buckets, end = [], count
    while end:
        buckets.append([count - 1 - place for place in range(cut[end], end)])
        end = cut[end]
    return buckets[::-1]


def random_models(seed: int, how_many: int = 12, most_alpha: float = 0.1) -> list[tuple]:
    """Return cases `(sizes, backward, alpha, beta)`: models of blocks, with an all-reduce comparable to the backward.

    The bytes take between half and twice the backward pass on the network. Alpha is between a thousandth of it and
    `most_alpha` of it. Up to 1, the fastest step has a dozen buckets in one case and two in another, so no fixed number
    of buckets comes near in all.
    """
    random = Random(seed)
    cases = []
    for _ in range(how_many):
        sizes = []
        for _ in range(random.randint(3, 8)):
            width = random.choice((64, 128, 256))
            sizes += [4 * width * width, 4 * width] * random.randint(1, 3)
        backward = [size * 1e-9 * random.uniform(0.5, 2) for size in sizes]
        beta = sum(backward) / sum(sizes) * random.choice((0.5, 0.8, 1.0, 2.0))
        cases.append((sizes, backward, sum(backward) * 10 ** random.uniform(-3, math.log10(most_alpha)), beta))
    return cases


# Part d


class Step:
    """One backward pass on one rank, for the functions of part d.

    `buckets`: the parameter numbers in each bucket, in the order of launch. `world_size`: how many ranks there are.
    `arrived`, an empty set, and `works`, an empty list, keep what the functions must remember between calls.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], buckets: Buckets, world_size: int):
        self.parameters, self.buckets, self.world_size = parameters, buckets, world_size
        self.arrived: set[int] = set()
        self.works: list[Any] = []
        self._packed: list[tuple[int, torch.Tensor]] = []  # each bucket, as it was packed

    def pack(self, bucket: int) -> torch.Tensor:
        """Return the gradients of a bucket, one after another in a flat tensor."""
        import torch

        if bucket not in range(len(self.buckets)):
            raise ValueError(f"pack({bucket}): give the number of a bucket, from 0 to {len(self.buckets) - 1}")
        gradients = []
        for number in self.buckets[bucket]:
            gradient = self.parameters[number].grad
            if gradient is None:
                raise ValueError(f"bucket {bucket} cannot be packed: parameter {number} has no gradient yet")
            gradients.append(gradient)
        flat = torch.cat(gradients)
        self._packed.append((bucket, flat))
        return flat

    def unpack(self, bucket: int, flat: torch.Tensor) -> None:
        """Write a flat tensor back into the gradients of a bucket."""
        if bucket not in range(len(self.buckets)):
            raise ValueError(f"unpack({bucket}, flat): give the number of a bucket, from 0 to {len(self.buckets) - 1}")
        start = 0
        for number in self.buckets[bucket]:
            gradient = self.parameters[number].grad
            if gradient is None:
                raise ValueError(f"bucket {bucket} cannot be unpacked: parameter {number} has no gradient yet")
            gradient.copy_(flat[start : start + len(gradient)])
            start += len(gradient)


class Event(NamedTuple):
    """What happened on a rank.

    `kind`: the backward pass made a "gradient" or came to its "end"; the learner's code called all_reduce on a bucket
    ("launch"), waited for it ("wait"), or used its work in another way ("asked"). `number`: of the parameter or the
    bucket; None if unknown. `added`: the numbers that a launch adds up, as they are then; None if it doesn't add up
    numbers over all ranks.
    """

    kind: str
    number: int | None = None
    added: np.ndarray | None = None


class Done(NamedTuple):
    """What a rank did. `gradients`: at the end, by parameter; None if the ranks launched different buckets."""

    events: list[Event]
    gradients: list[np.ndarray] | None


def _noted(work: Any, note: Callable[[str], None]) -> Any:
    """Return what does as `work` does, and notes each "wait", and as "asked" every other use, such as of its future."""

    class Noted:
        def wait(self, *args: Any) -> Any:
            note("wait")
            return work.wait(*args)

        def __getattr__(self, name: str) -> Any:
            note("asked")
            return getattr(work, name)

    return Noted()


def check_overlapped(
    arrived: Callable,
    finish: Callable,
    buckets: Buckets,
    orders: Sequence[Sequence[int]],
    timing: bool = True,
    seed: int | None = None,
) -> None:
    """Check a step of data parallelism on real ranks: `arrived(step, number)` for every gradient, then `finish(step)`.

    `orders[r]`: the order in which rank r's backward pass makes its gradients. Each has four elements, or with a `seed`
    many random ones. In the end every gradient must be the mean over the ranks, and the code must have waited for every
    bucket, so that the mean isn't a matter of luck. With `timing`, it must also launch a bucket as soon as that one and
    those before it are full, and wait only after the backward pass. Each rank reports its own events, beside the
    learner's code.
    """
    world_size, gradients = len(orders), _gradients(orders, seed)
    own = ranks.PerRank(gradients), ranks.PerRank(list(order) for order in orders)
    try:
        done = ranks.run(
            _step_on_rank,
            world_size,
            *(arrived, finish, buckets, *own),
            timeout=patience(),
            sealed=True,
            groups=[range(world_size)],  # apart from the learner's own collectives
        )
    except ranks.RanksError as error:
        if "NotImplementedError" in str(error):
            unwritten = finish if f"in {finish.__name__}" in str(error) else arrived
            raise NotYet(f"{unwritten.__name__} is not written yet") from None
        synchronous = "'NoneType'" in str(error)
        hint = "\nWithout async_op=True, dist.all_reduce returns no work, but None" if synchronous else ""
        raise NotYet(f"with {len(orders)} ranks, {how_it_failed(error)}{hint}") from None
    reported(done, world_size, Done)
    launched = [[event.number for event in each.events if event.kind == "launch"] for each in done]
    if not any(launched):
        raise NotYet(
            f"{arrived.__name__} and {finish.__name__} call no dist.all_reduce: no rank gets another's gradients"
        )
    for rank, order in enumerate(launched):
        if any(mine != theirs for mine, theirs in zip(launched[0], order, strict=False)):
            raise NotYet(
                f"rank 0 launches its buckets in the order {launched[0]}, rank {rank} in the order {order}: ranks "
                "match collectives by the order of the calls, so this adds up gradients of different buckets"
            )
    for rank, each in enumerate(done if timing else []):
        _check_events(rank, each.events, [gradients[rank, [*bucket]].ravel() for bucket in buckets], buckets)
    for rank, each in enumerate(done):
        if each.gradients is None:
            raise NotYet(
                "when the backward pass ends, the ranks have launched "
                f"{', '.join(str(len(order)) for order in launched)} buckets: an all-reduce that only some ranks have "
                "launched waits for ever"
            )
        awaited = {event.number for event in each.events if event.kind in ("wait", "asked")}
        for number in launched[rank]:
            if number not in awaited:
                raise NotYet(
                    f"rank {rank} launches bucket {number} and never waits for it: it may read the tensor before the "
                    "sum is there. Keep the work that dist.all_reduce returns, and call its wait() in `finish`"
                )
        _check_gradients(rank, each.gradients, gradients)
    least = gradients[0].nbytes * (world_size - 1)  # half of what all-reduces in fp64 send: fp32 is enough
    witnessed(done, least)


def _check_events(rank: int, events: list[Event], packed: Sequence[np.ndarray], buckets: Buckets) -> None:
    """Check when a rank launches its buckets and waits for them. `packed`: the rank's own gradients in each bucket.

    A launch counts only if it adds up its bucket over all ranks. So an answer can't launch something else in time, and
    add up the gradients when the backward pass has ended.
    """
    made: set[int] = set()
    launched = 0
    for place, event in enumerate(events):
        due = next((b for b, bucket in enumerate(buckets) if not made.issuperset(bucket)), len(buckets))
        if event.kind in ("gradient", "end") and launched < due:
            raise NotYet(
                f"rank {rank}: bucket {launched} and those before it are full with the gradients "
                f"{sorted(made, reverse=True)}, but it is not launched then: "
                + ("the backward pass ends" if event.kind == "end" else f"the gradient {event.number} is made")
                + " first. Launch in `arrived`, and as many buckets as are full"
            )
        if event.kind in ("wait", "asked") and "end" in [later.kind for later in events[place:]]:
            raise NotYet(
                f"rank {rank} waits for an all-reduce while the backward pass is still running, which stops "
                "meanwhile: launch with async_op=True, keep the work, and wait for it in `finish`"
                + " (to ask whether it is done may be a way to wait)"
                * (event.kind == "asked")
            )
        if event.kind == "gradient" and event.number is not None:
            made.add(event.number)
        if event.kind == "launch" and launched < len(buckets):
            _check_launch(f"rank {rank}", event.added, launched, packed[launched])
        launched += event.kind == "launch"
    if launched != len(buckets):
        raise NotYet(f"rank {rank} calls dist.all_reduce {launched} times for {len(buckets)} buckets")


def _check_launch(who: str, added: np.ndarray | None, bucket: int, packed: np.ndarray) -> None:
    """Check that a launch adds up the bucket that is due, all of it; each rank may have divided its part first."""
    if added is None:
        raise NotYet(
            f"{who} launches an all-reduce that doesn't add up numbers over all ranks where bucket {bucket} is due: "
            f"give dist.all_reduce what step.pack({bucket}) returns, and no `group` and no `op`"
        )
    if added.size < packed.size:
        raise NotYet(
            f"{who} launches an all-reduce of {added.size:,} numbers where bucket {bucket} has {packed.size:,}: give "
            "dist.all_reduce all gradients of the bucket"
        )
    own = added.ravel()[: packed.size].astype(float)
    with np.errstate(all="ignore"):
        factor = own @ packed / (packed @ packed)
        same = factor and np.allclose(own / factor, packed)
    if not same:
        raise NotYet(
            f"{who} launches an all-reduce of {_rounded(own)} where bucket {bucket} is due, which holds "
            f"{_rounded(packed)}: give dist.all_reduce what step.pack({bucket}) returns"
        )


def _check_gradients(rank: int, gradients: list[np.ndarray], before: np.ndarray) -> None:
    world_size = len(before)
    for number, (mine, mean) in enumerate(zip(before[rank], before.mean(axis=0), strict=True)):
        got = gradients[number]
        if got.shape == mean.shape and np.allclose(got, mean):
            continue
        slips = {
            "this is the sum over the ranks; write back the mean": mean * world_size,
            "this is still the rank's own gradient; write the mean back": mine,
            "this is divided by the number of ranks twice": mean / world_size,
            "this is the rank's own share, divided but not added up": mine / world_size,
        }
        hint = next((f": {words}" for words, value in slips.items() if np.allclose(got, value)), "")
        raise NotYet(
            f"on rank {rank} of {world_size} the gradient of parameter {number} is {_rounded(got)} in the end, but the "
            f"mean over the ranks is {_rounded(mean)}{hint}"
        )


MANY = 20_000  # elements of a gradient: enough bytes to count them from outside


def _gradients(orders: Sequence[Sequence[int]], seed: int | None) -> np.ndarray:
    """Return the gradients of all parameters on all ranks: [ranks, parameters, elements]."""
    world_size, count = len(orders), len(orders[0])
    if seed is not None:
        return np.random.default_rng(seed).standard_normal((world_size, count, MANY))
    return np.multiply.outer(1 + np.arange(world_size) ** 2, np.add.outer(10.0 * np.arange(count), np.arange(1, 5)))


def _parallel(one: torch.Tensor, other: Any) -> bool:
    """Return whether a plain tensor is a multiple of another one, up to rounding."""
    if type(other) is not type(one) or other.device != one.device:  # such as "meta", which holds no numbers
        return False
    mine, its = one.flatten().double(), other.detach().flatten().double()
    return mine.shape == its.shape and bool(mine @ its >= (1 - 1e-9) * mine.norm() * its.norm())


def _step_on_rank(
    rank: int,
    world_size: int,
    arrived: Callable,
    finish: Callable,
    buckets: Buckets,
    gradients: np.ndarray,
    order: Sequence[int],
) -> Done:
    """Run the step on one rank. Runs beside the learner's code, and only observes."""
    import torch
    import torch.distributed as dist

    from ..measure.wire import gloo_backends, uses

    parameters = [torch.nn.Parameter(torch.ones(len(each), dtype=torch.float64)) for each in gradients]
    state, all_reduce = Step(parameters, buckets, world_size), dist.all_reduce
    events: list[Event] = []

    def bucket_of(tensor: Any) -> int | None:
        """Return the bucket that was packed into this tensor, or into a multiple of it, else the one packed last."""
        for alike in (operator.is_, _parallel):
            for bucket, flat in state._packed:
                if alike(flat, tensor):
                    return bucket
        return state._packed[-1][0] if state._packed else None

    @functools.wraps(all_reduce)
    def noted(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        number, launch, backends = bucket_of(tensor), len(events), gloo_backends()
        before = uses(backends)
        plain = type(tensor) is torch.Tensor  # a subclass may compute what it shows
        given = tensor.detach().clone() if plain else None
        events.append(Event("launch", number))
        work = all_reduce(tensor, op, group, async_op)
        begun, over_all = uses(backends) - before, dist.get_world_size(group) == world_size
        if given is not None and begun.total() == 1 and over_all and op == dist.ReduceOp.SUM:
            events[launch] = Event("launch", number, given.double().numpy())
        if work is None:  # not asynchronous: it has waited
            events.append(Event("wait", number))
        return work and _noted(work, lambda kind: events.append(Event(kind, number)))

    def hook(number: int, _: torch.Tensor) -> None:
        events.append(Event("gradient", number))
        arrived(state, number)

    for number, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: hook(number, _))
    loss = torch.zeros((), dtype=torch.float64)
    for number in reversed(order):  # the backward pass starts with the parameter used last
        loss = loss + (parameters[number] * torch.tensor(gradients[number])).sum()
    with stand_ins(arrived, finish, all_reduce=noted):
        loss.backward()
        events.append(Event("end"))
        launched, aside = [None] * world_size, ranks.group(range(world_size))
        dist.all_gather_object(launched, [event.number for event in events if event.kind == "launch"], group=aside)
        if any(order != launched[0] for order in launched):
            return Done(events, None)  # waiting for them would never end
        finish(state)
    return Done(
        events,
        [numbers_in(f"rank {rank}: the gradient of parameter {n}", each.grad) for n, each in enumerate(parameters)],
    )

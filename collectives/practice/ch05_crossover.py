"""Checks of exercise 05: seconds against `price`, a crossing from both sides, a choice by its regret, and a fit."""

from __future__ import annotations

import contextlib
import copy
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np

from .. import topology
from ..algorithms import halving_doubling, ring, tree
from ..algorithms.doubling import largest_power_of_two
from ..algorithms.scorecard import Coefficients, coefficients
from ..draw import draw
from ..figures import colours
from ..measure import calibrate
from ..measure.calibrate import fit as relative_fit
from ..price import price
from . import checks
from .checks import Answered, NotYet, call_in_words, check_rows, number_of, own_answer, refusing, show

HOLDS = (".ALGORITHMS",)  # see `wall`; of its algorithms the names are left, and the functions refuse

ALGORITHMS = {"ring": ring.all_reduce, "tree": tree.all_reduce, "halving-doubling": halving_doubling.all_reduce}
GOOD, FAIR = 0.02, 0.25  # how much slower than the best a choice may be, for full and for some points
MOST_BYTES = 10**10  # that a random case has
NARROW = 1e-6  # relative error that a crossing may have


def seconds(name: str, num_bytes: int, world_size: int, alpha: float, beta: float) -> float:
    """Return the seconds that `price` gives for the algorithm called `name`."""
    return price(ALGORITHMS[name](world_size), num_bytes, topology.uniform(world_size, alpha, beta)).seconds


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, to price a schedule, to use a library algorithm, and to fit a line by the library.

    Runs beside the learner's code.
    """
    pricing = importlib.import_module(price.__module__)  # the package's own `price` is the function
    with (
        checks.without_the_library(),
        refusing(pricing, "_byte_bounds", what="price", advice="write the formula yourself"),
        refusing(calibrate, "_relative", what="calibrate.fit", advice="write the fit yourself"),
    ):
        yield


def _own(function: Callable, case: Sequence) -> tuple[str, Any]:
    """Return the call in words, and what the learner's `function(*case)` returns without the library's help."""
    call = call_in_words(function, case)
    return call, own_answer(__name__, function, *copy.deepcopy(tuple(case)), call=call)


# Part a


def check_seconds(function: Callable, name: str, cases: Iterable[tuple]) -> None:
    """Check that `function(num_bytes, world_size, alpha, beta)` is the price of the algorithm called `name`.

    For a number of ranks that halving-doubling can't pair, draw what it does with the ranks left over.
    """
    cases = list(cases)
    try:
        check_rows([_priced_row(function, name, case) for case in cases], checks.against_the_schedule)
    except NotYet:
        folded = [size for _, size, *_ in cases if size != largest_power_of_two(size) and size < 9]
        if name == "halving-doubling" and folded:
            size = next((size for size in folded if size > largest_power_of_two(size) + 1), folded[0])
            caption = f"Halving-doubling on {size} ranks: those left over hand over first, all at the same time"
            show(draw(ALGORITHMS[name](size), caption=caption))
        raise


def _priced_row(function: Callable, name: str, case: tuple) -> Answered:
    call, got = _own(function, case)
    want = seconds(name, *case)
    return Answered(call, number_of(got, call), want, _slips(name, want, *case))


def _slips(name: str, want: float, num_bytes: int, world_size: int, alpha: float, beta: float) -> dict[str, float]:
    """Return {a slip in words: the number it leads to} for the seconds of an algorithm."""
    messages, payloads, _ = _priced(name, world_size)
    log, inner = math.log2(world_size), largest_power_of_two(world_size)

    def cost(messages: float, payloads: float) -> float:
        return messages * alpha + payloads * num_bytes * beta

    slips = {
        "this divides by beta; beta is seconds a byte, not a bandwidth": messages * alpha + payloads * num_bytes / beta,
        "this is half of it: an all-reduce goes there and back": want / 2,
        "this pays alpha once; each message in a row pays it": cost(1, payloads),
        "this leaves out the messages' alphas": cost(0, payloads),
        "this leaves out the bytes": cost(messages, 0),
        "this counts bits; beta is seconds a byte": cost(messages, 8 * payloads),
    }
    if name == "ring":
        slips |= {
            "a chunk is S/P; this sends the whole buffer in every step": cost(messages, messages),
            "a phase has P - 1 steps, not P": cost(2 * world_size, 2),
            "this halves only the messages: there are P - 1 in each of two phases": cost(messages / 2, payloads),
            "this halves only the bytes: both phases send them": cost(messages, payloads / 2),
        }
    if name == "tree":
        natural = math.log(world_size)
        slips |= {
            "a tree has a whole number of levels: round the logarithm up": cost(2 * log, 2 * log),
            "a tree has a level more: round the logarithm up, not down": cost(2 * int(log), 2 * int(log)),
            "the natural logarithm is not the one to base 2": cost(2 * natural, 2 * natural),
            "this sends one buffer each way; this tree passes it on whole at every level": cost(messages, 2),
        }
    if name == "halving-doubling":
        steps, core = 2 * math.log2(inner), 2 * (inner - 1) / inner  # among the ranks that are a power of two
        whole = 2 * (world_size - 1) / world_size  # payloads, if every number of ranks were a power of two
        slips |= {
            "this is a price for powers of two; the other ranks are folded in first, and out again last": (
                cost(steps, core)
            ),
            "this takes every number of ranks for a power of two": cost(2 * log, whole),
            "this rounds the logarithm up, but the bytes of folding are missing": cost(2 * math.ceil(log), whole),
            "this folds the other ranks in, but not out again": cost(steps + 1, core + 1),
            "folding costs two messages, and each carries the whole buffer: the bytes are missing": (
                cost(steps + 2, core)
            ),
            "folding costs two messages, and each pays an alpha: those are missing": cost(steps, core + 2),
            "every step sends half of what the step before did; this sends the buffer whole": cost(steps, steps),
        }
    return slips


def random_cases(seed: int, powers_of_two: bool | None = None, how_many: int = 10) -> list[tuple]:
    """Return cases `(num_bytes, world_size, alpha, beta)` with equal chunks. `powers_of_two`: of P; None for any P."""
    random = Random(seed)
    cases = []
    for _ in range(how_many):
        world_size = _ranks(random, powers_of_two)
        unit = world_size * largest_power_of_two(world_size)
        cases.append((unit * random.randint(1, MOST_BYTES // unit), world_size, *_link(random)))
    return cases


def _ranks(random: Random, powers_of_two: bool | None = None, most: int = 4000) -> int:
    """Draw a number of ranks, from 5 to `most`, each order of magnitude as often: no small table has them all.

    `powers_of_two`: as for `random_cases`; the smallest of them is then 4.
    """
    if powers_of_two:
        return 2 ** random.randint(2, most.bit_length() - 1)
    while True:
        size = round(math.exp(random.uniform(math.log(5), math.log(most))))
        if powers_of_two is None or size != largest_power_of_two(size):
            return size


def _link(random: Random) -> tuple[float, float]:
    """Draw a realistic alpha, 1 to 1000 microseconds, and beta, from 10 MB/s to 100 GB/s."""
    return round(10 ** random.uniform(-6, -3), 9), 10 ** random.uniform(-11, -7)


# Part b


def check_crossing(function: Callable, cases: Iterable[tuple]) -> None:
    """Check that the tree is cheaper just below `function(world_size, alpha, beta)` bytes, and the ring just above.

    Price both there. Draw a wrong crossing on top of the two curves.
    """
    crossings = []
    for case in cases:
        call, got = _own(function, case)
        crossings.append((call, case, number_of(got, call)))
    for call, case, got in crossings:
        if got < 1:
            raise NotYet(f"{call} returns {got:.6g}; return a size in bytes{_crossing_slip(crossings)}")
        for side, cheaper, dearer in ((1 - NARROW, "tree", "ring"), (1 + NARROW, "ring", "tree")):
            num_bytes = int(got * side)
            costs = {name: seconds(name, num_bytes, *case) for name in (cheaper, dearer)}
            if costs[cheaper] > costs[dearer]:
                show(_curves(case, got))
                prices = f"the ring takes {costs['ring']:.7g} s and the tree {costs['tree']:.7g} s"
                fault = f"{call} returns {got:,.7g}, but at {num_bytes:,} bytes {prices}: there the {dearer} is cheaper"
                raise NotYet(fault + _crossing_slip(crossings))


def _crossing_slip(crossings: list[tuple]) -> str:
    """Return the slip that explains every crossing, in words; "" if none does."""
    explained: list[set[str]] = []
    for _, (world_size, alpha, beta), got in crossings:
        (ring_steps, ring_payloads, _), (steps, payloads, _) = (_priced(name, world_size) for name in ("ring", "tree"))
        more, fewer = ring_steps - steps, payloads - ring_payloads  # the ring: more messages, fewer payloads
        ratio, levels = alpha / beta, 2 * math.log2(world_size)
        slips = {
            "this is upside down: divide the ring's extra messages by the payloads that it saves": fewer
            / (ratio * more),
            "beta is seconds a byte, not a bandwidth: divide by it": alpha * more / fewer * beta,
            "the difference of the payloads belongs in the denominator": ratio * more * fewer,
            "this is alpha / beta alone: by how many messages and payloads do the two differ?": ratio,
            "this leaves out that the ring's bytes count too": ratio * more / payloads,
            "this leaves out that the tree's messages count too": ratio * ring_steps / fewer,
            "a tree has a whole number of levels: round the logarithm up": (
                ratio * (ring_steps - levels) / (levels - ring_payloads)
            ),
            "this has the wrong sign": -ratio * more / fewer,
            "this is half of it: does it count one of the two in one direction only?": ratio * more / (2 * fewer),
        }
        explained.append({words for words, value in slips.items() if math.isclose(got, value, rel_tol=1e-9)})
    common = sorted(set.intersection(*explained))
    return f": {common[0]}" if common else ""


def random_links(seed: int, powers_of_two: bool) -> list[tuple]:
    """Return cases `(world_size, alpha, beta)` that put the crossing above 100 MB, where rounding doesn't matter."""
    random = Random(seed)
    sizes = [_ranks(random, powers_of_two) for _ in range(7)]
    return [(size, random.uniform(1, 9), random.uniform(1, 9) * 1e-9) for size in sizes]


# Part c


def check_choice(function: Callable, grid: Iterable[tuple], within: float) -> None:
    """Check that the choice of `function(num_bytes, world_size, alpha, beta)` takes at most (1 + `within`) x the best.

    Name the point with the largest regret, and draw all that fail over sizes and numbers of ranks.
    """
    lost = []
    for case in grid:
        call, chosen = _own(function, case)
        if not isinstance(chosen, str) or chosen not in ALGORITHMS:
            raise NotYet(f"{call} returns {chosen!r}, but the names are {', '.join(map(repr, ALGORITHMS))}")
        costs = {name: _from_coefficients(name, *case) for name in ALGORITHMS}
        best = min(costs, key=lambda name: costs[name])
        lost.append((costs[chosen] / costs[best] - 1, call, case, chosen, best, costs))
    regret, call, case, chosen, best, costs = max(lost, key=lambda row: row[0])
    if regret <= within:
        return
    show(_regrets(lost, within))
    bad = [row for row in lost if row[0] > within]
    remark = ""
    if all(chosen == _cheapest_unfolded(case) for _, _, case, chosen, *_ in bad):
        remark = "; at every such point P is not a power of two, and a price that leaves out the folding chooses this"
    elif {row[3] for row in bad} == {"tree"}:
        remark = "; you take the tree at every such point: which algorithm has as few messages?"
    elif {row[3] for row in bad} == {"ring"}:
        remark = "; you take the ring at every such point: which algorithm has as few bytes?"
    raise NotYet(
        f"{call} returns {chosen!r}, which takes {costs[chosen]:.4g} s; {best!r} takes {costs[best]:.4g} s. That is "
        f"{regret:.0%} more, where {within:.0%} is allowed. {len(bad)} of {len(lost)} points exceed that{remark}"
    )


def _from_coefficients(name: str, num_bytes: int, world_size: int, alpha: float, beta: float) -> float:
    """Return what `seconds` does where chunks are equal, but price each schedule only once, for all sizes."""
    messages, payloads, _ = _priced(name, world_size)
    return messages * alpha + payloads * num_bytes * beta


def _cheapest_unfolded(case: tuple) -> str | None:
    """Return the choice by prices in which halving-doubling doesn't fold; None if P is a power of two."""
    num_bytes, world_size, alpha, beta = case
    inner = largest_power_of_two(world_size)
    if inner == world_size:
        return None
    costs = {name: _from_coefficients(name, *case) for name in ALGORITHMS}
    costs["halving-doubling"] = _from_coefficients("halving-doubling", num_bytes, inner, alpha, beta)
    return min(costs, key=lambda name: costs[name])


@cache
def _priced(name: str, world_size: int) -> Coefficients:
    return coefficients(ALGORITHMS[name](world_size))


def grid(seed: int, links: int = 2) -> list[tuple]:
    """Return points `(num_bytes, world_size, alpha, beta)`: many sizes for each of many numbers of ranks."""
    random = Random(seed)
    drawn = [_link(random) for _ in range(links)]
    sizes = [_ranks(random, powers, most=1000) for powers in (True, True, *[False] * 9)]
    return [
        (int(alpha / beta * 2 ** (power + random.random())) + 1, world_size, alpha, beta)
        for alpha, beta in drawn
        for world_size in sizes
        for power in range(-4, 11)
    ]


# Part d


def check_fit(function: Callable, links: Iterable[tuple[float, float]], noise: float, within: float, seed: int) -> None:
    """Check that `function(sizes, seconds)` finds alpha and beta within a share `within`, from noisy ping-pong.

    `links`: the true (alpha, beta) of each data set. Draw a fit that is off, with its data.
    """
    for number, (alpha, beta) in enumerate(links):
        sizes, taken = measured(alpha, beta, noise, seed + number)
        call = f"{function.__name__}(sizes, seconds)"
        got = own_answer(__name__, function, sizes.tolist(), taken.tolist(), call=call)
        try:
            first, second = (number_of(value, call) for value in got)
        except (TypeError, ValueError):
            raise NotYet(f"{call} returns {got!r}; return two numbers, alpha and beta") from None
        for name, fitted, true in (("alpha", first, alpha), ("beta", second, beta)):
            if abs(fitted - true) > within * true:
                show(_fitted(sizes, taken, first, second))
                fault = f"{call} on data set {number} finds {name} = {fitted:.4g}, but it is {true:.4g}"
                raise NotYet(f"{fault} (it may be {within:.1%} off){_fit_slip(sizes, taken, first, second)}")


def random_pings(seed: int, how_many: int) -> list[tuple[float, float]]:
    """Return links (alpha, beta) with an alpha of 2 to 200 microseconds and an alpha / beta of 5 to 500 kB.

    So several of the sizes of `measured` depend on alpha, and several on beta.
    """
    random = Random(seed)
    alphas = [10 ** random.uniform(-5.7, -3.7) for _ in range(how_many)]
    return [(alpha, alpha / 10 ** random.uniform(3.7, 5.7)) for alpha in alphas]


def fair_noise(links: Sequence[tuple[float, float]], noise: float, within: float, seed: int) -> int:
    """Return the first seed from `seed` on whose noise is fair on all `links`, for `check_fit`.

    A careful fit misses one set of data in ten thousand, and a less careful one, which passes the visible sets, one in
    fifty. So that luck decides nothing, both are well `within` on fair data. The first measurement alone isn't.
    """
    while not _is_fair(links, noise, within, seed):
        seed += 1
    return seed


def _is_fair(links: Sequence[tuple[float, float]], noise: float, within: float, seed: int) -> bool:
    first_is_off = False
    for number, (alpha, beta) in enumerate(links):
        sizes, taken = measured(alpha, beta, noise, seed + number)
        fits = [np.polyfit(sizes, taken, 1, w=taken**-power) for power in (0.5, 1)]
        if not all(np.allclose(fitted, (beta, alpha), rtol=0.75 * within, atol=0) for fitted in fits):
            return False
        first_is_off |= bool(abs(taken[0] / alpha - 1) > 1.1 * within)
    return first_is_off


def measured(alpha: float, beta: float, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a ping-pong as a machine measures it: sizes in bytes, and seconds that are off by a share of `noise`."""
    sizes = 2 ** np.arange(6, 25)  # 64 bytes to 16 MiB
    error = np.exp(noise * np.random.default_rng(seed).standard_normal(len(sizes)))
    return sizes, (alpha + beta * sizes) * error


def _fit_slip(sizes: np.ndarray, taken: np.ndarray, alpha: float, beta: float) -> str:
    """Return the slip that explains a wrong fit, in words; "" if none does."""
    slope, start = np.polyfit(sizes, taken, 1)  # least squares of absolute errors
    true = relative_fit(sizes, taken)
    drowns = "this makes absolute errors small: the largest messages decide, and alpha drowns in their noise"
    slips = [
        (drowns, start, slope, 1e-6),
        (drowns, max(start, 0), slope, 1e-6),
        ("these two are in the wrong order: return alpha first", true.beta, true.alpha, 0.3),
        ("this is a bandwidth; beta is its inverse, seconds a byte", true.alpha, 1 / true.beta, 0.3),
        ("alpha rests on the first measurement alone: use all of them", taken[0], beta, 1e-6),
    ]
    for words, first, second, rtol in slips:
        if np.allclose((alpha, beta), (first, second), rtol=rtol, atol=0):
            return f": {words}"
    return ""


# Pictures


class Picture:
    """An SVG that a notebook shows, in the page's text colour."""

    def __init__(self, svg: str):
        self.svg = svg

    def _repr_html_(self) -> str:
        return self.svg


WIDTH, HEIGHT, LEFT, BELOW = 420, 220, 60, 34  # pixels of a picture; the margins hold labels


def _axes(x: Sequence[float] | np.ndarray, y: Sequence[float]) -> Callable[[float, float], tuple[float, float]]:
    """Return a function that places a point on logarithmic axes that show all of `x` and `y`."""
    spans = [(math.log(min(values)), math.log(max(values)) - math.log(min(values)) or 1) for values in (x, y)]

    def place(a: float, b: float) -> tuple[float, float]:
        across, up = ((math.log(value) - low) / span for value, (low, span) in zip((a, b), spans, strict=True))
        return LEFT + across * (WIDTH - LEFT - 10), (HEIGHT - BELOW) * (1 - up) + 8

    return place


def _svg(parts: Iterable[str], x_label: str, y_label: str, label: str) -> Picture:
    words = f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT + 6}" text-anchor="middle">{x_label}</text>'
    words += f'<text x="4" y="{HEIGHT / 2}">{y_label}</text>'
    look = f'role="img" aria-label="{label}" width="{WIDTH}" viewBox="0 0 {WIDTH} {HEIGHT + 12}" font-size="11"'
    return Picture(f'<svg {look} font-family="sans-serif" fill="currentColor">{words}{"".join(parts)}</svg>')


def _polyline(points: Iterable[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _curves(case: tuple, got: float) -> Picture:
    """Draw ring and tree over the size, with the returned crossing as a dashed line."""
    sizes = [int(got * 4**power) + 1 for power in np.linspace(-5, 5, 21)]
    costs = {name: [seconds(name, size, *case) for size in sizes] for name in ("ring", "tree")}
    place, parts = _axes(sizes, [*costs["ring"], *costs["tree"]]), []
    for name, cost in costs.items():
        colour = colours.ALGORITHMS[name].colour
        points = [place(size, second) for size, second in zip(sizes, cost, strict=True)]
        parts.append(_polyline(points, colour))
        parts.append(f'<text x="{WIDTH - 40}" y="{points[-3][1] + 16:.0f}" fill="{colour}">{name}</text>')
    x = place(sizes[10], costs["ring"][10])[0]
    line = 'stroke="currentColor" stroke-dasharray="4 3"'
    parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{HEIGHT - BELOW + 8}" {line}/>')
    parts.append(f'<text x="{x + 4:.1f}" y="18">your crossing</text>')
    return _svg(parts, "bytes", "seconds", "ring and tree over the size, and your crossing")


def _regrets(lost: list[tuple], within: float) -> Picture:
    """Draw every point of a grid by size and number of ranks; a point that fails shows the best name's first letter."""
    ranks = sorted({case[1] for _, _, case, *_ in lost})
    sizes = [case[0] * case[3] / case[2] for _, _, case, *_ in lost]  # in alpha / beta
    low, high = math.log(min(sizes)), math.log(max(sizes))
    parts, top = [], HEIGHT - BELOW
    for (regret, _, case, _, best, _), size in zip(lost, sizes, strict=True):
        x = LEFT + 20 + (math.log(size) - low) / ((high - low) or 1) * (WIDTH - LEFT - 40)
        y = 12 + (1 - (ranks.index(case[1]) + 0.5) / len(ranks)) * top
        bad = regret > within
        dot = (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if bad else 2}" fill="{colours.WRONG if bad else "currentColor"}"'
        )
        parts.append(f'{dot} opacity="{1 if bad else 0.4}"><title>{best}</title></circle>')
        if bad:
            parts.append(f'<text x="{x:.1f}" y="{y + 3:.1f}" font-size="8" text-anchor="middle">{best[0]}</text>')
    for number, size in enumerate(ranks):
        y = 12 + (1 - (number + 0.5) / len(ranks)) * top
        parts.append(f'<text x="{LEFT + 8}" y="{y + 4:.1f}" text-anchor="end">{size}</text>')
    label = "where your choice loses too much, and the first letter of the better one"
    return _svg(parts, "S beta / alpha, small to large", "ranks", label)


def _fitted(sizes: np.ndarray, taken: np.ndarray, alpha: float, beta: float) -> Picture:
    """Draw measurements as dots, and the fitted line."""
    line = np.maximum(alpha + beta * sizes, taken.min() / 100)
    line = np.minimum(line, taken.max() * 100)
    place = _axes(sizes, [*line, *taken])
    parts = [_polyline([place(x, y) for x, y in zip(sizes, line, strict=True)], colours.ACCENT)]
    for x, y in zip(sizes, taken, strict=True):
        across, down = place(x, y)
        parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3"/>')
    return _svg(parts, "bytes", "seconds", "the measurements, and your fit as a line")

"""What exercise 05 checks answers with: seconds against `price`, a crossing from both sides, a choice by its regret."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from random import Random

import numpy as np

from .. import topology
from ..algorithms import halving_doubling, ring, tree
from ..algorithms.doubling import largest_power_of_two
from ..algorithms.scorecard import Coefficients, coefficients
from ..draw import draw
from ..measure.calibrate import fit as relative_fit
from ..price import price
from .checks import NotYet, answer, call_in_words, check_formula, number_of, show

ALGORITHMS = {"ring": ring.all_reduce, "tree": tree.all_reduce, "halving-doubling": halving_doubling.all_reduce}
GOOD, FAIR = 0.02, 0.25  # how much slower than the best a choice may be: for all points, and for some
NARROW = 1e-6  # how near a crossing has to be, relative


def seconds(name: str, num_bytes: int, world_size: int, alpha: float, beta: float) -> float:
    """What `price` says that the algorithm called `name` takes."""
    return price(ALGORITHMS[name](world_size), num_bytes, topology.uniform(world_size, alpha, beta)).seconds


# Part a


def check_seconds(function: Callable, name: str, cases: Iterable[tuple]) -> None:
    """Check that `function(num_bytes, world_size, alpha, beta)` is the price of the algorithm called `name`.

    Where the number of ranks is none that halving-doubling can pair, what it does with the others is drawn.
    """
    cases = list(cases)
    try:
        check_formula(function, partial(seconds, name), cases, partial(_slips, name))
    except NotYet:
        folded = [size for _, size, *_ in cases if size != largest_power_of_two(size) and size < 9]
        if name == "halving-doubling" and folded:
            caption = f"Halving-doubling on {min(folded)} ranks: what it does with those left over"
            show(draw(ALGORITHMS[name](min(folded)), caption=caption))
        raise


def _slips(name: str, want: float, num_bytes: int, world_size: int, alpha: float, beta: float) -> dict[str, float]:
    """What goes wrong when an algorithm's seconds are written down, and the number that comes out."""
    messages, payloads, _ = _priced(name, world_size)
    one = num_bytes * beta
    slips = {
        "this divides by beta; beta is seconds a byte, not a bandwidth": messages * alpha + payloads * num_bytes / beta,
        "this is half of it: an all-reduce goes there and back": want / 2,
        "this pays alpha once; each message in a row pays it": alpha + payloads * one,
        "this leaves out the messages' alphas": payloads * one,
        "this leaves out the bytes": messages * alpha,
        "these are bits, where bytes are asked for": messages * alpha + 8 * payloads * one,
    }
    inner, log = largest_power_of_two(world_size), math.log2(world_size)
    if name == "ring":
        slips |= {
            "a chunk is S/P; this sends the whole buffer in every step": messages * (alpha + one),
            "a phase has P - 1 steps, not P": 2 * world_size * alpha + 2 * one,
            "this halves only the messages: there are P - 1 in each of two phases": messages / 2 * alpha
            + payloads * one,
            "this halves only the bytes: both phases send them": messages * alpha + payloads / 2 * one,
        }
    if name == "tree":
        slips |= {
            "a tree has a whole number of levels: round the logarithm up": 2 * log * (alpha + one),
            "a tree has a level more: round the logarithm up, not down": 2 * int(log) * (alpha + one),
            "the natural logarithm is not the one to base 2": 2 * math.log(world_size) * (alpha + one),
            "this sends one buffer each way; a rank of this tree passes it on whole at every level": messages * alpha
            + 2 * one,
        }
    if name == "halving-doubling":
        core = 2 * math.log2(inner) * alpha + 2 * (inner - 1) / inner * one
        around = 2 * (world_size - 1) / world_size * one
        slips |= {
            "this is a price for powers of two; the other ranks are folded in first, and out again last": core,
            "this takes every number of ranks for a power of two": 2 * log * alpha + around,
            "this rounds the logarithm up, but the bytes of folding are missing": 2 * math.ceil(log) * alpha + around,
            "this folds the other ranks in, but not out again": core + alpha + one,
            "folding costs two messages, and each carries the whole buffer: the bytes are missing": core + 2 * alpha,
            "folding costs two messages, and each pays an alpha: those are missing": core + 2 * one,
            "every step sends half of what the step before did; this sends the buffer whole": 2
            * math.log2(inner)
            * (alpha + one),
        }
    return slips


def random_cases(seed: int, powers_of_two: bool | None = None, how_many: int = 10) -> list[tuple]:
    """Cases `(num_bytes, world_size, alpha, beta)`; all chunks are equally long. `powers_of_two`: None for any P."""
    random = Random(seed)
    sizes = [2**k for k in range(1, 8)] if powers_of_two else list(range(5, 100))
    if powers_of_two is False:
        sizes = [size for size in sizes if size != largest_power_of_two(size)]
    cases = []
    for _ in range(how_many):
        world_size = random.choice(sizes)
        num_bytes = world_size * largest_power_of_two(world_size) * random.randint(1, 10**6)
        cases.append((num_bytes, world_size, *_link(random)))
    return cases


def _link(random: Random) -> tuple[float, float]:
    """An alpha and a beta as machines have them: from 1 to 1000 microseconds, and from 10 MB/s to 100 GB/s."""
    return round(10 ** random.uniform(-6, -3), 9), 10 ** random.uniform(-11, -7)


# Part b


def check_crossing(function: Callable, cases: Iterable[tuple]) -> None:
    """Check that just below `function(world_size, alpha, beta)` bytes the tree is the cheaper, and just above the ring.

    Both are priced there. A crossing that is not where it should be is drawn between the two.
    """
    found = []
    for case in cases:
        call = call_in_words(function, case)
        found.append((call, case, number_of(answer(function, *case), call)))
    for call, case, got in found:
        if got < 1:
            raise NotYet(f"{call} returns {got:.6g}; a size in bytes is asked for{_crossing_slip(found)}")
        for side, cheaper, dearer in ((1 - NARROW, "tree", "ring"), (1 + NARROW, "ring", "tree")):
            num_bytes = int(got * side)
            costs = {name: seconds(name, num_bytes, *case) for name in (cheaper, dearer)}
            if costs[cheaper] > costs[dearer]:
                show(_curves(case, got))
                taken = f"the ring takes {costs['ring']:.7g} s and the tree {costs['tree']:.7g} s"
                words = f"{call} returns {got:,.7g}, but at {num_bytes:,} bytes {taken}: there the {dearer} is cheaper"
                raise NotYet(words + _crossing_slip(found))


def _crossing_slip(found: list[tuple]) -> str:
    """What explains every wrong crossing, in words; "" if nothing does."""
    explained: list[set[str]] = []
    for _, (world_size, alpha, beta), got in found:
        (ring_steps, ring_payloads, _), (steps, payloads, _) = (_priced(name, world_size) for name in ("ring", "tree"))
        more, fewer, log = ring_steps - steps, payloads - ring_payloads, 2 * math.log2(world_size)
        slips = {
            "this is upside down: the messages that the ring has more are gained back by the bytes that it has fewer": (
                beta * fewer / (alpha * more)
            ),
            "beta is seconds a byte, not a bandwidth: divide by it": alpha * more / fewer * beta,
            "the difference of the payloads belongs under the line": alpha * more * fewer / beta,
            "this is alpha / beta alone: by how many messages and payloads do the two differ?": alpha / beta,
            "this leaves out that the ring's bytes count too": alpha * more / (beta * payloads),
            "this leaves out that the tree's messages count too": alpha * ring_steps / (beta * fewer),
            "a tree has a whole number of levels: round the logarithm up": (
                alpha * (ring_steps - log) / (beta * (log - ring_payloads))
            ),
            "this has the wrong sign": -alpha * more / (beta * fewer),
            "this is half of it: is one of the two counted one way only?": alpha * more / (2 * beta * fewer),
        }
        explained.append({words for words, value in slips.items() if math.isclose(got, value, rel_tol=1e-9)})
    every = sorted(set.intersection(*explained))
    return f": {every[0]}" if every else ""


def random_links(seed: int, powers_of_two: bool) -> list[tuple]:
    """Cases `(world_size, alpha, beta)` in which ring and tree cross above 100 MB, where rounding does not count."""
    random = Random(seed)
    sizes = [4, 8, 16, 64] if powers_of_two else [5, 6, 7, 11, 24, 50, 100]
    return [(size, random.uniform(1, 9), random.uniform(1, 9) * 1e-9) for size in sizes]


# Part c


def check_choice(function: Callable, grid: Iterable[tuple], within: float) -> None:
    """Check that what `function(num_bytes, world_size, alpha, beta)` names takes at most (1 + `within`) times the best.

    The point where the most is lost is told; all that are lost are drawn, over sizes and numbers of ranks.
    """
    lost = []
    for case in grid:
        call, chosen = call_in_words(function, case), answer(function, *case)
        if not isinstance(chosen, str) or chosen not in ALGORITHMS:
            raise NotYet(f"{call} returns {chosen!r}, but the names are {', '.join(map(repr, ALGORITHMS))}")
        costs = {name: _from_coefficients(name, *case) for name in ALGORITHMS}
        best = min(costs, key=costs.get)
        lost.append((costs[chosen] / costs[best] - 1, call, case, chosen, best, costs))
    regret, call, case, chosen, best, costs = max(lost, key=lambda row: row[0])
    if regret <= within:
        return
    show(_regrets(lost, within))
    bad = [row for row in lost if row[0] > within]
    remark = ""
    if all(size != largest_power_of_two(size) for _, _, (_, size, *_), *_ in bad):
        remark = "; every such point has a number of ranks that is no power of two: does your price fold?"
    elif {row[3] for row in bad} == {"tree"}:
        remark = "; every such point is one where you take the tree: which algorithm has as few messages?"
    elif {row[3] for row in bad} == {"ring"}:
        remark = "; every such point is one where you take the ring: which algorithm has as few bytes?"
    raise NotYet(
        f"{call} returns {chosen!r}, which takes {costs[chosen]:.4g} s; {best!r} takes {costs[best]:.4g} s. That is "
        f"{regret:.0%} more, where {within:.0%} is allowed. It is so at {len(bad)} of {len(lost)} points{remark}"
    )


def _from_coefficients(name: str, num_bytes: int, world_size: int, alpha: float, beta: float) -> float:
    """What `seconds` says where chunks are equally long, for many sizes at once: the schedule is priced only once."""
    messages, payloads, _ = _priced(name, world_size)
    return messages * alpha + payloads * num_bytes * beta


@cache
def _priced(name: str, world_size: int) -> Coefficients:
    return coefficients(ALGORITHMS[name](world_size))


def grid(seed: int, links: int = 2) -> list[tuple]:
    """Points `(num_bytes, world_size, alpha, beta)`: many sizes for each of many numbers of ranks."""
    random = Random(seed)
    chosen = [_link(random) for _ in range(links)]
    return [
        (int(alpha / beta * 2**power) + 1, world_size, alpha, beta)
        for alpha, beta in chosen
        for world_size in (4, 5, 6, 7, 8, 12, 16, 20, 48, 64, 100)
        for power in range(-4, 11)
    ]


# Part d


def check_fit(function: Callable, links: Iterable[tuple[float, float]], noise: float, within: float, seed: int) -> None:
    """Check that `function(sizes, seconds)` finds alpha and beta within a share `within`, from noisy ping-pong.

    `links`: the true (alpha, beta) of each set of data. A fit that is off is drawn through its data.
    """
    for number, (alpha, beta) in enumerate(links):
        sizes, taken = measured(alpha, beta, noise, seed + number)
        call = f"{function.__name__}(sizes, seconds)"
        got = answer(function, sizes.tolist(), taken.tolist(), call=call)
        try:
            first, second = (number_of(value, call) for value in got)
        except (TypeError, ValueError):
            raise NotYet(f"{call} returns {got!r}; two numbers are asked for, alpha and beta") from None
        for name, found, true in (("alpha", first, alpha), ("beta", second, beta)):
            if abs(found - true) > within * true:
                show(_fitted(sizes, taken, first, second))
                words = f"{call} on data set {number} finds {name} = {found:.4g}, but it is {true:.4g}"
                raise NotYet(f"{words} (it may be {within:.1%} off){_fit_slip(sizes, taken, first, second)}")


def measured(alpha: float, beta: float, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ping-pong as a machine gives it: sizes, and the seconds of each, off by a share of about `noise`."""
    sizes = 2 ** np.arange(6, 25)  # 64 bytes to 16 MiB
    wobble = np.exp(noise * np.random.default_rng(seed).standard_normal(len(sizes)))
    return sizes, (alpha + beta * sizes) * wobble


def _fit_slip(sizes: np.ndarray, taken: np.ndarray, alpha: float, beta: float) -> str:
    """What explains a wrong fit, in words; "" if nothing does."""
    slope, start = np.polyfit(sizes, taken, 1)  # least squares of absolute errors
    true_alpha, true_beta = relative_fit(sizes, taken)
    drowns = "this makes absolute errors small: the largest messages decide, and alpha drowns in their noise"
    slips = [
        (drowns, start, slope, 1e-6),
        (drowns, max(start, 0), slope, 1e-6),
        ("these two are in the wrong order: alpha is asked for first", true_beta, true_alpha, 0.3),
        ("this is a bandwidth; beta is its inverse, seconds a byte", true_alpha, 1 / true_beta, 0.3),
        ("alpha rests on the first measurement alone: use all of them", taken[0], beta, 1e-6),
    ]
    for words, first, second, rtol in slips:
        if np.allclose((alpha, beta), (first, second), rtol=rtol, atol=0):
            return f": {words}"
    return ""


# Pictures


class Picture:
    """An SVG that a notebook shows, with the page's own ink."""

    def __init__(self, svg: str):
        self.svg = svg

    def _repr_html_(self) -> str:
        return self.svg


WIDTH, HEIGHT, LEFT, BELOW = 420, 220, 60, 34  # of a picture, with room for words at the left and below


def _axes(x: Sequence[float], y: Sequence[float]) -> Callable[[float, float], tuple[float, float]]:
    """Where a point goes, if both axes are logarithmic and all of `x` and `y` are to be seen."""
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
    """Ring and tree over the size, with the crossing that was returned as a dashed line."""
    sizes = [int(got * 4**power) + 1 for power in np.linspace(-5, 5, 21)]
    costs = {name: [seconds(name, size, *case) for size in sizes] for name in ("ring", "tree")}
    place, parts = _axes(sizes, [*costs["ring"], *costs["tree"]]), []
    for (name, cost), colour in zip(costs.items(), ("#0072b2", "#d55e00"), strict=True):
        points = [place(size, second) for size, second in zip(sizes, cost, strict=True)]
        parts.append(_polyline(points, colour))
        parts.append(f'<text x="{WIDTH - 40}" y="{points[-3][1] + 16:.0f}" fill="{colour}">{name}</text>')
    x = place(sizes[10], costs["ring"][10])[0]
    line = 'stroke="currentColor" stroke-dasharray="4 3"'
    parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{HEIGHT - BELOW + 8}" {line}/>')
    parts.append(f'<text x="{x + 4:.1f}" y="18">your crossing</text>')
    return _svg(parts, "bytes", "seconds", "ring and tree over the size, and where your crossing lies")


def _regrets(lost: list[tuple], within: float) -> Picture:
    """Every point of a grid by size and number of ranks; where too much is lost, with the better name's letter."""
    ranks = sorted({case[1] for _, _, case, *_ in lost})
    sizes = [case[0] * case[3] / case[2] for _, _, case, *_ in lost]  # in alpha / beta
    low, high = math.log(min(sizes)), math.log(max(sizes))
    parts, top = [], HEIGHT - BELOW
    for (regret, _, case, _, best, _), size in zip(lost, sizes, strict=True):
        x = LEFT + 20 + (math.log(size) - low) / ((high - low) or 1) * (WIDTH - LEFT - 40)
        y = 12 + (1 - (ranks.index(case[1]) + 0.5) / len(ranks)) * top
        bad = regret > within
        dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if bad else 2}" fill="{"#d55e00" if bad else "currentColor"}"'
        parts.append(f'{dot} opacity="{1 if bad else 0.4}"><title>{best}</title></circle>')
        if bad:
            parts.append(f'<text x="{x:.1f}" y="{y + 3:.1f}" font-size="8" text-anchor="middle">{best[0]}</text>')
    for number, size in enumerate(ranks):
        y = 12 + (1 - (number + 0.5) / len(ranks)) * top
        parts.append(f'<text x="{LEFT + 8}" y="{y + 4:.1f}" text-anchor="end">{size}</text>')
    label = "where your choice loses too much, and the first letter of the better one"
    return _svg(parts, "S beta / alpha, small to large", "ranks", label)


def _fitted(sizes: np.ndarray, taken: np.ndarray, alpha: float, beta: float) -> Picture:
    """Measurements as dots, and the line that a fit would draw through them."""
    line = np.maximum(alpha + beta * sizes, taken.min() / 100)
    line = np.minimum(line, taken.max() * 100)
    place = _axes(sizes, [*line, *taken])
    parts = [_polyline([place(x, y) for x, y in zip(sizes, line, strict=True)], "#d55e00")]
    for x, y in zip(sizes, taken, strict=True):
        across, down = place(x, y)
        parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3"/>')
    return _svg(parts, "bytes", "seconds", "the measurements, and your fit as a line")

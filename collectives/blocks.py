"""Matrices cut into the ranks' blocks, as a figure to step through: what each rank has of each, and what it does next.

    by_axis(world_size=4)      # Y = X W: the reader picks how each matrix lies; the collectives are derived
    mlp(), gates(), heads()    # Megatron's split of a transformer's block

A row is a rank, a column is a matrix or a gate. A block has the colour and the number of the rank whose slice it is;
what all ranks have alike is grey; a rank's term of a sum, of the full shape, is hatched. The layouts and the
collectives are what `training.shardings` derives: nothing is known here about which axis costs what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

from .figure import GREY, RANK_COLOURS, Figure, ink_on, listed
from .training.shardings import AXES, PARTIAL, REPLICATED, Layout, Move, Pair, Plan, derive, derive_pair

LEGEND = {"s": "a rank's slice", "a": "the same on every rank", "p": "a rank's term of a sum"}
NOTHING = "nothing"  # what a gate does that lets everything through

AXIS_NAMES = {  # how a reader is asked for a layout, by matrix; the figure begins with the first of each
    "X": {"inner": "by columns (inner)", "rows": "by rows", REPLICATED: "on all ranks"},
    "W": {"inner": "by rows (inner)", "columns": "by columns", REPLICATED: "on all ranks"},
    "Y": {REPLICATED: "on all ranks", "rows": "by rows", "columns": "by columns"},
}


class Block(NamedTuple):
    """A part of a matrix, in units of its shape. `kind`: a key of `LEGEND`. `label`: what is written on it."""

    top: float
    left: float
    height: float
    width: float
    rank: int
    kind: str
    label: str = ""


Content = tuple[Block, ...]  # what one rank has of one matrix
NONE: Content = ()


class Column(NamedTuple):
    """A matrix of so many rows and columns, in units of the picture; of 0 and 0: a gate between two matrices."""

    heading: str
    rows: float = 0
    columns: float = 0


class Scene(NamedTuple):
    """One step: a sentence, what each rank has of each column's matrix, and a note below some columns.

    `contents`: by heading, one `Content` a rank; nobody has anything of a matrix that is missing. `notes`: by heading,
    what happens to it in this step, such as "all-reduce"; such a column is framed, unless the note is `NOTHING`.
    """

    words: str
    contents: Mapping[str, Sequence[Content]]
    notes: Mapping[str, str] = MappingProxyType({})


class Story(NamedTuple):
    """A sequence of scenes over the same columns."""

    columns: Sequence[Column]
    scenes: Sequence[Scene]


class Blocks(Figure):
    """A figure of one story, or of several among which the reader chooses.

    `choices`: {question: its answers}. `stories`: one for each combination of answers, the last question's running
    fastest; the figure begins with the first. All have as many scenes, and columns of the same shapes.
    """

    picture = "blocks"

    def __init__(
        self,
        stories: Sequence[Story],
        world_size: int,
        caption: str,
        choices: Mapping[str, Sequence[str]] | None = None,
    ):
        self.stories, self.world_size, self.caption = list(stories), world_size, caption
        self.choices = dict(choices or {})
        combinations = len(list(product(*self.choices.values())))
        if len(self.stories) != combinations:
            raise ValueError(f"{len(self.stories)} stories for {combinations} combinations of choices")
        if len({(len(story.scenes), *(column[1:] for column in story.columns)) for story in self.stories}) > 1:
            raise ValueError("all stories of a figure have as many scenes, and columns of the same shapes")
        if world_size > len(RANK_COLOURS):
            raise ValueError(f"{world_size} ranks are too many to see: at most {len(RANK_COLOURS)}")
        self.words = self.told(0)

    def told(self, number: int) -> list[str]:
        """The words of a story, by its number."""
        return [scene.words for scene in self.stories[number].scenes]

    def data(self) -> dict:
        """What the player shows, as plain data.

        `looks`: the contents that occur, each a list of blocks. A story's scene has for each column, and in it for each
        rank, the number of a look; and for each column its note.
        """
        looks: dict[Content, int] = {NONE: 0}
        stories = []
        for number, (columns, scenes) in enumerate(self.stories):
            told = []
            for scene in scenes:
                contents = [scene.contents.get(column.heading, [NONE] * self.world_size) for column in columns]
                told.append(
                    {
                        "held": [[looks.setdefault(tuple(each), len(looks)) for each in rows] for rows in contents],
                        "notes": [scene.notes.get(column.heading, "") for column in columns],
                    }
                )
            headings = [column.heading for column in columns]
            stories.append({"headings": headings, "words": self.told(number), "scenes": told})
        colours = RANK_COLOURS[: self.world_size]
        return {
            "ranks": self.world_size,
            "colours": [[colour, ink_on(colour)] for colour in colours],
            "shapes": [column[1:] for column in self.stories[0].columns],
            "choices": [[question, list(answers)] for question, answers in self.choices.items()],
            "looks": list(looks),
            "stories": stories,
            "legend": LEGEND,
            "nothing": NOTHING,
        }

    def still_svg(self) -> str:
        """As `Figure.still_svg`: all scenes of the first story, two to a row."""
        return _still(self.data(), self.caption)


# --- what the library derives, as stories -----------------------------------------------------------------------


def by_axis(world_size: int = 4, sizes: Mapping[str, int] | None = None) -> Blocks:
    """Y = X W in each of the 27 ways that X, W and Y can lie: the reader picks one, and steps through what it takes.

    `sizes`: lengths of the axes "rows", "inner" and "columns", which decide what is cheaper to move.
    """
    sizes = sizes or {"rows": 4096, "inner": 8192, "columns": 8192}
    layouts = product(*AXIS_NAMES.values())
    stories = [_product_story(derive(*lies, sizes, world_size), lies, sizes, world_size) for lies in layouts]
    choices = {f"{matrix} lies": list(names.values()) for matrix, names in AXIS_NAMES.items()}
    return Blocks(stories, world_size, f"Y = X W on {world_size} ranks: pick how each matrix lies", choices)


def _product_story(plan: Plan, lies: tuple[Layout, ...], sizes: Mapping[str, int], world_size: int) -> Story:
    scale = world_size / min(sizes.values())
    shapes = {matrix: tuple(sizes[axis] * scale for axis in AXES[matrix]) for matrix in AXES}
    columns = [Column(matrix, *shape) for matrix, shape in shapes.items()]
    x, w, y = (AXIS_NAMES[matrix][layout] for matrix, layout in zip(AXES, lies, strict=True))
    held = {move.matrix: _held(move, shapes[move.matrix], world_size, False) for move in (plan.x, plan.w)}
    moved = {move.matrix: _held(move, shapes[move.matrix], world_size) for move in (plan.x, plan.w)}
    made, repaired = (_held(plan.y, shapes["Y"], world_size, after) for after in (False, True))
    total = plan.sent(sizes, world_size)
    sent = f"A rank sends {total / 1e6:,.1f} million elements in all." if total else "Nobody sends anything."
    scenes = [
        Scene(f"X lies {x}, W {w}; Y is wanted {y}.", held),
        Scene(f"Before: {_told(plan.x)}; {_told(plan.w)}.", moved, _notes(plan.x) | _notes(plan.w)),
        Scene(f"Each rank multiplies what it has. {_made('Y', plan.y)}", {**moved, "Y": made}),
        Scene(f"After: {_told(plan.y)}. {sent}", {**moved, "Y": repaired}, _notes(plan.y)),
    ]
    return Story(columns, scenes)


SPLITS = {  # how A and B of an MLP are cut: in words, and by axis
    "A by columns, B by rows (Megatron)": ("columns", "inner"),
    "both by columns": ("columns", "columns"),
    "both by rows": ("inner", "inner"),
    "A by rows, B by columns": ("inner", "columns"),
}
MEGATRON = SPLITS["A by columns, B by rows (Megatron)"]
SIZES = {"rows": 4096, "inner": 8192, "hidden": 32768, "columns": 8192}  # of X, A, Y = GeLU(X A), B and Z = Y B
SHAPES = {"X": (1, 2), "A": (2, 8), "Y": (1, 8), "B": (8, 2), "Z": (1, 2)}  # the same, by the unit


def mlp(world_size: int = 2) -> Blocks:
    """Z = GeLU(X A) B, X and Z on all ranks, in each of the four ways to cut both A and B."""
    stories = [_mlp_story(derive_pair(*cut, SIZES, world_size), world_size) for cut in SPLITS.values()]
    choices = {"The weights are cut": list(SPLITS)}
    return Blocks(stories, world_size, f"An MLP on {world_size} ranks: Z = GeLU(X A) B", choices)


def _mlp_story(plans: Pair, world_size: int) -> Story:
    first, second = plans.first, plans.second
    moves = {"X": first.x, "A": first.w, "Y": first.y, "B": second.w, "Z": second.y}

    def lies(name: str, move: Move, after: bool = True) -> dict[str, list[Content]]:
        return {name: _held(move, SHAPES[name], world_size, after)}

    def ends(name: str) -> dict[str, list[Content]]:
        return lies(name, moves[name])

    start = lies("X", first.x, False) | ends("A") | ends("B")
    made = start | ends("X") | lies("Y", first.y, False)
    bent = made | ends("Y")
    multiplied = bent | lies("Y", second.x) | lies("Z", second.y, False)
    sent = f"{plans.sent(world_size) / 1e6:,.1f} million elements"
    scenes = [
        Scene("X is on all ranks; of A and of B each rank has its slice, and no weight is ever sent.", start),
        Scene(f"X A: {_told(first.x)}. {_made('Y', first.y)}", made, _notes(first.x, "X")),
        Scene(f"GeLU wants finished sums: {_told(first.y)}. Then it bends what each has.", bent, _notes(first.y, "Y")),
        Scene(f"Y B: {_told(second.x, 'Y')}. {_made('Z', second.y)}", multiplied, _notes(second.x, "Y")),
        Scene(
            f"Z on all ranks: {_told(second.y, 'Z')}. In all a rank has sent {sent}.",
            multiplied | ends("Z"),
            _notes(second.y, "Z"),
        ),
    ]
    return Story([Column(name, *shape) for name, shape in SHAPES.items()], scenes)


def gates(world_size: int = 2) -> Blocks:
    """Megatron's f and g around an MLP, by direction: what one lets through, the other sums."""
    stories = [_gates_story(world_size, backward) for backward in (False, True)]
    choices = {"Direction": ["forward", "backward"]}
    return Blocks(stories, world_size, f"The gates f and g on {world_size} ranks", choices)


def _gates_story(world_size: int, backward: bool) -> Story:
    # backward: dY = dZ B^T and dX = dY A^T, and B^T is cut by its columns and A^T by its rows: the same pair of plans
    plans = derive_pair(*MEGATRON, SIZES, world_size)
    names, d = ["X", "f", "Y", "g", "Z"], "d" if backward else ""
    headings = [name if name in "fg" else d + name for name in names]
    start, middle, end = (d + name for name in ("ZYX" if backward else "XYZ"))
    enter, leave = "gf" if backward else "fg"
    moves = {start: plans.first.x, middle: plans.first.y, end: plans.second.y}
    shapes = {name: SHAPES[name[-1]] for name in moves}
    held = {name: _held(move, shapes[name], world_size) for name, move in moves.items()}
    terms = {end: _held(plans.second.y, shapes[end], world_size, False)}
    note = plans.second.y.collective.replace("_", "-")
    first, second = ("B transposed", "A transposed") if backward else ("A", "B")
    given = {start: held[start]}
    scenes = [
        Scene(f"{start} is the same on every rank.", given),
        Scene(f"{enter} lets it through: nothing is sent.", given, {enter: NOTHING}),
        Scene(f"Times the slices of {first}. {_made(middle, plans.first.y)}", {**given, middle: held[middle]}),
        Scene(f"Times the slices of {second}. {_made(end, plans.second.y)}", {**given, middle: held[middle], **terms}),
        Scene(f"{leave} sums the terms by an {note}: {end} is the same on every rank.", held, {leave: note}),
    ]
    columns = [Column(heading, *SHAPES.get(name, ())) for heading, name in zip(headings, names, strict=True)]
    return Story(columns, scenes)


def heads(world_size: int = 2, num_heads: int = 4) -> Blocks:
    """Attention on ranks that have whole heads: weights of queries, keys, values by columns, those after it by rows."""
    if num_heads % world_size:
        raise ValueError(f"{num_heads} heads do not divide among {world_size} ranks")
    plans = derive_pair(*MEGATRON, SIZES, world_size)
    size, own = num_heads, num_heads // world_size  # a head is one unit wide
    tokens = size / 2

    def by_head(rows: float, cut_by_rows: bool = False) -> list[Content]:
        """The slices of each rank's own heads."""
        blocks = []
        for head in range(num_heads):
            top, left, height, width = (head, 0, 1, size) if cut_by_rows else (0, head, rows, 1)
            blocks.append(Block(top, left, height, width, head // own, "s", str(head)))
        return [tuple(blocks[rank * own : (rank + 1) * own]) for rank in range(world_size)]

    given = _held(plans.first.x, (tokens, size), world_size)
    terms, whole = (_held(plans.second.y, (tokens, size), world_size, after) for after in (False, True))
    start = {"X": given, "W q,k,v": by_head(size), "W out": by_head(size, cut_by_rows=True)}
    projected = {**start, "q,k,v": by_head(tokens)}
    attended = {**projected, "heads": by_head(tokens)}
    note = plans.second.y.collective.replace("_", "-")
    which = "; ".join(
        f"rank {rank} has {listed([block.label for block in each])}" for rank, each in enumerate(by_head(1))
    )
    scenes = [
        Scene(f"X is on all ranks. Each has the weights of its own heads: {which}.", start),
        Scene("Queries, keys and values of its heads, for all tokens: nothing is sent.", projected),
        Scene("Each head attends by itself, softmax(q k) v: nothing is sent.", attended),
        Scene(f"Times its rows of the output weights. {_made('Z', plans.second.y)}", {**attended, "Z": terms}),
        Scene(f"g sums the terms by one {note}: Z is on all ranks.", {**attended, "Z": whole}, {"Z": note}),
    ]
    wide, square = (tokens, size), (size, size)
    shapes = {"X": wide, "W q,k,v": square, "q,k,v": wide, "heads": wide, "W out": square, "Z": wide}
    columns = [Column(name, *shape) for name, shape in shapes.items()]
    return Blocks([Story(columns, scenes)], world_size, f"Attention: {num_heads} heads on {world_size} ranks")


def _held(move: Move, shape: tuple[float, float], world_size: int, after: bool = True) -> list[Content]:
    """What each rank has of a matrix of this shape, after the move or before it."""
    layout, (rows, columns) = move.after if after else move.before, shape
    if layout == PARTIAL:
        return [(Block(0, 0, rows, columns, rank, "p", f"+{rank}"),) for rank in range(world_size)]
    if layout is not REPLICATED:
        return [(_slice(rank, AXES[move.matrix].index(layout), shape, world_size),) for rank in range(world_size)]
    if after and move.before in AXES[move.matrix]:  # gathered: it shows from whom
        axis = AXES[move.matrix].index(move.before)
        return [tuple(_slice(rank, axis, shape, world_size) for rank in range(world_size))] * world_size
    return [(Block(0, 0, rows, columns, 0, "a"),)] * world_size


def _slice(rank: int, axis: int, shape: tuple[float, float], world_size: int) -> Block:
    """A rank's slice of a matrix along an axis, 0 or 1."""
    size, corner = [*shape], [0.0, 0.0]
    size[axis] /= world_size
    corner[axis] = rank * size[axis]
    return Block(*corner, *size, rank, "s", str(rank))


def _told(move: Move, name: str = "") -> str:
    """A move in words, without a full stop. `name`: what the matrix is called here."""
    name = name or move.matrix
    if move.collective:
        article = "a" if move.collective == "reduce_scatter" else "an"
        return f"{name} takes {article} {move.collective.replace('_', '-')}"
    if move.before != move.after:
        return f"of {name} each rank takes its slice, and sends nothing"
    return f"{name} stays as it is"


def _made(name: str, move: Move) -> str:
    """How a product lies at first, as a sentence."""
    if move.before is REPLICATED:
        return f"Every rank has all of {name}."
    if move.before == PARTIAL:
        return f"Every rank has a term of {name}, of the full shape."
    return f"Of {name} each rank has a slice, by {move.before}."


def _notes(move: Move, name: str = "") -> dict[str, str]:
    return {name or move.matrix: move.collective.replace("_", "-")} if move.collective else {}


# --- the still --------------------------------------------------------------------------------------------------

ACROSS, BETWEEN, TYPE, HEAD = 312, 16, 9, 28  # of a scene: its width, from one to the next, letters, room for headings
GATE = 14  # a gate's width
HIGHEST = 220  # all ranks' rows together, without what is between them


def _still(data: dict, caption: str) -> str:
    """All scenes of the first story, two to a row."""
    story, shapes = data["stories"][0], data["shapes"]
    gaps, most = 14 * len(shapes) + 10, max(rows for rows, _ in shapes)
    unit = (ACROSS - gaps - GATE * shapes.count((0, 0))) / sum(columns for _, columns in shapes)
    unit = min(16, unit, HIGHEST / most / data["ranks"])
    tall = most * unit + 8
    height = HEAD + data["ranks"] * tall + TYPE * 2
    drawn = []
    for number, scene in enumerate(story["scenes"]):
        x, y = number % 2 * (ACROSS + BETWEEN), number // 2 * height
        drawn.append(f'<g transform="translate({x} {y:.1f})">{_scene(data, story, number, scene, unit, tall)}</g>')
    total = (len(story["scenes"]) + 1) // 2 * height
    width = 2 * ACROSS + BETWEEN
    look = f'font-family="sans-serif" font-size="{TYPE}" text-anchor="middle" fill="currentColor" color="{GREY}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(caption)}" {look} '
        f'viewBox="0 0 {width} {total:.0f}" width="{width}" height="{total:.0f}">{"".join(drawn)}</svg>'
    )


def _scene(data: dict, story: dict, number: int, scene: dict, unit: float, tall: float) -> str:
    bottom = HEAD + data["ranks"] * tall
    parts = [f'<text x="0" y="{TYPE}" text-anchor="start" font-weight="bold">step {number}</text>']
    for rank in range(data["ranks"]):
        parts.append(f'<text x="4" y="{HEAD + (rank + 0.5) * tall:.1f}">{rank}</text>')
    x = 18.0
    for heading, (rows, columns), held, note in zip(
        story["headings"], data["shapes"], scene["held"], scene["notes"], strict=True
    ):
        width, sends = columns * unit or GATE, note and note != NOTHING
        parts.append(f'<text x="{x + width / 2:.1f}" y="{HEAD - 5}">{escape(heading)}</text>')
        if sends or not rows:
            look = f'stroke-width="{1.6 if sends else 0.5}" fill="none" stroke="currentColor"'
            frame = f'x="{x - 2:.1f}" y="{HEAD - 1}" width="{width + 4:.1f}" height="{bottom - HEAD:.1f}"'
            parts.append(f"<rect {frame} {look}/>")
        parts.append(f'<text x="{x + width / 2:.1f}" y="{bottom + TYPE}">{escape(note)}</text>' if note else "")
        for rank, look in enumerate(held if rows else []):
            top = HEAD + rank * tall + (tall - 8 - rows * unit) / 2
            box = f'x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{rows * unit:.1f}"'
            parts.append(f'<rect {box} fill="none" stroke="currentColor" stroke-width=".5" stroke-dasharray="2 2"/>')
            parts += [_drawn(block, x, top, unit, data["colours"]) for block in data["looks"][look]]
        x += width + 14
    return "".join(parts)


def _drawn(block: Block, x: float, y: float, unit: float, colours: list) -> str:
    colour, ink = colours[block.rank]
    left, top, width, height = x + block.left * unit, y + block.top * unit, block.width * unit, block.height * unit
    box = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    if block.kind == "a":
        return f'<rect {box} fill="currentColor" fill-opacity=".3" stroke="currentColor" stroke-width=".5"/>'
    dashes = ' stroke-dasharray="2 1.5"' if block.kind == "p" else ""
    size = min(TYPE, height * 0.95, width / max(1, len(block.label)) * 1.4)
    label = f'x="{left + width / 2:.1f}" y="{top + height / 2 + size * 0.36:.1f}" font-size="{size:.1f}" fill="{ink}"'
    return f'<rect {box} fill="{colour}" stroke="{ink}"{dashes}/><text {label}>{escape(block.label)}</text>'

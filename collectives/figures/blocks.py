"""Sharded matrices as a figure to step through: the blocks that each rank holds, and the collective that comes next.

    by_axis(world_size=4)      # Y = X W: the reader picks each matrix's layout; the collectives are derived
    mlp(), gates(), heads()    # Megatron's split of a transformer block
    stages()                   # what ZeRO shards, stage by stage
    cycle()                    # a layer under FSDP, from rest to rest
    mesh()                     # a layer under tensor parallelism and FSDP at once, ranks as a grid

A row is a rank, and a column is a matrix or a gate. On a mesh, the ranks form a grid of cells that hold their matrices.
A block has the colour and the number of the rank that owns the slice. Replicated blocks are grey. A rank's term of a
sum, of the full shape, is hatched. `training.shardings` derives the layouts and the collectives; this module doesn't
know which axis costs what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

from ..training.memory import MIXED_ADAM, STAGES, at_rest
from ..training.mesh import Mesh
from ..training.shardings import AXES, PARTIAL, REPLICATED, Layout, Move, Pair, Plan, derive, derive_pair
from .colours import GREY, RANK_COLOURS, ink_on
from .player import Figure, listed

LEGEND = {"s": "a rank's slice", "a": "the same on every rank", "p": "a rank's term of a sum"}
NOTHING = "nothing"  # the note of a gate that is the identity

# For each matrix, {layout: its label}. The figure starts with the first layout of each.
AXIS_NAMES = {
    "X": {"inner": "sharded by columns (inner)", "rows": "sharded by rows", REPLICATED: "replicated"},
    "W": {"inner": "sharded by rows (inner)", "columns": "sharded by columns", REPLICATED: "replicated"},
    "Y": {REPLICATED: "replicated", "rows": "sharded by rows", "columns": "sharded by columns"},
}


class Tile(NamedTuple):
    """A part of a matrix, in units of the matrix's shape. `kind`: a key of `LEGEND`. `label`: the text on it."""

    top: float
    left: float
    height: float
    width: float
    rank: int
    kind: str
    label: str = ""


Content = tuple[Tile, ...]  # the blocks of one matrix that one rank holds
NONE: Content = ()


class Column(NamedTuple):
    """A matrix of `rows` by `columns`, in units of the picture; 0 by 0 is a gate between two matrices."""

    heading: str
    rows: float = 0
    columns: float = 0


class Scene(NamedTuple):
    """One step: its text, what each rank holds of each matrix, and a note below some columns.

    `contents`: {heading: one `Content` for each rank}; no rank holds a matrix that is missing. `notes`: {heading: what
    happens to the matrix in this step, such as "all-reduce"}; such a column is framed, unless the note is `NOTHING`.
    `headings`: {heading: the text shown instead of it}. `along`: in a grid, the axis that the note's collective runs
    along.
    """

    words: str
    contents: Mapping[str, Sequence[Content]]
    notes: Mapping[str, str] = MappingProxyType({})
    headings: Mapping[str, str] = MappingProxyType({})
    along: str = ""


class Story(NamedTuple):
    """A sequence of scenes over the same columns."""

    columns: Sequence[Column]
    scenes: Sequence[Scene]


class Blocks(Figure):
    """A figure of one story, or of several that the reader chooses from.

    `choices`: {question: its answers}. `stories`: one for each combination of answers; the last question varies
    fastest, and the figure starts with the first story. All stories have equally many scenes, and columns of the same
    shapes. Raises `ValueError` if they don't, for a wrong number of stories, and for more than 16 ranks.
    """

    picture = "blocks"

    def __init__(
        self,
        stories: Sequence[Story],
        world_size: int,
        caption: str,
        choices: Mapping[str, Sequence[str]] | None = None,
        grid: Mesh | None = None,
        legend: Mapping[str, str] = MappingProxyType({}),
    ):
        self.stories, self.world_size, self.caption = list(stories), world_size, caption
        self.choices, self.grid, self.legend = dict(choices or {}), grid, {**LEGEND, **legend}
        combinations = len(list(product(*self.choices.values())))
        if len(self.stories) != combinations:
            raise ValueError(f"{len(self.stories)} stories for {combinations} combinations of choices")
        if len({(len(story.scenes), *(column[1:] for column in story.columns)) for story in self.stories}) > 1:
            raise ValueError("all stories of a figure need equally many scenes, and columns of the same shapes")
        if world_size > len(RANK_COLOURS):
            raise ValueError(f"{world_size} ranks are too many to draw: at most {len(RANK_COLOURS)}")
        self.words = self.told(0)

    def told(self, number: int) -> list[str]:
        """Return the texts of the story with this number, one for each scene."""
        return [scene.words for scene in self.stories[number].scenes]

    def data(self) -> dict:
        """Return what the player shows, as plain data.

        `looks`: the contents that occur, each a list of blocks. A scene of a story has `held`, for each column and each
        rank the number of a look, and `notes`, one for each column.
        """
        looks: dict[Content, int] = {NONE: 0}
        stories = []
        for columns, scenes in self.stories:
            headings = [column.heading for column in columns]
            scene_data = []
            for scene in scenes:
                contents = [scene.contents.get(heading, [NONE] * self.world_size) for heading in headings]
                parts = {
                    "held": [[looks.setdefault(tuple(each), len(looks)) for each in rows] for rows in contents],
                    "notes": [scene.notes.get(heading, "") for heading in headings],
                }
                if scene.along:
                    parts["along"] = scene.along
                if scene.headings:
                    parts["headings"] = [scene.headings.get(heading, heading) for heading in headings]
                scene_data.append(parts)
            stories.append({"headings": headings, "scenes": scene_data})
        colours = RANK_COLOURS[: self.world_size]
        return {
            "ranks": self.world_size,
            "colours": [[colour, ink_on(colour)] for colour in colours],
            "shapes": [column[1:] for column in self.stories[0].columns],
            **(self._choices() if self.choices else {}),
            "looks": list(looks),
            "stories": stories,
            "legend": self.legend,
            "nothing": NOTHING,
            **({"grid": self._places(self.grid)} if self.grid else {}),
        }

    def _choices(self) -> dict:
        """Return the questions, as `Family.data` has them, and each story's texts."""
        questions = [[question, list(answers), 0] for question, answers in self.choices.items()]
        return {"choices": questions, "told": [self.told(number) for number in range(len(self.stories))]}

    def _places(self, grid: Mesh) -> dict:
        """Return the grid's `axes`, and each rank's `places` along them."""
        places = [list(grid.coordinates(rank).values()) for rank in range(self.world_size)]
        return {"axes": list(grid.axes), "places": places}

    def still_svg(self) -> str:
        """As `Figure.still_svg`: all scenes of the first story, two in a row."""
        return _still(self.data(), self.caption)


# --- stories of what the library derives ------------------------------------------------------------------------


def by_axis(world_size: int = 4, sizes: Mapping[str, int] | None = None) -> Blocks:
    """Return a figure of Y = X W for each of the 27 combinations of layouts of X, W and Y.

    `sizes`: lengths of the axes "rows", "inner" and "columns", which decide which matrix is cheaper to move.
    """
    sizes = sizes or {"rows": 4096, "inner": 8192, "columns": 8192}
    stories = []
    for x, w, y in product(*AXIS_NAMES.values()):
        stories.append(_product_story(derive(x, w, y, sizes, world_size), (x, w, y), sizes, world_size))
    choices = {f"layout of {matrix}": list(names.values()) for matrix, names in AXIS_NAMES.items()}
    return Blocks(stories, world_size, f"Y = X W on {world_size} ranks: pick a layout for each matrix", choices)


def _product_story(plan: Plan, lies: tuple[Layout, ...], sizes: Mapping[str, int], world_size: int) -> Story:
    scale = world_size / min(sizes.values())
    shapes = {matrix: tuple(sizes[axis] * scale for axis in AXES[matrix]) for matrix in AXES}
    columns = [Column(matrix, *shape) for matrix, shape in shapes.items()]
    x, w, y = (AXIS_NAMES[matrix][layout] for matrix, layout in zip(AXES, lies, strict=True))
    held = {move.matrix: _held(move, shapes[move.matrix], world_size, False) for move in (plan.x, plan.w)}
    moved = {move.matrix: _held(move, shapes[move.matrix], world_size) for move in (plan.x, plan.w)}
    product_y, final_y = (_held(plan.y, shapes["Y"], world_size, after) for after in (False, True))
    total = plan.sent(sizes, world_size)
    sent = f"Each rank sends {total / 1e6:,.1f} million elements in all." if total else "No rank sends anything."
    scenes = [
        Scene(f"X is {x} and W is {w}. We want Y {y}.", held),
        Scene(f"Before the product: {_told(plan.x)}; {_told(plan.w)}.", moved, _notes(plan.x) | _notes(plan.w)),
        Scene(f"Each rank multiplies its blocks. {_made('Y', plan.y)}", {**moved, "Y": product_y}),
        Scene(f"After the product: {_told(plan.y)}. {sent}", {**moved, "Y": final_y}, _notes(plan.y)),
    ]
    return Story(columns, scenes)


SPLITS = {  # layouts of A and B of an MLP: {label: their sharded axes}
    "A by columns, B by rows (Megatron)": ("columns", "inner"),
    "both by columns": ("columns", "columns"),
    "both by rows": ("inner", "inner"),
    "A by rows, B by columns": ("inner", "columns"),
}
MEGATRON = SPLITS["A by columns, B by rows (Megatron)"]
SIZES = {"rows": 4096, "inner": 8192, "hidden": 32768, "columns": 8192}  # of X, A, Y = GeLU(X A), B and Z = Y B
SHAPES = {
    "X": (1, 2),
    "A": (2, 8),
    "Y": (1, 8),
    "B": (8, 2),
    "Z": (1, 2),
}  # rows and columns in the picture


def mlp(world_size: int = 2) -> Blocks:
    """Return a figure of Z = GeLU(X A) B with X and Z replicated, for four ways to shard A and B."""
    stories = [_mlp_story(derive_pair(*cut, SIZES, world_size), world_size) for cut in SPLITS.values()]
    choices = {"the weights are sharded": list(SPLITS)}
    caption = f"An MLP on {world_size} ranks: Z = GeLU(X A) B, with X {SIZES['rows']:,} by {SIZES['inner']:,}"
    return Blocks(stories, world_size, caption, choices)


def _mlp_story(plans: Pair, world_size: int) -> Story:
    first, second = plans.first, plans.second
    moves = {"X": first.x, "A": first.w, "Y": first.y, "B": second.w, "Z": second.y}

    def blocks_of(name: str, move: Move, after: bool = True) -> dict[str, list[Content]]:
        return {name: _held(move, SHAPES[name], world_size, after)}

    def ends(name: str) -> dict[str, list[Content]]:
        return blocks_of(name, moves[name])

    start = blocks_of("X", first.x, False) | ends("A") | ends("B")
    projected = start | ends("X") | blocks_of("Y", first.y, False)
    activated = projected | ends("Y")
    multiplied = activated | blocks_of("Y", second.x) | blocks_of("Z", second.y, False)
    sent = f"{plans.sent(world_size) / 1e6:,.1f} million elements"
    scenes = [
        Scene("X is replicated. Each rank has its slices of A and B; the weights never move.", start),
        Scene(f"X A: {_told(first.x)}. {_made('Y', first.y)}", projected, _notes(first.x, "X")),
        Scene(f"GeLU needs complete sums: {_told(first.y)}. Then it acts locally.", activated, _notes(first.y, "Y")),
        Scene(f"Y B: {_told(second.x, 'Y')}. {_made('Z', second.y)}", multiplied, _notes(second.x, "Y")),
        Scene(
            f"Z must be replicated: {_told(second.y, 'Z')}. In all, each rank has sent {sent}.",
            multiplied | ends("Z"),
            _notes(second.y, "Z"),
        ),
    ]
    return Story([Column(name, *shape) for name, shape in SHAPES.items()], scenes)


def gates(world_size: int = 2) -> Blocks:
    """Return a figure of Megatron's gates f and g around an MLP, forward and backward: one sums, one does nothing."""
    stories = [_gates_story(world_size, backward) for backward in (False, True)]
    choices = {"direction": ["forward", "backward"]}
    return Blocks(stories, world_size, f"f and g on {world_size} ranks", choices)


def _gates_story(world_size: int, backward: bool) -> Story:
    # Backward is dY = dZ B^T and dX = dY A^T. B^T is sharded by columns and A^T by rows, so the plans are the same.
    plans = derive_pair(*MEGATRON, SIZES, world_size)
    names, d = ["X", "f", "Y", "g", "Z"], "d" if backward else ""
    headings = [name if name in "fg" else d + name for name in names]
    start, middle, end = (d + name for name in ("ZYX" if backward else "XYZ"))
    enter, leave = "gf" if backward else "fg"
    moves = {start: plans.first.x, middle: plans.first.y, end: plans.second.y}
    shapes = {name: SHAPES[name[-1]] for name in moves}
    held = {name: _held(move, shapes[name], world_size) for name, move in moves.items()}
    terms = {end: _held(plans.second.y, shapes[end], world_size, False)}
    note = _notes(plans.second.y)["Y"]
    first, second = ("B transposed", "A transposed") if backward else ("A", "B")
    begin = {start: held[start]}
    halfway = {**begin, middle: held[middle]}
    scenes = [
        Scene(f"{start} is the same on every rank.", begin),
        Scene(f"{enter} is the identity: no rank sends anything.", begin, {enter: NOTHING}),
        Scene(f"Each rank multiplies by its slice of {first}. {_made(middle, plans.first.y)}", halfway),
        Scene(f"Each rank multiplies by its slice of {second}. {_made(end, plans.second.y)}", {**halfway, **terms}),
        Scene(f"{leave} sums the terms with an {note}: {end} is the same on every rank.", held, {leave: note}),
    ]
    columns = [Column(heading, *SHAPES.get(name, ())) for heading, name in zip(headings, names, strict=True)]
    return Story(columns, scenes)


def heads(world_size: int = 2, num_heads: int = 4) -> Blocks:
    """Return a figure of attention with whole heads on each rank.

    The weights of queries, keys and values are sharded by columns, the output weights by rows. Raises `ValueError` if
    the heads don't divide among the ranks.
    """
    if num_heads % world_size:
        raise ValueError(f"{num_heads} heads do not divide among {world_size} ranks")
    plans = derive_pair(*MEGATRON, SIZES, world_size)
    size, own = num_heads, num_heads // world_size  # a head is one unit wide
    tokens = size / 2

    def by_head(rows: float, cut_by_rows: bool = False) -> list[Content]:
        """Return the slices of each rank's own heads."""
        blocks = []
        for head in range(num_heads):
            top, left, height, width = (head, 0, 1, size) if cut_by_rows else (0, head, rows, 1)
            blocks.append(Tile(top, left, height, width, head // own, "s", str(head)))
        return [tuple(blocks[rank * own : (rank + 1) * own]) for rank in range(world_size)]

    x = _held(plans.first.x, (tokens, size), world_size)
    terms, whole = (_held(plans.second.y, (tokens, size), world_size, after) for after in (False, True))
    start = {"X": x, "W q,k,v": by_head(size), "W out": by_head(size, cut_by_rows=True)}
    projected = {**start, "q,k,v": by_head(tokens)}
    attended = {**projected, "heads": by_head(tokens)}
    note = _notes(plans.second.y)["Y"]
    numbers = [listed([block.label for block in blocks]) for blocks in by_head(1)]
    noun = "heads" if own > 1 else "head"
    owners = "; ".join(f"rank {rank} has {noun} {own_heads}" for rank, own_heads in enumerate(numbers))
    scenes = [
        Scene(f"X is replicated. Each rank has the weights of its own heads: {owners}.", start),
        Scene("Each rank computes its heads' queries, keys and values for all tokens. No rank sends.", projected),
        Scene("Each head attends by itself, softmax(q k) v. No rank sends.", attended),
        Scene(
            f"Each rank multiplies by its rows of the output weights. {_made('Z', plans.second.y)}",
            {**attended, "Z": terms},
        ),
        Scene(f"g sums the terms with one {note}: Z is replicated.", {**attended, "Z": whole}, {"Z": note}),
    ]
    wide, square = (tokens, size), (size, size)
    shapes = {"X": wide, "W q,k,v": square, "q,k,v": wide, "heads": wide, "W out": square, "Z": wide}
    columns = [Column(name, *shape) for name, shape in shapes.items()]
    return Blocks([Story(columns, scenes)], world_size, f"Attention: {num_heads} heads on {world_size} ranks")


def stages(world_size: int = 4) -> Blocks:
    """Return a figure of what each rank holds in stages 0 to 3 of ZeRO, with Adam in mixed precision.

    A column is as wide as its kind of state has bytes a parameter.
    """
    recipe, share, ranks = MIXED_ADAM, f"1/{world_size}", range(world_size)
    kinds = {"gradients": recipe.gradients, "optimizer state": recipe.optimizer, "weights": recipe.parameters}
    shapes = {kind: (2.0, float(width)) for kind, width in kinds.items()}
    whole = {kind: [(Tile(0, 0, *shape, 0, "a"),) for _ in ranks] for kind, shape in shapes.items()}
    cut = {kind: [(_slice(rank, 1, shape, world_size),) for rank in ranks] for kind, shape in shapes.items()}
    held = [f"{at_rest(world_size, world_size, stage).total / world_size:g} bytes a parameter." for stage in STAGES]
    moves = {"gradients": "reduce-scatter", "weights": "all-gather"}
    scenes = [
        Scene(
            "Stage 0, data parallelism: an all-reduce sums the gradients, and every rank computes the same update. It "
            f"holds {held[0]}",
            whole,
            {"gradients": "all-reduce"},
        ),
        Scene(
            f"Stage 1: each rank holds {share} of the optimizer state. A reduce-scatter brings it the summed gradients "
            f"of that part. It updates the part, and an all-gather brings all ranks all new weights: {held[1]}",
            whole | {"optimizer state": cut["optimizer state"]},
            moves,
        ),
        Scene(
            "Stage 2: after the reduce-scatter, each rank frees the gradients that its own update doesn't need: "
            f"{held[2]}",
            cut | {"weights": whole["weights"]},
            moves,
        ),
        Scene(
            "Stage 3: each rank keeps only its part of the weights. The ranks gather a layer's weights before each "
            f"pass and free them after it: {held[3]}",
            cut,
            moves,
        ),
    ]
    columns = [Column(kind, *shape) for kind, shape in shapes.items()]
    caption = f"The stages of ZeRO on {world_size} ranks: a row for each rank, widths by bytes"
    return Blocks([Story(columns, scenes)], world_size, caption)


CYCLE_SIZE = 4096  # tokens of all ranks, inputs and outputs of the layer


def cycle(world_size: int = 4) -> Blocks:
    """Return a figure of a layer Y = X W under FSDP: two all-gathers of W, then a reduce-scatter of its gradient."""
    sizes, shape = dict.fromkeys(("rows", "inner", "columns"), CYCLE_SIZE), (4.0, 4.0)
    gather, scatter, stay = Move("W", "inner", REPLICATED), Move("Y", PARTIAL, "rows"), Move("X", "rows", "rows")

    def blocks_of(name: str, move: Move, after: bool = True) -> dict[str, list[Content]]:
        return {name: _held(move, shape, world_size, after)}

    rest = blocks_of("state", gather, False) | blocks_of("W", gather, False) | blocks_of("X", stay)
    gathered, output = blocks_of("W", gather), blocks_of("Y", stay)
    note = _notes(gather)["W"]
    sent = (2 * gather.sent(sizes, world_size) + scatter.sent(sizes, world_size)) / CYCLE_SIZE**2
    scenes = [
        Scene("At rest: each rank has its slice of W, the optimizer state for it, and its own tokens X.", rest),
        Scene(f"Forward: {_told(gather)}, and every rank has all of W.", rest | gathered, _notes(gather)),
        Scene("Each rank multiplies its own tokens, Y = X W. No rank sends.", rest | gathered | output),
        Scene("Each rank frees W except its own slice. The next layer runs.", rest | output),
        Scene(f"Backward: W needs the same {note} again.", rest | output | gathered, _notes(gather)),
        Scene(
            f"Each rank computes a gradient of all of W from its own tokens. {_made('dW', scatter)}",
            rest | gathered | blocks_of("dW", scatter, False),
        ),
        Scene(
            f"{_told(scatter, 'dW')}: each rank gets its slice of the sum. Each rank frees W except its slice.",
            rest | blocks_of("dW", scatter),
            _notes(scatter, "dW"),
        ),
        Scene(
            "The optimizer updates each rank's slice of W with its slice of dW, locally. In all, each rank has sent "
            f"{sent:g} times the size of W.",
            rest,
        ),
    ]
    columns = [Column(name, *shape) for name in ("X", "W", "Y", "dW", "state")]
    return Blocks([Story(columns, scenes)], world_size, f"A layer Y = X W under FSDP on {world_size} ranks")


MESH_SIZES = {"rows": 8192, "inner": 8192, "columns": 8192}  # tokens of all ranks, inputs and outputs of the layer
MESH_CUTS = {"by rows (RowwiseParallel)": "inner", "by columns (ColwiseParallel)": "columns"}  # of W, along tp
WHOLE = 4.0  # rows and columns of a matrix of the mesh, in units of the picture


def mesh(grid: Mesh | None = None, sizes: Mapping[str, int] | None = None, itemsize: int = 2) -> Blocks:
    """Return a figure of a layer Y = X W under tensor parallelism and FSDP at once, with the ranks as a grid.

    `grid`: a mesh of the axes dp and tp with 2 ranks each. `sizes`: lengths of "rows" (the tokens of all ranks),
    "inner" and "columns", which decide the bytes on the wire. `itemsize`: bytes of an element. The reader picks whether
    tp shards W by rows or by columns. FSDP then shards each slice by columns along dp: torch's FSDP2 shards dimension 0
    of a weight, which for a `Linear` is its outputs. Raises `ValueError` for another mesh, or a length that the ranks
    don't divide.
    """
    grid, sizes = grid or Mesh(dp=2, tp=2), dict(sizes or MESH_SIZES)
    if dict(grid.sizes) != {"dp": 2, "tp": 2}:
        raise ValueError(f"the figure takes a mesh of two axes, dp and tp, of 2 ranks each, not {grid}")
    if uneven := [axis for axis, length in sizes.items() if length % grid.world_size]:
        raise ValueError(f"{listed(uneven)} of {sizes} do not divide among the {grid.world_size} ranks of {grid}")
    stories = [_mesh_story(_Layer(grid, axis, sizes, itemsize)) for axis in MESH_CUTS.values()]
    caption = f"A layer Y = X W on {grid}: {grid.axes[0]} down, {grid.axes[1]} across"
    legend = {"a": "the same on all ranks along tp"}
    return Blocks(stories, grid.world_size, caption, {"tp shards W": list(MESH_CUTS)}, grid, legend)


class _Layer:
    """The blocks of a layer that each rank of a mesh holds, and the bytes that it sends. tp shards axis `cut` of W."""

    def __init__(self, grid: Mesh, cut: str, sizes: Mapping[str, int], itemsize: int):
        self.grid, self.cut, self.itemsize = grid, cut, itemsize
        self.dp, self.tp = grid.size("dp"), grid.size("tp")
        self.places = [grid.coordinates(rank) for rank in range(grid.world_size)]
        wholes = [Tile(0.0, 0.0, WHOLE, WHOLE, rank, "s", str(rank)) for rank in range(grid.world_size)]
        self.tokens = self._each(wholes, 0, "dp")
        self.slices = self._each(wholes, AXES["W"].index(cut), "tp")
        self.own = self._each(self.slices, 1, "dp")
        # Along tp: a product. Backward is dX = dY W^T, and the columns of W are the inner axis of W^T.
        by_rows, by_columns = ("inner", "inner", REPLICATED), (REPLICATED, "columns", "columns")
        passes = (by_rows, by_columns) if cut == "inner" else (by_columns, by_rows)
        self.forward, self.backward = (derive(x, w, y, weights_stay=True) for x, w, y in passes)
        self.sizes = {**sizes, "rows": sizes["rows"] / self.dp}
        self.sizes_back = {**self.sizes, "inner": sizes["columns"], "columns": sizes["inner"]}
        # Along dp: an all-gather of a rank's slice of W, and a reduce-scatter of the slice's gradient.
        self.gather, self.scatter = Move("W", "columns", REPLICATED), Move("Y", PARTIAL, "columns")
        self.slice_sizes = {"inner": sizes["inner"], "columns": sizes["columns"], cut: sizes[cut] / self.tp}
        self.slice_sizes["rows"] = self.slice_sizes["inner"]  # rows of dW, as a product

    def _each(self, blocks: Sequence[Tile], side: int, axis: str) -> list[Tile]:
        """Return each rank's part of its block along `side`, 0 or 1, by the rank's place along `axis`."""
        size = self.grid.size(axis)
        return [_part(block, side, place[axis], size) for block, place in zip(blocks, self.places, strict=True)]

    def lies(self, layout: Layout) -> list[Content]:
        """Return what each rank holds of a matrix of tokens: all columns of its own tokens, some of them, or a term."""
        if layout == PARTIAL:
            return _terms(self.tokens)
        if layout is REPLICATED:
            return [(block._replace(rank=0, kind="a", label=""),) for block in self.tokens]
        return [(block,) for block in self._each(self.tokens, 1, "tp")]

    def at_rest(self) -> list[Content]:
        """Return what each rank keeps of W, or of its gradient."""
        return [(block,) for block in self.own]

    def gathered(self) -> list[Content]:
        """Return what each rank holds of W after the all-gather along dp."""
        held = {rank: tuple(self.own[peer] for peer in group) for group in self.grid.groups("dp") for rank in group}
        return [held[rank] for rank in range(self.grid.world_size)]

    def sent(self, move: Move) -> float:
        """Return the bytes that a rank sends in a move along dp."""
        return self.itemsize * move.sent(self.slice_sizes, self.dp)

    def summed(self, move: Move, sizes: Mapping[str, float]) -> float:
        """Return the bytes that a rank sends in a product's move along tp."""
        return self.itemsize * move.sent(sizes, self.tp)

    def called(self, axis: str, move: Move) -> str:
        """Return a phrase such as "All-gather along dp, among ranks 0, 2 and among 1, 3"."""
        groups = " and among ".join(", ".join(map(str, group)) for group in self.grid.groups(axis))
        return f"{_notes(move)[move.matrix].capitalize()} along {axis}, among ranks {groups}"

    def told(self, move: Move, sizes: Mapping[str, float], name: str, taker: str) -> str:
        """Return the text of a product's move along tp."""
        if not move.collective:
            return f"No rank sends along tp: {name} is sharded by columns, a layout that {taker} can take."
        terms = self.itemsize * sizes["rows"] * sizes["columns"]
        return (
            f"{self.called('tp', move)}: it sums the terms of {name}, {_size(terms)} each. Each rank sends "
            f"{_size(self.summed(move, sizes))}, and waits for the sum."
        )


def _mesh_story(layer: _Layer) -> Story:
    forward, backward, gather, scatter = layer.forward, layer.backward, layer.gather, layer.scatter
    weights, gathered = {"W": layer.at_rest()}, {"W": layer.gathered()}
    start = weights | {"X": layer.lies(forward.x.after)}
    multiplied = start | gathered | {"Y": layer.lies(forward.y.before)}
    output = multiplied | {"Y": layer.lies(forward.y.after)}
    returned = start | gathered | {"Y": layer.lies(backward.x.after)}
    terms = returned | {"X": layer.lies(backward.y.before), "dW": _terms(layer.slices)}
    done = terms | {"X": layer.lies(backward.y.after)}
    slice_bytes = layer.itemsize * layer.slice_sizes["inner"] * layer.slice_sizes["columns"]
    tp_cut = "by rows along tp" if layer.cut == "inner" else "by columns along tp"
    x_cut = "and by columns along tp" if layer.cut == "inner" else "but not along tp"
    gather_note, has_dy, has_both = {"W": "all-gather"}, {"Y": "dY"}, {"X": "dX", "Y": "dY"}
    by_dp = 2 * layer.sent(gather) + layer.sent(scatter)
    by_tp = layer.summed(forward.y, layer.sizes) + layer.summed(backward.y, layer.sizes_back)
    scenes = [
        Scene(
            f"At rest. W is sharded twice: {tp_cut}, then each slice by columns along dp. Each rank keeps 1 of "
            f"{layer.grid.world_size} parts, {_size(slice_bytes / layer.dp)}. X is sharded by tokens along dp {x_cut}.",
            start,
        ),
        Scene(
            f"{layer.called('dp', gather)}: each rank gets its slice of W, {_size(slice_bytes)}, and sends "
            f"{_size(layer.sent(gather))}. No rank has all of W. The previous layer's compute can hide it.",
            start | gathered,
            gather_note,
            along="dp",
        ),
        Scene(f"Forward: each rank multiplies its blocks. {_made('Y for its tokens', forward.y)}", multiplied),
        Scene(
            layer.told(forward.y, layer.sizes, "Y", "the next layer"),
            output,
            _notes(forward.y),
            along=_axis(forward.y),
        ),
        Scene("Each rank frees the gathered slice of W and keeps its own part.", output | weights),
        Scene(
            f"Backward, dY has arrived. {layer.called('dp', gather)}, again: each rank sends "
            f"{_size(layer.sent(gather))}. The next layer's compute can hide it.",
            returned,
            gather_note,
            has_dy,
            "dp",
        ),
        Scene(
            f"dX = dY W^T and dW = X^T dY. {_made('dX for its tokens', backward.y)} Of its slice of dW, each rank has "
            "a term over its own tokens.",
            terms,
            headings=has_both,
        ),
        Scene(
            layer.told(backward.y, layer.sizes_back, "dX", "the previous layer"),
            done,
            _notes(backward.y, "X"),
            has_both,
            _axis(backward.y),
        ),
        Scene(
            f"{layer.called('dp', scatter)}: it sums the terms of dW, and each rank keeps the same part as of W. Each "
            f"rank sends {_size(layer.sent(scatter))}; in all {_size(by_dp)} along dp and {_size(by_tp)} along tp.",
            done | weights | {"dW": layer.at_rest()},
            {"dW": "reduce-scatter"},
            has_both,
            "dp",
        ),
    ]
    return Story([Column(name, WHOLE, WHOLE) for name in ("dW", "W", "X", "Y")], scenes)


def _part(block: Tile, side: int, number: int, parts: int) -> Tile:
    """Return part `number` of `parts` equal parts of a block along `side`, 0 or 1."""
    corner, size = [block.top, block.left], [block.height, block.width]
    size[side] /= parts
    corner[side] += number * size[side]
    return block._replace(top=corner[0], left=corner[1], height=size[0], width=size[1])


def _terms(blocks: Sequence[Tile]) -> list[Content]:
    """Return each rank's term of a sum, in the place of its block."""
    return [(block._replace(kind="p", label=f"+{block.rank}"),) for block in blocks]


def _axis(move: Move) -> str:
    """Return the axis of the mesh that a product moves along, or "" if it stays."""
    return "tp" if move.collective else ""


def _size(num_bytes: float) -> str:
    """Return bytes as text, in MB of 1e6 bytes."""
    return f"{num_bytes / 1e6:,.1f} MB"


def _held(move: Move, shape: Sequence[float], world_size: int, after: bool = True) -> list[Content]:
    """Return what each rank holds of a matrix of this shape, after the move or before it."""
    layout, (rows, columns) = move.after if after else move.before, shape
    if layout == PARTIAL:
        return [(Tile(0, 0, rows, columns, rank, "p", f"+{rank}"),) for rank in range(world_size)]
    if layout is not REPLICATED:
        return [(_slice(rank, AXES[move.matrix].index(layout), shape, world_size),) for rank in range(world_size)]
    if after and move.before in AXES[move.matrix]:  # all-gathered: show the rank that each slice comes from
        axis = AXES[move.matrix].index(move.before)
        return [tuple(_slice(rank, axis, shape, world_size) for rank in range(world_size))] * world_size
    return [(Tile(0, 0, rows, columns, 0, "a"),)] * world_size


def _slice(rank: int, axis: int, shape: Sequence[float], world_size: int) -> Tile:
    """Return a rank's slice of a matrix along `axis`, 0 or 1."""
    return _part(Tile(0.0, 0.0, shape[0], shape[1], rank, "s", str(rank)), axis, rank, world_size)


def _told(move: Move, name: str = "") -> str:
    """Return a clause about a move, such as "W needs an all-gather". `name`: what to call the matrix."""
    name = name or move.matrix
    if move.collective:
        article = "a" if move.collective == "reduce_scatter" else "an"
        return f"{name} needs {article} {move.collective.replace('_', '-')}"
    if move.before != move.after:
        return f"each rank takes its slice of {name} and sends nothing"
    return f"{name} stays in its layout"


def _made(name: str, move: Move) -> str:
    """Return a sentence about a product's layout before it moves."""
    if move.before is REPLICATED:
        return f"Every rank has all of {name}."
    if move.before == PARTIAL:
        return f"Every rank has a term of each entry of {name}."
    return f"Every rank has a slice of {name}, by {move.before}."


def _notes(move: Move, name: str = "") -> dict[str, str]:
    return {name or move.matrix: move.collective.replace("_", "-")} if move.collective else {}


# --- the still --------------------------------------------------------------------------------------------------

# Lengths in pixels.
ACROSS, BETWEEN, TYPE, HEAD = (
    312,
    16,
    9,
    28,
)  # a scene's width, gap between scenes, letters, headings
GATE = 14  # width of a gate
HIGHEST = 220  # height of all ranks' rows, without the gaps between them
GUTTER, CELL_GAP, LINE = 14, 6, 13  # in a grid: gap between ranks, gap between a rank's matrices, height of a heading


def _still(data: dict, caption: str) -> str:
    """Return the SVG of all scenes of the first story, two in a row."""
    story, drawn = data["stories"][0], []
    draw, unit, tall, height = _in_a_grid(data) if "grid" in data else _in_rows(data)
    for number, scene in enumerate(story["scenes"]):
        x, y = number % 2 * (ACROSS + BETWEEN), number // 2 * height
        drawn.append(f'<g transform="translate({x} {y:.1f})">{draw(data, story, number, scene, unit, tall)}</g>')
    total = (len(story["scenes"]) + 1) // 2 * height
    width = 2 * ACROSS + BETWEEN
    look = f'font-family="sans-serif" font-size="{TYPE}" text-anchor="middle" fill="currentColor" color="{GREY}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(caption)}" {look} '
        f'viewBox="0 0 {width} {total:.0f}" width="{width}" height="{total:.0f}">{"".join(drawn)}</svg>'
    )


def _in_rows(data: dict) -> tuple[Callable, float, float, float]:
    """Return how to draw scenes with a row for each rank: the function, the unit, the heights of a row and a scene."""
    shapes = data["shapes"]
    gaps, most = 14 * len(shapes) + 10, max(rows for rows, _ in shapes)
    unit = (ACROSS - gaps - GATE * shapes.count((0, 0))) / sum(columns for _, columns in shapes)
    unit = min(16, unit, HIGHEST / most / data["ranks"])
    tall = most * unit + 8
    return _scene, unit, tall, HEAD + data["ranks"] * tall + TYPE * 2


def _in_a_grid(data: dict) -> tuple[Callable, float, float, float]:
    """As `_in_rows`, but with the height of a rank's cell: two matrices below each other, each with its heading."""
    (down, across), (rows, columns) = _lengths(data), data["shapes"][0]
    unit = min(9, (ACROSS / across - GUTTER - 3 * CELL_GAP) / 2 / columns)
    tall = 2 * (rows * unit + LINE) + CELL_GAP
    return _grid_scene, unit, tall, HEAD + down * (tall + GUTTER)


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


def _lengths(data: dict) -> tuple[int, int]:
    """Return how many ranks a grid has below each other and beside each other."""
    down, across = zip(*data["grid"]["places"], strict=True)
    return max(down) + 1, max(across) + 1


def _grid_scene(data: dict, story: dict, number: int, scene: dict, unit: float, tall: float) -> str:
    """Return the SVG of one scene of a grid. Outlines of one look are one path, which keeps the SVG small."""
    (rows, columns), along = data["shapes"][0], scene.get("along")
    side, wide = columns * unit, 2 * columns * unit + 3 * CELL_GAP
    title = "".join(note and f": {note} along {along}" for note in scene["notes"])
    texts = [f'<text x="0" y="{TYPE}" text-anchor="start" font-weight="bold">step {number}{escape(title)}</text>']
    ends = [length - 1 for length in _lengths(data)]
    homes, matrices, framed, joints, blocks = "", "", "", "", []
    for rank, place in enumerate(data["grid"]["places"]):
        x, y = place[1] * (wide + GUTTER), HEAD - LINE + place[0] * (tall + GUTTER)
        homes += _outline(x, y, wide, tall)
        texts.append(f'<text x="{x + 6:g}" y="{y + TYPE:g}" font-weight="bold">{rank}</text>')
        down, across = f"M{x + wide / 2:g} {y + tall:g}v{GUTTER}", f"M{x + wide:g} {y + tall / 2:g}h{GUTTER}"
        for axis, joint in enumerate((down, across)):
            joints += joint if along == data["grid"]["axes"][axis] and place[axis] < ends[axis] else ""
        for i, heading in enumerate(scene.get("headings", story["headings"])):
            left = x + CELL_GAP + i % 2 * (side + CELL_GAP)
            top = y + LINE + i // 2 * (rows * unit + LINE)
            texts.append(f'<text x="{left + side / 2:g}" y="{top - 3:g}">{escape(heading)}</text>')
            outline = _outline(left, top, side, rows * unit)
            matrices, framed = (matrices, framed + outline) if scene["notes"][i] else (matrices + outline, framed)
            blocks += [_drawn(b, left, top, unit, data["colours"]) for b in data["looks"][scene["held"][i][rank]]]
    looks = (homes, "1"), (matrices, '.5" stroke-dasharray="2 2'), (framed, "1.6"), (joints, "3")
    paths = [f'<path fill="none" stroke="currentColor" d="{d}" stroke-width="{look}"/>' for d, look in looks if d]
    return "".join([*paths, *texts, *blocks])


def _outline(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z"


def _drawn(block: Tile, x: float, y: float, unit: float, colours: list) -> str:
    colour, ink = colours[block.rank]
    left, top, width, height = x + block.left * unit, y + block.top * unit, block.width * unit, block.height * unit
    box = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    if block.kind == "a":
        return f'<rect {box} fill="currentColor" fill-opacity=".3" stroke="currentColor" stroke-width=".5"/>'
    dashes = ' stroke-dasharray="2 1.5"' if block.kind == "p" else ""
    size = min(TYPE, height * 0.95, width / max(1, len(block.label)) * 1.4)
    label = f'x="{left + width / 2:.1f}" y="{top + height / 2 + size * 0.36:.1f}" font-size="{size:.1f}" fill="{ink}"'
    return f'<rect {box} fill="{colour}" stroke="{ink}"{dashes}/><text {label}>{escape(block.label)}</text>'

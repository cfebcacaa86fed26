"""Which scores each rank computes in each step of ring attention, as a figure to step through.

    draw_steps({"in order": in_order, "zigzag": zigzag}, world_size=4)

A row is a rank. Its square has the queries from top to bottom and the keys from left to right, in the order of the
sequence. A block has the colour of the rank whose keys it uses. The mask hides what is right of the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .blocks import NONE, Blocks, Column, Content, Scene, Story, Tile

Cut = Callable[[int, int], tuple[int, int]]  # see `training.context_parallel`

NOW, BEFORE = "this step", "so far"


def draw_steps(cuts: Mapping[str, Cut], world_size: int = 4) -> Blocks:
    """Return a figure of the steps of the ring; of several cuts the reader picks one.

    Raises `ValueError` for more than 16 ranks.
    """
    stories = [_story(cut, world_size) for cut in cuts.values()]
    legend = {"s": "queries of this row's rank, keys of the rank with this colour and number"}
    caption = f"Ring attention on {world_size} ranks: who computes which scores"
    choices = {"the sequence is cut": list(cuts)} if len(cuts) > 1 else None
    return Blocks(stories, world_size, caption, choices, legend=legend)


def _story(cut: Cut, world_size: int) -> Story:
    size = 2 * world_size
    seen: list[Content] = [NONE] * world_size
    scenes = []
    for step in range(world_size):
        tiles = [_tiles(cut, rank, (rank - step) % world_size, world_size) for rank in range(world_size)]
        seen = [before + now for before, now in zip(seen, tiles, strict=True)]
        shares = [_pieces(now) for now in tiles]
        scenes.append(Scene(_told(step, shares), {NOW: tiles, BEFORE: list(seen)}))
    return Story([Column(NOW, size, size), Column(BEFORE, size, size)], scenes)


def _tiles(cut: Cut, rank: int, source: int, world_size: int) -> Content:
    """Return the blocks that `rank` computes with the keys of `source`; one on the diagonal is half hidden."""
    return tuple(
        Tile(query, key, 1, 1, source, "s", str(source))
        for query in cut(rank, world_size)
        for key in cut(source, world_size)
        if key <= query
    )


def _pieces(tiles: Content) -> float:
    """Return the work in squares; the mask leaves half of one on the diagonal."""
    return sum(0.5 if tile.top == tile.left else 1.0 for tile in tiles)


def _told(step: int, shares: list[float]) -> str:
    held = "its own keys" if step == 0 else f"the keys of the rank {step} before it"
    each = ", ".join(f"{share:g}" for share in shares)
    squares = f"Squares to compute, rank by rank: {each}. On the diagonal one counts half."
    return f"Step {step}: each rank has {held}. {squares}"

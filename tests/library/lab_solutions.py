"""A solution to every puzzle of the Lab, as a reader would type it. Each is the best known."""


def shifted(ranks, *steps):
    """Steps in which every rank does what rank 0 does: functions of rank r, each giving a transfer's text."""
    return "\n".join("  ".join(send(r) for send in step for r in range(ranks)) for step in steps)


def swaps(*rounds):
    """Steps in which pairs of ranks swap what they have for each other."""
    return "\n".join("  ".join(f"{b}:{a}→{b}:{a}  {a}:{b}→{a}:{b}" for a, b in pairs) for pairs in rounds)


def torus_step(step):
    """A step of a reduce-scatter on 3 x 3 ranks: two in columns, with three chunks a message, then two in rows."""
    sends = []
    for row in range(3):
        for column in range(3):
            if step < 2:
                there, first = (row + 1) % 3, 3 * ((row - 1 - step) % 3)
                sends.append(f"{first}-{first + 2}:{3 * row + column}→{3 * there + column}+")
            else:
                there, chunk = (column + 1) % 3, 3 * row + (column - 1 - (step - 2)) % 3
                sends.append(f"{chunk}:{3 * row + column}→{3 * row + there}+")
    return "  ".join(sends)


def around_the_cut(step):
    """A step of a ring reduce-scatter in the order 0, 2, 1, 3."""
    order = [0, 2, 1, 3]
    return "  ".join(f"{order[(i - 1 - step) % 4]}:{order[i]}→{order[(i + 1) % 4]}+" for i in range(4))


SOLUTIONS = {
    "broadcast-4": "0:0→1\n0:0→2 0:1→3",
    "sum-2": "0:0→1+ 0:1→0+",
    "reduce-4": "0:1→0+ 0:3→2+\n0:2→0+",
    "broadcast-5": "0:2→3\n0:2→4 0:3→0\n0:2→1",
    "scatter-4": "2-3:0→2\n1:0→1 3:2→3",
    "barrier-5": shifted(5, *([lambda r, far=far: f"0:{r}→{(r + far) % 5}+"] for far in (1, 2, 4))),
    "reduce-scatter-3": shifted(3, *([lambda r, s=s: f"{(r - 1 - s) % 3}:{r}→{(r + 1) % 3}+"] for s in range(2))),
    "all-gather-4": shifted(4, *([lambda r, s=s: f"{(r - s) % 4}:{r}→{(r + 1) % 4}"] for s in range(3))),
    "all-reduce-3": shifted(
        3,
        *([lambda r, s=s: f"{(r - 1 - s) % 3}:{r}→{(r + 1) % 3}+"] for s in range(2)),
        *([lambda r, s=s: f"{(r - s) % 3}:{r}→{(r + 1) % 3}"] for s in range(2)),
    ),
    "fix-two-shot": "0:1→0+ 0:2→0+ 1:0→1+ 1:2→1+ 2:0→2+ 2:1→2+\n0:0→1 0:0→2 1:1→0 1:1→2 2:2→0 2:2→1",
    "all-reduce-4": "0:0→1+ 0:1→0+ 0:2→3+ 0:3→2+\n0:0→2+ 0:2→0+ 0:1→3+ 0:3→1+",
    "halving-doubling-4": (
        "2-3:0→2+ 2-3:1→3+ 0-1:2→0+ 0-1:3→1+\n1:0→1+ 0:1→0+ 3:2→3+ 2:3→2+\n"
        "0:0→1 1:1→0 2:2→3 3:3→2\n0-1:0→2 0-1:1→3 2-3:2→0 2-3:3→1"
    ),
    "fold-6": ("0:4→0+ 0:5→1+\n0:0→1+ 0:1→0+ 0:2→3+ 0:3→2+\n0:0→2+ 0:2→0+ 0:1→3+ 0:3→1+\n0:0→4 0:1→5"),
    "pipeline-4": "0:0→3\n1:0→1 0:3→2\n2:0→2 0:2→1 1:1→3\n3:0→1 1:1→2 2:2→3\n2:2→1 3:0→2 3:1→3",
    "all-to-all-4": swaps([(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]),
    "all-to-all-6": swaps(*([(5, k), ((k + 1) % 5, (k - 1) % 5), ((k + 2) % 5, (k - 2) % 5)] for k in range(5))),
    "two-ways": shifted(
        5,
        [lambda r: f"{r}:{r}→{(r + 1) % 5}", lambda r: f"{r}:{r}→{(r - 1) % 5}"],
        [lambda r: f"{(r - 1) % 5}:{r}→{(r + 1) % 5}", lambda r: f"{(r + 1) % 5}:{r}→{(r - 1) % 5}"],
    ),
    "cut-cable": "\n".join(map(around_the_cut, range(3))),
    "torus-9": "\n".join(map(torus_step, range(4))),
    "two-nodes": (
        "2-3:0→1+ 0-1:1→0+ 2-3:2→3+ 0-1:3→2+\n1:0→2+ 3:1→3+ 0:2→0+ 2:3→1+\n"
        "0:0→2 2:1→3 1:2→0 3:3→1\n0-1:0→1 2-3:1→0 0-1:2→3 2-3:3→2"
    ),
}

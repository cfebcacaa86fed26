"""Published sweeps of collectives over message sizes: read them, predict them, and fit the network's model to them.

    python -m collectives.measure.sweeps            # fitted and left-out errors, for the sweeps of the course
    python -m collectives.measure.sweeps FILE       # errors of the fitted model on other sweeps

A sweep's cluster is read from its description. A sweep that can't be read, or that the model is not meant for, is
counted with its reason. `judge` tries the model on measurements that it sees for the first time: for each repository
or report, it fits to all others and predicts this one. GPUs without NVLink are predicted and never fitted.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import fitted, formula, machines, network
from ..fitted import Errors, errors, repository
from ..machines import GPUS, Cluster
from ..network import COLLECTIVES, FITTED, NEUTRAL, Constants, Way, choose, lines

PUBLISHED = Path(__file__).parents[2] / "book" / "data" / "published" / "sweeps.json"
LEFT_OUT = PUBLISHED.with_name("left_out_sweeps.json")
EIGHT_NODES = 321, 391  # GB/s: large all-reduces on 8 nodes of 8 H100, by default and tuned; nccl-tests, issue 309
LARGE = 2**20  # bytes; from here on bandwidth counts as much as latency


@dataclass(frozen=True)
class Sweep:
    """A published sweep. `points`: (bytes, seconds). `algorithm`: what NCCL_ALGO was set to, or None."""

    name: str
    source: str
    collective: str
    cluster: Cluster
    points: list[tuple[int, float]]
    algorithm: str | None = None
    from_torch: bool = False

    @property
    def fitted(self) -> bool:
        """Whether a fit may see it. GPUs without NVLink are only predicted: a single report has them."""
        return not self.cluster.spec.on_pcie

    @property
    def title(self) -> str:
        """What was measured, and where: "all-reduce, 2 x 8 H100, EFA"."""
        nodes, network = self.cluster.nodes, self.cluster.network
        gpus = f"{f'{nodes} x ' if nodes > 1 else ''}{self.cluster.gpus_per_node} {self.cluster.gpu}"
        what = "sends" if self.collective == "send_recv" else self.collective.replace("_", "-")
        return ", ".join([what, gpus, *([network] if network else [])])

    def predict(self, num_bytes: float, constants: Constants = FITTED) -> Way:
        """Return how NCCL would run one size, and the seconds that it takes."""
        return choose(
            self.collective,
            num_bytes,
            self.cluster,
            constants=constants,
            algorithm=self.algorithm,
            from_torch=self.from_torch,
        )

    @property
    def measured(self) -> np.ndarray:
        """The measured seconds, one for each size."""
        return np.array([time for _, time in self.points])

    def seconds(self, constants: Constants = FITTED) -> np.ndarray:
        """Return the predicted seconds [size], or [size, column] for constants that are arrays [column]."""
        sizes = np.array([size for size, _ in self.points], dtype=float)[:, None]
        ways = lines(self.collective, self.cluster, constants, self.algorithm, self.from_torch)
        return np.min([line.seconds(sizes) for line in ways], axis=0)


class Point(NamedTuple):
    """A measured point and its prediction, in seconds."""

    sweep: Sweep
    num_bytes: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """The logarithm of predicted over measured seconds."""
        return float(np.log(self.predicted / self.measured))


# --- reading --------------------------------------------------------------------------------------------------------


def read(path: Path = PUBLISHED, of: Sequence[str] = COLLECTIVES) -> tuple[list[Sweep], dict[str, str]]:
    """Return the sweeps of a file, and for each that isn't used its id and the reason. `of`: which collectives.

    The file is a list of objects with `id`, `hardware`, `nodes`, `gpus`, `collective`, `notes`, `source` and `rows` of
    [bytes, microseconds, GB/s, GB/s]. Raises `ValueError` if it is no such list.
    """
    rows = json.loads(Path(path).read_text())
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "id" in row for row in rows):
        raise ValueError(f"{path} holds no list of sweeps, each an object with an id")
    sweeps, unused = [], {}
    for row in rows:
        try:
            found = sweep(row)
        except ValueError as error:
            unused[row["id"]] = str(error)
            continue
        if found.collective in of:
            sweeps.append(found)
        else:
            unused[row["id"]] = f"{found.collective} stands apart: the fit doesn't see it"
    return sweeps, unused


SENDS = ("send_recv",)
_COLLECTIVES = {name.replace("_", ""): name for name in COLLECTIVES + SENDS}
_SIBLINGS = {"RTX 6000D": "RTX PRO 6000"}  # of the same generation, on the same bus
_GPU = re.compile("|".join(sorted([*GPUS, *_SIBLINGS], key=len, reverse=True)), re.IGNORECASE)
_FORCED = re.compile(r"NCCL_ALGO=(\w+)")
_RACK = re.compile(r"NVL72|one NVLink domain|NVLink domain", re.IGNORECASE)
_CARD = re.compile(r"([\d.]+)(?:-[\d.]+)? GB/s")
_FASTEST, _SLOWEST = 1.2e12, 1e5  # bytes per second, on any link


def sweep(row: dict[str, Any]) -> Sweep:
    """Return a sweep from an object as the published file has them; raise `ValueError` with the reason if it can't."""
    collective = _COLLECTIVES.get(str(row.get("collective", "")).replace("_", "").replace("-", "").lower())
    if collective is None:
        raise ValueError(f"the model has no {row.get('collective')!r}")
    if "not re-verified" in str(row.get("notes", "")):
        raise ValueError("its copy does not say for sure which time belongs to which size")
    points = _points(row.get("rows"))
    for name in ("gpus", "nodes"):
        if not isinstance(row.get(name), int) or row[name] < 1:
            raise ValueError(f"its {name} must be a whole number from 1 on, not {row.get(name)!r}")
    cluster = cluster_of(str(row.get("hardware", "")), row["gpus"], row["nodes"])
    words = f"{row['id']} {row.get('notes', '')} {row.get('source', '')}"
    forced = _FORCED.search(f"{words} {row.get('hardware', '')}")
    from_torch = "torch all_reduce_bench" in words or "ml-engineering" in words
    name, source = str(row["id"]), str(row.get("source", "unknown"))
    found = Sweep(name, source, collective, cluster, points, forced and forced[1], from_torch)
    size, measured = max(points)
    if wrong := fitted.wrong_unit(measured, found.predict(size).seconds):
        raise ValueError(f"{size:,} bytes: {wrong}")
    return found


def _points(rows: Sequence[list[float]] | None) -> list[tuple[int, float]]:
    """Return (bytes, seconds) of every row that has both.

    Raises `ValueError` if there is none, or if the largest contradicts the bandwidth beside it: then a unit is wrong.
    """
    for row in rows or ():
        if not isinstance(row, list) or len(row) < 2 or not all(isinstance(x, int | float | None) for x in row):
            raise ValueError(f"a row is bytes, microseconds and bandwidths, not {row}")
    timed = [row for row in rows or () if row[0] and row[1]]
    if not timed:
        raise ValueError("it has no rows of sizes and times")
    size, micro, *printed = max(timed)
    rate = size / micro * 1e6
    if not _SLOWEST < rate < _FASTEST:
        raise ValueError(f"{size:,} bytes in {micro * 1e-6:g} s can't be: are the times in microseconds?")
    if any(printed[:1]) and not 0.5 < rate / (printed[0] * 1e9) < 2:
        found = f"{size:,} bytes in {micro:g} µs are {rate / 1e9:.3g} GB/s"
        raise ValueError(f"{found}, and the row says {printed[0]:g}: is a unit wrong?")
    return [(int(size), micro * 1e-6) for size, micro, *_ in timed]


def cluster_of(hardware: str, gpus: int, nodes: int) -> Cluster:
    """Return the cluster that a description in words means, such as "2x p5.48xlarge 8xH100, EFA 32x100G".

    Raises `ValueError` if it names no GPU that the model knows, or one that usually has NVLink and here has none.
    """
    found = _GPU.search(hardware)
    if found is None:
        raise ValueError(f"the model knows no GPU of {hardware!r}; it knows {', '.join(GPUS)}")
    gpu = _SIBLINGS.get(found[0].upper(), found[0].upper())
    if ("no NVLink" in hardware or "PCIe GPU" in hardware) and not GPUS[gpu].on_pcie:
        raise ValueError("its GPUs have no NVLink")
    if _RACK.search(hardware) and gpus <= 72:
        return Cluster(gpu, 1, gpus, None)
    if gpus % nodes:
        raise ValueError(f"{gpus} GPUs on {nodes} nodes")
    if nodes == 1:
        return Cluster(gpu, 1, gpus, None)
    network, cards = _network(hardware, gpu)
    measured = [float(rate) * 1e9 for rate in _CARD.findall(hardware)] if "ib_write_bw" in hardware else []
    cards = max(1, round(cards * gpus / nodes / 8))
    return Cluster(gpu, nodes, gpus // nodes, network, cards, min(measured, default=None))  # the slowest sets the pace


def _network(hardware: str, gpu: str) -> tuple[str, int]:
    """Return the network's name and the cards of a node of 8 GPUs, from a description in words.

    A description that names none means InfiniBand. Raises `ValueError` for one that the model doesn't have.
    """
    if other := re.search(r"Slingshot|Omni-?Path|Token Ring", hardware, re.IGNORECASE):
        raise _unknown(other[0])
    if "TCPXO" in hardware:
        return "GPUDirect-TCPXO", 8
    if "TCPX" in hardware:
        return "GPUDirect-TCPX", 4
    ampere = gpu.startswith("A100")
    if "EFA" in hardware or re.search(r"\bp[456]\w*[.-]", hardware):
        return ("EFA v1", 4) if ampere else ("EFA", 8)
    cards = re.search(r"(\d+) ?x ?(?:CX-?7|CX-?8|ConnectX|\d{3} ?G)", hardware)
    number = int(cards[1]) if cards else 8
    if re.search(r"plain TCP|TCP sockets|NET/Socket|100 GbE", hardware):
        return "100 GbE", int(cards[1]) if cards else 1
    if re.search(r"RoCE|OCI|Oracle|GCP|GKE|A3 Ultra", hardware):
        return ("RoCE 200" if ampere else "RoCE 400"), number
    if other := re.search(r"(\d+ ?)?GbE|Ethernet", hardware):
        raise _unknown(other[0])
    return ("InfiniBand HDR" if ampere else "InfiniBand NDR"), number


def _unknown(name: str) -> ValueError:
    return ValueError(f"the model knows no network {name!r}; it knows {', '.join(machines.NETWORKS)}")


# --- errors ---------------------------------------------------------------------------------------------------------


def points(sweeps: Iterable[Sweep], constants: Constants = FITTED) -> list[Point]:
    """Return every point of the sweeps with its prediction."""
    return [
        Point(sweep, size, time, float(predicted))
        for sweep in sweeps
        for (size, time), predicted in zip(sweep.points, sweep.seconds(constants)[:, 0], strict=True)
    ]


def summary(of: Iterable[Point]) -> Errors:
    """Return the errors of points."""
    return errors(point.error for point in of)


def table(of: Sequence[Point]) -> str:
    """Return a Markdown table of the errors: all, by collective inside a node and across, and by source."""
    head = [
        "| collective or source | points | median error | 90 % are below | within 25 % "
        "| points from 1 MiB up | their median error |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    groups = {"**all**": list(of)}
    for kind in (group, source):
        groups |= by(of, kind)
    return "\n".join([*head, *(_row(what, found) for what, found in groups.items())])


def by(of: Iterable[Point], kind: Callable[[Sweep], str]) -> dict[str, list[Point]]:
    """Return the points by what `kind` says of their sweep, such as `group`, in alphabetical order."""
    groups: dict[str, list[Point]] = {}
    for point in sorted(of, key=lambda point: kind(point.sweep)):
        groups.setdefault(kind(point.sweep), []).append(point)
    return groups


def worst(of: Sequence[Point], number: int = 5) -> str:
    """Return the sweeps with the largest median error as a Markdown table, each with its size of the largest.

    The error there is the predicted time's distance from the measured one, negative if the model is too fast.
    """
    by_name = by(of, lambda sweep: sweep.name)
    names = sorted(by_name, key=lambda name: -summary(by_name[name]).median)[:number]
    rows = ["| sweep | points | median error | its worst point | measured | predicted | error |"]
    rows.append("|---|--:|--:|--:|--:|--:|--:|")
    for name in names:
        far = max(by_name[name], key=lambda point: abs(point.error))
        times = f"{in_time(far.measured)} | {in_time(far.predicted)} | {np.expm1(far.error):+.0%}"
        median = f"{len(by_name[name])} | {summary(by_name[name]).median:.0%}"
        rows.append(f"| {far.sweep.title} ({name}) | {median} | {in_size(far.num_bytes)} | {times} |")
    return "\n".join(rows)


def in_size(num_bytes: int) -> str:
    """Return a size in words, such as "128 MiB"."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.4g} {name}"
    return f"{num_bytes} bytes"


def in_time(seconds: float) -> str:
    """Return a time in words, such as "875 ms"."""
    return f"{seconds * 1e3:,.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.3g} µs"


def _row(what: str, of: Sequence[Point]) -> str:
    every, large = summary(of), summary(point for point in of if point.num_bytes >= LARGE)
    of_large = f"{large.number} | {large.median:.1%}" if large.number else " | "
    return f"| {what} | {every.number} | {every.median:.1%} | {every.ninety:.0%} | {every.near:.0%} | {of_large} |"


def group(sweep: Sweep) -> str:
    """Return the collective of a sweep, and whether it is in a node or across."""
    return f"{sweep.collective.replace('_', '-')} {'across nodes' if sweep.cluster.nodes > 1 else 'in a node'}"


_REPORTS = {
    "a100_nvl4": "4 A100",
    "a40_nvl2": "2 A40",
    "b200_gcp": "B200 on Google Cloud",
    "b200_vultr": "B200 at Vultr",
    "gb300_oci": "GB300 on Oracle's cloud",
    "h100_oci": "H100 on Oracle's cloud",
    "rtxpro_2n": "RTX 6000D",
}


def source(sweep: Sweep) -> str:
    """Return where a sweep was published: its repository, or what an unnamed report is about."""
    where = repository(sweep.source)
    if "unknown" not in where:
        return where
    start = "_".join(sweep.name.split("_")[:2])
    return f"an unnamed report on {_REPORTS.get(start, sweep.cluster.gpu)}"


# --- fitting, and judging what a fit did not see --------------------------------------------------------------------


def fit(sweeps: Sequence[Sweep], guess: Constants | None = None) -> Constants:
    """Return the constants that predict the sweeps best, each sweep with the same weight.

    A constant that the sweeps say nothing about stays at its guess, or at that of `guess`. Sweeps that no fit may see
    are left out.
    """
    sweeps = [each for each in sweeps if each.fitted]
    weights = np.concatenate([np.full(len(sweep.points), WEIGHT / len(sweep.points)) for sweep in sweeps])

    def seconds(constants: Constants) -> np.ndarray:
        columns = np.shape(constants.launch)
        return np.concatenate(
            [np.broadcast_to(each.seconds(constants), (len(each.points), *columns)) for each in sweeps]
        )

    measured = np.concatenate([sweep.measured for sweep in sweeps])
    return fitted.fit(Constants, seconds, measured, weights, TYPICAL, guess=guess)


WEIGHT, TYPICAL = 9.0, 0.3  # of a sweep, against the guesses; and an error above which a point may be odd


def judge(sweeps: Sequence[Sweep]) -> dict[str, list[Point]]:
    """Return every point as constants predict it that never saw its repository, from our guesses and neutral ones."""
    found: dict[str, list[Point]] = {}
    for what, guess in (("left out", None), ("left out, neutral guesses", NEUTRAL)):
        unseen = fitted.without(sweeps, partial(fit, guess=guess))
        found[what] = [point for each in sweeps for point in points([each], unseen[repository(each.source)])]
    return found


def record(found: Mapping[str, Sequence[Point]], path: Path = LEFT_OUT) -> None:
    """Write the errors of predictions for left-out repositories to a file."""
    rows: dict[str, dict[str, list[float]]] = {what: {} for what in found}
    for what, of in found.items():
        for point in of:
            rows[what].setdefault(point.sweep.name, []).append(point.error)
    fitted.record(path, _digest(), rows)


def recorded(path: Path = LEFT_OUT) -> dict[str, list[Point]]:
    """Return the recorded predictions. Raises `ValueError` if they are of other sweeps or of another model."""
    rows, sweeps = fitted.recorded(path, _digest()), read()[0]
    return {
        what: [
            Point(sweep, size, time, time * float(np.exp(error)))
            for sweep in sweeps
            for (size, time), error in zip(sweep.points, by_name[sweep.name], strict=True)
        ]
        for what, by_name in rows.items()
    }


class Winner(NamedTuple):
    """The algorithm that NCCL ran for an all-reduce of this size, or that was fastest when forced."""

    cluster: Cluster
    num_bytes: int
    algorithm: str


def _in_a_node(gpu: str, gpus: int, num_bytes: int, algorithm: str) -> Winner:
    return Winner(Cluster(gpu, 1, gpus, None), num_bytes, algorithm)


WINNERS = {  # by repository: its network/README.md at 744d01e, and its issue 309
    "stas00/ml-engineering": [
        *(_in_a_node("H200", gpus, 2**33, "NVLS") for gpus in (5, 6, 7, 8)),
        _in_a_node("H200", 8, 2**20, "Ring"),
        _in_a_node("H200", 8, 2**21, "NVLS"),
        *(_in_a_node("B200", gpus, 2**33, "Ring") for gpus in (4, 5)),
        *(_in_a_node("B200", gpus, 2**33, "NVLS") for gpus in (6, 7, 8)),
        _in_a_node("H200", 4, 2**33, "Ring"),
        Winner(Cluster("H200", 4, network="EFA"), 2**32, "Ring"),
    ],
    "NVIDIA/nccl-tests": [Winner(Cluster("H100", 2), 2**33, "NVLSTree")],
}


def misnamed(left_out: bool) -> list[Winner]:
    """Return the published winners that the model doesn't choose, fitted to all sweeps or without the repository's."""
    sweeps, wrong = read()[0], []
    for where, cases in WINNERS.items():
        constants = fit([each for each in sweeps if repository(each.source) != where]) if left_out else FITTED
        for case in cases:
            if choose("all_reduce", case.num_bytes, case.cluster, constants=constants).algorithm != case.algorithm:
                wrong.append(case)
    return wrong


def _digest() -> str:
    return fitted.digest(PUBLISHED, (network, machines, formula, fitted, sys.modules[__name__]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors on a file of sweeps; without a file, also those of left-out repositories, and record them."""
    paths = [Path(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    for path in paths or [PUBLISHED]:
        try:
            (sweeps, unused), (sends, _) = read(path), read(path, SENDS)
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        print(f"# {path.name}: {len(sweeps)} sweeps, {len(unused)} not used\n")
        for name, why in unused.items():
            print(f"- {name}: {why}")
        seen = points(each for each in sweeps if paths or each.fitted)
        if not seen:
            continue
        print(f"\n## {'Not fitted to these' if paths else 'Fitted'}\n\n{table(seen)}\n\n{worst(seen)}")
        print(f"\n## Sends, never fitted\n\n{worst(points(sends), len(sends))}" if sends else "")
    if not paths:
        print(f"\n## The constants\n\n{fitted.table(fit(sweeps))}")
        found = judge(sweeps)
        record(found)
        for what, of in found.items():
            print(f"\n## {what}: each repository\n\n{table(of)}\n\n{worst(of)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

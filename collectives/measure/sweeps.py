"""Published sweeps of collectives over message sizes: read them, predict them, and fit the network's model to them.

    python -m collectives.measure.sweeps            # fitted and left-out errors, for the sweeps of the course
    python -m collectives.measure.sweeps FILE       # errors of the fitted model on other sweeps

A sweep's cluster is read from its description. A sweep that can't be read, or that the model is not meant for, is
counted with its reason. `left_out` judges the model on measurements that it sees for the first time: for each
repository or report, it fits to all others and predicts this one.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import network
from ..machines import GPUS, Cluster
from ..network import COLLECTIVES, FITTED, GUESSED, Constants, Way, choose

PUBLISHED = Path(__file__).parents[2] / "book" / "data" / "published" / "sweeps.json"
LEFT_OUT = PUBLISHED.with_name("left_out_sweeps.json")
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
    def origin(self) -> str:
        """Where it was published: a repository, with all its files and issues, or an unnamed report."""
        if "repository unknown" in self.source:
            return self.source
        return re.sub(r"https://github.com/|/issues/.*|:.*| @.*", "", self.source.replace("https://", ""))

    @property
    def measured(self) -> np.ndarray:
        """The measured seconds, one for each size."""
        return np.array([time for _, time in self.points])

    def seconds(self, constants: Constants = FITTED) -> np.ndarray:
        """Return the predicted seconds, one for each size."""
        sizes = np.array([size for size, _ in self.points], dtype=float)
        return network.seconds(self.collective, sizes, self.cluster, constants, self.algorithm, self.from_torch)


class Point(NamedTuple):
    """A measured point and its prediction, in seconds."""

    sweep: Sweep
    num_bytes: int
    measured: float
    predicted: Way

    @property
    def error(self) -> float:
        """The relative error: positive if the prediction is too long."""
        return self.predicted.seconds / self.measured - 1


# --- reading --------------------------------------------------------------------------------------------------------


def read(path: Path = PUBLISHED) -> tuple[list[Sweep], dict[str, str]]:
    """Return the sweeps of a file, and for each that can't be used its id and the reason.

    The file is a list of objects with `id`, `hardware`, `nodes`, `gpus`, `collective`, `notes`, `source` and `rows` of
    [bytes, microseconds, GB/s, GB/s]. Raises `ValueError` if it is no such list.
    """
    rows = json.loads(Path(path).read_text())
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "id" in row for row in rows):
        raise ValueError(f"{path} holds no list of sweeps, each an object with an id")
    sweeps, unused = [], {}
    for row in rows:
        try:
            sweeps.append(sweep(row))
        except ValueError as error:
            unused[row["id"]] = str(error)
    return sweeps, unused


_COLLECTIVES = {name.replace("_", ""): name for name in COLLECTIVES}
_GPU = re.compile(r"GB300|GB200|B300|B200|H200|H100|H20|A100|A40")
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
    points = [(int(size), micro * 1e-6) for size, micro, *_ in row.get("rows") or () if size and micro]
    if not points:
        raise ValueError("it has no rows of sizes and times")
    cluster = cluster_of(str(row.get("hardware", "")), int(row["gpus"]), int(row["nodes"]))
    size, seconds = max(points)
    if not _SLOWEST < size / seconds < _FASTEST:
        raise ValueError(f"{size:,} bytes in {seconds:g} s can't be: are the times in microseconds?")
    words = f"{row['id']} {row.get('notes', '')} {row.get('source', '')}"
    forced = _FORCED.search(f"{words} {row.get('hardware', '')}")
    from_torch = "torch all_reduce_bench" in words or "ml-engineering" in words
    name, source = str(row["id"]), str(row.get("source", "unknown"))
    return Sweep(name, source, collective, cluster, points, forced and forced[1], from_torch)


def cluster_of(hardware: str, gpus: int, nodes: int) -> Cluster:
    """Return the cluster that a description in words means, such as "2x p5.48xlarge 8xH100, EFA 32x100G".

    Raises `ValueError` if it names no GPU that the model knows, or GPUs without NVLink.
    """
    found = _GPU.search(hardware)
    if found is None:
        raise ValueError(f"the model knows no GPU of {hardware!r}; it knows {', '.join(GPUS)}")
    gpu = found[0]
    if "no NVLink" in hardware or "PCIe GPU" in hardware:
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
    """Return the network's name and the cards of a node of 8 GPUs, from a description in words."""
    if "TCPXO" in hardware:
        return "GPUDirect-TCPX", 8
    if "TCPX" in hardware:
        return "GPUDirect-TCPX", 4
    if "EFA" in hardware or re.search(r"\bp[456]\w*[.-]", hardware):
        return ("EFA v1", 4) if gpu == "A100" else ("EFA", 8)
    cards = re.search(r"(\d+) ?x ?(?:CX-?7|CX-?8|ConnectX|\d{3} ?G)", hardware)
    number = int(cards[1]) if cards else 8
    if re.search(r"RoCE|OCI|Oracle|GCP|GKE|A3 Ultra", hardware):
        return ("RoCE 200" if gpu == "A100" else "RoCE 400"), number
    return ("InfiniBand HDR" if gpu == "A100" else "InfiniBand NDR"), number


# --- errors ---------------------------------------------------------------------------------------------------------


def points(sweeps: Iterable[Sweep], constants: Constants = FITTED) -> list[Point]:
    """Return every point of the sweeps with its prediction."""
    return [Point(sweep, size, time, sweep.predict(size, constants)) for sweep in sweeps for size, time in sweep.points]


class Errors(NamedTuple):
    """The sizes of relative errors: how many, the median, the 90th percentile, and the share of at most 25 %."""

    number: int
    median: float
    ninety: float
    within_25: float


def errors(of: Sequence[Point]) -> Errors:
    """Return the errors of points; NaN if there are none."""
    sizes = np.abs([point.error for point in of])
    if not len(sizes):
        return Errors(0, *(3 * [float("nan")]))
    return Errors(len(sizes), float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float((sizes <= 0.25).mean()))


def table(of: Sequence[Point]) -> str:
    """Return a Markdown table of the errors: all, by collective inside a node and across, and by source."""
    head = [
        "| what | points | median error | 90 % are below | points from 1 MiB up | median error |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    groups = {"**all**": list(of)}
    for point in of:
        place = "across nodes" if point.sweep.cluster.nodes > 1 else "in a node"
        groups.setdefault(f"{point.sweep.collective.replace('_', '-')} {place}", []).append(point)
    labels: dict[str, str] = {}  # a source is called after its first sweep
    for point in sorted(of, key=lambda point: point.sweep.source):
        label = labels.setdefault(point.sweep.source, _short(point.sweep))
        groups.setdefault(label, []).append(point)
    return "\n".join([*head, *(_row(what, group) for what, group in groups.items())])


def worst(of: Sequence[Point], number: int = 5) -> str:
    """Return the sweeps with the largest median error as a Markdown table, each with its size of the largest."""
    by_name: dict[str, list[Point]] = {}
    for point in of:
        by_name.setdefault(point.sweep.name, []).append(point)
    names = sorted(by_name, key=lambda name: -errors(by_name[name]).median)[:number]
    lines = ["| sweep | points | median | its worst point | measured | predicted |", "|---|--:|--:|--:|--:|--:|"]
    for name in names:
        far = max(by_name[name], key=lambda point: abs(point.error))
        times = f"{far.measured * 1e6:,.0f} µs | {far.predicted.seconds * 1e6:,.0f} µs"
        median = f"{len(by_name[name])} | {errors(by_name[name]).median:.0%}"
        lines.append(f"| {name} | {median} | {far.num_bytes:,} bytes | {times} |")
    return "\n".join(lines)


def _row(what: str, group: Sequence[Point]) -> str:
    every, large = errors(group), errors([point for point in group if point.num_bytes >= LARGE])
    of_large = f"{large.number} | {large.median:.1%}" if large.number else " | "
    return f"| {what} | {every.number} | {every.median:.1%} | {every.ninety:.0%} | {of_large} |"


def _short(sweep: Sweep) -> str:
    """Return what identifies a source: its repository and the end of its path; else words from its sweep's name."""
    if "repository unknown" in sweep.source:
        return f"an unnamed report ({' '.join(sweep.name.split('_')[:2])})"
    plain = re.sub(r"https://github.com/| @.*| \(.*| \+ .*", "", sweep.source.replace("|", "/"))
    repository, _, path = plain.partition(":")
    return ", ".join(filter(None, [repository, "/".join(path.split("/")[-2:])]))


# --- fitting --------------------------------------------------------------------------------------------------------


def fit(sweeps: Sequence[Sweep], first: Constants = GUESSED) -> Constants:
    """Return the constants that predict the sweeps best, each sweep with the same weight.

    Minimizes the logarithms of the ratios of predicted to measured times, outliers less than quadratically. A constant
    that the sweeps say nothing about stays near `first`.
    """
    from scipy.optimize import least_squares

    names = list(asdict(first))
    start = np.log(list(asdict(first).values()))

    def constants(logs: np.ndarray) -> Constants:
        return Constants(**dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: np.ndarray) -> np.ndarray:
        now = constants(logs)
        ratios = [np.log(sweep.seconds(now) / sweep.measured) * WEIGHT / len(sweep.points) ** 0.5 for sweep in sweeps]
        return np.concatenate([*ratios, PULL * (logs - start)])

    most = np.log([MOST.get(name, 1.0) for name in names])  # no time is as long as a second, no share above 1
    return constants(
        least_squares(residuals, start, bounds=(-np.inf, most), loss="soft_l1", f_scale=0.3, max_nfev=30).x
    )


WEIGHT, PULL = 3.0, 0.3  # of a sweep, and of a constant's first value
MOST = {
    name: share
    for side in ("near", "far")
    for name, share in ((f"{side}_ll_share", 4 / 8), (f"{side}_ll128_share", 120 / 128))
}
"""The most that a constant can be: LL sends 4 bytes of flags with 4 bytes of data, LL128 8 with 120."""


def left_out(sweeps: Sequence[Sweep]) -> list[Point]:
    """Return every point, predicted with constants fitted to the sweeps of all *other* repositories and reports."""
    found = []
    for origin in dict.fromkeys(sweep.origin for sweep in sweeps):
        others = [sweep for sweep in sweeps if sweep.origin != origin]
        found += points([sweep for sweep in sweeps if sweep.origin == origin], fit(others))
    return found


# --- recording and printing -------------------------------------------------------------------------------------------


def record(of: Sequence[Point], path: Path = LEFT_OUT) -> None:
    """Write the predictions for left-out sources to a file, with the date and what they were made from."""
    rows = [[point.sweep.name, point.num_bytes, float(f"{point.predicted.seconds:.4g}")] for point in of]
    about = {"made": f"{datetime.now(UTC):%Y-%m-%d}", "by": "make evidence", "of": _digest()}
    path.write_text(json.dumps({**about, "columns": ["sweep", "bytes", "seconds"], "rows": rows}, indent=None) + "\n")


def recorded(path: Path = LEFT_OUT) -> list[Point]:
    """Return the recorded predictions. Raises `ValueError` if they were made from other sweeps or another model."""
    data = json.loads(path.read_text())
    if data["of"] != _digest():
        raise ValueError(f"{path.name} is not of these sweeps and this model; run `make evidence`")
    by_name = {sweep.name: sweep for sweep in read()[0]}
    times = {(name, size): time for name, sweep in by_name.items() for size, time in sweep.points}
    return [
        Point(by_name[name], size, times[name, size], by_name[name].predict(size)._replace(seconds=seconds))
        for name, size, seconds in data["rows"]
    ]


def _digest() -> str:
    """Return what changes if the published sweeps or the fitted constants change."""
    return hashlib.sha256(PUBLISHED.read_bytes() + repr(FITTED).encode()).hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors on a file of sweeps; without a file, also those of left-out sources, and record them."""
    paths = [Path(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    for path in paths or [PUBLISHED]:
        try:
            sweeps, unused = read(path)
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        print(f"# {path.name}: {len(sweeps)} sweeps, {len(unused)} not used\n")
        for name, why in unused.items():
            print(f"- {name}: {why}")
        found = points(sweeps)
        print(f"\n## {'Not fitted to these' if paths else 'Fitted'}\n\n{table(found)}\n\n{worst(found)}")
    if not paths:
        found = left_out(sweeps)
        record(found)
        print(f"\n## Each source left out of the fit\n\n{table(found)}\n\n{worst(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the ranks are connected by: how long a message takes between any two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np


@dataclass(frozen=True)
class Link:
    """One way from a rank to another: `alpha` seconds a message and `beta` seconds a byte."""

    alpha: float
    beta: float

    def __post_init__(self):
        if not (0 <= self.alpha < inf and 0 <= self.beta < inf):
            raise ValueError(f"a link's alpha and beta are seconds of at least 0, not {self.alpha} and {self.beta}")


@dataclass(frozen=True, eq=False)
class Topology:
    """`world_size` ranks joined by one kind of link, or by one kind in a node and another `across` nodes.

    `gamma`: seconds that a rank needs for each byte that it adds to its own. `exceptions`: links that are not like
    the others, by (src, dst). `ports`: how many messages a rank can send, and how many it can receive, at once.

    `ranks_per_node`: ranks 0, 1, ... fill node 0, then node 1; None if there is but one node. `ranks_per_nic`: so many
    neighbouring ranks of a node share a network card; their messages that leave (or enter) the node pass it one after
    another.
    """

    world_size: int
    link: Link
    gamma: float = 0.0
    exceptions: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    ports: int = 1
    across: Link | None = None
    ranks_per_node: int | None = None
    ranks_per_nic: int = 1

    def __post_init__(self):
        for name in ("world_size", "ports", "ranks_per_nic"):
            if getattr(self, name) < 1:
                raise ValueError(f"a topology's {name} is at least 1, not {getattr(self, name)}")
        if not self.gamma >= 0:
            raise ValueError(f"gamma is seconds a byte, at least 0, not {self.gamma}")
        for src, dst in self.exceptions:
            if not (0 <= src < self.world_size and 0 <= dst < self.world_size):
                raise ValueError(f"the exception {src}→{dst} is no link: the ranks are 0 to {self.world_size - 1}")
        if (self.across is None) != (self.ranks_per_node is None):
            raise ValueError("a topology of several nodes has both ranks_per_node and across, their link")
        in_node = self.ranks_per_node
        if in_node is not None and (in_node < 1 or self.world_size % in_node):
            raise ValueError(f"{self.world_size} ranks do not fill nodes of {in_node}")
        if (in_node or 1) % self.ranks_per_nic:
            raise ValueError(f"{in_node or 'no'} ranks of a node do not share NICs by {self.ranks_per_nic}")

    @property
    def is_uniform(self) -> bool:
        """Whether every rank reaches every other alike, by links of its own."""
        return not self.exceptions and self.across is None

    def crosses(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Which of these messages leave their node: bool, of the shape of `src`."""
        if self.ranks_per_node is None:
            return np.zeros(len(src), dtype=bool)
        return src // self.ranks_per_node != dst // self.ranks_per_node

    def seconds(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The alpha and the beta of the links from each `src` to each `dst`, as arrays of their shape."""
        alpha = np.full(len(src), self.link.alpha, dtype=float)
        beta = np.full(len(src), self.link.beta, dtype=float)
        if self.across is not None:
            far = self.crosses(src, dst)
            alpha[far], beta[far] = self.across.alpha, self.across.beta
        if self.exceptions:
            codes, alphas, betas = self._exceptions
            wanted = src * self.world_size + dst
            place = np.searchsorted(codes, wanted).clip(max=len(codes) - 1)
            found = codes[place] == wanted
            alpha[found], beta[found] = alphas[place[found]], betas[place[found]]
        return alpha, beta

    @cached_property
    def _exceptions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The exceptions as arrays in the order of src x world_size + dst: that number, alpha and beta."""
        rows = sorted(
            (src * self.world_size + dst, link.alpha, link.beta) for (src, dst), link in self.exceptions.items()
        )
        codes, alphas, betas = zip(*rows, strict=True)
        return np.array(codes), np.array(alphas), np.array(betas)


def uniform(world_size: int, alpha: float, beta: float, gamma: float = 0.0, ports: int = 1) -> Topology:
    """Every rank reaches every other by a link of its own, all alike: a single switch."""
    return Topology(world_size, Link(alpha, beta), gamma, ports=ports)


def two_level(
    num_nodes: int, ranks_per_node: int, inside: Link, across: Link, ranks_per_nic: int = 1, gamma: float = 0.0
) -> Topology:
    """`num_nodes` nodes of `ranks_per_node` ranks: one kind of link in a node, another between nodes."""
    return Topology(
        num_nodes * ranks_per_node,
        inside,
        gamma,
        across=across,
        ranks_per_node=ranks_per_node,
        ranks_per_nic=ranks_per_nic,
    )

"""The links between ranks, and how long a message takes over each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np


@dataclass(frozen=True)
class Link:
    """A link from one rank to another: `alpha` seconds per message and `beta` seconds per byte."""

    alpha: float
    beta: float

    def __post_init__(self):
        if not (0 <= self.alpha < inf and 0 <= self.beta < inf):
            raise ValueError(f"a link's alpha and beta must be finite and at least 0, not {self.alpha} and {self.beta}")


@dataclass(frozen=True, eq=False)
class Topology:
    """`world_size` ranks joined by one kind of `link`, or by `link` within a node and `across` between nodes.

    `gamma`: seconds per byte that a rank adds to its own data.
    `exceptions`: links that differ from the others, by (src, dst).
    `ports`: how many messages a rank can send at once; it can receive as many at the same time.
    `across`, `ranks_per_node`: set both for several nodes, or neither. Ranks fill node 0 first, then node 1.
    `ranks_per_nic`: how many adjacent ranks of a node share a network card (NIC). Their messages that leave the node
    pass it one at a time, and so do those that enter.
    `overlapped`: whether all messages that a rank sends in a step are under way at once, as on NCCL's channels. Only
    their bytes pass one after the other: through the rank's port within its node, or through the NIC, and both work
    at the same time. Otherwise a rank sends a message when the one before has arrived.

    Raises `ValueError` if these numbers don't fit together.
    """

    world_size: int
    link: Link
    gamma: float = 0.0
    exceptions: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    ports: int = 1
    across: Link | None = None
    ranks_per_node: int | None = None
    ranks_per_nic: int = 1
    overlapped: bool = False

    def __post_init__(self):
        for name in ("world_size", "ports", "ranks_per_nic"):
            if getattr(self, name) < 1:
                raise ValueError(f"a topology's {name} must be at least 1, not {getattr(self, name)}")
        if not self.gamma >= 0:
            raise ValueError(f"gamma, in seconds per byte, must be at least 0, not {self.gamma}")
        for src, dst in self.exceptions:
            if not (0 <= src < self.world_size and 0 <= dst < self.world_size):
                raise ValueError(f"the exception {src}→{dst} is out of range: the ranks are 0 to {self.world_size - 1}")
        if (self.across is None) != (self.ranks_per_node is None):
            raise ValueError("a topology of several nodes needs both ranks_per_node and across, the link between nodes")
        in_node = self.ranks_per_node
        if in_node is not None and (in_node < 1 or self.world_size % in_node):
            raise ValueError(f"{self.world_size} ranks do not fill nodes of {in_node}")
        if (in_node or 1) % self.ranks_per_nic:
            ranks = f"{in_node} ranks per node" if in_node else "a topology without ranks_per_node"
            raise ValueError(f"{ranks} can't share NICs in groups of {self.ranks_per_nic}")

    @property
    def is_uniform(self) -> bool:
        """Whether every pair of ranks has a link of its own, and all links are alike."""
        return not self.exceptions and self.across is None

    def crosses(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Return which of these messages leave their node: bool [num_messages], for ranks `src` and `dst`."""
        if self.ranks_per_node is None:
            return np.zeros(len(src), dtype=bool)
        return src // self.ranks_per_node != dst // self.ranks_per_node

    def seconds(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return alpha and beta of the link from each `src` to its `dst`: two float arrays [num_messages]."""
        alpha = np.full(len(src), self.link.alpha, dtype=float)
        beta = np.full(len(src), self.link.beta, dtype=float)
        if self.across is not None:
            far = self.crosses(src, dst)
            alpha[far], beta[far] = self.across.alpha, self.across.beta
        if self.exceptions:
            codes, alphas, betas = self._exceptions
            pairs = src * self.world_size + dst
            place = np.searchsorted(codes, pairs).clip(max=len(codes) - 1)
            listed = codes[place] == pairs
            alpha[listed], beta[listed] = alphas[place[listed]], betas[place[listed]]
        return alpha, beta

    @cached_property
    def _exceptions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The exceptions as three arrays, sorted by the code src x world_size + dst: codes, alphas and betas."""
        rows = sorted(
            (src * self.world_size + dst, link.alpha, link.beta) for (src, dst), link in self.exceptions.items()
        )
        codes, alphas, betas = zip(*rows, strict=True)
        return np.array(codes), np.array(alphas), np.array(betas)


def uniform(world_size: int, alpha: float, beta: float, gamma: float = 0.0, ports: int = 1) -> Topology:
    """Return a topology in which every pair of ranks has its own link and all links are alike: a single switch.

    `alpha`: seconds per message. `beta`: seconds per byte. `gamma`, `ports`: see `Topology`.
    """
    return Topology(world_size, Link(alpha, beta), gamma, ports=ports)


def two_level(
    num_nodes: int,
    ranks_per_node: int,
    inside: Link,
    across: Link,
    ranks_per_nic: int = 1,
    gamma: float = 0.0,
    overlapped: bool = False,
) -> Topology:
    """Return `num_nodes` nodes of `ranks_per_node` ranks: the link `inside` a node, `across` between nodes.

    `ranks_per_nic`, `gamma`, `overlapped`: see `Topology`.
    """
    return Topology(
        num_nodes * ranks_per_node,
        inside,
        gamma,
        across=across,
        ranks_per_node=ranks_per_node,
        ranks_per_nic=ranks_per_nic,
        overlapped=overlapped,
    )

"""What the ranks are connected by: how long a message takes between any two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Link:
    """One way from a rank to another: `alpha` seconds a message and `beta` seconds a byte."""

    alpha: float
    beta: float

    def __post_init__(self):
        if not (self.alpha >= 0 and self.beta >= 0):
            raise ValueError(f"a link's alpha and beta are seconds of at least 0, not {self.alpha} and {self.beta}")


@dataclass(frozen=True)
class Topology:
    """`world_size` ranks joined by one kind of link, but for the `exceptions` by (src, dst).

    `gamma`: seconds that a rank needs for each byte that it adds to its own.
    """

    world_size: int
    link: Link
    gamma: float = 0.0
    exceptions: Mapping[tuple[int, int], Link] = field(default_factory=dict)

    def seconds(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The alpha and the beta of the links from each `src` to each `dst`, as arrays of their shape."""
        alpha = np.full(len(src), self.link.alpha)
        beta = np.full(len(src), self.link.beta)
        for (one, other), link in self.exceptions.items():
            here = (src == one) & (dst == other)
            alpha[here], beta[here] = link.alpha, link.beta
        return alpha, beta


def uniform(world_size: int, alpha: float, beta: float, gamma: float = 0.0) -> Topology:
    """Every rank reaches every other by a link of its own, all alike: a single switch."""
    return Topology(world_size, Link(alpha, beta), gamma)

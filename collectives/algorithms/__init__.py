"""Algorithms that meet a contract: each function takes a world size P and returns a `Schedule`.

Every docstring states two numbers: the steps, and the bytes that a rank sends for a buffer of S bytes.
"""

from . import chain, double_tree, doubling, flat, halving_doubling, hierarchical, pairwise, rails, ring, tree

__all__ = [
    "chain",
    "double_tree",
    "doubling",
    "flat",
    "halving_doubling",
    "hierarchical",
    "pairwise",
    "rails",
    "ring",
    "tree",
]

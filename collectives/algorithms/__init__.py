"""Ways to meet a contract: each function takes a world size and returns a schedule.

Every algorithm is documented by two numbers: its steps, and the bytes that a rank sends for a buffer of S bytes.
"""

from . import chain, double_tree, doubling, flat, halving_doubling, hierarchical, pairwise, ring, tree

__all__ = ["chain", "double_tree", "doubling", "flat", "halving_doubling", "hierarchical", "pairwise", "ring", "tree"]

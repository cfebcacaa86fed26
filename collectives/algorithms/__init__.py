"""Ways to meet a contract: each function takes a world size and returns a schedule.

Every algorithm is documented by two numbers: its steps, and the bytes that a rank sends for a buffer of S bytes.
"""

from . import flat, ring, tree

__all__ = ["flat", "ring", "tree"]

"""Real ranks: processes in a process group, on this machine (`run`) or on a cluster (`cluster`)."""

from .local import PerRank, RanksError, default_backend, device, find_cycle, run
from .process import preload

__all__ = ["PerRank", "RanksError", "default_backend", "device", "find_cycle", "preload", "run"]

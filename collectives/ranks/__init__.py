"""Real ranks: processes in a process group, on this machine (`run`) or on a cluster (`cluster`)."""

from .local import PerRank, RanksError, default_backend, device, find_cycle, run
from .process import Killed, Later, ask, preload

__all__ = [
    "Killed",
    "Later",
    "PerRank",
    "RanksError",
    "ask",
    "default_backend",
    "device",
    "find_cycle",
    "preload",
    "run",
]

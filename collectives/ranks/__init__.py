"""Real ranks: processes in a process group, on this machine (`run`) or on a cluster (`cluster`)."""

from .local import PerRank, RanksError, crowding, device, fastest_backend, find_cycle, run
from .process import Killed, Later, ask, group, preload

__all__ = [
    "Killed",
    "Later",
    "PerRank",
    "RanksError",
    "ask",
    "crowding",
    "device",
    "fastest_backend",
    "find_cycle",
    "group",
    "preload",
    "run",
]

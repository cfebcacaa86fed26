"""Collectives from first principles: one schedule, simulated, executed, priced and drawn.

    schedule = ring.all_reduce(world_size=4)         # data: steps of transfers
    contracts.all_reduce.check(schedule)             # proves it for all inputs, or names the wrong slot
    simulate(schedule, before)                       # runs it in numpy, every rank visible
    execute(schedule, buffer)                        # runs it on real ranks, over torch.distributed
    price(schedule, num_bytes, topology)             # predicts seconds and bytes
    draw(schedule)                                   # draws a figure to step through
    lab(schedule)                                    # opens it in the Lab, to change it by hand

Importing this package is fast: torch and matplotlib load only when something needs them.
"""

from . import contracts, topology
from .draw import draw
from .execute import execute
from .lab import lab
from .price import price
from .schedule import Schedule, ScheduleError, Step, Transfer, chunk_bounds
from .simulate import simulate

__version__ = "0.1.0"

__all__ = [
    "Schedule",
    "ScheduleError",
    "Step",
    "Transfer",
    "chunk_bounds",
    "contracts",
    "draw",
    "execute",
    "lab",
    "price",
    "simulate",
    "topology",
]

"""Collectives from first principles: one schedule, simulated, executed, priced and drawn.

    schedule = ring.all_reduce(world_size=4)         # data: steps of transfers
    contracts.all_reduce.check(schedule)             # proved for all inputs, or the wrong slot is named
    simulate(schedule, before)                       # in numpy, every rank visible
    execute(schedule, buffer)                        # on real ranks, over torch.distributed
    price(schedule, num_bytes, topology)             # seconds and bytes
    draw(schedule)                                   # a figure to step through

This import stays fast: torch and matplotlib are imported when something first needs them.
"""

from . import contracts, topology
from .draw import draw
from .execute import execute
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
    "price",
    "simulate",
    "topology",
]

"""All-gather and reduce-scatter on any machine: python halves.py, or torchrun --nproc_per_node=4 halves.py."""

import os

import torch
import torch.distributed as dist

from collectives import ranks


def halves(rank, world_size):
    """What rank `rank` gathers of everybody's shard, and its own shard of the sum of everybody's gradient."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"  # this rank's own GPU: `ranks` has set it
    shard = torch.full((3,), float(rank), device=device)
    full = torch.empty(3 * world_size, device=device)
    dist.all_gather_single(full, shard)
    gradient = torch.arange(3.0 * world_size, device=device) + rank
    kept = torch.empty(3, device=device)
    dist.reduce_scatter_single(kept, gradient)
    return full.tolist(), kept.tolist()


if __name__ == "__main__":
    world_size = int(os.environ.get("WORLD_SIZE", 2))  # torchrun says how many it has started
    gathered, kept = zip(*ranks.run(halves, world_size), strict=True)
    if int(os.environ.get("RANK", 0)) == 0:
        print(gathered[0], *kept)

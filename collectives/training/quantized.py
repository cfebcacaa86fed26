"""Collectives on quantized numbers: rounded to 8 or 4 bits, block by block, as in ZeRO++.

A **block** of neighbouring numbers shares one step: its largest magnitude divided by the largest code. Each number
travels as the nearest multiple of that step, so the error is at most half a step. The codes and steps of a row are
packed into one message, which our own schedules carry.

Source: G. Wang et al., “ZeRO++: Extremely Efficient Collective Communication for Giant Model Training”, 2023.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from ..algorithms import pairwise, ring
from ..execute import execute
from ..schedule import Schedule
from .mesh import side_by_side

BLOCK = 64  # numbers that share a step
STEP_BYTES = 4  # a step is an fp32 number
SLACK = 1 + 2**-14  # covers fp32's own rounding: at 127 steps it is off by some 2**-17 of a step


def message_bytes(num_elements: int, bits: int = 8, block: int = BLOCK) -> int:
    """Return the bytes of a packed row: `bits` per number, and a step per block; the last block may be short."""
    _check(bits, block)
    return -(-num_elements * bits // 8) + STEP_BYTES * -(-num_elements // block)


def pack(rows: torch.Tensor, bits: int = 8, block: int = BLOCK) -> torch.Tensor:
    """Round floats [rows, n] into messages, uint8 [rows, message_bytes(n)]: the codes of a row, then its steps.

    Raises `ValueError` for numbers that aren't finite, since their block has no step, and for tensors that aren't
    floats. FSDP2 gathers raw bytes if a unit has several dtypes.
    """
    if not rows.is_floating_point():
        raise ValueError(f"only floats can be rounded, not {rows.dtype}: give the parameters of a unit one dtype")
    if not torch.isfinite(rows).all():
        raise ValueError("some numbers are not finite: a block that holds one has no step")
    steps = _steps(rows, bits, block)
    step_of_number = _per_number(steps, rows.shape[1], block)
    largest = _largest(bits)
    codes = torch.where(step_of_number > 0, rows.float() / step_of_number, 0).round().clamp(-largest, largest)
    codes = (codes + largest + 1).to(torch.uint8)  # code 0 stays unused, so that the range is symmetric
    if bits == 4:
        codes = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2))
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    return torch.cat([codes, steps.view(torch.uint8)], dim=1)


def unpack(messages: torch.Tensor, num_elements: int, bits: int = 8, block: int = BLOCK) -> torch.Tensor:
    """Turn messages of `pack`, uint8 [rows, ...], into numbers, fp32 [rows, num_elements].

    Raises `ValueError` for messages of the wrong length.
    """
    expected = message_bytes(num_elements, bits, block)
    if messages.shape[1] != expected:
        raise ValueError(f"a message of {num_elements} numbers has {expected} bytes, not {messages.shape[1]}")
    blocks = -(-num_elements // block)
    codes, steps = messages.split([expected - STEP_BYTES * blocks, STEP_BYTES * blocks], dim=1)
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)[:, :num_elements]
    steps = steps.flatten().clone()  # a copy, because fp32 views need 4-byte alignment
    steps = steps.view(torch.float32).view(len(messages), blocks)
    return (codes.float() - (_largest(bits) + 1)) * _per_number(steps, num_elements, block)


def rounded(values: torch.Tensor, bits: int = 8, block: int = BLOCK) -> torch.Tensor:
    """Return flat `values` as they arrive, packed and unpacked: fp32 of the same length."""
    return unpack(pack(values[None], bits, block), len(values), bits, block)[0]


def bound(values: torch.Tensor, bits: int = 8, block: int = BLOCK) -> torch.Tensor:
    """Return the error bound of `rounded` for each of flat `values`: half a step, fp32 of the same length.

    It holds for blocks whose largest magnitude is above 1e-34; fp32 stores smaller steps with fewer bits.
    """
    return _per_number(_steps(values[None], bits, block), len(values), block)[0] / 2 * SLACK


def all_gather(
    shard: torch.Tensor,
    bits: int = 8,
    block: int = BLOCK,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Gather all ranks' shards by a ring, each rounded once: fp32 [P x len(shard)].

    Every rank gets the same bits. A rank's own shard is rounded too, so that it computes
    with the same parameters as its peers. A rank sends P - 1 messages of one shard each.
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    mine = pack(shard[None], bits, block)
    messages = mine.new_empty(world_size, mine.shape[1])
    messages[rank] = mine
    execute(ring.all_gather(world_size), messages.view(-1), group)
    return unpack(messages, len(shard), bits, block).flatten()


def reduce_scatter(
    values: torch.Tensor, bits: int = 4, block: int = BLOCK, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Return this rank's chunk of the sum of all ranks' `values`, each rounded once: fp32 [len(values) / P].

    A ring would round partial sums again on every hop. Instead, every rank sends each chunk to the rank that keeps it,
    which unpacks all of them and adds in fp32. A rank sends P - 1 messages of one chunk each. Raises `ValueError` if
    `values` don't divide among the ranks.
    """
    world_size = dist.get_world_size(group)
    return _hop(_rows(values, world_size), pairwise.all_to_all(world_size), bits, block, group)


def reduce_scatter_in_two(
    values: torch.Tensor,
    ranks_per_node: int,
    bits: int = 4,
    block: int = BLOCK,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Run `reduce_scatter` in two hops: in the node, then across nodes.

    Only the node's sum goes across, and it is rounded again for that. Ranks are numbered
    node by node. With N nodes of L ranks, a rank sends L - 1 messages of S/L in the node,
    and N - 1 messages of S/P across nodes.
    """
    world_size = dist.get_world_size(group)
    in_node, across = two_hops(world_size, ranks_per_node)
    # [node, place, ...], then a row per place in a node: its ranks' chunks on all nodes
    chunks = _rows(values, world_size).unflatten(0, (-1, ranks_per_node))
    by_place = chunks.transpose(0, 1).flatten(1)
    of_node = _hop(by_place, in_node, bits, block, group)
    return _hop(_rows(of_node, world_size // ranks_per_node), across, bits, block, group)


def two_hops(world_size: int, ranks_per_node: int) -> tuple[Schedule, Schedule]:
    """Return an all-to-all within every node, of L chunks, and one across nodes per place in a node, of N chunks.

    Raises `ValueError` if the ranks don't fill nodes of `ranks_per_node`.
    """
    if ranks_per_node < 1 or world_size % ranks_per_node:
        raise ValueError(f"{world_size} ranks do not fill nodes of {ranks_per_node}")
    nodes = np.arange(world_size).reshape(-1, ranks_per_node)
    in_node, across = (side_by_side(pairwise.all_to_all(groups.shape[1]), groups) for groups in (nodes, nodes.T))
    return in_node, across


def _rows(values: torch.Tensor, count: int) -> torch.Tensor:
    if len(values) % count:
        raise ValueError(f"{len(values)} numbers do not divide among {count} ranks: pad them")
    return values.view(count, -1)


def _hop(
    rows: torch.Tensor, all_to_all: Schedule, bits: int, block: int, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Round each row, send it to its rank, and return the sum of the arriving rows. A single rank rounds nothing."""
    if len(rows) == 1:
        return rows[0].float()
    messages = pack(rows, bits, block)
    execute(all_to_all, messages.view(-1), group)
    return unpack(messages, rows.shape[1], bits, block).sum(dim=0)


def _steps(rows: torch.Tensor, bits: int, block: int) -> torch.Tensor:
    """Return the step of each block: fp32 [rows, blocks], 0 for a block of zeros."""
    _check(bits, block)
    padded = torch.nn.functional.pad(rows.float(), (0, -rows.shape[1] % block))
    return padded.unflatten(1, (-1, block)).abs().amax(dim=2) / _largest(bits)


def _per_number(steps: torch.Tensor, num_elements: int, block: int) -> torch.Tensor:
    return steps.repeat_interleave(block, dim=1)[:, :num_elements]


def _largest(bits: int) -> int:
    """Return the largest code: 127 for 8 bits, 7 for 4."""
    return 2 ** (bits - 1) - 1


def _check(bits: int, block: int) -> None:
    if bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, not {bits}")
    if block < 1:
        raise ValueError(f"a block must hold at least 1 number, not {block}")

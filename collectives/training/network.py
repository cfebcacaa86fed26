"""The time of collectives in groups of a mesh: rings in each node, then rings across nodes, by alpha and beta.

`ClosedForm` is the seam between `costs` and a network model: it has the two collectives that layouts use.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..formula import minimum, where
from ..topology import Link
from .models import Machine


def near(machine: Machine, inner, size):
    """Return how many ranks of a group of `size` share a node, if they are `inner` ranks apart.

    Groups that don't fit nodes evenly (12 ranks, nodes of 8) count as if all their links crossed nodes.
    """
    room = where(machine.gpus_per_node % inner == 0, machine.gpus_per_node // inner, 1)
    even = (size % room) * (room % size) == 0  # one divides the other
    return where(even, minimum(size, room), 1)


def around(machine: Machine, inner, size, num_bytes):
    """Return the seconds for a buffer to go around a group once, as in a reduce-scatter or an all-gather.

    It goes around rings in the node first, then across nodes, where each local rank has a ring for its own part.
    """
    in_node = near(machine, inner, size)
    return ring(in_node, num_bytes, machine.inside) + ring(size / in_node, num_bytes / in_node, machine.between)


def ring(size, num_bytes, link: Link):
    """Return the seconds for a buffer to go around `size` ranks once: P - 1 steps of 1/P of the buffer."""
    return (size - 1) * (link.alpha + num_bytes / size * link.beta)


def all_to_all(machine: Machine, inner, size, num_bytes):
    """Return the seconds of P - 1 swaps of 1/P of a rank's buffer, first within the node, then across."""
    in_node, part = near(machine, inner, size), num_bytes / size
    swap_inside, swap_between = (link.alpha + part * link.beta for link in (machine.inside, machine.between))
    return (in_node - 1) * swap_inside + (size - in_node) * swap_between


@dataclass(frozen=True)
class ClosedForm:
    """The time of collectives on `machine`, by formula. `planner.Simulated` prices their schedules instead."""

    machine: Machine

    def around(self, inner, size, num_bytes):
        """Return the seconds for a buffer to go around a group once: see `around`."""
        return around(self.machine, inner, size, num_bytes)

    def all_to_all(self, inner, size, num_bytes):
        """Return the seconds of an all-to-all: see `all_to_all`."""
        return all_to_all(self.machine, inner, size, num_bytes)

    def dispatch(self, inner, size, num_bytes, copies, node_limit=0):
        """Return the seconds (in the node, across nodes) to send tokens to experts, spread evenly over `size` ranks.

        `num_bytes`: of a rank's tokens, once. `copies`: experts a token visits. A token goes to a rank once, however
        many of its experts are there, and to a node once: from there it goes on over the node's own links (DeepEP).
        `node_limit`: routing picks experts on at most so many nodes; 0 for any number.
        """
        in_node = near(self.machine, inner, size)
        nodes = size / in_node
        inside = self.all_to_all(inner, in_node, num_bytes * minimum(copies, distinct(size, copies)))
        reached = distinct(nodes, copies)
        reached = minimum(reached, node_limit) if node_limit else reached
        return inside, self.all_to_all(inner * in_node, nodes, num_bytes * reached)


def distinct(places, draws):
    """Return how many of `places` are expected among so many even draws."""
    return places * (1 - (1 - 1 / places) ** draws)

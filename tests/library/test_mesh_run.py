"""Torch's own TP x FSDP2 and HSDP on a 2x2 mesh: the dense model's numbers, by the calls that the library predicts."""

import pytest
import torch

from collectives import ranks
from collectives.training import fsdp, mesh_run
from collectives.training.mesh import Mesh, by_axis, sends
from collectives.training.mesh_run import TOKENS, WIDTH

pytestmark = pytest.mark.ranks

DEPTH = 2
MESHES = {
    "TP x FSDP": Mesh(dp=2, tp=2),
    "HSDP": Mesh(replicate=2, shard=2),
    "swapped": Mesh(tp=2, dp=2),
}
LAYER = 12 * WIDTH**2 + 7 * WIDTH  # weights and biases that tensor parallelism cuts
NORMS = 4 * WIDTH


def prepared(mesh):
    return mesh_run.parallelize(mesh_run.dense_model(DEPTH), mesh)


def trained(mesh):
    """What a step calls, in which order, and how far its losses and gradients are off the dense model's."""
    model, dense = prepared(mesh), mesh_run.dense_model(DEPTH)
    places = mesh_run.parallelize(mesh_run.numbered(mesh_run.dense_model(DEPTH)), mesh)
    with mesh_run.PerAxis(mesh) as seen:
        loss = mesh_run.step(model, mesh)
    wanted = mesh_run.dense_step(dense, mesh)[torch.distributed.get_rank()]
    gradients = mesh_run.off(model, dense, places)
    for each in (model, dense):
        torch.optim.SGD(each.parameters(), lr=0.1).step()
    again = mesh_run.step(model, mesh) - mesh_run.dense_step(dense, mesh)[torch.distributed.get_rank()]
    return seen.calls, seen.events, [loss - wanted, gradients, again]


def on_four(rank, world_size):
    found = {name: trained(mesh) for name, mesh in MESHES.items()}
    mesh = MESHES["TP x FSDP"]
    numbered = mesh_run.parallelize(mesh_run.numbered(mesh_run.dense_model(1)), mesh)
    model = fsdp.prefetch(prepared(mesh), on=True)
    with mesh_run.PerAxis(mesh) as ahead:
        mesh_run.step(model, mesh)
    with mesh_run.PerAxis(mesh) as others:
        torch.distributed.all_reduce(torch.zeros(1))
        torch.distributed.barrier()
    with pytest.raises(ValueError, match="2 heads do not divide among 4 tensor-parallel ranks"):
        mesh_run.parallelize(mesh_run.dense_model(1, heads=2), Mesh(tp=4))
    return found, mesh_run.held(numbered), ahead.events, others.calls


@pytest.fixture(scope="module")
def found():
    ranks.preload(*fsdp.IMPORTS)
    return ranks.run(on_four, 4, timeout=180)


@pytest.mark.parametrize("name", ["TP x FSDP", "HSDP", "swapped"])
def test_losses_and_gradients_are_the_dense_models_before_and_after_an_update(found, name):
    for rank, _, _, _ in found:
        assert all(abs(difference) < 1e-12 for difference in rank[name][2])


@pytest.mark.parametrize("name", ["TP x FSDP", "HSDP", "swapped"])
def test_every_axis_is_called_as_often_and_with_as_many_bytes_as_predicted(found, name):
    predicted = sends(MESHES[name], DEPTH, WIDTH, TOKENS, LAYER + NORMS, NORMS, itemsize=8)
    for rank, _, _, _ in found:
        assert rank[name][0] == by_axis(predicted)


def test_a_step_happens_in_this_order(found):
    gather, total, scatter = "all_gather (dp)", "all_reduce (tp)", "reduce_scatter (dp)"
    forward, backward = (["forward", total] * 2, ["backward", total] * 2)
    both_ways = [gather, *forward, gather, *forward, gather, gather, *backward, scatter, *backward, scatter]
    early = [gather, gather, *forward, *forward, gather, gather, *backward, scatter, *backward, scatter]
    for rank, _, ahead, _ in found:
        assert [str(event) for event in rank["TP x FSDP"][1]] == both_ways
        assert [str(event) for event in ahead] == early


def test_every_weight_is_cut_twice_and_every_element_is_on_one_rank(found):
    """Columns of a product are rows of torch's weight: first matrices are cut by rows twice, second ones by both."""
    held = [{each.name: each for each in rank[1]} for rank in found]
    first, second = "0.halves.1.first.0.weight", "0.halves.1.second.weight"
    assert [each[first].rows for each in held] == [(0, 15), (32, 47), (16, 31), (48, 63)]
    assert [each[second].rows for each in held] == [(0, 7), (0, 7), (8, 15), (8, 15)]
    assert [each[second].columns for each in held] == [(0, 31), (32, 63)] * 2
    assert held[0][first].placements == {"dp": "_StridedShard(dim=0, sf=2)", "tp": "Shard(dim=0)"}
    assert held[0][second].placements == {"dp": "Shard(dim=0)", "tp": "Shard(dim=1)"}
    norm = [each["0.norms.0.weight"] for each in held]
    assert all(each.placements == {"dp": "Shard(dim=0)"} for each in norm)
    assert [each.rows for each in norm] == [(0, 7), (0, 7), (8, 15), (8, 15)]
    for name in held[0]:
        copies = 2 if "norms" in name else 1  # tensor parallelism leaves a norm whole
        elements = sum(torch.Size(each[name].local_shape).numel() for each in held)
        assert elements == copies * torch.Size(held[0][name].shape).numel()


def test_a_group_of_no_axis_is_called_by_its_ranks(found):
    for _, _, _, others in found:
        assert others["0, 1, 2, 3", "all_reduce"] == (1, 4)
        assert others["0, 1, 2, 3", "barrier"][0] == 1


def counted(rank, world_size):
    mesh = Mesh(tp=world_size)
    model = prepared(mesh)
    with mesh_run.PerAxis(mesh) as seen:
        loss = mesh_run.step(model, mesh)
    return seen.calls, loss - mesh_run.dense_step(mesh_run.dense_model(DEPTH), mesh)[rank]


def test_without_data_axes_there_are_the_sums_of_tensor_parallelism_alone():
    for calls, difference in ranks.run(counted, 2, timeout=60):
        assert calls == by_axis(sends(Mesh(tp=2), DEPTH, WIDTH, TOKENS, itemsize=8))
        assert abs(difference) < 1e-12


def test_an_axis_that_nothing_cuts_along_is_refused():
    with pytest.raises(ValueError, match=r"can't cut a model along pp of Mesh\(pp=2, tp=2\)"):
        mesh_run.parallelize(mesh_run.dense_model(), Mesh(pp=2, tp=2))

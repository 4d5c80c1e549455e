"""FSDP2 with a reduce-scatter that sends fewer bytes."""

import brigade
import brigade.fsdp
import pytest
import torch
import torch.distributed as dist
from models import rows
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def sharded(mesh=None):
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(32, 67), torch.nn.Tanh(), torch.nn.Linear(67, 9))
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def train(net, steps):
    """Returns the loss of every step, over all ranks."""
    torch.manual_seed(8)
    wanted = torch.randn(32, 9)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    losses = []
    for number in range(steps):
        data = rows(number, count=8)
        loss = (net(data) - torch.tanh(data @ wanted)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    means = torch.stack(losses)
    dist.all_reduce(means)
    return means / dist.get_world_size()


def first_gradients(net):
    net(rows(count=8)).square().mean().backward()
    return torch.cat([parameter.grad.full_tensor().flatten() for parameter in net.parameters()])


def gradients_and_bytes(name, tolerance, most, shape):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape):])
    exact = first_gradients(sharded(mesh))
    net = sharded(mesh)
    comms = brigade.fsdp.set_reduce_scatter(net, name)
    found = first_gradients(net)
    assert ((found - exact).norm() / exact.norm()).item() < tolerance
    sent, before = sum(each.bytes_sent for each in comms), sum(each.bytes_before for each in comms)
    assert 0 < sent <= most * before, sent / before


def test_gradients_are_the_mean_in_fewer_bytes(ranks):
    # Small shards are padded to blocks, so bytes here are not those of large layers.
    for name, tolerance, most in (("fp16", 1e-3, 0.5), ("bf16", 8e-3, 0.5), ("int8", 2e-2, 0.35),
                                  ("quantize_per_channel", 2e-2, 0.5), ("quantize_per_tensor", 3e-2, 0.3)):
        ranks(2, gradients_and_bytes, name, tolerance, most, (2,))
    for name, tolerance, most in (("int8", 3e-2, 0.45), ("fp16", 1e-3, 0.51)):
        ranks(4, gradients_and_bytes, name, tolerance, most, (2, 2))
        ranks(2, gradients_and_bytes, name, tolerance, most, (2, 1))


def replicas(shape):
    """With HSDP: returns whether all replicas have the same gradients, to the bit, with another codec between them, or none."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))
    net = sharded(mesh)
    sent = {}
    for between in ("fp16", "exact", "int8", None):
        net.zero_grad()
        comms = brigade.fsdp.set_reduce_scatter(net, "int8", all_reduce=between)
        found = first_gradients(net)
        sent[between] = sum(each.bytes_sent for each in comms)
        others = [torch.empty_like(found) for _ in range(mesh["replicas"].size())]
        dist.all_gather(others, found, group=mesh.get_group("replicas"))
        assert all(torch.equal(found, each) for each in others), between
    return sent


def test_replicas_average_in_fewer_bytes_and_stay_equal(ranks):
    for shape in ((2, 2), (3, 1)):
        for sent in ranks(shape[0] * shape[1], replicas, shape):
            assert sent["exact"] < sent["int8"] == sent[None] < sent["fp16"], sent


def trains_alike():
    exact = train(sharded(), 300)
    for shape, steps in (((2,), 300), ((2, 1), 100)):
        net = sharded(init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape):]))
        brigade.fsdp.set_reduce_scatter(net, "int8")
        found, wanted = train(net, steps)[-20:].mean(), exact[:steps][-20:].mean()
        assert abs(found - wanted) < 0.01 * wanted, (shape, found, wanted)


def error_of_the_mean(steps):
    """The error of the mean of the same gradients, sent again and again."""
    exact = first_gradients(sharded())
    net = sharded()
    brigade.fsdp.set_reduce_scatter(net, "int8")
    total = torch.zeros_like(exact)
    for _ in range(steps):
        net.zero_grad()
        total += first_gradients(net)
    return ((total / steps - exact).norm() / exact.norm()).item()


def test_int8_with_error_feedback_trains_as_exact_sums_do(ranks):
    ranks(2, trains_alike)
    # Each step brings what the previous one lost.
    once, often = (ranks(2, error_of_the_mean, steps)[0] for steps in (1, 20))
    assert 0 < often < 0.1 * once, (once, often)


def bytes_of_a_large_layer():
    for shape in ((2,), (2, 1)):
        net = torch.nn.Linear(512, 256, bias=False)
        fully_shard(net, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape):]))
        comm, = brigade.fsdp.set_reduce_scatter(net, "int8")
        net(torch.ones(2, 512)).sum().backward()
        assert 0 < comm.bytes_sent <= 0.27 * comm.bytes_before


def wrong_use():
    with pytest.raises(brigade.ConfigError, match="no module of this model is sharded"):
        brigade.fsdp.set_reduce_scatter(torch.nn.Linear(2, 2), "int8")
    with pytest.raises(brigade.ConfigError, match="no codec named 'int9'; known: fp16"):
        brigade.fsdp.set_reduce_scatter(sharded(), "int9")
    with pytest.raises(brigade.ConfigError, match="no codec named 'int9'; known: fp16"):
        brigade.fsdp.set_reduce_scatter(sharded(), "int8", all_reduce="int9")
    net = sharded()
    brigade.fsdp.set_reduce_scatter(net, "int8" if dist.get_rank() == 0 else "fp16")
    with pytest.raises(brigade.MismatchError, match="'fp16' on ranks 1\n  'int8' on ranks 0"):
        net(rows()).sum().backward()
    net = sharded(init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards")))
    brigade.fsdp.set_reduce_scatter(net, "int8", all_reduce="int8" if dist.get_rank() == 0 else "fp16")
    with pytest.raises(brigade.MismatchError, match="'int8' on ranks 0\n  'int8, all-reduce fp16' on ranks 1"):
        net(rows()).sum().backward()


def test_int8_sends_a_quarter_and_wrong_use_is_told(ranks):
    ranks(2, bytes_of_a_large_layer)
    ranks(2, wrong_use)

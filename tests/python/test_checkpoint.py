"""Checkpoints from Python: states come back unchanged, torn files are detected."""

import pathlib

import brigade
import pytest
import torch
import torch.distributed as dist
from models import rows, small_net, step, wrap


def there_and_back(folder):
    rank = dist.get_rank()
    state = {"a.b": torch.arange(3), "a": {"b": torch.ones(2, dtype=torch.bfloat16), 0: None, "0": True},
             "list": [1, 2.5, "text", (3, torch.zeros(0)), []], "inf": float("inf"), "empty": {}}
    brigade.save_checkpoint(folder, 12, {"state": state, "plain": torch.ones(1)}, {"own": {"rank": rank}})
    found = brigade.load_checkpoint(folder, ["state", "plain"], ["own"])
    assert found.step == 12 and found.states["own"] == {"rank": rank} and torch.equal(found.states["plain"], torch.ones(1))
    loaded = found.states["state"]
    assert torch.equal(loaded["a.b"], state["a.b"]) and torch.equal(loaded["a"]["b"], state["a"]["b"])
    assert loaded["a"]["b"].dtype == torch.bfloat16
    assert loaded["a"][0] is None and loaded["a"]["0"] is True and loaded["inf"] == float("inf") and loaded["empty"] == {}
    assert loaded["list"][:3] == [1, 2.5, "text"] and loaded["list"][3][0] == 3 and loaded["list"][4] == []
    assert isinstance(loaded["list"][3], tuple)
    with pytest.raises(brigade.ConfigError, match="'state.x' is a object, which a checkpoint can't hold"):
        brigade.save_checkpoint(folder, 1, {"model": {"state": {"x": object()}}})
    with pytest.raises(brigade.CheckpointError, match="has no part 'other'"):
        brigade.load_checkpoint(folder, ["other"])
    assert brigade.load_checkpoint(folder + "/nothing", ["state"]) is None
    # A group of another size gets every rank's state.
    alone = [dist.new_group([each]) for each in range(dist.get_world_size())][rank]
    found = brigade.load_checkpoint(folder, [], ["own"], process_group=alone)
    assert found.states["own"] == [{"rank": each} for each in range(dist.get_world_size())]


def resumed(folder):
    """Saves and loads a model, its optimizer and its hook, as the page shows it, bit for bit."""
    def start():
        model = wrap(small_net(64, layers=1, bias=False), "one")
        brigade.set_hook(model, "int8")
        return model, torch.optim.AdamW(model.parameters(), 0.01)

    def go(model, optimizer, numbers):
        for number in numbers:
            step(model, rows(number, width=64))
            optimizer.step()

    model, optimizer = start()
    go(model, optimizer, range(3))
    brigade.save_checkpoint(folder, 3, {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()},
                            {"hook": brigade.state_dict(model)})
    go(model, optimizer, range(3, 6))
    other, optimizer = start()
    saved = brigade.load_checkpoint(folder, ["model", "optimizer"], ["hook"])
    other.module.load_state_dict(saved.states["model"])
    optimizer.load_state_dict(saved.states["optimizer"])
    brigade.load_state_dict(other, saved.states["hook"])
    go(other, optimizer, range(saved.step, 6))
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters()))


def test_states_come_back_as_they_were(ranks, tmp_path):
    for size in (2, 4):
        ranks(size, there_and_back, str(tmp_path / str(size)))
        ranks(size, resumed, str(tmp_path / f"run{size}"))


def torn(folder):
    with pytest.raises(brigade.CheckpointError, match="corrupt|truncated|checksum"):
        brigade.load_checkpoint(folder, ["state"])


def test_a_changed_byte_is_found(ranks, tmp_path):
    ranks(2, there_and_back, str(tmp_path))
    shared, = tmp_path.glob("*.shared*")
    content = bytearray(shared.read_bytes())
    content[-1] ^= 1
    shared.write_bytes(content)
    ranks(2, torn, str(tmp_path))


def test_files_are_those_of_safetensors(tmp_path):
    path = str(tmp_path / "some.safetensors")
    brigade.save_safetensors(pathlib.Path(path), {"weight": torch.eye(2)}, {"a": "b"})
    tensors, metadata = brigade.load_safetensors(path, checksums_required=True)
    assert torch.equal(tensors["weight"], torch.eye(2)) and metadata == {"a": "b"}
    theirs = pytest.importorskip("safetensors.torch")
    assert torch.equal(theirs.load_file(path)["weight"], torch.eye(2))
    theirs.save_file({"bias": torch.ones(3)}, path)
    assert torch.equal(brigade.load_safetensors(path)[0]["bias"], torch.ones(3))
    with pytest.raises(brigade.CheckpointError, match="checksum"):
        brigade.load_safetensors(path, checksums_required=True)


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(brigade.CheckpointError) as caught:
        brigade.load_safetensors(path)
    assert str(path) in str(caught.value)


def test_any_bit_that_changed_is_a_checkpoint_error_that_names_the_file(tmp_path):
    path = tmp_path / "some.safetensors"
    brigade.save_safetensors(path, {"weight": torch.eye(2)}, {"a": "b"})
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        refused(path, changed)
    path.unlink()
    path.mkdir()
    with pytest.raises(brigade.CheckpointError, match="a folder"):
        brigade.load_safetensors(path)


def test_bytes_that_are_not_utf8_are_quoted_in_errors():
    with pytest.raises(brigade.ConfigError, match=r"\\xff"):
        brigade.make_hook(b"\xff")

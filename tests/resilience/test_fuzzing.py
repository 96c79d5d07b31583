"""Files that are damaged or made to do harm are refused, and do nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ignite_ipu.checkpoints import CheckpointError, read_checkpoint, resume_from, write_checkpoint
from tests.resilience.fuzzing import checkpoint_with, fuzz


def test_files_from_an_untrusted_source():
    """No crash, no hang, no code, bounded memory; among thousands of damaged files and all the crafted ones."""
    outcomes = fuzz(1400)
    # A damaged one of these is no table, or remembers nothing.
    lenient = ("tables of IPUs", "remembered sizes")
    assert all(counts.get("refused", 0) > 20 for name, counts in outcomes.items() if name not in lenient)


@pytest.mark.parametrize(
    ("pickled", "reason"),
    [
        (b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.", "holds a os.system"),
        (b"\x80\x02})" + b"\x85" * 100_000 + b"Ns.", "neither strings nor numbers"),
        (b"\x80\x02]q\x00h\x00a.", "more than 64 levels"),
        (b"\x80\x02(", "holds no checkpoint"),
    ],
)
def test_what_a_refusal_says(tmp_path, pickled, reason):
    path = tmp_path / "a.pt"
    path.write_bytes(checkpoint_with(pickled))
    with pytest.raises(CheckpointError, match=reason):
        read_checkpoint(path)


def test_a_cut_file_is_never_taken_for_a_good_one(tmp_path):
    """At whatever length it is cut, and whichever bit is flipped in its weights."""
    path = tmp_path / "a.pt"
    write_checkpoint(path, {"x": torch.arange(1000.0)})
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="not a complete checkpoint"):
            read_checkpoint(path)
    start = whole.index(torch.arange(1000.0).numpy().tobytes())
    for place in range(start, start + 4000, 171):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match="Bad CRC"):
            read_checkpoint(path)


def test_a_checkpoint_of_another_model_says_what_differs(tmp_path):
    """Keys and shapes are named, for the optimizer too, and nothing is overwritten."""
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    write_checkpoint(tmp_path / "a_1.pt", {"model": other.state_dict(), "sgd": {"state": {}, "param_groups": []}})
    model = nn.Sequential(nn.Linear(3, 5))
    before = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CheckpointError) as error:
        resume_from(tmp_path, {"model": model, "sgd": optimizer, "scheduler": optimizer})
    for part in ("0.weight (4, 3) instead of (5, 3)", "1.running_mean", "groups of [] parameters instead of [2]"):
        assert part in str(error.value)
    assert "it has no 'scheduler'" in str(error.value)
    assert torch.equal(model[0].weight, before)

"""A program that is killed and started again ends with the weights of one that was not."""

from __future__ import annotations

import signal
from pathlib import Path

import accelerate.utils
import pytest
import torch

from tests.accelerate_state import forget

if not hasattr(accelerate.utils, "DataLoaderConfiguration"):
    pytest.skip("accelerate 0.30 brought the configuration of loaders", allow_module_level=True)

from tests.accelerator import checkpointing_script
from tests.processes import Processes
from tests.scripts import Scripts


def same_files(one: Path, other: Path) -> None:
    expected, found = torch.load(one, weights_only=True), torch.load(other, weights_only=True)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_a_killed_program_continues_to_the_same_bits(tmp_path: Path, scripts: Scripts, processes: Processes) -> None:
    """In the middle of an epoch: shuffling, dropout, moments, schedule and accumulation go on in another process."""
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    words = ["-m", checkpointing_script.__name__, "--checkpointing_steps", "4", "--output_dir", str(parted)]
    with processes.start(words, cwd=Path(__file__).parents[2]) as program:
        # Meanwhile, the run that nothing happens to.
        checkpointing_script.main(["--checkpointing_steps", "4", "--output_dir", str(whole)])
        assert "saved step_16\n" in iter(program.line, "")
        program.send_signal(signal.SIGKILL)
    (parted / "final.bin").unlink(missing_ok=True)
    state = str(parted / "step_16")
    again = ["--checkpointing_steps", "4", "--output_dir", str(parted), "--resume_from_checkpoint", state]
    resumed = scripts.run(Path(checkpointing_script.__file__), "emulator", *again)
    assert resumed.error == ""
    assert resumed.output.split()[1::2] == [f"step_{number}" for number in range(20, 37, 4)]
    same_files(whole / "final.bin", parted / "final.bin")


def test_a_state_of_every_epoch(tmp_path: Path) -> None:
    """A state saved at the end of an epoch begins the next one."""
    checkpointing_script.main(["--checkpointing_steps", "epoch", "--output_dir", str(tmp_path)])
    final = tmp_path / "final.bin"
    final.rename(tmp_path / "whole.bin")
    forget()
    state = str(tmp_path / "epoch_0")
    again = ["--checkpointing_steps", "epoch", "--output_dir", str(tmp_path), "--resume_from_checkpoint", state]
    checkpointing_script.main(again)
    same_files(tmp_path / "whole.bin", final)

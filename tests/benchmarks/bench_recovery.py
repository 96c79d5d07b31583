"""What `Recovery` costs: training with snapshots at several cadences, against training without.

Run `python -m tests.benchmarks.bench_recovery`. The overhead is what a call takes longer, all things included.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from typing import List, Optional

import torch
from torch import nn

from ignite_ipu import create_ipu_trainer
from ignite_ipu.handlers import Recovery


def seconds_per_call(every: Optional[int], width: int, calls: int) -> List[float]:
    """Return the seconds per call and per snapshot; no snapshots for None."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    trainer = create_ipu_trainer(model, torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss())
    batches = [(torch.randn(32, width), torch.randint(0, 10, (32,))) for _ in range(4)] * (calls // 4)
    snapshot = 0.0
    with tempfile.TemporaryDirectory() as folder:
        recovery = None if every is None else Recovery(folder, every=every)
        if recovery is not None:
            recovery.attach(trainer)
        trainer.run(batches[:8])
        started = time.perf_counter()
        trainer.run(batches)
        passed = time.perf_counter() - started
        if recovery is not None:
            snapshot = recovery.status.snapshot_seconds / recovery.status.snapshots
    trainer.ipu.close()
    return [passed / len(batches), snapshot]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512, help="of the layers")
    parser.add_argument("--calls", type=int, default=120, help="device calls per row")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median is shown")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    print(f"{'every':>8}{'ms per call':>14}{'overhead':>10}{'ms per snapshot':>18}")
    base = 0.0
    for every in (None, 100, 50, 10, 1):
        found = [seconds_per_call(every, arguments.width, arguments.calls) for _ in range(arguments.rounds)]
        call, snapshot = (statistics.median(column) for column in zip(*found))
        base = base or call
        print(f"{every or 'never':>8}{call * 1e3:14.2f}{call / base - 1:10.0%}{snapshot * 1e3:18.2f}")


if __name__ == "__main__":
    main()

"""A program that saves its state every epoch or every so many steps, and continues from such a state.

Its options and the names of its folders are those that scripts for accelerate have by convention.
"""

from __future__ import annotations

import argparse
import os
from typing import List, Optional

import torch
import torch.nn.functional as F
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import IPUAccelerator

EPOCHS = 3
X = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def main(arguments: Optional[List[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpointing_steps", help="'epoch', or a number of steps")
    parser.add_argument("--resume_from_checkpoint", help="folder that holds a state")
    parser.add_argument("--output_dir", default=".")
    args = parser.parse_args(arguments)

    accelerator = IPUAccelerator(
        gradient_accumulation_steps=2,
        seed=4,
        project_dir=args.output_dir,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    set_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * 6 + 1)
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    overall_step = first_epoch = first_step = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        kind, number = os.path.basename(args.resume_from_checkpoint).split("_")
        overall_step = int(number) if kind == "step" else (int(number) + 1) * len(loader)
        first_epoch, first_step = divmod(overall_step, len(loader))

    for epoch in range(first_epoch, EPOCHS):
        model.train()
        loader.set_epoch(epoch)
        batches = loader
        if epoch == first_epoch and first_step:
            batches = accelerator.skip_first_batches(loader, first_step)
        for x, y in batches:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            overall_step += 1
            if args.checkpointing_steps != "epoch" and overall_step % int(args.checkpointing_steps) == 0:
                accelerator.save_state(os.path.join(args.output_dir, f"step_{overall_step}"))
                print("saved", f"step_{overall_step}", flush=True)
        if args.checkpointing_steps == "epoch":
            accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))
            print("saved", f"epoch_{epoch}", flush=True)
    accelerator.save(accelerator.get_state_dict(model), os.path.join(args.output_dir, "final.bin"))
    accelerator.end_training()


if __name__ == "__main__":
    main()

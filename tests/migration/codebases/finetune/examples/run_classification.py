import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from accelerate.utils import set_seed
from library import AccelerateTrainer, Classifier, TrainerConfig
from torch.utils.data import DataLoader


def make(count, seed):
    generator = torch.Generator().manual_seed(seed)
    found = []
    for index in range(count):
        label = index % 2
        length = int(torch.randint(3, 7, (1,), generator=generator))
        words = torch.randint(1, 16, (length,), generator=generator) + 15 * label
        found.append({"words": words.tolist(), "label": label})
    return found


def collate(samples, length=6):
    ids = [sample["words"] + [0] * (length - len(sample["words"])) for sample in samples]
    mask = [[1] * len(sample["words"]) + [0] * (length - len(sample["words"])) for sample in samples]
    labels = [sample["label"] for sample in samples]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


def main():
    set_seed(5)
    train_loader = DataLoader(make(64, 0), batch_size=8, shuffle=True, collate_fn=collate)
    eval_loader = DataLoader(make(20, 1), batch_size=8, collate_fn=collate)
    trainer = AccelerateTrainer(Classifier(), TrainerConfig(), train_loader, eval_loader)
    losses = trainer.train()
    print("RESULT", json.dumps({"losses": losses, "accuracy": trainer.evaluate()}))


if __name__ == "__main__":
    main()

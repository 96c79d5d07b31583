from dataclasses import dataclass

import torch
from accelerate import Accelerator


@dataclass
class TrainerConfig:
    lr: float = 1e-2
    epochs: int = 3
    gradient_accumulation_steps: int = 2
    max_grad_norm: float = 1.0


class AccelerateTrainer:
    def __init__(self, model, config, train_loader, eval_loader):
        self.config = config
        self.accelerator = Accelerator(gradient_accumulation_steps=config.gradient_accumulation_steps)
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
        self.model, self.optimizer, self.train_loader, self.eval_loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, train_loader, eval_loader, scheduler
        )

    def train(self):
        losses = []
        for _ in range(self.config.epochs):
            self.model.train()
            for batch in self.train_loader:
                with self.accelerator.accumulate(self.model):
                    loss = self.model(**batch)["loss"]
                    self.accelerator.backward(loss)
                    if self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
                losses.append(loss.detach())
        return [float(loss) for loss in losses]

    def evaluate(self):
        self.model.eval()
        right = total = 0
        for batch in self.eval_loader:
            with torch.no_grad():
                logits = self.model(batch["input_ids"], batch["attention_mask"])["logits"]
            predicted, labels = self.accelerator.gather_for_metrics((logits.argmax(-1), batch["labels"]))
            right += int((predicted == labels).sum())
            total += len(labels)
        return right / total

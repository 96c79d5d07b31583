"""A warm-up and a cosine, counted in weight updates, on device calls that make eight of them."""

from __future__ import annotations

import torch
from ignite.handlers import CosineAnnealingScheduler, create_lr_scheduler_with_warmup
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import CountEvents, create_ipu_trainer

EPOCHS, UPDATES_PER_CALL, BATCH = 6, 8, 16

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
loader = DataLoader(digits, batch_size=BATCH, shuffle=True)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), device_iterations=UPDATES_PER_CALL)

# Papers give schedules in optimizer steps; here one iteration is eight of them.
updates = len(digits) // (BATCH * UPDATES_PER_CALL) * UPDATES_PER_CALL * EPOCHS
cosine = CosineAnnealingScheduler(optimizer, "lr", 0.2, 0.0, cycle_size=updates - 49)
schedule = create_lr_scheduler_with_warmup(cosine, warmup_start_value=0.01, warmup_duration=50)
rates = []
trainer.add_event_handler(CountEvents.WEIGHT_UPDATE_STARTED, schedule)
trainer.add_event_handler(
    CountEvents.WEIGHT_UPDATE_COMPLETED(every=50), lambda: rates.append(optimizer.param_groups[0]["lr"])
)
trainer.run(loader, max_epochs=EPOCHS)

state = trainer.state
print(f"{state.iteration} device calls, {state.weight_updates} weight updates, loss {state.output:.4f}")
print("learning rate every 50 updates:", " ".join(f"{rate:.3f}" for rate in rates))
assert trainer.state.weight_updates == updates
assert optimizer.param_groups[0]["lr"] < 1e-3
assert trainer.state.output < 0.05

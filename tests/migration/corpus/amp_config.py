"""A training with a configuration: precision, clipping, and weight decay for matrices alone."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {"amp": True, "clip": 1.0, "lr": 0.01, "epochs": 2}


def make_optimizer(model):
    decayed, others = [], []
    for parameter in model.parameters():
        (decayed if parameter.ndim > 1 else others).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=CONFIG["lr"])


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    use_amp = CONFIG["amp"] and device.type == "cuda"
    features, labels = torch.randn(200, 8), torch.randint(3, (200,))
    loader = DataLoader(TensorDataset(features, labels), batch_size=32, shuffle=True)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).to(device)
    optimizer = make_optimizer(net)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=CONFIG["epochs"] * len(loader))
    scaler = torch.cuda.amp.GradScaler(enabled=use_amp)
    losses = []
    for epoch in range(CONFIG["epochs"]):
        net.train()
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device_type=device.type, enabled=use_amp):
                loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
            scaler.scale(loss).backward()
            if CONFIG["clip"]:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), CONFIG["clip"])
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            losses.append(loss.item())
    print("RESULT", json.dumps({"losses": losses}))


main()

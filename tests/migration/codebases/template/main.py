import argparse
import importlib
import json

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn

from data.points import get_loader
from utils import AverageMeter, read_settings, save_checkpoint
from utils.checkpoint import resume

parser = argparse.ArgumentParser()
parser.add_argument("--settings", default="settings.yaml")
parser.add_argument("--gpu", default=None, type=int, help="train on this GPU alone")
parser.add_argument("--device", default=None)
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--resume", default="start.pth.tar")


def main():
    args = parser.parse_args()
    settings = read_settings(args.settings)
    torch.manual_seed(0)
    module = importlib.import_module(f"models.{settings['arch']}")
    model = module.Net(4, 3)
    if args.gpu is not None:
        torch.cuda.set_device(args.gpu)
        model = model.cuda(args.gpu)
    else:
        model = torch.nn.DataParallel(model).to(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=float(settings["lr"]))
    save_checkpoint({"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 0}, args.resume)
    start = resume(args.resume, model, optimizer)
    cudnn.benchmark = True
    loader = get_loader(70, 8)
    losses = []
    for epoch in range(start, args.epochs):
        losses += train(loader, model, criterion, optimizer, epoch, args)
        save_checkpoint(
            {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, "last.pth.tar"
        )
    print("RESULT", json.dumps({"losses": losses, "accuracy": validate(loader, model, args)}))


def train(loader, model, criterion, optimizer, epoch, args):
    meter, losses = AverageMeter(), []
    model.train()
    for i, (points, target) in enumerate(loader):
        if torch.cuda.is_available():
            points, target = points.cuda(args.gpu, non_blocking=True), target.cuda(args.gpu, non_blocking=True)
        output = model(points)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss.item(), points.size(0))
        losses.append(loss.item())
        if i % 5 == 0:
            print(f"epoch {epoch} {i}/{len(loader)} loss {meter.average:.4f}")
    return losses


def validate(loader, model, args):
    model.eval()
    right = 0
    with torch.no_grad():
        for points, target in loader:
            if torch.cuda.is_available():
                points, target = points.cuda(args.gpu), target.cuda(args.gpu)
            right += model(points).argmax(1).eq(target).sum().item()
    return right / len(loader.dataset)


if __name__ == "__main__":
    main()

"""Image classification on all GPUs there are, with meters, a learning rate by hand, the best checkpoint and resuming."""

import argparse
import json
import os
import shutil
import tempfile

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="Digits training")
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--start-epoch", default=0, type=int)
parser.add_argument("-b", "--batch-size", default=64, type=int)
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--weight-decay", default=1e-4, type=float)
parser.add_argument("-p", "--print-freq", default=10, type=int)
parser.add_argument("--resume", default="", type=str)
best_acc1 = 0
losses_seen = []


class AverageMeter(object):
    """Computes and stores the average and current value"""

    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return "{} {:.4f} ({:.4f})".format(self.name, self.val, self.avg)


def accuracy(output, target, topk=(1,)):
    """Computes the accuracy over the k top predictions for the specified values of k"""
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / batch_size) for k in topk]


def adjust_learning_rate(optimizer, epoch, args):
    """Sets the learning rate to the initial LR decayed by 10 every epoch"""
    lr = args.lr * (0.1**epoch)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr


def save_checkpoint(state, is_best, folder):
    torch.save(state, os.path.join(folder, "checkpoint.pth.tar"))
    if is_best:
        shutil.copyfile(os.path.join(folder, "checkpoint.pth.tar"), os.path.join(folder, "model_best.pth.tar"))


def train(train_loader, model, criterion, optimizer, epoch, device, args):
    losses, top1, top5 = AverageMeter("Loss"), AverageMeter("Acc@1"), AverageMeter("Acc@5")
    model.train()
    for i, (images, target) in enumerate(train_loader):
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0], images.size(0))
        top5.update(acc5[0], images.size(0))
        losses_seen.append(loss.item())

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % args.print_freq == 0:
            print("Epoch: [{}][{}/{}]".format(epoch, i, len(train_loader)), losses, top1, top5)


def validate(val_loader, model, criterion, device):
    top1 = AverageMeter("Acc@1")
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            output = model(images.to(device))
            acc1 = accuracy(output, target.to(device))[0]
            top1.update(acc1[0], images.size(0))
    return top1.avg


def main(args, folder):
    global best_acc1
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )
    model = torch.nn.DataParallel(model).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        args.start_epoch = checkpoint["epoch"]
        best_acc1 = checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    cudnn.benchmark = True
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train_loader = DataLoader(TensorDataset(images[:640], labels[:640]), batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(TensorDataset(images[640:896], labels[640:896]), batch_size=args.batch_size)
    for epoch in range(args.start_epoch, args.epochs):
        adjust_learning_rate(optimizer, epoch, args)
        train(train_loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(val_loader, model, criterion, device)
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        save_checkpoint(
            {
                "epoch": epoch + 1,
                "state_dict": model.state_dict(),
                "best_acc1": best_acc1,
                "optimizer": optimizer.state_dict(),
            },
            is_best,
            folder,
        )


if __name__ == "__main__":
    args = parser.parse_args([])
    with tempfile.TemporaryDirectory() as folder:
        main(args, folder)
        args.resume, args.epochs = os.path.join(folder, "checkpoint.pth.tar"), 3
        main(args, folder)
    print("RESULT", json.dumps({"losses": losses_seen[:30], "accuracy": float(best_acc1)}))

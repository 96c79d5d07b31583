import torch
from torch.nn import functional as F

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


class Loop:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = OPTIMIZERS[optimizer](model.parameters(), lr=0.02)

    def epoch(self, batches):
        self.model.train()
        total, count = 0.0, 0
        for x, y in batches:
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total, count = total + loss.item(), count + 1
        return total / count

    @torch.no_grad()
    def accuracy(self, batches):
        self.model.eval()
        hits = [(self.model(x.cuda()).argmax(1) == y.cuda()).float().mean() for x, y in batches]
        return torch.stack(hits).mean().item()

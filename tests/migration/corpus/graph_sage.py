"""GraphSAGE over a list of edges: messages added up in place by index_add_, masks for the nodes of training and validation."""

import json

import torch
import torch.nn as nn
import torch.nn.functional as F


class SAGEConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin_l, self.lin_r = nn.Linear(i, o), nn.Linear(i, o, bias=False)

    def forward(self, x, edge_index):
        src, dst = edge_index
        out = torch.zeros_like(x).index_add_(0, dst, x[src])
        deg = torch.zeros(x.size(0), device=x.device).scatter_add_(0, dst, torch.ones(dst.size(0), device=x.device))
        return self.lin_l(out / deg.clamp(min=1).unsqueeze(-1)) + self.lin_r(x)


class GNN(nn.Module):
    def __init__(self, i, h, o):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(i, h), SAGEConv(h, o)

    def forward(self, data):
        x, edge_index = data["x"], data["edge_index"]
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(x, p=0.0, training=self.training)
        return F.log_softmax(self.conv2(x, edge_index), dim=1)


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
N, C = 120, 3
labels = torch.arange(N) % C
x = F.one_hot(labels, C).float() + torch.randn(N, C)
ei = torch.randint(0, N, (2, 900))
ei = ei[:, (labels[ei[0]] == labels[ei[1]]) | (torch.rand(900) < 0.3)]
data = {"x": x.to(device), "edge_index": ei.to(device)}
labels = labels.to(device)
perm = torch.randperm(N)
train_mask, val_mask = torch.zeros(N, dtype=torch.bool), torch.zeros(N, dtype=torch.bool)
train_mask[perm[:40]] = True
val_mask[perm[40:]] = True
model = GNN(3, 16, C).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data)
    loss = F.nll_loss(out[train_mask], labels[train_mask])
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def test():
    model.eval()
    pred = model(data).argmax(dim=-1)
    return [int((pred[m] == labels[m]).sum()) / int(m.sum()) for m in (train_mask, val_mask)]


best, losses = 0, []
for epoch in range(1, 21):
    loss = train()
    tr, va = test()
    best = max(best, va)
    losses.append(loss)
    print(f"Epoch: {epoch:03d}, Loss: {loss:.6f}, Train: {tr:.4f}, Val: {va:.4f}")
print("RESULT", json.dumps({"losses": losses, "best": best}))

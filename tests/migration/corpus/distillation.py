"""Knowledge distillation: a teacher's logits are part of the student's loss."""

import json

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=64, shuffle=True)

teacher = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
student = nn.Linear(64, 10).to(device)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
T = 2.0

teacher.eval()
student.train()
for epoch in range(2):
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        with torch.no_grad():
            teacher_logits = teacher(inputs)
        optimizer.zero_grad()
        student_logits = student(inputs)
        soft = F.kl_div(
            F.log_softmax(student_logits / T, dim=-1), F.softmax(teacher_logits / T, dim=-1), reduction="batchmean"
        )
        loss = 0.1 * soft * T**2 + F.cross_entropy(student_logits, targets)
        loss.backward()
        optimizer.step()

print("RESULT", json.dumps({"loss": loss.item()}))

"""Fine-tuning a small BERT with the loop of the Hugging Face course."""
import json

import torch
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_scheduler

torch.manual_seed(0)
config = BertConfig(
    vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2,
)
model = BertForSequenceClassification(config)
ids = torch.randint(1, 60, (96, 10))
examples = [
    {"input_ids": row, "attention_mask": torch.ones(10, dtype=torch.long), "labels": (row[0] > 30).long()} for row in ids
]
train_dataloader = DataLoader(examples[:64], shuffle=True, batch_size=8)
eval_dataloader = DataLoader(examples[64:], batch_size=8)
optimizer = AdamW(model.parameters(), lr=5e-3)
num_epochs = 2
num_training_steps = num_epochs * len(train_dataloader)
lr_scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=2, num_training_steps=num_training_steps)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
model.to(device)
losses = []

model.train()
for epoch in range(num_epochs):
    for batch in train_dataloader:
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()

        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())

correct = 0
model.eval()
for batch in eval_dataloader:
    batch = {k: v.to(device) for k, v in batch.items()}
    with torch.no_grad():
        outputs = model(**batch)
    predictions = torch.argmax(outputs.logits, dim=-1)
    correct += (predictions == batch["labels"]).sum().item()
print("RESULT", json.dumps({"losses": losses, "accuracy": correct / 32}))

"""Fine-tune a BERT classifier of transformers on a GPU. It is made from a configuration, without a download."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, Dataset, random_split
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup
from ignite_ipu import host_device, ipu_clip_grad_norm_, ipu_prepare

WORDS, LENGTH, PAD, EPOCHS = 20, 8, 0, 3


class Sentences(Dataset):
    """Sentences of made-up words, padded to one length. The label is whether word 1 occurs in the sentence."""

    def __init__(self, count):
        draw = torch.Generator().manual_seed(0)
        words = torch.randint(2, WORDS, (count, LENGTH), generator=draw)
        lengths = torch.randint(4, LENGTH + 1, (count, 1), generator=draw)
        self.labels = torch.randint(0, 2, (count,), generator=draw)
        words[torch.arange(count), torch.randint(0, 4, (count,), generator=draw)] *= 1 - self.labels
        words[words == 0] = 1
        self.mask = (torch.arange(LENGTH) < lengths).long()
        self.words = words * self.mask + PAD * (1 - self.mask)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "attention_mask": self.mask[index], "labels": self.labels[index]}


def main():
    torch.manual_seed(0)
    device = host_device()
    train_set, test_set = random_split(Sentences(640), [512, 128], torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=32)

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    model = BertForSequenceClassification(config).to(device)
    # The positions stay as they are; biases and norms have no weight decay.
    model.bert.embeddings.position_embeddings.requires_grad_(False)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in trained if weight.dim() > 1], "weight_decay": 0.01},
        {"params": [weight for weight in trained if weight.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = ipu_prepare(torch.optim.AdamW(groups, lr=3e-3), model, config={"update": "auto"})
    updates = EPOCHS * len(train_loader)
    scheduler = get_linear_schedule_with_warmup(optimizer, updates // 10, updates)

    for epoch in range(EPOCHS):
        model.train()
        total = 0.0
        for batch in train_loader:
            batch = {name: value.to(device) for name, value in batch.items()}
            loss = model(**batch).loss
            loss.backward()
            ipu_clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            total += loss.item()

        model.eval()
        right = 0
        for batch in test_loader:
            batch = {name: value.to(device) for name, value in batch.items()}
            with torch.no_grad():
                logits = model(**batch).logits
            right += (logits.argmax(dim=-1) == batch["labels"]).sum().item()
        accuracy = right / len(test_set)
        print(f"epoch {epoch + 1}: loss {total / len(train_loader):.3f}, accuracy {accuracy:.1%}")

    if accuracy < 0.9:
        sys.exit("the model has not learnt")


if __name__ == "__main__":
    main()

"""A tiny GPT-2 from a configuration, without downloads: it learns to count in an Ignite trainer, and then generates.

It needs `pip install transformers`.
"""

from __future__ import annotations

import torch
import transformers
from ignite.engine import Events
from torch.utils.data import DataLoader, Dataset

from ignite_ipu import create_ipu_trainer

WORDS, LENGTH = 16, 8


class Counting(Dataset):
    """Sequences that count upwards from any word, and begin again behind the last."""

    def __len__(self):
        return 16 * WORDS

    def __getitem__(self, index):
        ids = (index + torch.arange(LENGTH)) % WORDS
        return {"input_ids": ids, "labels": ids}


torch.manual_seed(0)
config = transformers.GPT2Config(
    vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=None
)
model = transformers.GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
trainer = create_ipu_trainer(
    model,
    optimizer,
    lambda output, labels: output.loss,
    prepare_batch=lambda batch, device, non_blocking: (batch, batch["labels"]),
    model_fn=lambda model, batch: model(**batch),
    device_iterations=4,
)


@trainer.on(Events.EPOCH_COMPLETED)
def show():
    print(f"epoch {trainer.state.epoch}: loss {trainer.state.output:.3f}")


trainer.run(DataLoader(Counting(), batch_size=16, shuffle=True), max_epochs=6)
trainer.ipu.close()

# The weights are the newest; a model without a trainer runs on the host.
model.eval()
found = model.generate(torch.tensor([[3, 4], [14, 15]]), max_new_tokens=4, do_sample=False, pad_token_id=0)
print(found.tolist())
assert found.tolist() == [[3, 4, 5, 6, 7, 8], [14, 15, 0, 1, 2, 3]]

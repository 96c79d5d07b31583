"""The statements of a step become one call; comments between them stay."""

from __future__ import annotations

REWRITE = "training-steps"


def test_comments_and_order(rewritten):
    """zero_grad after the step, comments above and beside, readings in between."""
    before = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    # forward
    output = model(x)  # logits
    loss = criterion(output, y)
    # backward
    loss.backward()
    total += loss.item()
    optimizer.step()  # update
    optimizer.zero_grad()
    seen += 1
"""
    after = """\
import torch
from torch import nn
from ignite_ipu import ipu_train_batch
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    # forward
    # backward
    # update
    output, loss = ipu_train_batch(model, optimizer, criterion, x, target=y)  # logits
    total += loss.item()
    seen += 1
"""
    assert rewritten(REWRITE, before) == after


def test_outputs_that_are_not_kept(rewritten):
    """A nested forward binds its output to `_`."""
    before = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x, mask=m), y.long())
    loss.backward()
    optimizer.step()
"""
    after = """\
import torch
from torch import nn
from ignite_ipu import ipu_train_batch
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    _, loss = ipu_train_batch(model, optimizer, criterion, x, mask=m, target=y.long())
"""
    assert rewritten(REWRITE, before) == after


def test_refused_steps(rewritten):
    """A step that is not understood."""
    before = """\
import torch
from torch import nn
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
"""
    assert rewritten(REWRITE, before) == before


HEAD = """\
import torch
from transformers import AutoModel

model = AutoModel.from_pretrained("some/model")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
model.train()
for batch in loader:
"""
HEAD_AFTER = HEAD.replace("AutoModel\n\n", "AutoModel\nfrom ignite_ipu import ipu_train_batch\n\n", 1)


def test_models_that_return_their_loss(rewritten):
    """As Hugging Face's do, called with a dictionary."""
    before = """\
    optimizer.zero_grad()
    outputs = model(**batch)  # a dictionary
    loss = outputs.loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
"""
    after = """\
    outputs, loss = ipu_train_batch(model, optimizer, None, **batch, max_grad_norm=1.0)  # a dictionary
    scheduler.step()
"""
    assert rewritten(REWRITE, HEAD + before) == HEAD_AFTER + after


def test_losses_beside_the_output(rewritten):
    before = """\
    logits, loss = model(batch[0], batch[1])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
"""
    after = """\
    (logits, _), loss = ipu_train_batch(model, optimizer, None, batch[0], batch[1])
"""
    assert rewritten(REWRITE, HEAD + before) == HEAD_AFTER + after


def test_a_criterion_and_a_dictionary(rewritten):
    before = """\
    optimizer.zero_grad()
    loss = criterion(model(**batch["inputs"], mask=mask), batch["labels"])
    loss.backward()
    optimizer.step()
"""
    call = 'ipu_train_batch(model, optimizer, criterion, **batch["inputs"], mask=mask, target=batch["labels"])'
    assert rewritten(REWRITE, HEAD + before) == HEAD_AFTER + f"    _, loss = {call}\n"


def test_comments_inside_of_what_goes_away_stay(rewritten):
    """Those of arguments that are kept as they are written stay where they are."""
    before = """\
    optimizer.zero_grad()
    output = model(
        x,  # image
        torch.cat([y,  # first
                   y]),
    )  # forward
    loss = criterion(
        output,
        # labels
        y,
    )
    loss.backward()
    optimizer.step()
"""
    after = """\
    # image
    # labels
    output, loss = ipu_train_batch(model, optimizer, criterion, x, torch.cat([y,  # first
                   y]), target=y)  # forward
"""
    assert rewritten(REWRITE, HEAD + before) == HEAD_AFTER + after

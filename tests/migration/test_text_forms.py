"""One program in the forms that text files come in: the same findings, the same rewrite, everything else as it was."""

from __future__ import annotations

import codecs

import pytest

from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import decode_source

CODE = """\
import torch
from torch import nn

# na\u00efve
model = nn.Linear(4, 2).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(data, batch_size=8)
model.train()
for x, y in loader:
    # clear
    optimizer.zero_grad()
    a, b = model(x)
    penalty = b.mean()  # \u00e9
    loss = criterion(a, y) + penalty
    loss.backward()
    optimizer.step()
"""


def findings(data):
    return [(finding.line, finding.rule) for finding in check_source(decode_source("code.py", data))[0]]


def migrated(data):
    source = decode_source("code.py", data)
    result = migrate_source(source)
    assert not result.blocked, result.remarks
    new = source.encode(result.text)
    again = migrate_source(decode_source("code.py", new))
    assert again.text == result.text
    return new


PLAIN = migrated(CODE.encode())
FORMS = {
    "CR LF": (lambda text: text.replace("\n", "\r\n").encode(), lambda data: data.decode().replace("\r\n", "\n")),
    "CR": (lambda text: text.replace("\n", "\r").encode(), lambda data: data.decode().replace("\r", "\n")),
    "mixed": (lambda text: text.replace("\n", "\r\n", 6).encode(), lambda data: data.decode().replace("\r\n", "\n")),
    "byte order mark": (lambda text: codecs.BOM_UTF8 + text.encode(), lambda data: data.decode("utf-8-sig")),
    "tabs": (lambda text: text.replace("    ", "\t").encode(), lambda data: data.decode().replace("\t", "    ")),
    "form feeds": (
        lambda text: text.replace("criterion = nn", "\x0ccriterion = nn").encode(),
        lambda data: data.decode().replace("\x0c", ""),
    ),
    "line separators that are none": (
        lambda text: text.replace("na\u00ef", "na\x0b\x85\u2028").encode(),
        lambda data: data.decode().replace("na\x0b\x85\u2028", "na\u00ef"),
    ),
    "no last line end": (lambda text: text.rstrip("\n").encode(), lambda data: data.decode() + "\n"),
    "latin-1": (
        lambda text: ("# -*- coding: latin-1 -*-\n" + text).encode("latin-1"),
        lambda data: data.decode("latin-1").split("\n", 1)[1],
    ),
    "continued lines": (
        lambda text: text.replace("optimizer = torch", "optimizer = \\\n    torch").encode(),
        lambda data: data.decode().replace("optimizer = \\\n    ", "optimizer = "),
    ),
}
# Forms with a further line.
LONGER = {"latin-1", "continued lines"}


@pytest.mark.parametrize("form", FORMS)
def test_the_rewrite_is_the_same(form):
    make, undo = FORMS[form]
    assert undo(migrated(make(CODE))) == PLAIN.decode()


@pytest.mark.parametrize("form", [form for form in FORMS if form not in LONGER])
def test_the_findings_are_the_same(form):
    assert findings(FORMS[form][0](CODE)) == findings(CODE.encode())

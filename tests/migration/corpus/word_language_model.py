"""A word language model: an LSTM whose hidden state is carried over, or a transformer that makes its mask when it needs it."""

import json
import math
import time

import torch
import torch.nn as nn

torch.manual_seed(1111)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ntokens, bptt, log_interval, clip = 20, 8, 5, 0.25
corpus = torch.randint(0, ntokens, (8 * 97,)).cumsum(0) % ntokens


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    return data.view(bsz, -1).t().contiguous().to(device)


train_data = batchify(corpus, 8)


class RNNModel(nn.Module):
    """Container module with an encoder, a recurrent module, and a decoder."""

    def __init__(self, ntoken, ninp, nhid):
        super(RNNModel, self).__init__()
        self.ntoken = ntoken
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid = nhid

    def forward(self, input, hidden):
        emb = self.encoder(input)
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(output)
        return nn.functional.log_softmax(decoded.view(-1, self.ntoken), dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(1, bsz, self.nhid), weight.new_zeros(1, bsz, self.nhid))


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=100):
        super(PositionalEncoding, self).__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0).transpose(0, 1))

    def forward(self, x):
        return x + self.pe[: x.size(0), :]


class TransformerModel(nn.Module):
    def __init__(self, ntoken, ninp, nhead, nhid):
        super(TransformerModel, self).__init__()
        self.src_mask = None
        self.ninp = ninp
        self.pos_encoder = PositionalEncoding(ninp)
        self.input_emb = nn.Embedding(ntoken, ninp)
        self.layers = nn.ModuleList([Block(ninp, nhead, nhid)])
        self.decoder = nn.Linear(ninp, ntoken)

    def _generate_square_subsequent_mask(self, sz):
        return torch.log(torch.tril(torch.ones(sz, sz)))

    def forward(self, src, has_mask=True):
        if has_mask:
            if self.src_mask is None or self.src_mask.size(0) != len(src):
                self.src_mask = self._generate_square_subsequent_mask(len(src)).to(src.device)
        else:
            self.src_mask = None
        x = self.pos_encoder(self.input_emb(src) * math.sqrt(self.ninp))
        for layer in self.layers:
            x = layer(x, self.src_mask)
        return nn.functional.log_softmax(self.decoder(x), dim=-1).view(-1, self.decoder.out_features)


class Block(nn.Module):
    def __init__(self, ninp, nhead, nhid):
        super().__init__()
        self.attention = nn.MultiheadAttention(ninp, nhead)
        self.norm1, self.norm2 = nn.LayerNorm(ninp), nn.LayerNorm(ninp)
        self.feedforward = nn.Sequential(nn.Linear(ninp, nhid), nn.ReLU(), nn.Linear(nhid, ninp))

    def forward(self, x, mask):
        x = self.norm1(x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])
        return self.norm2(x + self.feedforward(x))


def repackage_hidden(h):
    """Wraps hidden states in new Tensors, to detach them from their history."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    else:
        return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def train(model, kind):
    model.train()
    total_loss, losses = 0.0, []
    start_time = time.time()
    criterion = nn.NLLLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    if kind != "Transformer":
        hidden = model.init_hidden(8)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, bptt)):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        if kind == "Transformer":
            output = model(data)
        else:
            hidden = repackage_hidden(hidden)
            output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        total_loss += loss.item()
        losses.append(loss.item())
        if batch % log_interval == 0 and batch > 0:
            cur_loss = total_loss / log_interval
            print("{:5d} batches | {:5.2f} s | ppl {:8.2f}".format(batch, time.time() - start_time, math.exp(cur_loss)))
            total_loss = 0
    return losses


results = {}
for kind in ("LSTM", "Transformer"):
    model = (TransformerModel(ntokens, 16, 2, 16) if kind == "Transformer" else RNNModel(ntokens, 16, 16)).to(device)
    results[kind] = train(model, kind)
print("RESULT", json.dumps(results))

"""Fine-tuning a language model on dialogues: padded histories, labels of -100, accumulation, a linear schedule, perplexity."""

import json
import math
import random

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler


class Args:
    per_gpu_train_batch_size = 4
    gradient_accumulation_steps = 4
    num_train_epochs = 2
    learning_rate = 5e-3
    weight_decay = 0.0
    adam_epsilon = 1e-8
    warmup_steps = 2
    max_grad_norm = 1.0
    block_size = 24
    seed = 42
    vocab = 30
    eos = 29


args = Args()
args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
args.n_gpu = torch.cuda.device_count()


def set_seed(args):
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    if args.n_gpu > 0:
        torch.cuda.manual_seed_all(args.seed)


class ConversationDataset(Dataset):
    def __init__(self, args, count):
        self.examples = []
        for _ in range(count):
            start = random.randrange(5)
            turns = [[(start + 3 * turn + word) % 29 for word in range(4)] + [args.eos] for turn in range(4)]
            self.examples.append([token for turn in turns for token in turn])

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, item):
        return torch.tensor(self.examples[item], dtype=torch.long)


class Decoder(nn.Module):
    def __init__(self, vocab, width=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(32, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.LayerNorm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def forward(self, input_ids, labels=None):
        length = input_ids.shape[1]
        causal = torch.triu(torch.full((length, length), -1e4, device=input_ids.device), diagonal=1)
        x = self.wte(input_ids) + self.wpe(torch.arange(length, device=input_ids.device))
        logits = self.lm_head(self.LayerNorm(self.block(x, src_mask=causal)))
        if labels is None:
            return (logits,)
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = labels[..., 1:].contiguous()
        loss_fct = nn.CrossEntropyLoss(ignore_index=-100)
        return loss_fct(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1)), logits


def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
    def lr_lambda(current_step):
        if current_step < num_warmup_steps:
            return float(current_step) / float(max(1, num_warmup_steps))
        return max(0.0, float(num_training_steps - current_step) / float(max(1, num_training_steps - num_warmup_steps)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)


def collate(examples):
    return pad_sequence(examples, batch_first=True, padding_value=args.eos)


def train(args, train_dataset, model):
    args.train_batch_size = args.per_gpu_train_batch_size * max(1, args.n_gpu)
    train_dataloader = DataLoader(
        train_dataset, sampler=RandomSampler(train_dataset), batch_size=args.train_batch_size, collate_fn=collate, drop_last=True
    )
    t_total = len(train_dataloader) // args.gradient_accumulation_steps * args.num_train_epochs
    model = model.module if hasattr(model, "module") else model
    no_decay = ["bias", "LayerNorm.weight"]
    optimizer_grouped_parameters = [
        {
            "params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
            "weight_decay": args.weight_decay,
        },
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(optimizer_grouped_parameters, lr=args.learning_rate, eps=args.adam_epsilon)
    scheduler = get_linear_schedule_with_warmup(optimizer, args.warmup_steps, t_total)
    global_step, tr_loss, history = 0, 0.0, []
    model.zero_grad()
    set_seed(args)
    for _ in range(int(args.num_train_epochs)):
        for step, batch in enumerate(train_dataloader):
            inputs, labels = (batch, batch)
            if inputs.shape[1] > 1024:
                continue
            inputs = inputs.to(args.device)
            labels = labels.to(args.device)
            model.train()
            outputs = model(inputs, labels=labels)
            loss = outputs[0]
            if args.n_gpu > 1:
                loss = loss.mean()
            if args.gradient_accumulation_steps > 1:
                loss = loss / args.gradient_accumulation_steps
            loss.backward()
            tr_loss += loss.item()
            history.append(loss.item())
            if (step + 1) % args.gradient_accumulation_steps == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                optimizer.step()
                scheduler.step()
                model.zero_grad()
                global_step += 1
    return global_step, tr_loss / global_step, history


def evaluate(args, model, eval_dataset):
    eval_dataloader = DataLoader(eval_dataset, sampler=SequentialSampler(eval_dataset), batch_size=8, collate_fn=collate)
    eval_loss, nb_eval_steps = 0.0, 0
    model.eval()
    for batch in eval_dataloader:
        inputs, labels = batch.to(args.device), batch.to(args.device)
        with torch.no_grad():
            lm_loss = model(inputs, labels=labels)[0]
            eval_loss += lm_loss.mean().item()
        nb_eval_steps += 1
    return math.exp(eval_loss / nb_eval_steps)


set_seed(args)
model = Decoder(args.vocab).to(args.device)
global_step, average, history = train(args, ConversationDataset(args, 48), model)
perplexity = evaluate(args, model, ConversationDataset(args, 16))
print("RESULT", json.dumps({"losses": history[:20], "perplexity": perplexity, "steps": global_step}))

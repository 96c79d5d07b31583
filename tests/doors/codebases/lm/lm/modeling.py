import dataclasses, math
from typing import Optional
import torch
import torch.nn.functional as F
from torch import nn
@dataclasses.dataclass
class GPTConfig:
    vocab: int = 11
    d: int = 8
    heads: int = 2
    layers: int = 2
    block: int = 8
@dataclasses.dataclass
class CausalLMOutput:
    loss: Optional[torch.Tensor] = None
    logits: torch.Tensor = None
class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(c.d), nn.LayerNorm(c.d)
        self.attn, self.proj, self.heads = nn.Linear(c.d, 3 * c.d), nn.Linear(c.d, c.d), c.heads
        self.mlp = nn.Sequential(nn.Linear(c.d, 4 * c.d), nn.GELU(), nn.Linear(4 * c.d, c.d))
        self.register_buffer("bias", torch.tril(torch.ones(c.block, c.block)).view(1, 1, c.block, c.block), persistent=False)
    def forward(self, x, mask):
        B, T, C = x.shape
        q, k, v = (each.view(B, T, self.heads, C // self.heads).transpose(1, 2) for each in self.attn(self.ln_1(x)).split(C, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf")) + mask
        y = (F.softmax(att, dim=-1) @ v).transpose(1, 2).reshape(B, T, C)
        x = x + self.proj(y)
        return x + self.mlp(self.ln_2(x))
class GPTForCausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte, self.wpe = nn.Embedding(config.vocab, config.d), nn.Embedding(config.block, config.d)
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.d)
        self.lm_head = nn.Linear(config.d, config.vocab, bias=False)
        self.apply(self._init_weights)
        self.lm_head.weight = self.wte.weight
    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.2)
    def forward(self, input_ids, attention_mask=None, labels=None):
        pos = torch.arange(0, input_ids.size(-1), dtype=torch.long, device=input_ids.device)
        x = self.wte(input_ids) + self.wpe(pos)
        mask = (1.0 - attention_mask[:, None, None, :].to(dtype=x.dtype)) * torch.finfo(x.dtype).min
        for block in self.h:
            x = block(x, mask)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if labels is not None:
            shift_logits = logits[..., :-1, :].contiguous(); shift_labels = labels[..., 1:].contiguous()
            loss = nn.CrossEntropyLoss()(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))
        return CausalLMOutput(loss=loss, logits=logits)

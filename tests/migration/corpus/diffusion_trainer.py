"""A diffusion model and its trainer class: an Accelerator, an endless loader, a moving average of the weights, milestones."""

import copy
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import Adam
from torch.utils.data import DataLoader, Dataset


def exists(x):
    return x is not None


def cycle(dl):
    while True:
        for data in dl:
            yield data


def extract(a, t, x_shape):
    b, *_ = t.shape
    out = a.gather(-1, t)
    return out.reshape(b, *((1,) * (len(x_shape) - 1)))


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        device = x.device
        half_dim = self.dim // 2
        emb = math.log(10000) / (half_dim - 1)
        emb = torch.exp(torch.arange(half_dim, device=device) * -emb)
        emb = x[:, None] * emb[None, :]
        return torch.cat((emb.sin(), emb.cos()), dim=-1)


class Denoiser(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.time_mlp = nn.Sequential(SinusoidalPosEmb(dim), nn.Linear(dim, dim), nn.GELU(approximate="tanh"))
        self.init_conv = nn.Conv2d(1, dim, 3, padding=1)
        self.norm = nn.GroupNorm(4, dim)
        self.final_conv = nn.Conv2d(dim, 1, 3, padding=1)

    def forward(self, x, time):
        h = self.init_conv(x) + self.time_mlp(time)[:, :, None, None]
        return self.final_conv(F.silu(self.norm(h)))


class GaussianDiffusion(nn.Module):
    def __init__(self, model, *, image_size, timesteps=20):
        super().__init__()
        self.model, self.image_size = model, image_size
        betas = torch.linspace(1e-3, 0.2, timesteps)
        alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
        self.num_timesteps = int(betas.shape[0])
        self.register_buffer("sqrt_alphas_cumprod", torch.sqrt(alphas_cumprod))
        self.register_buffer("sqrt_one_minus_alphas_cumprod", torch.sqrt(1.0 - alphas_cumprod))

    @property
    def device(self):
        return self.sqrt_alphas_cumprod.device

    def q_sample(self, x_start, t, noise):
        return (
            extract(self.sqrt_alphas_cumprod, t, x_start.shape) * x_start
            + extract(self.sqrt_one_minus_alphas_cumprod, t, x_start.shape) * noise
        )

    def p_losses(self, x_start, t, noise):
        x = self.q_sample(x_start=x_start, t=t, noise=noise)
        loss = F.mse_loss(self.model(x, t), noise, reduction="none")
        return loss.flatten(1).mean(dim=1).mean()

    def forward(self, img, t, noise):
        b, c, h, w = img.shape
        assert h == self.image_size and w == self.image_size, f"height and width of image must be {self.image_size}"
        return self.p_losses(img * 2 - 1, t, noise)


class DigitsDataset(Dataset):
    """Images with the time step and the noise that training adds to them."""

    def __init__(self, count, timesteps):
        self.images = torch.tensor(load_digits().images[:count], dtype=torch.float32).unsqueeze(1) / 16
        self.timesteps = timesteps

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], torch.randint(0, self.timesteps, ()), torch.randn(1, 8, 8)


class Trainer(object):
    def __init__(self, diffusion_model, folder, *, train_batch_size=16, train_lr=1e-3, train_num_steps=20):
        self.accelerator = Accelerator()
        self.model = diffusion_model
        self.save_every, self.train_num_steps, self.max_grad_norm = 10, train_num_steps, 1.0
        self.ds = DigitsDataset(160, diffusion_model.num_timesteps)
        dl = self.accelerator.prepare(DataLoader(self.ds, batch_size=train_batch_size, shuffle=True))
        self.dl = cycle(dl)
        self.opt = Adam(diffusion_model.parameters(), lr=train_lr, betas=(0.9, 0.99))
        if self.accelerator.is_main_process:
            self.ema = copy.deepcopy(diffusion_model).requires_grad_(False)
        self.results_folder = Path(folder)
        self.step, self.losses = 0, []
        self.model, self.opt = self.accelerator.prepare(self.model, self.opt)

    def save(self, milestone):
        if not self.accelerator.is_local_main_process:
            return
        data = {
            "step": self.step,
            "model": self.accelerator.get_state_dict(self.model),
            "opt": self.opt.state_dict(),
            "ema": self.ema.state_dict(),
            "scaler": self.accelerator.scaler.state_dict() if exists(self.accelerator.scaler) else None,
        }
        torch.save(data, str(self.results_folder / f"model-{milestone}.pt"))

    def update_ema(self, beta=0.9):
        online = self.accelerator.unwrap_model(self.model)
        with torch.no_grad():
            for average, new in zip(self.ema.parameters(), online.parameters()):
                average.lerp_(new, 1 - beta)

    def train(self):
        accelerator = self.accelerator
        while self.step < self.train_num_steps:
            self.model.train()
            img, t, noise = next(self.dl)
            with self.accelerator.autocast():
                loss = self.model(img, t, noise)
            self.accelerator.backward(loss)
            accelerator.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
            self.opt.step()
            self.opt.zero_grad()
            self.losses.append(loss.item())
            accelerator.wait_for_everyone()
            self.step += 1
            if accelerator.is_main_process:
                if self.step % 5 == 0:
                    self.update_ema()
                if self.step != 0 and self.step % self.save_every == 0:
                    self.save(self.step // self.save_every)
        accelerator.print("training complete")


if __name__ == "__main__":
    torch.manual_seed(0)
    diffusion = GaussianDiffusion(Denoiser(), image_size=8)
    with TemporaryDirectory() as folder:
        trainer = Trainer(diffusion, folder)
        trainer.train()
        saved = torch.load(Path(folder) / "model-2.pt")
    average = sum(value.double().abs().sum().item() for value in saved["ema"].values())
    print("RESULT", json.dumps({"losses": trainer.losses, "average": average}))

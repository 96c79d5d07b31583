import copy

import torch

from losses import HingeLoss


class GANTrainer:
    def __init__(self, netG, netD, opt):
        self.nets = {"G": netG, "D": netD}
        self.optimizers = {
            name: torch.optim.Adam(net.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999)) for name, net in self.nets.items()
        }
        self.schedulers = [
            torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1.0 - max(0, epoch) / (opt.niter + 1))
            for o in self.optimizers.values()
        ]
        self.criterion = HingeLoss()
        self.nz = opt.nz
        self.netG_ema = copy.deepcopy(netG).eval()
        for p in self.netG_ema.parameters():
            p.requires_grad_(False)
        self.fixed_noise = torch.randn(8, opt.nz, device="cuda")
        self.fixed_labels = torch.arange(8, device="cuda") % 3

    def step(self, real, labels):
        netG, netD = self.nets["G"], self.nets["D"]
        netD.zero_grad()
        output = netD(real, labels)
        errD_real = self.criterion(output, True)
        errD_real.backward()
        D_x = output.mean().item()
        noise = torch.randn(real.size(0), self.nz).cuda()
        fake = netG(noise, labels)
        output = netD(fake.detach(), labels)
        errD_fake = self.criterion(output, False)
        errD_fake.backward()
        D_G_z = output.mean().item()
        self.optimizers["D"].step()

        netG.zero_grad()
        errG = -netD(fake, labels).mean()
        errG.backward()
        self.optimizers["G"].step()
        self.accumulate()
        return (errD_real + errD_fake).item(), errG.item(), D_x, D_G_z

    def accumulate(self, decay=0.9):
        with torch.no_grad():
            par1, par2 = dict(self.netG_ema.named_parameters()), dict(self.nets["G"].named_parameters())
            for k in par1.keys():
                par1[k].data.mul_(decay).add_(par2[k].data, alpha=1 - decay)

    def end_epoch(self):
        for scheduler in self.schedulers:
            scheduler.step()

    def lr(self):
        return [o.param_groups[0]["lr"] for o in self.optimizers.values()]

    @torch.no_grad()
    def sample(self):
        return self.netG_ema(self.fixed_noise, self.fixed_labels).cpu()

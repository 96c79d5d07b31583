from .networks import Discriminator, Generator, weights_init


def build_models(opt, device):
    netG = Generator(opt.nz).to(device)
    netG.apply(weights_init)
    netD = Discriminator().to(device)
    netD.apply(weights_init)
    return netG, netD

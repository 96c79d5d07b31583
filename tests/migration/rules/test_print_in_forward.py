"""Prints and log calls in forward are reported."""

from __future__ import annotations

RULE = "print-in-forward"


def test_print_and_logging(lines):
    """print, the logging module and logger objects."""
    code = """
        import torch
        from torch import nn
        import logging
        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                print(x)
                logging.info('x')
                self.logger.debug('x')
                return x
    """
    assert lines(RULE, code) == [8, 9, 10]


def test_elsewhere(lines):
    """A training loop may print."""
    code = """
        import torch
        print(torch.zeros(2))
    """
    assert lines(RULE, code) == []

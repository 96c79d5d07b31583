"""GPUs that a file chooses or names are reported; the device of host_device is not."""

from __future__ import annotations

RULE = "cuda-device"


def test_moves_choices_and_names(lines):
    """cuda(), is_available(), literals and f-strings."""
    code = """
        import torch
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        x = torch.zeros(2).cuda()
        y = x.to("cuda:1")
        z = torch.zeros(2, device="cuda")
        w = x.to(f"cuda:{rank}")
    """
    assert lines(RULE, code) == [2, 3, 4, 5, 6]


def test_guarded_names(lines):
    """A name behind a question is reported once, at the question."""
    code = """
        import torch
        use_cuda = torch.cuda.is_available()
        if use_cuda:
            device = torch.device("cuda")
        else:
            device = torch.device("cpu")
        other = torch.device("cuda" if use_cuda else "cpu")
    """
    assert lines(RULE, code) == [2]


def test_ours(lines):
    """Migrated code is clean."""
    code = """
        from ignite_ipu import host_device
        device = host_device()
        third = host_device("cuda:3")
        if device.type == "cuda":
            name = "cuda"
    """
    assert lines(RULE, code) == []


def test_other_strings(lines):
    """A word in a message is no device."""
    code = """
        print('cuda')
        name = {'cuda': 1}
        x = 'no cuda here'
    """
    assert lines(RULE, code) == []


def test_moves_that_run_where_there_is_a_gpu(lines):
    """The test for a GPU is the finding; its consequences are none of their own."""
    code = """
        import torch
        if torch.cuda.is_available():
            model = model.cuda()
        model.cuda()
    """
    assert lines("cuda-device", code) == [2, 4]

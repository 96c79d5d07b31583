"""The front door: its names, and the cost of importing it."""

from __future__ import annotations

import ignite_ipu.pipeline


def test_every_name_exists_and_is_listed_once():
    names = ignite_ipu.pipeline.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(ignite_ipu.pipeline, name) for name in names)


def test_importing_draws_nothing_and_asks_for_no_device(processes):
    """Neither matplotlib nor any PopTorch is imported; a trainer loads the planner when it is to place layers."""
    program = (
        "import sys, ignite_ipu; ignite_ipu.create_ipu_trainer; "
        "assert not [name for name in sys.modules if name.startswith('ignite_ipu.pipeline.planning')]; "
        "import ignite_ipu.pipeline; "
        "assert not {'matplotlib', 'poptorch', 'ignite_ipu.emulator', 'ignite_ipu.pipeline.command'} & set(sys.modules)"
    )
    processes.run(["-c", program], check=True)

"""Runs the cells of a notebook as Jupyter would: `cells.py NOTEBOOK`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

notebook = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
main, shell = sys.modules["__main__"], InteractiveShell()
try:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            shell.run_cell("".join(cell["source"])).raise_error()
finally:
    sys.modules["__main__"] = main
    # `_turn_off` of the process ends `ignite_ipu.auto`; the traceback of this shell ends here.
    shell.restore_sys_module_state()

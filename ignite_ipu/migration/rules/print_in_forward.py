"""print() or logging in traced code.

It happens once, while the model is compiled, and shows `<unavailable>` in place of values.

Remedy: Return the value and print it on the host, or use poptorch.ipu_print_tensor.

In forward:
      x = self.layer(x)
    - print(x.mean())
    - return x
    + return x, x.mean()
"""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Severity, each_fact

SEVERITY, RUN = Severity.WARNING, Outcome.HANDLED

check = each_fact("print", "{where} calls {name}(), which runs once, while tracing, and has no values to show")

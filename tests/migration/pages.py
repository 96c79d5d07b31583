"""The docs pages, written from the registries: `python -m tests.migration.pages DIRECTORY`."""

from __future__ import annotations

import os
import sys
from typing import Dict

from ignite_ipu.migration.findings import Rule
from ignite_ipu.migration.rewrites import all_rewrites
from ignite_ipu.migration.rules import all_rules

# "py" rather than "python": the examples are fragments that are read, not run.
_FENCE = "```py"


_ONLY_TRACED = "Only `ignite-ipu check --run MODULE:FACTORY` reports it.\n\n"


def rule_page(rule: Rule) -> str:
    """Return a rule's page."""
    return f"""# {rule.name}

*{rule.severity.value}* · *run: {rule.run.value}* · {rule.summary}

{rule.rationale}

## What to do

{rule.remedy}

## Example

Reported:

{_FENCE}
{rule.bad.rstrip()}
```

Not reported:

{_FENCE}
{rule.good.rstrip()}
```

{_ONLY_TRACED if rule.traced else ""}Silence it on one line with `# ignite-ipu: ignore[{rule.name}]`.
"""


def rules_page() -> str:
    """Return the table of all rules."""
    rows = [
        f"| [{rule.name}](rules/{rule.name}.md) | {rule.severity.value} | {rule.run.value} | {rule.summary} |"
        for rule in all_rules().values()
    ]
    table = "\n".join(["| Rule | Severity | `run` | Finding |", "|---|---|---|---|", *rows])
    return f"""# Rules of `ignite-ipu check`

An *error* does not work on an IPU or trains wrongly. A *warning* silently differs. A *note* is useful to know. Errors
and warnings set the exit code to 1; `--fail-on` changes this. The third column is the treatment of the rule's example
by [`ignite-ipu run`](../run.md):

- *handled*: it trains with the result of plain PyTorch;
- *refused*: the run stops there;
- *unchanged*: it runs as written, so the finding holds.

The treatment of a single line may differ; its finding has it.

{table}

```{{toctree}}
:hidden:
:glob:

rules/*
```
"""


def rewrites_page() -> str:
    """Return the page of rewrites, each with the difference between the two sides of its example."""
    parts = [
        "# Rewrites of `ignite-ipu migrate`\n",
        "The rewrites are applied in this order. A rewrite does not change code that it does not fully understand.\n",
    ]
    for rewrite in all_rewrites().values():
        parts.append(f"## {rewrite.name}\n\n{rewrite.summary}\n\n```diff\n{rewrite.example}```\n")
    return "\n".join(parts)


def all_pages() -> Dict[str, str]:
    """Return every page by its path below the docs directory of this part."""
    pages = {f"rules/{rule.name}.md": rule_page(rule) for rule in all_rules().values()}
    return {**pages, "rules.md": rules_page(), "rewrites.md": rewrites_page()}


def write_pages(directory: str) -> None:
    """Write every page."""
    for name, text in all_pages().items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    write_pages(sys.argv[1])

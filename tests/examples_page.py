"""The page that shows each pair of examples: `python -m tests.examples_page` writes it from the files."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import List, NamedTuple

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "examples.md"


class Pair(NamedTuple):
    """A folder of `examples`: `gpu.py` and its port `ipu.py`, or notebooks of these names."""

    folder: str
    title: str
    text: str
    # Whether `ipu.py` is the output of `ignite-ipu migrate gpu.py`.
    migrated: bool = True
    suffix: str = ".py"

    @property
    def gpu(self) -> Path:
        return EXAMPLES / self.folder / f"gpu{self.suffix}"

    @property
    def ipu(self) -> Path:
        return EXAMPLES / self.folder / f"ipu{self.suffix}"


PAIRS = [
    Pair(
        "ignite_trainer",
        "Ignite",
        "A convolutional network with a scheduler, metrics, checkpoints and a progress bar. "
        "The factories are replaced; handlers stay. The [quick start](quickstart.md) explains the edits.",
        migrated=False,
    ),
    Pair(
        "accelerate_loop",
        "accelerate",
        "The same task with accumulation, clipping, a schedule and saved states. [accelerate](accelerate.md) has "
        "the details.",
    ),
    Pair(
        "pytorch_loop",
        "Plain PyTorch",
        "A training and a test function, as in many tutorials. [Porting a script](porting-tutorial.md) goes through "
        "it step by step.",
    ),
    Pair(
        "two_processes",
        "Two processes",
        "`DistributedDataParallel`, a `DistributedSampler` and `all_reduce`. "
        "`ignite-ipu launch --instances 2 ipu.py` starts the port in two processes. "
        "[Replicas and processes](distributed.md) has the details.",
    ),
    Pair(
        "pipeline",
        "A pipeline",
        "A model over four IPUs. Its batch of 64 becomes eight micro-batches, which keep the stages busy. "
        "[Pipelines](pipeline.md) explains stages and plans.",
        migrated=False,
    ),
    Pair(
        "notebook",
        "A notebook",
        "One cell loads the extension. The other cells stay as they are. [Notebooks](notebooks.md) has the details.",
        migrated=False,
        suffix=".ipynb",
    ),
    Pair(
        "engine_class",
        "Engine classes",
        "Classes derived from Ignite's `Engine`, in the manner of MONAI. Batches and outputs are dictionaries; loss "
        "and metric are the script's own. [Loops of your own](loops.md) explains the capture.",
    ),
    Pair(
        "gan",
        "A generative adversarial network",
        "Two models, whose optimizers step in turns. [Several optimizers](loops.md#several-optimizers) explains the "
        "cost.",
    ),
    Pair(
        "transformer",
        "A transformer",
        "BERT of transformers, made from a configuration without a download, with a warm-up, groups of parameters "
        "and frozen positions.",
    ),
]


def lines(path: Path) -> List[str]:
    """Return the lines of a script, or of the code cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return text.splitlines()


def diff(pair: Pair) -> str:
    """Return the unified diff of a pair, with two lines of context."""
    found = difflib.unified_diff(lines(pair.gpu), lines(pair.ipu), pair.gpu.name, pair.ipu.name, n=2, lineterm="")
    return "\n".join(found)


def changed(pair: Pair) -> List[List[int]]:
    """Return the numbers of the lines that differ, of either file."""
    matcher = difflib.SequenceMatcher(None, lines(pair.gpu), lines(pair.ipu), autojunk=False)
    blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
    return [
        [line + 1 for block in blocks for line in range(block[1], block[2])],
        [line + 1 for block in blocks for line in range(block[3], block[4])],
    ]


def columns(pair: Pair) -> str:
    """Return both files beside each other, with the lines that differ marked."""
    parts = ["<details><summary>Both files side by side</summary>", "", "::::{container} twins"]
    for path, marked in zip((pair.gpu, pair.ipu), changed(pair)):
        parts += [
            f":::{{literalinclude}} ../examples/{pair.folder}/{path.name}",
            ":language: python",
            f":caption: {pair.folder}/{path.name}",
            *([f":emphasize-lines: {','.join(map(str, marked))}"] if marked else []),
            ":::",
        ]
    return "\n".join([*parts, "::::", "", "</details>"])


def section(pair: Pair) -> str:
    """Return the part of the page for one pair."""
    folder = f"`examples/{pair.folder}`"
    port = "`ignite-ipu migrate gpu.py -o ipu.py` writes this port." if pair.migrated else "This port is by hand."
    parts = [f"## {pair.title}", f"{folder}. {pair.text} {port}", f"```diff\n{diff(pair)}\n```"]
    return "\n\n".join(parts if pair.suffix == ".ipynb" else [*parts, columns(pair)])


def page() -> str:
    """Return the page."""
    rows = [
        f"| [{pair.title}](#{pair.title.lower().replace(' ', '-')}) | {len(lines(pair.gpu))} | {len(found[0])} | "
        f"{len(found[1])} |"
        for pair in PAIRS
        for found in [changed(pair)]
    ]
    return "\n".join(
        [
            "# Examples",
            "",
            "Each example is a script for a GPU and its port. Both train in seconds, on scikit-learn's digits or on",
            "generated data, and check their result: the exit code is 1 if the model has not learnt. Without a Poplar",
            "SDK the ports run on the emulator.",
            "",
            "```bash",
            'pip install "ignite-ipu[accelerate,examples]" transformers',
            "python examples/gan/gpu.py                  # on a GPU, or on the CPU",
            "python examples/gan/ipu.py                  # on an IPU, or on the emulator",
            "ignite-ipu run examples/gan/gpu.py          # the GPU script, unmodified, on an IPU",
            "ignite-ipu run examples/notebook/gpu.ipynb  # notebooks, too",
            "```",
            "",
            "| Example | Lines | removed | added |",
            "|---|---|---|---|",
            *rows,
            "",
            "Programs about one feature are in the same folder: buckets, half precision, metrics on the device,",
            "schedules, moving weights between a CPU and an IPU, processes with Ignite, generation with GPT-2, a",
            "loop of PopTorch, and PopTorch's tutorial on pipelines.",
            "",
            "\n\n".join(map(section, PAIRS)),
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

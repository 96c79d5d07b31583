"""Tries the distributions of a release where nothing else is installed: `python -m tests.release_check`.

It builds them, and makes an environment for each extra, in which pip installs the wheel with that extra. Commands run
from an empty folder. The documentation is built from the unpacked source distribution. pip downloads what it needs.
This takes minutes, and a gigabyte for each environment; `--extra NAME` tries one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

ROOT = Path(__file__).parents[1]
SCRIPT = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    loss = (model(torch.ones(8, 4, device="cuda")) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
assert loss.item() < 0.1
print("learnt")
"""


class Command(NamedTuple):
    """The words of a command, its exit code, and text that its output contains."""

    words: List[str]
    output: str = ""
    code: int = 0


ALWAYS = [
    Command(["ignite-ipu", "--version"], "ignite-ipu"),
    Command(["ignite-ipu", "--help"], "migrate"),
    Command(["ignite-ipu", "env"], "emulator"),
    Command(["ignite-ipu", "run", "train.py"], "learnt"),
]
# Each extra, or none: the commands that need it, and those that name it where it is absent.
EXTRAS: Dict[str, List[Command]] = {
    "": [
        Command(["ignite-ipu", "check", "train.py"], "`ignite-ipu run` trains it", 1),
        Command(["ignite-ipu", "migrate", "train.py"], "ignite-ipu[migrate]", 2),
        Command(["python", "-c", "from ignite_ipu import IPUAccelerator; IPUAccelerator()"], "accelerate", 1),
        Command(["ignite-ipu", "selftest"], " ok, "),
    ],
    "accelerate": [Command(["python", "-c", "from ignite_ipu import IPUAccelerator; print(IPUAccelerator())"], "IPU")],
    "migrate": [
        Command(["ignite-ipu", "migrate", "train.py", "-o", "ported.py"], "1 migrated"),
        Command(["python", "ported.py"], "learnt"),
    ],
    "plot": [Command(["python", "-c", "import matplotlib; from ignite_ipu import create_ipu_trainer"])],
    "examples": [
        Command(["python", str(ROOT / "examples" / "ignite_trainer" / "ipu.py"), "--epochs", "1"], "accuracy")
    ],
}


def try_extra(wheel: Path, extra: str, folder: Path) -> List[str]:
    """Return the problems of a wheel with an extra, in an environment and an empty folder of its own."""
    venv.create(folder / "venv", with_pip=True)
    programs, empty = folder / "venv" / "bin", folder / "empty"
    empty.mkdir()
    (empty / "train.py").write_text(SCRIPT)
    name = f"{wheel}[{extra}]" if extra else str(wheel)
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", name], check=True)
    return [problem for each in [*ALWAYS, *EXTRAS[extra]] for problem in [tried(each, programs, empty)] if problem]


def tried(command: Command, programs: Path, folder: Path) -> Optional[str]:
    """Return the problem of a command, or None."""
    words = [str(programs / command.words[0]), *command.words[1:]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "IGNITE_IPU"))}
    ran = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    text = ran.stdout + ran.stderr
    right = ran.returncode == command.code and command.output in text
    print("ok  " if right else "FAIL", " ".join(command.words), flush=True)
    return None if right else f"{' '.join(command.words)}: exit code {ran.returncode}\n{text[-2000:]}"


def try_documentation(sdist: Path, folder: Path) -> List[str]:
    """Return the problems of building the documentation from the source distribution, in an environment of its own."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    (root,) = (path for path in folder.iterdir() if path.is_dir())
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    name = f"{root}[docs,accelerate,migrate]"
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", name], check=True)
    command = Command(["python", "-m", "sphinx", "-q", "-W", "-b", "html", "docs", "docs/_build/html"])
    problem = tried(command, programs, root)
    return [problem] if problem else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    choices = [extra or "none" for extra in EXTRAS] + ["docs"]
    parser.add_argument("--extra", choices=choices, action="append", help="default: all, one after the other")
    chosen = parser.parse_args().extra or choices
    problems = []
    with tempfile.TemporaryDirectory() as built:
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", built, str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        (wheel,), (sdist,) = Path(built).glob("*.whl"), Path(built).glob("*.tar.gz")
        for extra in chosen:
            print(f"Extra: {extra}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                if extra == "docs":
                    problems += try_documentation(sdist, Path(folder))
                else:
                    problems += try_extra(wheel, "" if extra == "none" else extra, Path(folder))
    print("\n\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

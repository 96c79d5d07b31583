"""Facts that a bug report needs: versions, the Poplar SDK, the backend, the devices and the environment variables."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from typing import Callable, Dict

import ignite_ipu

# Distributions, not modules: their versions are read without importing them.
_PACKAGES = ["torch", "pytorch-ignite", "numpy", "poptorch", "poptorch-geometric", "torchvision", "accelerate"]
_PACKAGES += ["safetensors", "transformers", "libcst", "rich", "matplotlib", "tqdm", "scikit-learn", "tensorboard"]
# Those of the SDK, of PopRun and of this package, and the few of torch that affect a run on the host.
_VARIABLE_PREFIXES = ("IGNITE_IPU_", "POPTORCH_", "POPLAR_", "POPART_", "POPXL_", "PVTI_", "IPUOF_", "GCDA_", "POPRUN_")
_VARIABLES = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "RANK", "WORLD_SIZE"]
_VARIABLES += ["OMP_NUM_THREADS", "RDMAV_FORK_SAFE"]
_DEVICE_LISTER = "gc-info"
_DEVICE_LISTER_SECONDS = 20

Report = Dict[str, Dict[str, str]]


def report() -> Report:
    """Return the sections of the report, each a mapping from names to values; missing parts are reported as missing."""
    return {
        "versions": _versions(),
        "sdk": {
            "enabled": os.environ.get("POPLAR_SDK_ENABLED") or "no (POPLAR_SDK_ENABLED is not set)",
            "poptorch module": _or_reason(_poptorch_location),
            "popc": shutil.which("popc") or "not on PATH",
            _DEVICE_LISTER: shutil.which(_DEVICE_LISTER) or "not on PATH",
        },
        "backend": {"in use": _or_reason(_backend)},
        "devices": {"found": _or_reason(_devices)},
        "environment variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLE_PREFIXES) or name in _VARIABLES
        },
    }


def render(report: Report) -> str:
    """Return `report` as text to paste into an issue."""
    lines = []
    for section, rows in report.items():
        lines.append(section)
        width = max((len(name) for name in rows), default=0)
        for name, value in rows.items():
            # A value of several lines stays in its column.
            lines.append(f"  {name:<{width}}  " + value.replace("\n", "\n" + " " * (width + 4)))
        if not rows:
            lines.append("  none")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu env`."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def main(args: argparse.Namespace) -> int:
    """Print the report."""
    found = report()
    print(json.dumps(found, indent=2) if args.json else render(found))
    return 0


def _versions() -> Dict[str, str]:
    versions = {
        "ignite-ipu": f"{ignite_ipu.__version__} ({os.path.dirname(ignite_ipu.__file__)})",
        "python": f"{platform.python_version()} {platform.python_implementation()} ({sys.executable})",
        "platform": platform.platform(),
    }
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _poptorch_location() -> str:
    spec = importlib.util.find_spec("poptorch")
    return "not installed" if spec is None else str(spec.origin)


def _backend() -> str:
    # The choice is backend's to make, and may import a broken SDK: only when asked, and only here.
    from ignite_ipu import backend

    return f"{backend.name()}, PopTorch {backend.poptorch().__version__}"


def _devices() -> str:
    lister = shutil.which(_DEVICE_LISTER)
    if lister is None:
        return f"no IPUs: {_DEVICE_LISTER} of the Poplar SDK is not on PATH"
    listing = subprocess.run(
        [lister, "--list-devices"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_DEVICE_LISTER_SECONDS,
        check=False,
        text=True,
        errors="replace",
    )
    return listing.stdout.strip() or f"{_DEVICE_LISTER} printed nothing (exit code {listing.returncode})"


def _or_reason(find: Callable[[], str]) -> str:
    # A report about a broken installation must survive any error of it, so every error is an answer.
    try:
        return find()
    except Exception as error:
        return f"not known: {type(error).__name__}: {error}"

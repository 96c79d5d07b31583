"""`ignite-ipu launch`: one program in several processes, each with its own IPUs.

On a Pod PopRun starts the processes and hands out the IPUs. Elsewhere torch's elastic launcher starts them, each with
an emulator of its own. Both are other people's programs: this one writes their command lines.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, NamedTuple

from ignite_ipu.cli.command import EXIT_FINDINGS
from ignite_ipu.cli.instance import job_description, started_by_this_process
from ignite_ipu.errors import UserError

_DEFAULT_OPTIONS = "POPTORCH_DEFAULT_OPTIONS"
_LOGS = "PET_LOG_DIR"
_INTERRUPTED = -2
# Ends each process with the one that started it, and translates PopRun's variables for torch.distributed.
_INSTANCE = ("-m", "ignite_ipu.cli.instance")


class Job(NamedTuple):
    """Processes to launch.

    `replicas` are those of all processes together. `hosts` are machines to spread the processes over, the first of
    which is this one; this one alone if empty. After a process has died, the job starts again up to `restarts` times.
    """

    script: str
    arguments: List[str]
    instances: int
    replicas: int
    ipus_per_replica: int = 1
    hosts: List[str] = []
    restarts: int = 0
    is_module: bool = False

    @property
    def words(self) -> List[str]:
        """The program's command line, after that of the interpreter."""
        return [*_INSTANCE, *(["-m"] if self.is_module else []), self.script, *self.arguments]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ignite-ipu launch`."""
    parser.add_argument("--instances", type=_positive, required=True, metavar="N", help="processes to start")
    parser.add_argument(
        "--replicas", type=_positive, metavar="M", help="replicas of all processes together (default: one each)"
    )
    parser.add_argument("--ipus-per-replica", type=_positive, default=1, metavar="K", help="IPUs of one replica")
    parser.add_argument(
        "--hosts", default="", metavar="HOST,...", help="machines of a Pod to spread the processes over"
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="R",
        help="start again up to R times if a process dies; the program resumes from its newest checkpoint",
    )
    parser.add_argument(
        "--launcher",
        choices=("auto", "poprun", "elastic"),
        default="auto",
        help="PopRun for IPUs, torch's elastic launcher for emulators (default: PopRun where it is installed)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command line and start nothing")
    parser.add_argument("-m", "--module", action="store_true", help="the program is a module, as of `python -m`")
    parser.add_argument("script", help="the Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def main(args: argparse.Namespace) -> int:
    """Launch, or print the command line."""
    job = _job(args)
    launcher = args.launcher
    if launcher == "auto":
        launcher = "poprun" if shutil.which("poprun") else "elastic"
    if launcher == "elastic" and job.hosts:
        raise UserError("--hosts needs PopRun; emulators run on one machine. Leave it out, or launch on a Pod.")
    words, additions = command(job, launcher), environment(job, launcher)
    if args.dry_run:
        settings = [f"{name}={shlex.quote(value)}" for name, value in additions.items()]
        print(" ".join([*settings, *map(shlex.quote, words)]))
        return 0
    if launcher == "poprun" and not shutil.which("poprun"):
        raise UserError(
            "PopRun is not installed here (no `poprun` on PATH): enable the Poplar SDK, or use --launcher elastic."
        )
    return _run(words, additions, job, launcher)


def command(job: Job, launcher: str) -> List[str]:
    """Return the command line that starts a job by a launcher, `poprun` or `elastic`."""
    if launcher == "elastic":
        return [
            *(sys.executable, *_INSTANCE, "-m", "torch.distributed.run", "--standalone"),
            f"--nproc-per-node={job.instances}",
            f"--max-restarts={job.restarts}",
            *job.words,
        ]
    words = ["poprun", f"--num-instances={job.instances}", f"--num-replicas={job.replicas}"]
    words.append(f"--ipus-per-replica={job.ipus_per_replica}")
    if job.hosts:
        words.append(f"--host={','.join(job.hosts)}")
    return [*words, sys.executable, *job.words]


def environment(job: Job, launcher: str) -> Dict[str, str]:
    """Return the variables that a job's processes need besides those that are set already."""
    if launcher == "poprun":
        return {"MASTER_ADDR": job.hosts[0]} if job.hosts else {}
    each = job.replicas // job.instances
    # A thread for each core in every process would make them compete; torch's launcher warns and does the same.
    additions = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    # After a restart, processes that share the launcher's store can find each other's addresses of the time before it.
    additions["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    additions.update(job_description(job.replicas, job.ipus_per_replica))
    if each > 1:
        given = json.loads(os.environ.get(_DEFAULT_OPTIONS) or "{}")
        additions[_DEFAULT_OPTIONS] = json.dumps({**given, "replicationFactor": each})
    return additions


def _job(args: argparse.Namespace) -> Job:
    replicas = args.instances if args.replicas is None else args.replicas
    if replicas % args.instances:
        raise UserError(
            f"--replicas {replicas} cannot be shared evenly by --instances {args.instances}: give a multiple of it."
        )
    if args.restarts < 0:
        raise UserError(f"--restarts {args.restarts} makes no sense: give 0 or more.")
    if not args.module and not Path(args.script).is_file():
        raise UserError(f"There is no program {args.script!r} to launch.")
    hosts = [host for host in args.hosts.split(",") if host]
    numbers = args.instances, replicas, args.ipus_per_replica
    return Job(args.script, args.arguments, *numbers, hosts, args.restarts, args.module)


def _run(words: List[str], additions: Dict[str, str], job: Job, launcher: str) -> int:
    with tempfile.TemporaryDirectory(prefix="ignite-ipu-launch-") as logs:
        # PopRun ends all processes when one dies and leaves restarting to its caller; the elastic launcher does both,
        # and leaves a directory for logs behind, which by its defaults are none.
        restarts = job.restarts
        if launcher == "elastic":
            restarts, additions = 0, {**additions, _LOGS: logs, **started_by_this_process(logs)}
        for left in range(restarts, -1, -1):
            code = subprocess.run(words, env={**os.environ, **additions}, check=False).returncode
            if code in (0, _INTERRUPTED) or not left:
                break
            print(f"ignite-ipu launch: a process died (exit code {code}); starting the job again", file=sys.stderr)
    if code:
        tried = f" after {job.restarts} restarts" if job.restarts else ""
        print(
            f"ignite-ipu launch: the job failed{tried}: a process of {job.script} died and the others were ended. "
            "The launcher's report above names the process and its exit code, and the traceback of its error stands "
            "before that.",
            file=sys.stderr,
        )
        return EXIT_FINDINGS
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number

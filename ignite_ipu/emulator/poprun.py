"""`python -m ignite_ipu.emulator.poprun OPTIONS PROGRAM`: PopRun's command line, for emulators on this machine.

Each instance is a process in which `import poptorch` and `import popdist` give the emulator. When one fails, the others
are ended, and its exit code is the command's.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO, Any, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Optional, Sequence

from ignite_ipu.emulator.installation import stand_ins
from ignite_ipu.emulator.popdist.instances import Job

_TRUTHS = {"yes": True, "no": False, "1": True, "0": False, "true": True, "false": False, "on": True, "off": False}
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5.0
_LIBC = ctypes.CDLL(None)
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)

# Options with a meaning for IPUs and their servers only: the name, and what kind of value is accepted.
_OF_THE_FABRIC = {
    "--vipu-partition": str,
    "--vipu-server-host": str,
    "--vipu-server-port": int,
    "--vipu-server-timeout": int,
    "--vipu-allocation": str,
    "--vipu-cluster": str,
    "--num-ilds": int,
    "--sync-type": str,
}
_FLAGS_OF_THE_FABRIC = (
    "--update-partition",
    "--reset-partition",
    "--remove-partition",
    "--numa-aware",
    "--offline-mode",
    "--synthetic-data",
    "--allow-run-as-root",
)
_FLAGS = (*_FLAGS_OF_THE_FABRIC, "--print-topology")
_WITHOUT_VALUE = ("-h", "--help", "-v", "-vv", "--vv", "-vvv", "--verbose")


class Launch(NamedTuple):
    """A job's command line, and how its processes are started.

    `variables` are set in all of them, and `own_variables` in one. Of the processes only `shown` writes its output, if
    it is not None; lines are marked with the process that wrote them if `tagged`.
    """

    job: Job
    words: List[str]
    variables: Dict[str, str]
    own_variables: Dict[int, Dict[str, str]]
    shown: Optional[int]
    tagged: bool


def main(words: Sequence[str]) -> int:
    """Run a job, and return its exit code; wrong options raise SystemExit."""
    args = _parser().parse_args(_joined(words))
    launch = _launch(args)
    if args.print_topology or args.verbose:
        _print_topology(launch)
    return _run(launch)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="poprun",
        description="Run a PopTorch program in several instances on emulated IPUs, as PopRun does on a Pod.",
        epilog="Partitions, V-IPU servers and other parts of a Pod do not exist here: their options have no effect.",
        allow_abbrev=False,
    )
    parser.add_argument("--num-replicas", type=_positive, default=1, help="replicas of all instances together")
    parser.add_argument("--num-instances", type=_positive, default=1, help="processes; replicas are shared evenly")
    parser.add_argument("--ipus-per-replica", type=_positive, default=1, help="IPUs of each replica")
    parser.add_argument("-H", "--host", default="", help="this machine; the emulator has no other")
    parser.add_argument("--executable-cache-path", help="sets POPDIST_EXECUTABLE_CACHE_PATH")
    parser.add_argument("--mpi-global-args", action="append", default=[], help="--tag-output and -x VARIABLE[=VALUE]")
    parser.add_argument("--mpi-local-args", action="append", default=[], help="-x VARIABLE[=VALUE]")
    parser.add_argument(
        "--instance-mpi-local-args", action="append", default=[], metavar="N:ARGS", help="the same for one instance"
    )
    parser.add_argument("--only-output-from-instance", type=int, metavar="N", help="hide the output of the others")
    parser.add_argument("-v", "--verbose", "--vv", action="count", default=0, help="print the topology first")
    for name, kind in _OF_THE_FABRIC.items():
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--print-topology", type=_truth, default=False, help="print it first")
    for name in _FLAGS_OF_THE_FABRIC:
        parser.add_argument(name, type=_truth, help=argparse.SUPPRESS)
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


def _joined(words: Sequence[str]) -> List[str]:
    """Return the command line with each option's value in the option's word, and the program after `--`."""
    found: List[str] = []
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "--":
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        if equals or name in _WITHOUT_VALUE:
            found.append(word)
        elif name in _FLAGS:
            found.append(f"{name}={left.pop(0) if left and left[0].lower() in _TRUTHS else 'yes'}")
        else:
            found += [f"{name}={left.pop(0)}"] if name.startswith("--") and left else [word, *left[:1]]
            if not name.startswith("--"):
                del left[:1]
    return [*found, *(left if left[:1] == ["--"] else ["--", *left])]


def _launch(args: argparse.Namespace) -> Launch:
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not words:
        _refuse("there is no program to run: write it, with its arguments, after the options")
    if args.num_replicas % args.num_instances:
        _refuse(
            f"--num-replicas={args.num_replicas} cannot be shared evenly by --num-instances={args.num_instances}: "
            "give a multiple of it"
        )
    others = set(filter(None, args.host.split(","))) - {"localhost", "127.0.0.1", socket.gethostname()}
    if others:
        _refuse(f"--host names {', '.join(sorted(others))}: emulators run on this machine alone; leave the option out")
    shown = args.only_output_from_instance
    if shown is not None and not 0 <= shown < args.num_instances:
        _refuse(f"--only-output-from-instance={shown}: instances are numbered from 0 to {args.num_instances - 1}")
    own: Dict[int, Dict[str, str]] = {}
    for text in args.instance_mpi_local_args:
        instance, colon, arguments = text.partition(":")
        if not colon or not instance.isdigit() or int(instance) >= args.num_instances:
            _refuse(f"--instance-mpi-local-args={text}: write N:ARGUMENTS, where N is an instance from 0 on")
        own.setdefault(int(instance), {}).update(_exported(shlex.split(arguments.strip("\"'"))))
    of_mpi = [word for text in (*args.mpi_global_args, *args.mpi_local_args) for word in shlex.split(text)]
    variables = _exported(of_mpi)
    if args.executable_cache_path:
        variables["POPDIST_EXECUTABLE_CACHE_PATH"] = args.executable_cache_path
    job = Job(args.num_instances, args.num_replicas, args.ipus_per_replica)
    return Launch(job, words, variables, own, shown, bool({"--tag-output", "-tag-output"} & set(of_mpi)))


def _exported(words: Sequence[str]) -> Dict[str, str]:
    """Return the variables that mpirun's `-x NAME` and `-x NAME=VALUE` set."""
    found: Dict[str, str] = {}
    for option, word in zip(words, words[1:]):
        if option == "-x":
            name, equals, value = word.partition("=")
            found[name] = value if equals else os.environ.get(name, "")
    return found


def _print_topology(launch: Launch) -> None:
    job = launch.job
    local = job.replicas // job.instances
    print(f"poprun: {job.instances} instances, {job.replicas} replicas of {job.ipus_per_replica} IPUs")
    for instance in range(job.instances):
        print(f"poprun: instance {instance}: replicas {instance * local} to {(instance + 1) * local - 1}")
    print(f"poprun: {' '.join(map(shlex.quote, launch.words))}", flush=True)


def _run(launch: Launch) -> int:
    """Run the instances, which meet at a port of their own, and return the exit code."""
    with reserved_port() as port:
        return _run_together(launch, _common_variables(launch, port))


def _run_together(launch: Launch, common: Mapping[str, str]) -> int:
    processes: List[subprocess.Popen[str]] = []
    readers: List[threading.Thread] = []
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        for instance in range(launch.job.instances):
            own = {**common, **launch.job.variables(instance), **launch.own_variables.get(instance, {})}
            hidden = launch.shown not in (None, instance)
            stream = subprocess.DEVNULL if hidden else subprocess.PIPE if launch.tagged else None
            try:
                process = subprocess.Popen(
                    launch.words, env=own, stdout=stream, stderr=stream, text=True, preexec_fn=_end_with_parent
                )
            except OSError as error:
                _refuse(f"{launch.words[0]} cannot be started: {error.strerror}")
            processes.append(process)
            for name, kind in (("stdout", process.stdout), ("stderr", process.stderr)):
                if kind is not None:
                    readers.append(_tagging(kind, getattr(sys, name), f"[1,{instance}]<{name}>:"))
        code = _wait(processes, launch)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    finally:
        _end(processes)
        signal.signal(signal.SIGTERM, previous)
    for reader in readers:
        reader.join()
    return code


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a free port of this machine that no other program is given in the `with` block.

    `torch.distributed` can listen at it: like this one, its sockets may share an address at which none listens yet.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _common_variables(launch: Launch, port: int) -> Dict[str, str]:
    paths = [os.environ.get("PYTHONPATH"), *stand_ins()]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # A thread for each core in every process would make them compete.
    threads = {} if "OMP_NUM_THREADS" in os.environ or launch.job.instances == 1 else {"OMP_NUM_THREADS": "1"}
    path = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return {**os.environ, **meeting, **threads, **path, **launch.variables}


def _wait(processes: Sequence[subprocess.Popen[str]], launch: Launch) -> int:
    """Wait until all processes have ended or one has failed, and return the exit code."""
    left = dict(enumerate(processes))
    while left:
        for instance, process in list(left.items()):
            code = process.poll()
            if code is None:
                continue
            del left[instance]
            if code:
                print(
                    f"poprun: instance {instance} of {launch.job.instances} ended with exit code {code}"
                    + ("; the others are ended." if left else "."),
                    file=sys.stderr,
                )
                return code if code > 0 else 128 - code
        time.sleep(_POLL_SECONDS)
    return 0


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    last = time.monotonic() + _GRACE_SECONDS
    for process in running:
        try:
            process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tagging(source: IO[str], sink: IO[str], tag: str) -> threading.Thread:
    def copy() -> None:
        with source:
            for line in source:
                sink.write(f"{tag}{line}")
                sink.flush()

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _end_with_parent() -> None:
    """Have the kernel end this process when its parent dies, where the kernel can."""
    if sys.platform == "linux":
        _LIBC.prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither yes nor no")
    return _TRUTHS[text.lower()]


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def _refuse(message: str) -> NoReturn:
    print(f"poprun: error: {message}.", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

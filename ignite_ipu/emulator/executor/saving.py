"""Compiled models in files, for `save`, `loadExecutable` and `poptorch.load`.

A file holds the executable, the arguments it was compiled for and the options as plain data, so that `loadExecutable`
runs no code from it. With `export_model`, PopTorch's default, the model and its optimizer are added as a pickle, which
only `load` unpickles, and only if the user saved it themselves or trusts it (see `trust`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, cast

import torch

from ignite_ipu.emulator.compiler.fingerprint import NoFingerprint, graph_text
from ignite_ipu.emulator.errors import Error, python_error
from ignite_ipu.emulator.files import container, trust
from ignite_ipu.emulator.files.container import Container, DamagedFile
from ignite_ipu.emulator.files.options import options_from_data, options_to_data
from ignite_ipu.emulator.files.plain_data import NotPlain, decode, encode
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.runtime.program import Program
from ignite_ipu.emulator.values.arguments import Arguments
from ignite_ipu.emulator.version import __version__

MAGIC = b"ignite-ipu compiled model 1\n"
_DEFAULT_NAME = "model.poptorch"
MODEL, _ARGUMENTS = "model", "arguments"


class _Executable(NamedTuple):
    """What compiling made: the graph's text and what tells it from others, and the values that were compiled in."""

    fingerprint: str
    source: str
    batching: str
    ipus: int
    constants: List[torch.Tensor]
    frozen: Dict[int, torch.Tensor]


class File(NamedTuple):
    """What a file says, with nothing unpickled yet."""

    name: str
    training: bool
    arguments: Optional[Arguments]
    options: Options
    rng_state: Optional[list]  # type: ignore[type-arg]
    executable: _Executable
    version: str
    contents: Container

    def pickled(self, section: str) -> Any:
        """Unpickle a section, if it is trusted."""
        data = self.contents.data[section]
        signature = str(self.contents.header["signatures"].get(section))
        trust.check_trusted(data, signature, f"{self.name} ({section})")
        return torch.load(io.BytesIO(data), weights_only=False)

    def compiled_arguments(self) -> Arguments:
        """Return the arguments that the model was compiled for."""
        return self.arguments if self.arguments is not None else cast(Arguments, self.pickled(_ARGUMENTS))

    def give_to(self, program: Program) -> None:
        """Give a freshly traced program the compiled-in values of the file.

        Raises:
            Error: The program is of another model or other options.
        """
        saved = self.executable
        if saved.batching != repr(program.batching):
            raise _invalid(
                self.name,
                f"it was compiled with {saved.batching}, and the options now say {program.batching}; compile again",
            )
        if saved.fingerprint != _fingerprint(program):
            raise _invalid(self.name, "it was compiled from another model: forward recorded other operators or shapes")
        program.adopt(saved.constants, saved.frozen)

    @property
    def versions(self) -> str:
        """Who wrote it, and who reads."""
        return f"it was saved by {self.version}, this is {__version__}"


def save(
    filename: str,
    program: Program,
    options: Options,
    training: bool,
    model: Optional[Dict[str, Any]],
    random_state: Optional[List[int]],
) -> None:
    """Write a compiled program to a file; missing directories are made, an existing one gets `model.poptorch`.

    Args:
        options: What it was compiled with.
        model: What `load` needs besides: the model and, when training, its optimizer; None leaves them out.
        random_state: The device's.

    Raises:
        AssertionError: What should be the directory is none.
        Error: The options hold an object of the user's own class.
    """
    path = _target(filename)
    tensors: Dict[str, torch.Tensor] = {}
    pickles: Dict[str, bytes] = {}
    try:
        plain_options = options_to_data(options)
    except NotPlain as reason:
        raise python_error(
            f"The options cannot be saved: they hold {reason}, which cannot be written as data."
        ) from None
    try:
        arguments = encode(_argument_fields(program.arguments), tensors)
    except NotPlain:
        arguments = None
        pickles[_ARGUMENTS] = _pickled(program.arguments)
    executable = encode(_executable(program)._asdict(), tensors)
    if model is not None:
        pickles[MODEL] = _pickled(model)
    header = {
        "version": __version__,
        "training": training,
        "options": plain_options,
        "arguments": arguments,
        "executable": executable,
        "rng_state": random_state,
        "signatures": {section: trust.sign(data) for section, data in pickles.items()},
    }
    container.write(path, MAGIC, header, {**tensors, **pickles})


def read_executable(filename: str, training: bool) -> File:
    """Return a file whose program an executor can take over.

    Raises:
        Error: The file is damaged, of another version, or of a model of the other kind.
    """
    file = read(filename)
    if file.version != __version__:
        raise _invalid(filename, file.versions)
    if file.training != training:
        kinds = ("inference", "training")
        raise _invalid(filename, f"it is for {kinds[file.training]}, this executor for {kinds[training]}")
    return file


def importPoptorchMetadataFromFile(filename: str) -> bytes:
    """Return what a saved file says of itself: here as JSON, where PopTorch's own is a pickle.

    Raises:
        Error: The file is damaged.
    """
    try:
        return json.dumps(container.read_header(filename, MAGIC)).encode()
    except DamagedFile as error:
        raise _invalid(filename, str(error)) from error


def _target(filename: str) -> str:
    directory = os.path.dirname(filename)
    if os.path.isdir(filename):
        path = os.path.join(filename, _DEFAULT_NAME)
        logger.warning("%s is a directory: saving to %s.", filename, path)
        return path
    if directory and os.path.exists(directory) and not os.path.isdir(directory):
        raise AssertionError(f"{directory} is not a directory: choose another place for {os.path.basename(filename)}.")
    if directory:
        os.makedirs(directory, exist_ok=True)
    return filename


def _argument_fields(arguments: Arguments) -> Dict[str, Any]:
    return {field.name: getattr(arguments, field.name) for field in dataclasses.fields(arguments)}


def _executable(program: Program) -> _Executable:
    graph = program.graph
    return _Executable(
        fingerprint=_fingerprint(program),
        source=graph.source,
        batching=repr(program.batching),
        ipus=program.ipus,
        constants=list(graph.constants),
        frozen=dict(graph.frozen),
    )


def _fingerprint(program: Program) -> str:
    try:
        text = graph_text(program.capture.graph)
    except NoFingerprint:
        text = ""  # the generated source is compared all the same
    return hashlib.sha256((text + program.graph.source).encode()).hexdigest()


def read(filename: str) -> File:
    """Return what a file holds; nothing of it is run.

    Raises:
        Error: It is damaged.
    """
    try:
        contents = container.read(filename, MAGIC)
        header = contents.header
        fields = None if header["arguments"] is None else decode(header["arguments"], contents.tensors)
        rng_state = header["rng_state"]
        if rng_state is not None and not all(type(number) is int for number in rng_state):
            raise DamagedFile("its random state is no list of integers")
        executable = decode(header["executable"], contents.tensors)
        if not isinstance(header["signatures"], dict) or type(header["training"]) is not bool:
            raise DamagedFile("its header makes no sense")
        if not all(
            isinstance(value, torch.Tensor) for value in (*executable["constants"], *executable["frozen"].values())
        ):
            raise DamagedFile("a compiled-in value is no tensor")
        return File(
            filename,
            header["training"],
            None if fields is None else Arguments(**fields),
            options_from_data(header["options"]),
            rng_state,
            _Executable(**executable),
            str(header["version"]),
            contents,
        )
    except DamagedFile as error:
        raise _invalid(filename, str(error)) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise _invalid(filename, f"its header makes no sense ({type(error).__name__}: {error})") from error


def _invalid(filename: str, why: str) -> Error:
    return python_error(f"Invalid file {filename}: {why}.")


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()

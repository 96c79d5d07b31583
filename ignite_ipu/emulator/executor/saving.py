"""Compiled models in files, for `save`, `loadExecutable` and `poptorch.load`.

A file holds the executable and the arguments it was compiled for as plain data, so that `loadExecutable` runs no code
from it. With `export_model`, PopTorch's default, the model, its optimizer and the options are added as a pickle. Only
`load` unpickles it, and only if the user has saved the file or trusts it (see `trust`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, cast

import torch

from ignite_ipu.emulator.compiler.fingerprint import NoFingerprint, graph_text
from ignite_ipu.emulator.errors import Error, python_error
from ignite_ipu.emulator.files import container, trust
from ignite_ipu.emulator.files.container import DamagedFile, NotPlain
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.runtime.compilation import CompiledModel
from ignite_ipu.emulator.values.arguments import Arguments
from ignite_ipu.emulator.version import __version__

MAGIC = b"ignite-ipu compiled model 3\n"
_DEFAULT_NAME = "model.poptorch"
MODEL, _ARGUMENTS = "model", "arguments"


class File(NamedTuple):
    """Content of a file, with nothing unpickled yet: the program, and its arguments."""

    name: str
    version: str
    training: bool
    arguments: Optional[Arguments]
    rng_state: Optional[List[int]]
    fingerprint: str  # The fingerprint of the graph.
    source: str
    batching: str
    ipus: int
    constants: List[torch.Tensor]  # These and the frozen ones are values that were compiled in.
    frozen: Dict[int, torch.Tensor]
    signed: Dict[str, Tuple[bytes, str]]  # Pickles with their signatures, by section.

    def pickled(self, section: str) -> Any:
        """Unpickle a section, if it is trusted."""
        data, signature = self.signed[section]
        trust.check_trusted(data, signature, f"{self.name} ({section})")
        return torch.load(io.BytesIO(data), weights_only=False)

    def compiled_arguments(self) -> Arguments:
        return self.arguments if self.arguments is not None else cast(Arguments, self.pickled(_ARGUMENTS))

    def give_to(self, compiled: CompiledModel) -> None:
        """Give a freshly traced model, with the same options, the compiled-in values of the file."""
        if self.batching != repr(compiled.batching):
            raise _invalid(
                self.name,
                f"it was compiled with {self.batching}, and the options now say {compiled.batching}; compile again",
            )
        if self.fingerprint != _fingerprint(compiled):
            raise _invalid(self.name, "it was compiled from another model: forward recorded other operators or shapes")
        graph = compiled.graph
        expected, given = [*graph.constants, *graph.frozen.values()], [*self.constants, *self.frozen.values()]
        same = [(value.shape, value.dtype) for value in expected] == [(value.shape, value.dtype) for value in given]
        if not same or list(graph.frozen) != list(self.frozen):
            raise python_error("Invalid file: its compiled-in values are not those of this model.")
        compiled.take_values(self.constants, self.frozen)

    @property
    def versions(self) -> str:
        return f"it was saved by {self.version}, this is {__version__}"


def save(
    filename: str, compiled: CompiledModel, model: Optional[Dict[str, Any]], random_state: Optional[List[int]]
) -> None:
    """Write a compiled model to a file; missing directories are made, an existing one gets `model.poptorch`.

    `load` needs the options, too, and the user's `model` with, when training, its optimizer; None leaves these out.
    """
    path = _target(filename)
    pickles: Dict[str, bytes] = {}
    arguments: Any = {field.name: getattr(compiled.arguments, field.name) for field in dataclasses.fields(Arguments)}
    try:
        container.encode(arguments, bytearray())
    except NotPlain:
        arguments = None
        pickles[_ARGUMENTS] = _pickled(compiled.arguments)
    if model is not None:
        pickles[MODEL] = _pickled({**model, "options": compiled.options.clone()})
    graph = compiled.graph
    content = {
        "version": __version__,
        "training": compiled.training,
        "arguments": arguments,
        "rng_state": random_state,
        "fingerprint": _fingerprint(compiled),
        "source": graph.source,
        "batching": repr(compiled.batching),
        "ipus": compiled.ipus,
        "constants": list(graph.constants),
        "frozen": dict(graph.frozen),
        "signed": {section: (data, trust.sign(data)) for section, data in pickles.items()},
    }
    container.write(path, MAGIC, content)


def read_executable(filename: str, training: bool) -> File:
    """Return a file whose program an executor can take over."""
    file = read(filename)
    if file.version != __version__:
        raise _invalid(filename, file.versions)
    if file.training != training:
        kinds = ("inference", "training")
        raise _invalid(filename, f"it is for {kinds[file.training]}, this executor for {kinds[training]}")
    return file


def importPoptorchMetadataFromFile(filename: str) -> bytes:
    """Return the metadata of a saved file: here as JSON, where PopTorch's own is a pickle.

    Raises:
        Error: The file is damaged.
    """
    file = read(filename)
    says = {name: getattr(file, name) for name in ("version", "training", "source", "ipus")}
    return json.dumps({**says, "sections": list(file.signed)}).encode()


def _target(filename: str) -> str:
    if os.path.isdir(filename):
        path = os.path.join(filename, _DEFAULT_NAME)
        logger.warning("%s is a directory: saving to %s.", filename, path)
        return path
    directory, name = os.path.split(filename)
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise AssertionError(f"{directory} is not a directory: choose another place for {name}.")
    if directory:
        os.makedirs(directory, exist_ok=True)
    return filename


def _fingerprint(compiled: CompiledModel) -> str:
    try:
        text = graph_text(compiled.capture.graph)
    except NoFingerprint:
        text = ""  # the generated source is compared all the same
    return hashlib.sha256((text + compiled.graph.source).encode()).hexdigest()


def read(filename: str) -> File:
    """Return the content of a file; nothing of it is run."""
    try:
        content = container.read(filename, MAGIC)
        fields = content.pop("arguments")
        arguments = None if fields is None else Arguments(**fields)
        file = File(name=filename, arguments=arguments, **content)
        if arguments is None and _ARGUMENTS not in file.signed:
            raise KeyError(_ARGUMENTS)
        numbers: List[Any] = [*(file.rng_state or ()), file.ipus]
        texts: List[Any] = [file.version, file.source, *(sign for _, sign in file.signed.values())]
        tensors: List[Any] = [*file.constants, *file.frozen.values()]
        for kind, values in ((int, numbers), (str, texts), (torch.Tensor, tensors), (bool, [file.training])):
            if not all(type(value) is kind for value in values):
                raise TypeError(f"one of {values} is no {kind.__name__}")
        return file
    except DamagedFile as error:
        raise _invalid(filename, str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _invalid(filename, f"its content makes no sense ({type(error).__name__}: {error})") from error


def _invalid(filename: str, why: str) -> Error:
    return python_error(f"Invalid file {filename}: {why}.")


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()

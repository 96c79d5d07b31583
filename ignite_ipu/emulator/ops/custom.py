"""Operators that run Python: layers on the host, and functions that stand in for custom operators, which are C++."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, TypeVar, Union

import torch
from torch import nn

from ignite_ipu.emulator.compiler.graph import ancestors
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.ops import collectives
from ignite_ipu.emulator.trace.active import Trace, active, running
from ignite_ipu.emulator.values.structures import listed

AttributeValue = Union[float, int, str, list, tuple]  # type: ignore[type-arg]
StandIn = Callable[..., Any]
_StandIn = TypeVar("_StandIn", bound=StandIn)

attributes_lists: List[Dict[str, AttributeValue]] = []


def _fast_gather_last_dim(data: torch.Tensor, index: torch.Tensor, axis: int) -> torch.Tensor:
    if axis not in (-1, data.dim() - 1):
        raise backend_error(f"FastGatherLastDim gathers along the last dimension of {tuple(data.shape)}, not {axis}.")
    return torch.gather(data, -1, index.long())


# PopTorch's own are there from the start.
_STAND_INS: Dict[Tuple[str, str, int], StandIn] = {
    ("FastGatherLastDim", "poptorch.custom_ops", 1): _fast_gather_last_dim
}
_BETWEEN_REPLICAS: Set[Tuple[str, str, int]] = set()
_ID_PREFIX = "attr:"
_FLOATS = torch.finfo(torch.float32)
_RANGES: Dict[str, Tuple[float, float]] = {"float": (_FLOATS.min, _FLOATS.max), "int": (-(2**63), 2**63 - 1)}


def register_custom_op(
    name: str, domain: str, domain_version: int = 1, between_replicas: bool = False
) -> Callable[[_StandIn], _StandIn]:
    """Return a decorator that lets a Python function stand in for a custom operator.

    The function gets the operator's inputs as CPU tensors and its attributes as keyword arguments. It returns a tensor
    or a sequence of tensors, of the shapes and types of the operator's example outputs. Gradients flow through it by
    autograd; write a `torch.autograd.Function` for other ones. A later registration of the same operator replaces an
    earlier one.

    Args:
        name: The operator's name.
        domain: The domain of its library.
        domain_version: The version of the domain.
        between_replicas: The operator exchanges values between replicas. The function then gets for each input a list
            with the tensor of each replica, and returns a list with the outputs of each replica.
    """

    def register(function: _StandIn) -> _StandIn:
        key = (name, domain, domain_version)
        _STAND_INS[key] = function
        _BETWEEN_REPLICAS.discard(key)
        if between_replicas:
            _BETWEEN_REPLICAS.add(key)
        return function

    return register


def unregister_custom_op(name: str, domain: str, domain_version: int = 1) -> None:
    """Forget the function that stands in for a custom operator; nothing when there is none."""
    _STAND_INS.pop((name, domain, domain_version), None)
    _BETWEEN_REPLICAS.discard((name, domain, domain_version))


def custom_op(
    inputs: Tuple[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Tuple[torch.Tensor],
    attributes: Optional[Dict[str, AttributeValue]] = None,
) -> List[torch.Tensor]:
    """Apply a custom operator; outside a traced model it only gives zeros.

    Args:
        example_outputs: Tensors with the shapes and types that it returns.
        attributes: Strings, numbers, and lists of one of these, by name.

    Returns:
        One tensor for each example.

    Raises:
        ValueError: An attribute is of another kind.
        Error: Nothing stands in for the operator, an attribute is out of range, or, when the model runs, the stand-in
            returns something unlike the examples.
    """
    attributes = copy.deepcopy(dict(attributes or {}))
    _check_attributes(attributes)
    if attributes not in attributes_lists:
        attributes_lists.append(attributes)
    trace = active()
    if trace is None:
        return [torch.zeros_like(each, requires_grad=each.requires_grad) for each in example_outputs]
    for value in attributes.values():
        for number in value if isinstance(value, (list, tuple)) else (value,):
            _check_range(number)
    key = (name, domain, domain_version)
    joint = _joint(key)
    stand_in = joint or _STAND_INS.get(key)
    if stand_in is None:
        raise backend_error(
            f"Could not find a creator function for the custom operator {domain}.{name}:{domain_version}. On an IPU "
            "its library must be loaded; in the emulator register a Python function that stands in for it with "
            f"@ignite_ipu.emulator.register_custom_op({name!r}, {domain!r}, {domain_version}). "
            f"Registered are {sorted(_STAND_INS) or 'none'}."
        )
    examples = [getattr(each, "meta", each) for each in map(trace.tensors.of, example_outputs)]
    with trace.outside():
        expected = [(tuple(each.shape), each.dtype) for each in examples]
    of_replica = stand_in if joint is None else collectives.kernel_of(joint, attributes)
    own_attributes = attributes if joint is None else {}

    def kernel(*values: torch.Tensor) -> List[torch.Tensor]:
        outputs = listed(of_replica(*values, **copy.deepcopy(own_attributes)))
        if is_known:
            # They are flat, and libraries declare them with a dimension of replicas.
            pairs = zip(outputs, expected)
            outputs = [each.reshape(shape) if each.numel() == math.prod(shape) else each for each, (shape, _) in pairs]
        found = [(tuple(each.shape), each.dtype) for each in outputs]
        if found != expected:
            raise backend_error(
                f"The {'operator' if is_known else 'function registered for the custom operator'} "
                f"{domain}.{name}:{domain_version} returned {found}, and its example outputs are {expected}."
            )
        return outputs

    is_known = joint is not None and joint is collectives.COLLECTIVES.get(name)
    kernel.__name__ = name
    kernel.runs_every_time = True  # type: ignore[attr-defined]
    if joint is None:
        return trace.record(kernel, *inputs, result=lambda: [_meta_like(each, False) for each in examples])
    needs_gradient = _note_collective(trace, name, attributes, inputs, is_known)
    results: Any = trace.record(kernel, *inputs, result=lambda: [_meta_like(each, needs_gradient) for each in examples])
    if needs_gradient is None:
        _refuse_gradient(trace, name, results)
    for result in results:
        result.node.meta["differentiable"] = bool(needs_gradient)
    return list(results)


def _joint(key: Tuple[str, str, int]) -> Optional[collectives.Joint]:
    """Return the function of all replicas that stands for an operator; None for one of each replica alone."""
    name, *domain = key
    if domain != [collectives.DOMAIN, collectives.VERSION] or name not in collectives.COLLECTIVES:
        return _STAND_INS[key] if key in _BETWEEN_REPLICAS else None
    if key in _STAND_INS and key not in _BETWEEN_REPLICAS:
        logger.warning(
            "%s exchanges values between replicas, and the function registered for it gets those of one replica only: "
            "the emulator's own operator is used. Leave the registration out.",
            name,
        )
    return _STAND_INS[key] if key in _BETWEEN_REPLICAS else collectives.COLLECTIVES[name]


def _note_collective(
    trace: Trace, name: str, attributes: Dict[str, Any], inputs: Sequence[torch.Tensor], is_known: bool
) -> Optional[bool]:
    """Have the replicas run together; return whether outputs have gradients, None where they would be refused."""
    outermost = trace
    while outermost.outer is not None:
        outermost.between_replicas = True
        outermost = outermost.outer
    outermost.between_replicas = True
    metas = [trace.traced(tensor).meta for tensor in inputs]
    with trace.outside():
        differentiable = any(meta.requires_grad for meta in metas)
    if not is_known:
        return differentiable

    def check(_: Any, options: Any, __: Any) -> None:
        collectives.check(name, attributes, metas, options.replication_factor * options.Distributed.numProcesses)

    outermost.checks.append(check)
    has_gradient = collectives.has_gradient(name, attributes)
    return has_gradient if has_gradient is None and differentiable else differentiable and bool(has_gradient)


def _refuse_gradient(trace: Trace, name: str, outputs: Sequence[Any]) -> None:
    """Refuse, when the model compiles, a loss whose gradient would have to flow back through an operator."""
    nodes = {output.node for output in outputs}

    def check(*_: Any) -> None:
        if nodes & ancestors(trace.losses):
            raise backend_error(
                f"{name} has a gradient for the operator Local (8) only, and the loss depends on weights through it. "
                "Detach its input, or use an operator that has one."
            )

    trace.checks.append(check)


def _meta_like(example: torch.Tensor, needs_gradient: Optional[bool]) -> torch.Tensor:
    meta = torch.empty(example.shape, dtype=example.dtype, device="meta")
    if needs_gradient is not False and meta.is_floating_point():
        return meta.requires_grad_().clone()  # no leaf, which nothing could be written into
    return meta.requires_grad_(example.requires_grad)


def accessAttributes(attribute_id_str: str) -> Dict[str, Any]:
    """Return the attributes of a custom operator.

    Args:
        attribute_id_str: `"attr:"` and their place in `attributes_lists`, as a hexadecimal number; or a JSON object.

    Raises:
        ValueError: It is neither.
    """
    if not isinstance(attribute_id_str, str):
        raise ValueError(f"Attributes are asked for by a string, got {attribute_id_str!r}.")
    with contextlib.suppress(ValueError):
        if not attribute_id_str.startswith(_ID_PREFIX):
            found = json.loads(attribute_id_str)
            if isinstance(found, dict):
                return found
        elif 0 <= (index := int(attribute_id_str[len(_ID_PREFIX) :], 16)) < len(attributes_lists):
            return attributes_lists[index]
    raise ValueError(
        f'{attribute_id_str!r} stands for no attributes: give a JSON object, or "attr:" with a hexadecimal number '
        f"below {len(attributes_lists):#x}."
    )


def _check_attributes(attributes: Dict[str, Any]) -> None:
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError(f"All attribute keys must be strings. Got {key!r}.")
        values = value if isinstance(value, (list, tuple)) else (value,)
        for each in values:
            if not isinstance(each, (float, int, str)):
                raise ValueError(
                    f"Attribute values must be floats, ints or strings; the list {key} holds {each!r}."
                    if values is value
                    else f"Attribute values must be floats, ints, strings, or lists or tuples of these; {key} is "
                    f"{value!r}."
                )
        for text in (key, *values):
            if isinstance(text, str) and not text.isascii():
                raise ValueError(f"{text!r} contains non-ASCII characters, which attributes cannot hold.")
        if len(set(map(type, values))) > 1:
            raise ValueError(
                f"The elements of an attribute's list must all be the same type; {key} is {list(values)!r}."
            )


def _check_range(value: Any) -> None:
    if isinstance(value, str):
        return
    kind = "float" if isinstance(value, float) else "int"
    lowest, largest = _RANGES[kind]
    if value > largest:
        raise backend_error(f"{value} is too high for a Popart {kind} attribute; the largest is {largest}.")
    if value < lowest:
        raise backend_error(f"{value} is too low for a Popart {kind} attribute; the lowest is {lowest}.")


class CPU:
    """A callable that runs on the host, with the values of the execution, whenever the model runs; inference only.

    Values are exchanged in float32. The trace calls the layer once, on zeros, to learn the shapes of its results.
    Outside a traced model it is called directly.

    Args:
        layer_to_call: A module, whose parameters are frozen here, or another callable. It takes and returns tensors.
        ID: Distinguishes the operator from all others in a model.

    Attributes:
        in_shapes, out_shapes: Shapes of the layer's inputs and outputs, known after a trace.
        inputs, outputs: Its latest inputs and outputs.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        self.layer_to_call = layer_to_call
        self.ID = ID
        self.in_shapes: List[Tuple[int, ...]] = []
        self.out_shapes: List[Tuple[int, ...]] = []
        self.inputs: List[torch.Tensor] = []
        self.outputs: List[torch.Tensor] = []
        if isinstance(layer_to_call, nn.Module):
            for parameter in layer_to_call.parameters():
                parameter.requires_grad_(False)

    def execute(self) -> None:
        """Call the layer on `inputs` and put its results into `outputs`."""
        result = self.layer_to_call(*self.inputs)
        for buffer, value in zip(self.outputs, listed(result)):
            buffer.copy_(value)

    def registerPersistentData(self) -> None:
        """Make `inputs` and `outputs` of the shapes that the trace found; values pass through them."""
        self.inputs = [torch.zeros(shape) for shape in self.in_shapes]
        self.outputs = [torch.zeros(shape) for shape in self.out_shapes]

    def __call__(self, *input: torch.Tensor, **kwargs: Any) -> Any:
        """Return the layer's results for the tensors: a tensor if it returns one, else a list.

        Keyword arguments are dropped, as in PopTorch, with a warning.

        Raises:
            Error: The model is a training model, or another operator of it has the same ID.
        """
        if kwargs:
            logger.warning("CPU operator %r: keyword arguments %s are dropped.", self.ID, sorted(kwargs))
        trace = active()
        if trace is None:
            return self.layer_to_call(*input)
        if trace.training:
            raise backend_error(
                f"The CPU operator {self.ID!r} is only supported in inference: wrap with poptorch.inferenceModel."
            )
        for node in trace.graph.nodes:
            other = getattr(node.target, "cpu_operator", self)
            if other is not self and other.ID == self.ID:
                raise backend_error(f"Two CPU operators of the model have the ID {self.ID!r}: give each its own.")
        self.in_shapes = [tuple(trace.traced(tensor).meta.shape) for tensor in input]
        # As on the host: outside the trace, and with the model's own tensors in place.
        with running(None), trace.outside(), trace.host_tensors(), torch.no_grad():
            example = self.layer_to_call(*[torch.zeros(shape) for shape in self.in_shapes])
        self.out_shapes = [tuple(value.shape) for value in listed(example)]
        if any(value.dtype is not torch.float32 for value in listed(example)):
            logger.warning("CPU operator %r: its results are handed over as float32.", self.ID)
        with trace.outside():
            self.registerPersistentData()
        in_shapes, out_shapes = self.in_shapes, self.out_shapes

        def kernel(*values: torch.Tensor) -> List[torch.Tensor]:
            # Another call of this operator may have other shapes.
            self.in_shapes, self.out_shapes = in_shapes, out_shapes
            self.registerPersistentData()
            for buffer, value in zip(self.inputs, values):
                buffer.copy_(value)
            self.execute()
            return [buffer.clone() for buffer in self.outputs]

        kernel.__name__ = "CPU"
        kernel.__dict__.update(runs_every_time=True, cpu_operator=self)
        outputs = trace.record(kernel, *input, result=lambda: [torch.empty(each, device="meta") for each in out_shapes])
        return outputs[0] if isinstance(example, torch.Tensor) else outputs

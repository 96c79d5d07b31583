"""A captured model as straight-line Python, which runs on every micro-batch."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any, Callable, Collection, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import torch
from torch import fx

from ignite_ipu.emulator.compiler import stochastic_rounding
from ignite_ipu.emulator.compiler.batching import narrowed
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.trace import half_precision, number_formats
from ignite_ipu.emulator.trace.active import IpuTensor
from ignite_ipu.emulator.trace.capture import Capture
from ignite_ipu.emulator.values.structures import flatten_tensors, leaves

Run = Callable[..., Tuple[torch.Tensor, ...]]
Fold = Callable[[Capture], Dict[fx.Node, torch.Tensor]]

EXPORT_VARIABLE = "POPTORCH_EXPORT_PROTO_FILE"
BINARY_VARIABLE = "POPTORCH_EXPORT_PROTO_AS_BINARY"
LENGTH_VARIABLE = "POPTORCH_MAX_GRAPH_LEN"
_BUILT_IN = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_ON_THE_HOST = tuple(f"ignite_ipu.emulator.ops.{name}" for name in ("control_flow", "custom", "printing"))


@dataclasses.dataclass(frozen=True)
class Graph:
    """The graph of one forward."""

    nodes: fx.Graph  # as recorded; each node's `meta` has its operator, site, name scope and source line
    run: Run  # of the inputs, weights, buffers and constants, in this order
    source: str  # the text of `run`
    inputs: Tuple[str, ...]
    weights: Tuple[str, ...]
    buffers: Tuple[str, ...]
    constants: Tuple[torch.Tensor, ...]
    folded: Dict[str, torch.Tensor]  # constants and outputs that were computed at compile time, by node name
    structure: Any  # the results of forward, with a traced tensor for each tensor
    positions: Tuple[Optional[int], ...]  # of the tensors of `structure` in the results of `run`; None for a frozen one
    frozen: Dict[int, torch.Tensor]  # tensors of `structure` that depend on no value on the device, by place in it
    loss: Optional[int]  # its place among the results of `run`; None in inference
    loss_type: Optional[torch.dtype]
    extras: Dict[str, int]  # places of further requested values among the results of `run`
    written: Tuple[int, ...]  # places of tensors that forward modifies in place, among the arguments of `run`
    written_inputs: Tuple[int, ...]
    written_buffers: Tuple[str, ...]
    watches_gradients: bool  # whether one is shown while it is computed
    between_replicas: bool  # whether replicas exchange values, so that they must run together
    differentiated: Tuple[str, ...]  # the weights that the loss has a gradient of, whether they are trained or not


def build(
    capture: Capture,
    structure: Any,
    loss: Optional[fx.Node],
    extras: Optional[Mapping[str, fx.Node]] = None,
    fold: Optional[Fold] = None,
) -> Graph:
    """Turn a finished capture, of a forward that returned `structure`, into a graph that runs.

    Args:
        extras: Nodes, by name, whose values are returned besides the results of forward, as computed.
        fold: Returns the nodes whose values are known already; None computes them.
    """
    folded = (fold or fold_constants)(capture)
    returned: Dict[fx.Node, int] = {}

    def place(node: fx.Node) -> int:
        return returned.setdefault(node, len(returned))

    frozen: Dict[int, torch.Tensor] = {}
    used: Dict[str, torch.Tensor] = {}
    positions: List[Optional[int]] = []
    for index, leaf in enumerate(flatten_tensors(structure)):
        node = leaf.node if isinstance(leaf, IpuTensor) else None
        if node is None:
            frozen[index] = leaf
        elif node in folded:
            # A value folded at compile time was still on the device; a host tensor never was.
            frozen[index], used[node.name] = narrowed(folded[node]), folded[node]
        positions.append(None if node is None or node in folded else place(node))
    # Arithmetic after a loss has no gradient, and arithmetic in place (`loss += penalty`) is no exception.
    loss_place = None if loss is None else place(_unchanged(capture, loss))
    extra_places = {name: place(_unchanged(capture, node)) for name, node in (extras or {}).items()}

    taken = capture.placeholders.nodes()
    written = tuple(index for index, node in enumerate(taken) if capture.writers.wrote(node))
    # A returned tensor has its value at the end of forward: later writes count, also those through a view.
    needed = _needed(capture, returned, stop=folded)
    constants = {node: value for node, value in folded.items() if node in needed}
    used.update((node.name, value) for node, value in constants.items())
    copied = {
        node: value for node, value in capture.placeholders.constants.items() if node in needed and node not in folded
    }
    arguments = [*taken, *constants, *copied]
    computed = needed - folded.keys()
    body = [node for node in capture.graph.nodes if node.op == "call_function" and node in computed]
    source, names = _generate(capture, arguments, copied, body, returned)
    exec(compile(source, "<captured graph>", "exec"), names)  # the text is ours, made from the recorded nodes
    return Graph(
        nodes=capture.graph,
        run=names["run"],
        source=source,
        inputs=tuple(capture.placeholders.inputs),
        weights=tuple(capture.placeholders.weights),
        buffers=tuple(capture.placeholders.buffers),
        constants=(*constants.values(), *copied.values()),
        folded=used,
        structure=structure,
        positions=tuple(positions),
        frozen=frozen,
        loss=loss_place,
        loss_type=None if loss is None else loss.meta["dtype"],
        extras=extra_places,
        written=written,
        written_inputs=tuple(index for index in written if index < len(capture.placeholders.inputs)),
        written_buffers=tuple(
            name for name, traced in capture.placeholders.buffers.items() if capture.writers.wrote(traced.origin)
        ),
        watches_gradients=capture.watches_gradients,
        between_replicas=capture.between_replicas,
        differentiated=() if loss is None else _differentiated(capture, loss),
    )


def _differentiated(capture: Capture, loss: fx.Node) -> Tuple[str, ...]:
    """Return the weights from which a differentiable path leads to the loss."""
    names = {traced.origin: name for name, traced in capture.placeholders.weights.items()}
    found: Set[fx.Node] = set()
    pending = [loss]
    while pending:
        current = pending.pop()
        if current in found or not (current in names or current.meta.get("differentiable", True)):
            continue
        found.add(current)
        pending += [*current.all_input_nodes, *current.meta.get("after", ())]
    return tuple(name for node, name in names.items() if node in found)


def live(capture: Capture, structure: Any, losses: Iterable[fx.Node] = ()) -> Set[fx.Node]:
    """Return the nodes that the results of forward, a loss, or a written input or buffer need."""
    leaves_of = [leaf.node for leaf in flatten_tensors(structure) if isinstance(leaf, IpuTensor)]
    return _needed(capture, [*leaves_of, *losses])


def on_the_host(nodes: fx.Graph) -> List[fx.Node]:
    """Return the operators that run the user's code, branch or print: the graph does not show all their effects."""
    found: List[fx.Node] = []
    for node in nodes.nodes:
        kernel: Any = node.target
        if node.op != "call_function" or isinstance(kernel, _BUILT_IN):
            continue
        module = getattr(kernel, "__module__", None) or ""
        ours = module.split(".")[0] in ("torch", "_operator", "ignite_ipu") and not module.startswith(_ON_THE_HOST)
        if getattr(kernel, "runs_every_time", False) or not ours:
            found.append(node)
    return found


def fold_constants(
    capture: Capture, also: Optional[Mapping[fx.Node, torch.Tensor]] = None
) -> Dict[fx.Node, torch.Tensor]:
    """Compute nodes once that depend on constants and `also` alone, draw no random number and are never written."""
    constants = {**capture.placeholders.constants, **(also or {})}
    known: Dict[fx.Node, Any] = {node: value for node, value in constants.items() if not capture.writers.wrote(node)}
    own_default = number_formats.by_default(capture.default_dtype)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), own_default:
        for node in capture.graph.nodes:
            if (
                node.op != "call_function"
                or "operator" not in node.meta
                or node.meta["writes"]
                or node.meta["after"]
                or any(source not in known for source in node.all_input_nodes)
                or any(capture.writers.wrote(value) for value in (node, *node.users))
                or getattr(node.target, "runs_every_time", False)
            ):
                continue
            before = torch.random.get_rng_state()
            kernel = node.target if node.meta.get("part") else half_precision.rounded(node, capture.writers.wrote)
            value = kernel(*fx.map_arg(node.args, known.__getitem__), **fx.map_arg(node.kwargs, known.__getitem__))
            if torch.equal(before, torch.random.get_rng_state()):
                known[node] = value
    return {node: value for node, value in known.items() if isinstance(value, torch.Tensor)}


def ancestors(nodes: Iterable[fx.Node], stop: Collection[fx.Node] = ()) -> Set[fx.Node]:
    """Return the dependencies of nodes, through arguments or memory written before them; not beyond those in `stop`."""
    found: Set[fx.Node] = set()
    pending = [node for node in nodes if node not in stop]
    while pending:
        current = pending.pop()
        for source in (*current.all_input_nodes, *current.meta.get("after", ())):
            if source not in found:
                found.add(source)
                if source not in stop:
                    pending.append(source)
    return found


def _unchanged(capture: Capture, node: fx.Node) -> fx.Node:
    """Return a node with the value that `node` has when it is computed, whatever is written over it after that.

    Weights and buffers have one value, the newest.
    """
    if any(
        node is traced.origin
        for traced in (*capture.placeholders.weights.values(), *capture.placeholders.buffers.values())
    ):
        return node
    memory = node.meta["memory"]
    since = itertools.dropwhile(lambda other: other is not node, capture.graph.nodes)
    if not any(memory in later.meta.get("writes", ()) for later in itertools.islice(since, 1, None)):
        return node
    with capture.graph.inserting_after(node):
        copy = capture.graph.call_function(torch.clone, (node,))
    # It is neither an operator nor a tensor of the model, so it gets no other metadata of these.
    copy.meta.update(shape=node.meta["shape"], dtype=node.meta["dtype"])
    return copy


def _needed(capture: Capture, returned: Collection[fx.Node], stop: Collection[fx.Node] = ()) -> Set[fx.Node]:
    """Return the nodes that the results need, or that write to memory in which values outlive forward."""
    nodes = capture.graph.nodes
    kept = {node.meta.get("memory") for node in (*capture.placeholders.nodes(), *returned)}
    roots = [*returned, *(node for node in nodes if node.meta.get("writes", set()) & kept)]
    switches = (node for node in nodes if node.op == "call_function" and "operator" not in node.meta)
    return {*roots, *ancestors(roots, stop), *switches}


def _kernel_of(capture: Capture, node: fx.Node) -> Any:
    """Return the function for a node's value: the recorded kernel, within the wrappers of the options."""
    kernel: Any = node.target
    if "operator" not in node.meta or node.meta.get("part"):
        return kernel
    if capture.precision.stochastic_rounding:
        kernel = stochastic_rounding.rounded(node, capture.writers.wrote)
    else:
        kernel = half_precision.rounded(node, capture.writers.wrote)
    if capture.precision.floating_point_exceptions:
        kernel = number_formats.watched(node.meta["operator"], kernel)
    return kernel


def _generate(
    capture: Capture,
    arguments: Sequence[fx.Node],
    copied: Iterable[fx.Node],
    body: Sequence[fx.Node],
    returned: Collection[fx.Node],
) -> Tuple[str, Dict[str, Any]]:
    """Write the Python function that calls the nodes of `body` in turn, and collect the objects that it names."""
    names: Dict[str, Any] = {}
    numbers = itertools.count()

    def bound(value: Any) -> str:
        name = f"_{next(numbers)}"
        names[name] = value
        return name

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return value.name
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        if type(value) is slice:
            return f"slice({text(value.start)}, {text(value.stop)}, {text(value.step)})"
        if isinstance(value, (list, tuple)) and any(isinstance(leaf, fx.Node) for leaf in leaves(value)):
            items = "".join(f"{text(item)}, " for item in value)
            return f"[{items}]" if isinstance(value, list) else f"({items})"
        if isinstance(value, dict) and any(isinstance(leaf, fx.Node) for leaf in leaves(value)):
            return "{" + "".join(f"{key!r}: {text(item)}, " for key, item in value.items()) + "}"
        return bound(_plain(value))

    last_use: Dict[fx.Node, fx.Node] = {}
    for node in body:
        last_use.update(dict.fromkeys(node.all_input_nodes, node))
    lines = [f"def run({', '.join(node.name for node in arguments)}):"]
    lines += [f"    {node.name} = {node.name}.clone()" for node in copied]
    for node in body:
        positional = [text(argument) for argument in node.args]
        keywords = [f"{key}={text(argument)}" for key, argument in node.kwargs.items()]
        call = f"{bound(_kernel_of(capture, node))}({', '.join([*positional, *keywords])})"
        dead = [used.name for used in node.all_input_nodes if last_use[used] is node and used not in returned]
        release = "".join(f"; {name} = None" for name in dead)
        lines.append(f"    {node.name} = {call}{release}")
    lines.append(f"    return ({''.join(f'{node.name}, ' for node in returned)})")
    return "\n".join(lines) + "\n", names


def _plain(value: Any) -> Any:
    """Return the list, tuple or dict that fx made immutable as the plain type that PyTorch's parsers expect."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def dump(graph: Graph) -> None:
    """Write the graph to the files and logs that the environment and the log level select.

    PopTorch exports ONNX; this writes text, one line an operator: its site, result, name, inputs and source.
    """
    if logger.isEnabledFor(logging.DEBUG):
        lines, text = list(_lines(graph)), os.environ.get(LENGTH_VARIABLE, "10")
        try:
            most = int(text)
        except ValueError:
            raise backend_error(f"{LENGTH_VARIABLE} must be an integer, got {text!r}.") from None
        left = f"\n... and {len(lines) - most} more (see {LENGTH_VARIABLE})" if len(lines) > most else ""
        logger.debug("The graph handed to the back end:\n%s%s", "\n".join(lines[:most]), left)
    path = os.environ.get(EXPORT_VARIABLE)
    if not path:
        return
    if os.environ.get(BINARY_VARIABLE, "0") not in ("", "0"):
        raise backend_error(f"{BINARY_VARIABLE} is refused: the emulator has no binary form of a graph. Unset it.")
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in _lines(graph))
    except OSError as error:
        raise backend_error(f"The graph cannot be written to {EXPORT_VARIABLE}={path!r}: {error}.") from error


def _lines(graph: Graph) -> Iterator[str]:
    for node in graph.nodes.nodes:
        if "operator" not in node.meta:
            continue
        site = node.meta["site"]
        inputs = ", ".join(source.name for source in node.all_input_nodes)
        made = f"{node.name}: {node.meta.get('dtype')}{list(node.meta.get('shape', ()))}"
        file, line = node.meta["source"] or ("?", 0)
        where = f"[ipu {site.ipu} stage {site.stage} phase {site.phase}]"
        yield f"{where} {made} = {node.meta['operator']}({inputs})  # {file}:{line}"

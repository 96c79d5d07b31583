"""Records the calls of a captured model."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Tuple

import torch

from ignite_ipu.deferred.compiled.first_call import call_first
from ignite_ipu.deferred.compiled.host_calls import called_on_host
from ignite_ipu.deferred.events import IGNORING
from ignite_ipu.deferred.graph.call_signatures import CallSignature
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.operations import Operation, Value
from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.deferred.graph.signatures import Signatures
from ignite_ipu.deferred.graph.structure import Structure, flatten, is_bare_tensor, leaves_in, unflatten
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.waiting import settle_sharing
from ignite_ipu.deferred.tensor.composed import ComposedError
from ignite_ipu.deferred.tensor.deferred_values import as_leaf
from ignite_ipu.deferred.tensor.returned_views import in_place_of_results
from ignite_ipu.deferred.tensor.stored_values import bring_waiting
from ignite_ipu.deferred.tensor.tensor import DeferredTensor, WeightView, deferred_results
from ignite_ipu.errors import IPUError
from ignite_ipu.program.forward.left_behind import may_leave_others, put
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_MOST_MODES = 16
_NONE: Any = (None, False, None)


class RecordedCalls:
    """The calls of one captured model.

    The first call of a kind shows the results and writes of all. Kinds differ in the arguments, the modes of the model,
    and whether gradients are enabled.

    Args:
        model: The captured model.
        failed: Gets the buffers that a call has written in which the model's code raises an error.
    """

    def __init__(self, model: Any, failed: Dict[str, torch.Tensor]) -> None:
        self._model = model
        self._failed = failed
        self._is_set_up = False
        self._is_composed = False  # of weights that another loop trains, too
        # Beginning with the one that was used last.
        self._known: List[Tuple[ModesThen, bool, Signatures]] = []

    def record(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Record a call and return its deferred result.

        Raises:
            ComposedError: Weights are of several loops, or no program can run the code.
        """
        loop: Loop = self._model.loop
        if self._is_composed:
            raise ComposedError
        if loop.setup.observer is not IGNORING:
            loop.setup.observer.called(self._model, recorded=True)
        line, grad = current_line(above=3), torch.is_grad_enabled()
        if loop.session.weights.sharing:
            settle_sharing(loop.buffers)
        loop.edits.look()
        modes = loop.modes.now()
        if loop.modes.holds_awaited:
            bring_waiting(loop.modes)
            modes = loop.modes.now()
        then, with_grad, signatures = self._known[0] if self._known else _NONE
        if then is not modes or with_grad is not grad:
            signatures = self._signatures(modes, grad)
        leaves: List[Any] = []
        values = (*args, *kwargs.values()) if kwargs else args
        signature = signatures.look_up([len(args), *kwargs], values, leaves, ())
        if signature is None or (signature.unsure and may_leave_others(signature)):
            signature, leaves = self._found_out(signatures, args, kwargs, grad, line)
        operation = Operation(signature, self._model, leaves, line)
        note_call = loop.updates.weights.note_call
        if note_call is not None:
            note_call(operation)
        if signature.writes:
            loop.buffers.record(operation, new=True)
        results = deferred_results(operation)
        if signature.evaluates:
            loop.evaluations.record(operation)
        own: FrozenSet[int] = frozenset()
        if signature.returned:
            found = leaves_in(results)
            given = leaves_in((args, kwargs), is_bare_tensor)
            own = in_place_of_results(found, signature.returned, self._model.model, given, line)
            results = unflatten(signature.result, found)
        if not signature.left:
            return results
        output, left = results
        put(signature.left, left, own)
        return output

    def _signatures(self, modes: ModesThen, grad: bool) -> Signatures:
        for then, with_grad, signatures in self._known:
            if then is modes and with_grad is grad:
                return signatures
        equal = [signatures for then, with_grad, signatures in self._known if with_grad is grad and then == modes]
        signatures = equal[0] if equal else Signatures(DeferredTensor, WeightView)
        others = [known for known in self._known if known[2] is not signatures]
        self._known = [(modes, grad, signatures), *others[: _MOST_MODES - 1]]
        return signatures

    def _found_out(
        self, signatures: Signatures, args: Tuple[Any, ...], kwargs: Dict[str, Any], grad: bool, line: Line
    ) -> Tuple[CallSignature, List[Any]]:
        """Return the signature of a call that takes more than a look at its arguments, and their leaves."""
        found: List[Any] = []
        structure = flatten((args, kwargs), found, is_bare_tensor)
        with DisableTorchFunctionSubclass():
            leaves = [as_leaf(leaf, line) for leaf in found]
            key = (structure.key, tuple([leaf.shape.key for leaf in leaves]))
            known: Optional[CallSignature] = signatures.templates.get(key)
            signature = known
            if known is None or may_leave_others(known):
                found_out = self._called_on_host(structure, leaves, grad)
                # A first call may set something up, such as a cache or the weights of lazy layers.
                loop: Loop = self._model.loop
                loop.edits.look()
                modes = loop.modes.now()
                signatures = self._signatures(modes, grad)
                signature = signatures.templates.get(key)
                if signature is None or signature is known:
                    signature, signature.modes = found_out, modes
                    signatures.templates[key] = signature
                    self._model.left.learn(signature)
            assert signature is not None
            signatures.learn([len(args), *kwargs], (*args, *kwargs.values()), (), signature)
            return signature, leaves

    def _called_on_host(self, structure: Structure, leaves: List[Any], grad: bool) -> CallSignature:
        """Return the results and writes of the model, found by a call on the host without lasting effects.

        The graph of that call is gone afterwards: its views of weights would count as memory that the loop has kept.
        """
        model, loop, name = self._model.model, self._model.loop, self._model.name
        owners = {found[0].loop for found in map(parameter_of, all_parameters(model)) if found is not None} - {loop}
        if owners:
            self._is_composed = True
            raise ComposedError
        values = [
            torch.zeros(leaf.shape.size, dtype=leaf.shape.dtype) if isinstance(leaf, Value) else leaf.tensor
            for leaf in leaves
        ]
        was_set_up, self._is_set_up = self._is_set_up, True
        # As in the first call, an evaluation makes what it keeps without gradients.
        trained = [leaf.shape.requires_grad for leaf in leaves]
        differentiated = trained if grad and model.training else None
        given = (model, structure, values, loop.session.weights, name)
        watched = self._model.outside.reads_of_others()
        try:
            args, kwargs = unflatten(structure, values)
            loop.session.weights.to_host()
            with self._model.composed.found_out((args, kwargs)) as before:
                if not was_set_up:
                    call_first(model, args, kwargs, loop.session, before, self._failed, watched)
                called = called_on_host(
                    *given,
                    differentiated=differentiated,
                    failed=self._failed,
                    operands=watched,
                    refuse_reads=self._model.composed.may_begin,
                    searched=before.decisions,
                )
        except IPUError:
            raise
        except Exception:
            self._is_set_up = was_set_up
            raise
        self._failed.clear()
        self._model.outside.check(called.outside, trains=grad)
        if grad and differentiated is None and any(own.steps and own.is_one_of(trained) for _, own in called.returned):
            # Only with gradients it shows which views of these arguments are detached.
            called = called._replace(returned=called_on_host(*given, differentiated=trained).returned)
        training = any(module.training for module in model.modules())
        return called.signature(structure, leaves, self._model.is_frozen, training)

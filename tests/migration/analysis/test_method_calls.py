"""Calls of methods by name, with their objects."""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.names import method_calls


def test_owners_are_chains_of_names_or_empty():
    tree = ast.parse("a.step()\nself.opts.b.step(1)\nmake().step()\nstep()\na.zero_grad()\na.step\n")
    found = [(call.lineno, owner) for call, owner in method_calls(ast.walk(tree), "step")]
    assert sorted(found) == [(1, "a"), (2, "self.opts.b"), (3, "")]


def test_several_methods_are_found_in_the_order_of_the_nodes():
    tree = ast.parse("a.step()\nb.zero_grad()\nc.step()\n")
    calls = [node.value for node in tree.body]
    assert [owner for _, owner in method_calls(calls, "step", "zero_grad")] == ["a", "b", "c"]

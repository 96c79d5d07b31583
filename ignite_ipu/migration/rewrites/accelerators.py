"""accelerate's `Accelerator` becomes the one for an IPU."""

from __future__ import annotations

from ignite_ipu.migration.rewriting.editor import Editor, Rewrite


def apply(editor: Editor) -> None:
    """Replace the class where it is called; what is prepared, and the loop, stay as they are."""
    for call, name in editor.program.calls("accelerate.Accelerator", "accelerate.accelerator.Accelerator"):
        editor.forget(name)
        editor.expression(call.func, editor.need("IPUAccelerator", call))


REWRITE = Rewrite(
    name="accelerators",
    summary="accelerate's Accelerator becomes IPUAccelerator.",
    example="""\
- from accelerate import Accelerator
+ from ignite_ipu import IPUAccelerator

- accelerator = Accelerator(gradient_accumulation_steps=4)
+ accelerator = IPUAccelerator(gradient_accumulation_steps=4)
  model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
""",
    apply=apply,
)

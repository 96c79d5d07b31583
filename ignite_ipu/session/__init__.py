"""One model, its optimizer, its compiled programs, and the place of its newest weights.

Engines, captured loops and handlers import `session`, and follow it by the interfaces of `hooks`; the room imports
`program`, `optimizers` and `pipeline`. Start reading with `session`, then `program` and `weights`.
"""

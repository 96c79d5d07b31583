"""Captured models and optimizers, their loop with its books, and the two kinds of updates.

The room imports the three others, and the doors of `deferred` import it. Start reading with `loop`, which has the
interfaces of all parts; then `model` and `optimizer`, by which events come in, and `fused_updates` or `host_updates`.
"""

"""Programs that PopTorch compiles: step modules, inputs, options, and the changes that make a program stale.

Every room that trains imports it. It knows no engine, no loop and no optimizer of the user. Start reading with
`config` and `step`, then `guards`.
"""

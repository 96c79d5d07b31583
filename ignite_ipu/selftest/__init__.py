"""`ignite-ipu selftest`: small programs that check the promises of the documentation on this machine.

No other room imports this one, which imports public names, as its users do. Start reading with `runner` and one
module of `promises`.
"""

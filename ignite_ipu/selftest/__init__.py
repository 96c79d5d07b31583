"""`ignite-ipu selftest`: small programs that check the promises of the documentation on this machine."""

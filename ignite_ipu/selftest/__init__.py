"""`ignite-ipu selftest`: small programs that check, on the machine at hand, what the documentation promises."""

"""The subcommands that read, rewrite and compare code."""

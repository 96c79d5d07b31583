"""The `ignite-ipu` command: parser, terminal, and the subcommands that need no model."""

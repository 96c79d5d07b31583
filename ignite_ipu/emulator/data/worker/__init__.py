"""The data loader's asynchronous worker process."""

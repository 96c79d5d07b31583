"""The data loader's asynchronous worker process, with a server that forks it.

PyTorch's `DataLoader` could make this process: a loader with one persistent worker that iterates the data set, and a
thread that copies each item into the ring. Both were measured, in turns, with the same tests and items.

- An item of 8 small tensors takes 1.9 to 3.1 ms of processor time there, and 0.12 to 0.16 ms here: PyTorch sends a
  descriptor for each tensor. An item of one small tensor takes 0.78 to 0.99 ms, and 0.08 to 0.10 ms here. One of 16 MB
  takes 3.9 to 5.5 ms, and 3.3 ms here: the thread copies it once more.
- A worker that is killed is noticed after up to 5 s there, unless PyTorch's signal handler raises in the middle of the
  program. Here it is noticed after 0.04 s.
- The worker may only start processes of its own if its private setting `daemon` is changed.
- Layout, rebatching, random state, hang reports and the end with the parent are the same code in both.

The server could be multiprocessing's fork server, with the worker's modules as its preloaded ones. The first batch of
8 forked workers comes after 0.7 to 0.9 s in both.

- 8 workers of a loader with the start method `spawn` take 9.2 to 9.6 s there to their first batch, and 1.0 to 1.2 s
  here: a worker starts a fork server of its own.
- Each process imports the main module there, in Python 3.11.
- It passes at most 256 descriptors: a data set with 300 shared tensors is refused.
- The program waits for a server that hangs for ever.
"""

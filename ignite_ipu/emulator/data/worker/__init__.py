"""The data loader's asynchronous worker process, with a server that forks it.

PyTorch's `DataLoader` with `persistent_workers` and a thread that hands over its batches would be less code. It was
measured beside this one, and keeps fewer promises. With 8 forked workers, start, first batch and end take 0.40 s of
processor time there, and 0.48 s here.

- The first batch comes after 0.8 s if its workers are forked, and after 43 to 52 s if they are spawned or come from
  multiprocessing's fork server: each imports torch and the main module. Here it comes after 0.8 to 8.6 s.
- It refuses a loader with workers of its own inside a worker.
- It draws random numbers from the generator of its caller.
"""

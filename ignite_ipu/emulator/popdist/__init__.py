"""PopDist: a training job in several processes, called instances, that PopRun starts; each has some of the replicas."""

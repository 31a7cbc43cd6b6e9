"""Models training steps that all-reduce gradients in buckets during the backward pass.

`net.py` defines a model and computes the time of a step, and `net_file.py` reads model files. `libraries.py` gives the
times of calls: of a plan, of NCCL, of a single reducer, and of a ring of point-to-point calls. `scaling.py` combines
them.
"""

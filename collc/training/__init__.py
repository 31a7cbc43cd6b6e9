"""Training steps in the model: layers whose gradients are all-reduced in buckets while the backward pass goes on.

`net.py` says what a model is and how long a step takes, `net_file.py` reads model files, `libraries.py` knows how long
calls take: of a plan, of NCCL, of a single reducer, of a ring by hand. `scaling.py` puts them together.
"""

"""Lists the sets of GPUs, the states after losses, and the classes of links that `plan` and `compile` pack."""

"""The simulator: how long a lowered program takes on a topology, and which plan to choose for every size.

`model.py` flattens a program and its links, `engine.py` is the event-driven definition, `engine.cpp` the same in C++,
`run.py` the front door.
"""

"""The checker: proves every claim of a plan, a program or a library, computed from its own bytes.

Only this package has to be trusted. It imports no solver, pass, generator or choice, and uses none of their results.
Besides its own modules it uses data types (`collc.topology.model`, `collc.packing.model`, `collc.ir.nodes`), the
definitions of collectives (`collc.collectives`) and the fingerprint of graphs (`collc.topology.canonical`).
`collc.limits` can only end a check. A test compares the list of imports and limits the number of lines. Each rule of
proof is written once: the compiler checks its own plans and programs with the same functions.

values.py reads JSON, and plans.py reads plans. packing.py proves the trees, paths, loads and rates of plans, orbits.py
proves orbits of trees, and certificates.py proves bounds. programs.py proves programs. elf.py reads the parts of a file
that a loader maps, layout.py defines the bytes of the tables, tables.py turns tables into programs. manifest.py and
machine.py read the claims of a library, and library.py proves that all parts agree.
"""

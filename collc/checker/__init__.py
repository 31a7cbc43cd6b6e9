"""The checker: whether what a plan, a program or a library claims is so, computed from its own bytes.

This is what has to be trusted, and all of it: no solver, pass, generator or choice is imported here, and none of their
results are taken over. What it uses beside its own modules are data types (`collc.topology.model`,
`collc.packing.model`, `collc.ir.nodes`), what a collective is (`collc.collectives`) and the fingerprint of graphs
(`collc.topology.canonical`); `collc.limits` can end it, not convince it. A test holds the list and counts the lines.
Each rule of proof stands here once: the compiler has its own plans and programs checked by the same functions.

values.py reads JSON. plans.py reads plans; packing.py proves their trees, paths, loads and rates, orbits.py those that
are given up to symmetry, certificates.py their bounds. programs.py proves programs. elf.py reads what a loader maps,
layout.py says how tables lie there, tables.py turns them into programs; manifest.py and machine.py read what a library
claims; library.py proves that all of these fit together.
"""

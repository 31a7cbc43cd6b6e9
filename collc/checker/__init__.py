"""The checker: whether what a plan, a program or a library claims is so, computed from its own bytes.

This is what has to be trusted, and all of it: no solver, pass, generator or choice is imported here, and none of their
results are taken over. Beside the data types (`collc.topology.model`, `collc.packing.model`, `collc.ir.nodes`) it uses
the reader and the proof of plans (`collc.packing.document`, `check`, `certificates`), the proof of programs
(`collc.ir.verify`), what a collective is (`collc.collectives`) and the fingerprint of graphs
(`collc.topology.canonical`). A test holds the list and counts the lines.

elf.py reads what a loader maps, layout.py says how tables lie there, tables.py turns them into programs; values.py,
manifest.py and machine.py read what the library claims; library.py proves that all of these fit together.
"""

"""The Python API: what `dir(collc)` lists, as thin functions over the rooms before this one.

Every argument is checked here, and what fails raises a `CollcError` whose text is one line.
"""

"""The Python API, which `dir(collc)` lists: thin functions over the other packages.

Every argument is checked here, and every error is a `CollcError` whose text is one line.
"""

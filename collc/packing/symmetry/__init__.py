"""Finds the symmetry of a graph, and uses it: orbits of trees, images of trees, plans of isomorphic graphs."""

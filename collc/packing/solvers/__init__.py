"""Solvers of trees and flows: the exact one, multiplicative weights, the ILP, and the parts that they share."""

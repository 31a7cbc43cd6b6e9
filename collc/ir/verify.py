"""Exports the verifier of `collc.checker.programs`, which `collc.pipeline` runs after every stage."""

from collc.checker.programs import verify

__all__ = ["verify"]

"""The proof of programs, which is the checker's: `collc.pipeline` asks for it after every stage."""

from collc.checker.programs import verify

__all__ = ["verify"]

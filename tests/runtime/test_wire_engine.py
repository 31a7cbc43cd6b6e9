"""The tcp engine by itself: proofs of the secret, strangers at its doors, messages whole and in order."""

from __future__ import annotations

import hashlib
import hmac
import os
import subprocess
from pathlib import Path

import pytest
from support.libraries import runtime_program

HERE = Path(__file__).parent
PARTS = frozenset(
    ["wire_proof", "wire_tcp", "wire_tcp_connection", "bootstrap_acceptor", "bootstrap_sockets", "bootstrap_unique_id"]
    + [f"base_{name}" for name in ("descriptor", "environment", "log", "random", "status")]
)


def run(*arguments: str) -> str:
    program = runtime_program(HERE / "wire_engine.cpp", PARTS)
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLLC_NET": "tcp:lo"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("key", "message"),
    [("k", ""), ("k" * 64, "m" * 55), ("k" * 65, "m" * 56), ("secret", "m" * 64), ("secret", "m" * 1000)],
)
def test_proofs_are_hmac_of_sha256(key: str, message: str) -> None:
    """Lengths on both sides of where a block is full."""
    assert run("proof", key, message).strip() == hmac.new(key.encode(), message.encode(), hashlib.sha256).hexdigest()


def test_strangers_have_no_effect() -> None:
    """125 of each kind at both doors: silent, half a hello, garbage, a hello with a wrong proof."""
    assert run("meet", "125") == "300 messages each way\n"


def test_another_secret_is_no_connection() -> None:
    assert "no connection after 1 s" in run("wrong")

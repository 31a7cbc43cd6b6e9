"""Reports whether TLS is usable here."""

from __future__ import annotations

import ctypes
import os

import pytest


def has_openssl() -> bool:
    """Returns whether the system has the library that COLLC_NET_TLS opens."""
    try:
        ctypes.CDLL("libssl.so.3")
    except OSError:
        return False
    return True


needs_openssl = pytest.mark.skipif(not has_openssl(), reason="no OpenSSL 3 here (Debian: libssl3)")

# For tests that run over the engine that COLLC_NET names.
_ENCRYPTS = not os.environ.get("COLLC_NET", "").startswith("ucx")
needs_tls = pytest.mark.skipif(
    not (has_openssl() and _ENCRYPTS),
    reason="no OpenSSL 3 here (Debian: libssl3)" if _ENCRYPTS else "the engine ucx does not encrypt",
)

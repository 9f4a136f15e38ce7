"""Is the hub there, and what did it say: shared by tokenizers and data sets."""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request


def hub_reachable() -> bool:
    """Whether asking the hub makes sense: its client retries a dead network for most of a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    address = urllib.parse.urlsplit(constants.ENDPOINT)
    if address.scheme in urllib.request.getproxies():
        return True
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname, port), timeout=5).close()
    except OSError:
        return False
    return True


def first_line(error: Exception) -> str:
    """First line of an error's message."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

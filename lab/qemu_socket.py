"""Dials a Unix socket however long its path is: sockaddr_un takes 107 bytes of it (unix(7))."""

import os
import socket
from pathlib import Path


def dial(path: Path, *, timeout_s: float) -> socket.socket:
    """A connection to who listens at `path`.

    Raises:
        OSError: nobody does, or not in time.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout_s)
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except BaseException:
        connection.close()
        raise
    return connection

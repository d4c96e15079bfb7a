"""`python -m tests.postgres [--tls] COMMAND...`: a command with a PostgreSQL server of its own."""

import os
import signal
import subprocess
import sys

from tests.postgres import OWNER, NoServer, Server, unset_pg
from tests.postgres_tls import TlsServer


def main(arguments: list[str]) -> int:
    """Run the command with its server; its exit code, or 128 and the signal that ended it."""
    tls = arguments[:1] == ["--tls"]
    command = arguments[tls:]
    if not command or command[0].startswith("-"):
        return _error(2, "usage: python -m tests.postgres [--tls] COMMAND...")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the server ends before we do
    try:
        server = TlsServer() if tls else Server()
    except NoServer as error:
        return _error(2, f"error: {error}\n next: apt-get install postgresql")
    with server:
        url = server.certificate_url(OWNER) if isinstance(server, TlsServer) else server.url(user=OWNER)
        print(f"PostgreSQL for this command alone: MUSTER_INVENTORY={url}", file=sys.stderr)  # noqa: T201
        try:
            process = subprocess.Popen(command, env=unset_pg(os.environ) | {"MUSTER_INVENTORY": url})
        except OSError as error:
            return _error(127, f"error: {command[0]}: {error.strerror}")
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to the command too
        status = process.wait()
    return status if status >= 0 else 128 - status


def _error(status: int, text: str) -> int:
    print(text, file=sys.stderr)  # noqa: T201
    return status

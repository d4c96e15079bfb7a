"""A guest agent on a socket, as slow and as forgetful as a real one: it answers late, and to whoever is there then."""

import json
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self


class SlowAgent:
    """Serves one client at a time; the answer to a question is kept when its client is gone.

    Args:
        path: the socket.
        answers: what it returns, by command; an `error` key makes an error of it.
        delays_s: how long it thinks about a command.
    """

    def __init__(self, path: Path, answers: Mapping[str, Any], delays_s: Mapping[str, float]) -> None:
        self._answers = answers
        self._delays_s = delays_s
        self._unsent = b""
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(4)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5.0)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with client:
                self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        try:
            client.sendall(self._unsent)  # to a client that did not ask
            self._unsent = b""
            for line in client.makefile("rb"):
                self._unsent = self._reply(line)
                client.sendall(self._unsent)
                self._unsent = b""
        except OSError:
            return

    def _reply(self, line: bytes) -> bytes:
        before, delimiter, text = line.rpartition(b"\xff")
        asked = json.loads(text)
        time.sleep(self._delays_s.get(asked["execute"], 0.0))
        if asked["execute"] == "guest-sync-delimited":
            stray = {"error": {"class": "GenericError", "desc": "JSON parse error, stray '\ufffd'"}}
            return _line(stray) + b"\xff" + _line({"return": asked["arguments"]["id"]})
        assert not before + delimiter
        answer = self._answers[asked["execute"]]
        return _line(answer if isinstance(answer, dict) and "error" in answer else {"return": answer})


def _line(document: object) -> bytes:
    return json.dumps(document).encode() + b"\n"

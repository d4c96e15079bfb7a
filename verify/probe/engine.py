"""The sim engine: rank 0's HTTP API in the shape of a real engine's, which listens only between GO and the end."""

from __future__ import annotations

import json
import socket
import time
from typing import NamedTuple

from .listening import at, bind
from .loop import READ, WRITE, Loop, Timer

HOST = "127.0.0.1"
MODEL = "muster-sim"
_PATHS = {b"/health": b"GET", b"/v1/models": b"GET", b"/v1/completions": b"POST"}
_MAX_REQUEST = 8192
_REQUEST_TIMEOUT_S = 2.0
_BACKLOG = 64


class Engine:
    """What a client of the replica talks to.

    The port is bound at once, so that it can be told and nobody else can take it, but a bound socket that does not
    listen refuses connections: before `serve` there is nothing to answer.
    """

    def __init__(self, loop: Loop, *, ranks: int, host: str = HOST, port: int = 0) -> None:
        self._loop, self._ranks = loop, ranks
        self._socket = bind(host, port)
        self._requests: dict[socket.socket, _Request] = {}
        self.port = int(self._socket.getsockname()[1])

    def serve(self) -> None:
        """Listen and answer; only an assembled replica may call this."""
        self._socket.settimeout(0)
        self._socket.listen(_BACKLOG)
        self._loop.add(self._socket, READ, self._accept)

    def stop(self) -> None:
        """Stop listening and drop whoever is being served."""
        for request in list(self._requests.values()):
            request.close()
        self._loop.drop(self._socket)
        self._socket.close()

    def _accept(self, _events: int) -> None:
        try:
            sock, _ = self._socket.accept()
        except OSError:
            return
        sock.settimeout(0)
        self._requests[sock] = _Request(self, self._loop, sock)

    def forget(self, sock: socket.socket) -> None:
        """A request is over."""
        self._requests.pop(sock, None)

    def answer(self, head: bytes, body: bytes = b"") -> bytes:
        """The whole HTTP answer to a request."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _http(400, "Bad Request", {"error": "not HTTP/1"})
        method, path = words[0], words[1]
        if path not in _PATHS:
            return _http(404, "Not Found", {"error": "no such path"})
        if method != _PATHS[path]:
            return _http(405, "Method Not Allowed", {"error": f"only {_PATHS[path].decode()}"})
        if path == b"/health":
            return _http(200, "OK", {"status": "ok", "ranks": self._ranks})
        if path == b"/v1/models":
            model = {"id": MODEL, "object": "model", "owned_by": "muster"}
            return _http(200, "OK", {"object": "list", "data": [model]})
        return _completion(body)


class _Request:
    """One connection: read a request, answer, close."""

    def __init__(self, engine: Engine, loop: Loop, sock: socket.socket) -> None:
        self._engine, self._loop, self._sock = engine, loop, sock
        self._head = bytearray()
        self._unsent = b""
        self._timer: Timer = loop.call_in(_REQUEST_TIMEOUT_S, self.close)
        loop.add(sock, READ, self._ready)

    def close(self) -> None:
        self._timer.cancel()
        self._loop.drop(self._sock)
        self._sock.close()
        self._engine.forget(self._sock)

    def _ready(self, _events: int) -> None:
        try:
            if self._unsent:
                self._send()
            else:
                self._read()
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def _read(self) -> None:
        data = self._sock.recv(_MAX_REQUEST)
        self._head += data
        if not data or len(self._head) > _MAX_REQUEST:
            self.close()
            return
        head, whole, body = bytes(self._head).partition(b"\r\n\r\n")
        if not whole:
            return
        length = _length(head)
        if not 0 <= length <= _MAX_REQUEST:
            self._reply(_http(413, "Content Too Large", {"error": f"at most {_MAX_REQUEST} bytes"}))
        elif len(body) >= length:
            self._reply(self._engine.answer(head, body[:length]))

    def _reply(self, answer: bytes) -> None:
        self._unsent = answer
        self._loop.change(self._sock, WRITE)

    def _send(self) -> None:
        self._unsent = self._unsent[self._sock.send(self._unsent) :]
        if not self._unsent:
            self.close()


class Answer(NamedTuple):
    """What a client saw: an HTTP status and a JSON body, or `refused` when nothing listens (status 0)."""

    status: int
    body: object
    refused: bool = False


def ask(port: int, path: str, *, timeout_s: float, host: str = HOST, prompt: str | None = None) -> Answer:
    """Ask the API, as a client would, with a POST where there is a prompt; an unreadable answer has status -1."""
    body = b"" if prompt is None else json.dumps({"model": MODEL, "prompt": prompt}).encode()
    said = (
        f"{'GET' if prompt is None else 'POST'} {path} HTTP/1.1\r\nHost: {at(host, port)}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as sock:
            sock.sendall(said.encode() + body)
            data = bytearray()
            while len(data) <= _MAX_REQUEST:
                piece = sock.recv(_MAX_REQUEST)
                if not piece:
                    break
                data += piece
    except ConnectionRefusedError:
        return Answer(0, None, refused=True)
    except OSError as error:
        return Answer(-1, str(error))
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    try:
        return Answer(int(words[1]), json.loads(body))
    except (IndexError, ValueError):
        return Answer(-1, "not an HTTP answer with JSON")


def _completion(body: bytes) -> bytes:
    """The prompt again, in the shape of a completion: what came back is what went in."""
    try:
        asked = json.loads(body)
        prompt, model = asked["prompt"], asked.get("model", MODEL)
    except (ValueError, KeyError, TypeError, AttributeError):
        return _http(400, "Bad Request", {"error": "a JSON object with a prompt is needed"})
    if not isinstance(prompt, str):
        return _http(400, "Bad Request", {"error": "the prompt must be a string"})
    if model != MODEL:
        return _http(404, "Not Found", {"error": f"no such model, {MODEL} is served"})
    choice = {"index": 0, "text": prompt, "finish_reason": "stop", "logprobs": None}
    whole = {"id": "cmpl-echo", "object": "text_completion", "created": int(time.time()), "model": MODEL}
    words = len(prompt.split())
    usage = {"prompt_tokens": words, "completion_tokens": words, "total_tokens": 2 * words}
    return _http(200, "OK", {**whole, "choices": [choice], "usage": usage})


def _length(head: bytes) -> int:
    """What Content-Length says; 0 without one, -1 where it is no number or a body of another form comes."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"transfer-encoding":
            return -1
        if name.strip().lower() == b"content-length":
            return int(value) if value.strip().isdigit() else -1
    return 0


def _http(status: int, reason: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data

"""Holds every byte of TCP connections back for a while, each way: `python -m bench.relay MS LISTEN=TARGET...`.

For kernels without netem. A connection itself costs a round trip more, as the handshake would.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

_CHUNK = 64 * 1024
Handler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def serve(delay_s: float, ways: list[str]) -> None:
    """Relay until told to end; says so when all listen."""
    servers = []
    for way in ways:
        listen, _, target = way.partition("=")
        host, _, port = listen.rpartition(":")
        servers.append(await asyncio.start_server(_handler(delay_s, target), host, int(port)))
    print("ready", flush=True)
    await asyncio.Event().wait()


def _handler(delay_s: float, target: str) -> Handler:
    host, _, port = target.rpartition(":")

    async def handle(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * delay_s)
        far, forth = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pass(near, forth, delay_s), _pass(far, back, delay_s))

    return handle


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float) -> None:
    """One direction: what comes is due `delay_s` later, in its order."""
    loop = asyncio.get_running_loop()
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def take() -> None:
        data = b"-"
        while data:
            try:
                data = await source.read(_CHUNK)
            except OSError:
                data = b""
            held.put_nowait((loop.time() + delay_s, data))

    async def give() -> None:
        while True:
            due, data = await held.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                break
            sink.write(data)
            await sink.drain()

    taking = asyncio.create_task(take())
    with suppress(OSError):
        await give()
    taking.cancel()
    sink.close()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(float(sys.argv[1]) / 1000, sys.argv[2:]))

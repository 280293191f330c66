"""A relay before a broker whose first answer on a connection comes a little later.

librdkafka tells of a certificate that it does not believe as an error of TLS, as its test wants to
hear, unless the answer is there before its first call of SSL_connect returns: then it is one of the
transport (rd_kafka_transport_ssl_connect). A client that waits for a processor finds it there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LATER_S = 0.1
_CHUNK = 65_536


@contextmanager
def relayed(bootstrap: str) -> Iterator[str]:
    """Listen for each of these addresses; gives the addresses to use instead."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="relay", daemon=True)
    thread.start()
    try:
        listening = [_listen(*address.rsplit(":", 1)) for address in bootstrap.split(",")]
        ports = [asyncio.run_coroutine_threadsafe(one, loop).result(10) for one in listening]
        yield ",".join(f"127.0.0.1:{port}" for port in ports)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _listen(host: str, port: str) -> int:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there, back = await asyncio.open_connection(host, int(port))
            await asyncio.gather(_pump(reader, back, 0), _pump(there, writer, LATER_S))

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, wait_s: float) -> None:
    """Pass on what comes, the first of it after a wait, until either side ends."""
    try:
        while data := await source.read(_CHUNK):
            await asyncio.sleep(wait_s)
            wait_s = 0
            sink.write(data)
            await sink.drain()
    except OSError:
        """The other pump sees it, too."""
    finally:
        sink.close()

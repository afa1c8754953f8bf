"""The connections of the asyncio client: how many there are, and how a request and its response use one."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import Dict, List, Optional, Tuple

from . import _batch, _http
from ._core import PROBE_EVERY, Protocol
from ._lanes import Lane
from ._steps import NoAnswer, Send, Server
from .errors import ClosedError

_WAITS, _CALLS = 192, 48  # connections to a server: for requests that may wait in its queue, and for others
_GATHERED = 64  # calls that may be under way at once if they share requests
READ = 65536  # bytes

Connection = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Connections:
    """The connections to all servers. They belong to one event loop; after reset they belong to the loop that runs
    then."""

    def __init__(self, protocol: Protocol, context: Optional[ssl.SSLContext], batch_after: int) -> None:
        self._protocol, self._context, self._batch_after = protocol, context, batch_after
        self._batchers: Dict[Server, _batch.Batcher] = {}
        self._idle: Dict[Server, List[Connection]] = {}
        self.waits, self.calls = Lane(_WAITS), Lane(_CALLS if batch_after < 0 else _GATHERED)
        self._requests = {server: Lane(_CALLS) for server in protocol.servers}  # by server: the places for requests that do not wait
        self._closed = False  # if true, nothing may be sent

    def reset(self) -> None:
        """Forgets the connections, and the calls, of an event loop that has ended."""
        self._idle.clear()
        self._batchers.clear()
        for lane in (self.waits, self.calls, *self._requests.values()):
            lane.reset()

    async def close(self) -> None:
        self._closed = True
        closing = [writer for idle in self._idle.values() for _, writer in idle]
        self._idle.clear()
        for writer in closing:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in closing), return_exceptions=True)

    async def send(self, request: Send) -> _http.Answer:
        """Sends a request, alone or in a batch."""
        if not request.gathers:
            return await self._exchange(request)
        batcher = self._batchers.get(request.server)
        if batcher is None:
            batcher = self._batchers[request.server] = _batch.Batcher(request.server, self._batch_after, self._exchange)
        return await batcher.send(request)

    async def _exchange(self, request: Send) -> _http.Answer:
        """Sends a request on a connection of its own. An extend that is sent alone does not queue for a
        connection."""
        if request.waits or request.path == "/leases/current/extend":
            return await self._converse(request)
        lane = self._requests[request.server]
        if not await lane.take(request.limit):
            raise NoAnswer("no connection was free in time", False)
        try:
            return await self._converse(request)
        finally:
            lane.give()

    async def _converse(self, request: Send) -> _http.Answer:
        deadline, data = time.monotonic() + request.limit, request.data
        sent, writer = False, None
        try:
            reader, writer = await self._connection(request.server, deadline)
            sent = True
            writer.write(data)
            parser = _http.Parser()
            answer = await self._read((reader, writer), parser, request, deadline)
            if parser.keep_alive:
                self._put(request.server, (reader, writer))
                writer = None
            return answer
        except (OSError, _http.Malformed, asyncio.TimeoutError) as e:
            self.drop(request.server)
            if writer is not None:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()  # otherwise asyncio would report an unread error
            raise NoAnswer("no response in time" if isinstance(e, asyncio.TimeoutError) else str(e), sent) from None
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _read(self, connection: Connection, parser: _http.Parser, request: Send, deadline: float) -> _http.Answer:
        reader, writer = connection
        timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), writer.transport.abort)
        try:
            answer = None
            while answer is None:
                answer = parser.feed(await (self._probing(reader, request) if request.probe else reader.read(READ)))
            return answer
        except _http.Malformed:
            if time.monotonic() >= deadline:
                raise asyncio.TimeoutError from None
            raise
        finally:
            timer.cancel()

    async def _probing(self, reader: asyncio.StreamReader, request: Send) -> bytes:
        """Reads, and meanwhile probes the server. It raises if the server responds to nothing, because a frozen
        server would keep a waiting request until the end of its wait."""
        reading, pause = asyncio.ensure_future(reader.read(READ)), request.probe
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=pause)
                if not reading.done():
                    await self._probe(request.server, request.probe)
                pause = PROBE_EVERY
            return reading.result()
        finally:
            reading.cancel()

    async def _probe(self, server: Server, limit: float) -> None:
        try:
            await self.send(self._protocol.probe(server, limit))
        except NoAnswer as e:
            if self._protocol.shared(server):
                return
            raise OSError(f"the server does not answer while the request waits: {e}") from None

    async def _connection(self, server: Server, deadline: float) -> Connection:
        if self._closed:
            raise ClosedError("this client is closed")
        idle = self._idle.get(server, [])
        while idle:
            reader, writer = idle.pop()
            if not reader.at_eof() and not writer.transport.is_closing():
                return reader, writer
            writer.transport.abort()
        return await self.connect(server, deadline)

    async def connect(self, server: Server, deadline: float) -> Connection:
        context = (self._context or ssl.create_default_context()) if server.tls else None
        # wait_for is not used, because before Python 3.12 it may swallow a cancellation.
        opening = asyncio.ensure_future(asyncio.open_connection(server.name, server.port, ssl=context))
        try:
            await asyncio.wait({opening}, timeout=max(0.0, deadline - time.monotonic()))
            if not opening.done():
                raise asyncio.TimeoutError
            reader, writer = opening.result()
            if hasattr(writer.transport, "max_size"):  # asyncio's default is 256 KiB, memory that would be mapped and unmapped for every read
                writer.transport.max_size = READ
            return reader, writer
        except BaseException:
            opening.cancel()
            opening.add_done_callback(_discard)
            raise

    def _put(self, server: Server, connection: Connection) -> None:
        idle = self._idle.setdefault(server, [])
        if self._closed:
            connection[1].close()
        else:
            idle.append(connection)

    def drop(self, server: Server) -> None:
        for _, writer in self._idle.pop(server, []):
            writer.transport.abort()


def _discard(opening: "asyncio.Future[Connection]") -> None:
    """Closes a connection that was opened too late."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].transport.abort()

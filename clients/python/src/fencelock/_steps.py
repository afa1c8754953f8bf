"""The steps of an operation: a request, a pause, or a turn for a connection. The client that runs the operation
carries them out."""

from __future__ import annotations

import math
import re
import urllib.parse
from dataclasses import dataclass, field, replace
from typing import Any, Generator, List, Optional, Sequence, Tuple, TypeVar, Union

from . import _http

T = TypeVar("T")
NOTHING = object()  # means no body, while null is a body


@dataclass(frozen=True)
class Server:
    host: str  # the value of the header Host
    name: str
    port: int
    tls: bool
    prefix: str  # the beginning of every path

    @staticmethod
    def parse(url: str) -> "Server":
        parts = urllib.parse.urlsplit(url.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
            raise ValueError("every server must be a URL such as http://127.0.0.1:8080, without a password")
        tls = parts.scheme == "https"
        return Server(parts.netloc, parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}{self.prefix}"


@dataclass(frozen=True)
class Operation:
    """A request as part of a batch (POST /locks/batch)."""

    text: bytes = field(repr=False)  # JSON
    credential: str = field(repr=False)


@dataclass(frozen=True)
class Send:
    """The step: send one request to one server."""

    server: Server
    method: str
    path: str
    headers: Sequence[Tuple[str, str]] = field(repr=False)
    content: Optional[bytes] = field(repr=False)
    credential: str = field(repr=False)
    limit: float  # seconds for sending and the response
    probe: float = 0.0  # for a request that waits in the queue: the server is probed after this many seconds, and has as long to respond; 0 for no probe
    waits: bool = False  # the request may wait in the queue
    late: Optional[List[Any]] = field(default=None, repr=False)  # gets the outcome of a request that was given up but continues in a batch

    @property
    def data(self) -> bytes:
        """The request as bytes of HTTP."""
        headers = list(self.headers)
        if self.content is not None:
            headers.append(("Content-Type", "application/json"))
        if self.credential:
            headers.append(("Authorization", f"Bearer {self.credential}"))
        return _http.encode(self.method, self.server.host, self.server.prefix + self.path, headers, self.content)

    def within(self, limit: float) -> "Send":
        return replace(self, limit=min(self.limit, limit))

    @property
    def gathers(self) -> bool:
        """Whether the request is of a kind that may be in a batch."""
        return not self.waits and (self.method, self.path) in _OPERATIONS

    def operation(self) -> Optional[Operation]:
        """The request as part of a batch; None if it must be sent alone."""
        text = b'{"operation":"' + _OPERATIONS[self.method, self.path]
        for header, member in _IN_OPERATION:
            for name, value in self.headers:
                if name == header:
                    if not _PLAIN.fullmatch(value):
                        return None  # JSON may change the value, unlike a header
                    text += member + value.encode() + b'"'
        if self.content is not None:
            text += b',"body":' + self.content
        return Operation(text + b"}", self.credential) if len(text) < _LARGEST else None


_OPERATIONS = {("POST", "/locks"): b'acquire"', ("POST", "/leases/current/extend"): b'extend"', ("DELETE", "/leases/current"): b'release"'}
_IN_OPERATION = (("Idempotency-Key", b',"idempotency_key":"'), ("Fencelock-Lease", b',"lease_id":"'))
_PLAIN = re.compile(r"[!#-\[\]-~]+")
_LARGEST = 3840  # the maximum bytes of an operation: 16 such operations fill a batch


def batch(server: Server, operations: Sequence[Operation], limit: float) -> Send:
    """The request that executes all operations, which have the same credential."""
    content = b'{"operations":[' + b",".join(o.text for o in operations) + b"]}"
    return Send(server, "POST", "/locks/batch", (), content, operations[0].credential, limit)


@dataclass(frozen=True)
class Sleep:
    seconds: float


@dataclass(frozen=True)
class Turn:
    """The step: wait in the client's own queue for a connection. The client that runs the steps keeps the turn until
    the next Send is done. This wait is not the service's fault, so of a call's time limits only ``timeout`` counts
    it."""

    waits: bool  # the request may wait in the queue of the service
    limit: float = math.inf  # seconds


class NoAnswer(Exception):
    """A try got no response. ``sent`` means that the server may have read the request."""

    def __init__(self, why: str, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


Steps = Generator[Union[Send, Sleep, Turn], Any, T]  # a Send yields an Answer, and a Turn whether most places are taken


def bounded(step: Union[Send, Sleep, Turn], left: float) -> Union[Send, Sleep, Turn]:
    """The step, limited to the rest of the time of a whole call."""
    if isinstance(step, Send):
        return step.within(left)
    if isinstance(step, Turn):
        return Turn(step.waits, left)
    return Sleep(min(step.seconds, left))

"""HTTP/1.1 without sockets: it converts requests to bytes, and bytes to responses.

Both clients use it. http.client has no version for asyncio, and limits the time of each read, while a try needs one
limit for the whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

_MAX_HEAD = 64 << 10  # bytes
_MAX_BODY = 16 << 20


class Malformed(Exception):
    """The response is not HTTP, or is incomplete."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Dict[str, str]  # names in lower case
    body: bytes = field(repr=False)
    value: Optional[Dict[str, Any]] = field(default=None, repr=False)  # the body's JSON, if it was parsed before


def encode(method: str, host: str, path: str, headers: Sequence[Tuple[str, str]], body: Optional[bytes]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1:
        raise ValueError("a header has a line break")
    return head.encode("latin-1") + b"\r\n\r\n" + (body or b"")


class Parser:
    """Parses one response. ``keep_alive`` says whether the connection may be used again."""

    def __init__(self) -> None:
        self.keep_alive = False
        self._data = bytearray()
        self._body = bytearray()  # the data of the chunks before _at
        self._at = 0
        self._news = 0  # how many bytes at the end were not searched for the end of the header yet
        self._head: Optional[Tuple[int, Dict[str, str]]] = None

    def feed(self, data: bytes) -> Optional[Answer]:
        """Takes bytes as they arrive; b"" means the end of the connection. Returns the response when it is
        complete."""
        self._news = len(data)
        self._data += data
        if self._head is None and not self._read_head():
            if not data:
                raise Malformed("the connection was closed before the answer")
            return None
        assert self._head is not None
        status, headers = self._head
        body = self._read_body(status, headers, ended=not data)
        if body is None:
            if not data:
                raise Malformed("the response broke off")
            if len(self._data) > _MAX_BODY:
                raise Malformed("the answer is too long")
            return None
        return Answer(status, headers, body)

    def _read_head(self) -> bool:
        while True:
            end = self._data.find(b"\r\n\r\n", max(0, len(self._data) - self._news - 3))
            if end < 0:
                if len(self._data) > _MAX_HEAD:
                    raise Malformed("the answer's header is too long")
                return False
            lines = self._data[:end].decode("latin-1").split("\r\n")
            del self._data[: end + 4]
            self._news = len(self._data)
            version, _, rest = lines[0].partition(" ")
            code = rest[:3]
            if not version.startswith("HTTP/1.") or not _is_number(code):
                raise Malformed("the answer is not HTTP")
            if code.startswith("1"):
                continue  # an interim response
            headers = {}
            for line in lines[1:]:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            self._head = int(code), headers
            asked = headers.get("connection", "").lower()
            self.keep_alive = asked != "close" and (version != "HTTP/1.0" or asked == "keep-alive")
            return True

    def _read_body(self, status: int, headers: Dict[str, str], ended: bool) -> Optional[bytes]:
        if status in (204, 304):
            return b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks()
        length = headers.get("content-length")
        if length is None:
            self.keep_alive = False
            return bytes(self._data) if ended else None
        if not _is_number(length):
            raise Malformed("the answer's Content-Length is no number")
        if int(length) > _MAX_BODY:
            raise Malformed("the answer is too long")
        return bytes(self._data[: int(length)]) if len(self._data) >= int(length) else None

    def _chunks(self) -> Optional[bytes]:
        """Parses the chunks that have arrived since the last call, so that many small chunks cost no more than a
        large one."""
        while True:
            end = self._data.find(b"\r\n", self._at)
            if end < 0:
                if len(self._data) - self._at > _MAX_HEAD:
                    raise Malformed("a chunk has no length")
                return None
            size = _chunk_size(bytes(self._data[self._at : end]))
            if len(self._body) + size > _MAX_BODY:
                raise Malformed("the answer is too long")
            if size == 0:
                # An empty line ends the trailers; without trailers it directly follows the size.
                if self._data.find(b"\r\n\r\n", end) >= 0:
                    return bytes(self._body)
                if len(self._data) - end > _MAX_HEAD:
                    raise Malformed("the answer's trailer is too long")
                return None
            if len(self._data) < end + 2 + size + 2:
                return None
            self._body += self._data[end + 2 : end + 2 + size]
            self._at = end + 2 + size + 2


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not 0 < len(digits) <= 8 or digits.strip(b"0123456789abcdefABCDEF"):
        raise Malformed("a chunk has no length")
    return int(digits, 16)


def object_of(answer: Answer) -> Dict[str, Any]:
    """The JSON object of a response; empty if its body is not an object."""
    if answer.value is not None:
        return answer.value
    try:
        value = json.loads(answer.body) if answer.body else {}
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}

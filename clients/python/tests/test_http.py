"""The HTTP codec: every answer in pieces of every size, and what is no answer."""

import time
import unittest

from fencelock import _http

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def parse(data, size):
    parser = _http.Parser()
    for at in range(0, len(data), size):
        answer = parser.feed(data[at : at + size])
        if answer is not None:
            return parser, answer
    return parser, parser.feed(b"")


class Parsing(unittest.TestCase):
    def each_size(self, data):
        for size in (1, 2, 7, 1000):
            yield parse(data, size)

    def test_a_length(self):
        for parser, answer in self.each_size(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nRetry-After:  7 \r\n\r\n{}"):
            self.assertEqual((answer.status, answer.body, answer.headers["retry-after"], parser.keep_alive), (201, b"{}", "7", True))

    def test_no_content(self):
        for parser, answer in self.each_size(b"HTTP/1.1 204 No Content\r\n\r\n"):
            self.assertEqual((answer.status, answer.body, parser.keep_alive), (204, b"", True))

    def test_chunks(self):
        for end in (b"0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n"):
            for parser, answer in self.each_size(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n" + end):
                self.assertEqual((answer.body, parser.keep_alive), (b"abc0123456789", True))

    def test_until_the_end_of_the_connection(self):
        for parser, answer in self.each_size(b"HTTP/1.0 502 Bad Gateway\r\n\r\n<html>"):
            self.assertEqual((answer.status, answer.body, parser.keep_alive), (502, b"<html>", False))

    def test_connection_close(self):
        parser, _ = parse(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 9)
        self.assertFalse(parser.keep_alive)

    def test_an_interim_answer_comes_first(self):
        for _, answer in self.each_size(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"):
            self.assertEqual((answer.status, answer.body), (200, b"x"))

    def test_what_is_no_answer(self):
        for data in (
            b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", b"x" * (1 << 17),
            *(CHUNKED + size + b"\r\nabc\r\n0\r\n\r\n" for size in (b"-6", b"+3", b"0x3", b"1_0", b" ", b"", b"fffffffff", b"1000001")),
            CHUNKED + b"1" * (1 << 17), CHUNKED + b"0\r\n" + b"x" * (1 << 17),
            b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\nab", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nab",
            b"HTTP/1.1 2\xb20 OK\r\nContent-Length: 0\r\n\r\n",
        ):
            with self.subTest(data=data[:60]), self.assertRaises(_http.Malformed):
                parse(data, 50)

    def test_small_chunks_cost_as_much_each_however_many_come(self):
        def cost(chunks):
            parser, began = _http.Parser(), time.process_time()
            parser.feed(CHUNKED)
            for _ in range(chunks):
                parser.feed(b"1\r\nx\r\n")
            answer = parser.feed(b"0\r\n\r\n")
            self.assertEqual(len(answer.body), chunks)
            return time.process_time() - began

        few, many = min(cost(2000) for _ in range(3)), min(cost(40_000) for _ in range(3))
        self.assertLess(many, 20 * few * 4)


class Encoding(unittest.TestCase):
    def test_a_request(self):
        self.assertEqual(
            _http.encode("POST", "h:1", "/locks", [("A", "b")], b"{}"), b"POST /locks HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: 2\r\n\r\n{}"
        )

    def test_a_line_break_in_a_header_is_refused(self):
        for value in ("x\nSet-Cookie: y", "x\r\nA: b"):
            with self.assertRaises(ValueError):
                _http.encode("GET", "h", "/", [("Authorization", value)], None)

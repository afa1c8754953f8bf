package edge_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fencelock/fencelock/api/edge"
)

// echo is a server that responds with the length of a request's body, over connections of a Listener.
type echo struct{ scheme, address string }

func strictly(t *testing.T, overTLS bool) echo {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprintf(w, "%s %d %t", r.Proto, len(body), r.TLS != nil)
	}))
	server.EnableHTTP2 = true
	server.StartTLS() // for its certificate
	certificates := server.TLS.Certificates
	server.Close()
	plain := httptest.NewUnstartedServer(server.Config.Handler)
	var config *tls.Config
	scheme := "http"
	if overTLS {
		scheme, config = "https", &tls.Config{Certificates: certificates, NextProtos: []string{"h2", "http/1.1"}}
	}
	plain.Config.Protocols = new(http.Protocols)
	plain.Config.Protocols.SetHTTP1(true)
	plain.Config.Protocols.SetHTTP2(true)
	plain.Config.Protocols.SetUnencryptedHTTP2(true)
	plain.Config.MaxHeaderBytes = 32 << 10 // as the program has it
	plain.Listener = edge.NewListener(plain.Listener, edge.ListenerOptions{TLS: config, Handshake: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	plain.Start()
	t.Cleanup(plain.Close)
	return echo{scheme: scheme, address: plain.Listener.Addr().String()}
}

// dial opens a connection, over TLS if the server is. It lasts for 20 seconds.
func (s echo) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if s.scheme == "https" {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// wantsServed reads a response, which must be a 200.
func wantsServed(t *testing.T, r *bufio.Reader, what string) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(what, err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(what, err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the status of %s is %d", what, resp.StatusCode)
	}
}

// TestAmbiguousHeaders: each text is sent whole, and byte by byte, as the last of
// its connection.
func TestAmbiguousHeaders(t *testing.T) {
	t.Parallel()
	const (
		start = "POST /locks HTTP/1.1\r\nHost: localhost\r\n"
		good  = start + "Content-Length: 5\r\n\r\n{\n }\n"
		code  = "Transfer-Encoding: chunked\r\n"
	)
	for name, text := range map[string]string{
		"length then coding":   start + "Content-Length: 5\r\n" + code + "\r\n0\r\n\r\n",
		"coding then length":   start + code + "Content-Length: 5\r\n\r\n0\r\n\r\n",
		"in other letters":     start + "content-LENGTH: 5\r\ntransfer-ENCODING: chunked\r\n\r\n0\r\n\r\n",
		"length zero":          start + "Content-Length: 0\r\n" + code + "\r\n0\r\n\r\n",
		"bare line feeds":      "POST / HTTP/1.1\nHost: localhost\nContent-Length: 5\nTransfer-Encoding: chunked\n\n0\n\n",
		"two lengths":          start + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n123456",
		"coding in HTTP/1.0":   "POST /" + strings.Repeat("a", 200) + " HTTP/1.0\r\nConnection: keep-alive\r\n" + code + "\r\n",
		"folded":               start + "X-A: b\r\n c\r\n\r\n",
		"folded by a tab":      start + "X-A: b\r\n\tContent-Length: 5\r\n\r\n",
		"folded, first":        "GET / HTTP/1.1\r\n Host: localhost\r\n\r\n",
		"folded long":          start + "X-A: " + strings.Repeat("b", 5000) + "\r\n " + strings.Repeat("c", 300) + "\r\n\r\n",
		"folded length":        start + "Content-Length:\r\n 5\r\n\r\n12345",
		"in the second header": good + start + "X-A: b\r\n c\r\n\r\n",
	} {
		for _, overTLS := range []bool{false, true} {
			s := strictly(t, overTLS)
			for _, bytewise := range []bool{false, true} {
				conn := s.dial(t)
				var sent io.Reader = strings.NewReader(text)
				if bytewise {
					sent = iotest.OneByteReader(sent)
				}
				go func() { _, _ = io.Copy(struct{ io.Writer }{conn}, sent) }()
				reader := bufio.NewReader(conn)
				resp, err := http.ReadResponse(reader, nil)
				if err == nil && resp.StatusCode == http.StatusOK && strings.HasPrefix(text, good) {
					_, _ = io.Copy(io.Discard, resp.Body) // of the first request, unless the refusal overtakes it
					resp, err = http.ReadResponse(reader, nil)
				}
				cut := strings.HasPrefix(text, good) && errors.Is(err, io.ErrUnexpectedEOF) // the refusal ended the connection before the first response was out
				if reset := errors.Is(err, syscall.ECONNRESET); !reset && !cut && (err != nil || resp.StatusCode != http.StatusBadRequest) {
					t.Fatalf("%s, TLS %t: %v, %v", name, overTLS, resp, err) // what comes behind a refusal may reset the connection
				}
				if _, err := io.Copy(io.Discard, reader); err != nil && strings.Contains(err.Error(), "timeout") {
					t.Errorf("%s: the connection stays open", name)
				}
			}
		}
	}
}

// TestPlainHeadersPass: what is not ambiguous is served, many times on a connection.
func TestPlainHeadersPass(t *testing.T) {
	t.Parallel()
	body := "{\n \"a\": [\n\t1,\n\t2]\n}\r\n \r\n"
	request := func(body string, lines ...string) string {
		return "POST / HTTP/1.1\r\nHost: localhost\r\n" + strings.Join(lines, "") + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	texts := []string{
		request(body), request(""), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", request(strings.Repeat(body, 1000)),
		request(body, "X-Long: "+strings.Repeat("x", 6000)+"\r\n", "X-Transfer-Encoding: chunked\r\n", "X-Empty:\r\n"),
		request(body, fmt.Sprintf("Content-Length:   %d  \r\n", len(body))),
	}
	for _, overTLS := range []bool{false, true} {
		s := strictly(t, overTLS)
		for _, bytewise := range []bool{false, true} {
			conn := s.dial(t)
			var sent io.Reader = strings.NewReader(strings.Repeat(strings.Join(texts, ""), 3))
			if bytewise {
				sent = iotest.OneByteReader(strings.NewReader(texts[0] + texts[4]))
			}
			n := 3 * len(texts)
			if bytewise {
				n = 2
			}
			go func() { _, _ = io.Copy(struct{ io.Writer }{conn}, sent) }()
			reader := bufio.NewReader(conn)
			for i := range n {
				wantsServed(t, reader, fmt.Sprint("request ", i))
			}
		}
		conn := s.dial(t)
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\n \r\n0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		wantsServed(t, bufio.NewReader(conn), "a chunked body")
	}
}

// TestListenerServesBothProtocols, and closes those that do not shake hands.
func TestListenerServesBothProtocols(t *testing.T) {
	t.Parallel()
	for _, overTLS := range []bool{false, true} {
		s := strictly(t, overTLS)
		for _, http2 := range []bool{false, true} {
			protocols := new(http.Protocols)
			protocols.SetHTTP1(!http2)
			protocols.SetHTTP2(http2 && overTLS)
			protocols.SetUnencryptedHTTP2(http2 && !overTLS)
			transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
			resp, err := (&http.Client{Transport: transport}).Post(s.scheme+"://"+s.address, "text/plain", strings.NewReader("12345"))
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			transport.CloseIdleConnections()
			proto := "HTTP/1.1"
			if http2 {
				proto = "HTTP/2.0"
			}
			if want := fmt.Sprint(proto, " 5 ", overTLS); string(text) != want {
				t.Errorf("the response is %q, want %q", text, want)
			}
		}
	}
	s := strictly(t, true)
	resp, err := http.Get("http://" + s.address)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("the status of plain HTTP is %d", resp.StatusCode)
	}
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("a connection that says nothing: %v", err)
	}
}

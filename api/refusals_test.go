package api_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/wire"
)

// TestRefusalsWithoutAProblem: what the contract says of requests that net/http
// answers itself.
func TestRefusalsWithoutAProblem(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.MaxHeaderBytes = 32 << 10 // as the program has it
	server.Listener = edge.NewListener(server.Listener, edge.ListenerOptions{Logger: slog.New(slog.DiscardHandler)})
	server.Start()
	t.Cleanup(server.Close)
	const host = "Host: localhost\r\n"
	for text, status := range map[string]int{
		"nonsense, and so much of it\r\n\r\n":                                          400,
		"GET /locks HTTP/1.1\r\n\r\n":                                                  400, // no Host
		"GET /locks HTTP/1.1\r\n" + host + host + "\r\n":                               400,
		"GET /lo cks HTTP/1.1\r\n" + host + "\r\n":                                     400,
		"GET /%zz HTTP/1.1\r\n" + host + "\r\n":                                        400,
		"GET /locks HTTP/1.1\r\n" + host + "Bad Name: x\r\n\r\n":                       400,
		"GET /locks HTTP/1.1\r\n" + host + "A: \x00\r\n\r\n":                           400,
		"GET /locks HTTP/1.1\r\n" + host + "A: " + strings.Repeat("x", 2<<20) + "\r\n": 431,
		"POST /locks HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip\r\n\r\n":          501,
		"GET /locks HTTP/3.0\r\n" + host + "\r\n":                                      505,
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(conn, text) // the server may close before it has read all
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%.40q: %v", text, err)
			continue
		}
		if resp.StatusCode != status || !resp.Close || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") || resp.Header.Get(wire.HeaderRequestID) != "" {
			t.Errorf("%.40q: %d, want %d, closed: %t, %v", text, resp.StatusCode, status, resp.Close, resp.Header)
		}
		_ = resp.Body.Close()
		_ = conn.Close()
		_, said, _ := strings.Cut(loadContract(t).doc.Info.Description, "**Refusals without a problem.**")
		said, _, _ = strings.Cut(said, "**HEAD**")
		if !strings.Contains(said, fmt.Sprint(status)) {
			t.Errorf("the contract does not say that %d may come without a problem", status)
		}
	}
}

package rawhttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, text string
		status     int
		body       string
	}{
		{"length", "HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\nhello", 201, "hello"},
		{"any case", "HTTP/1.1 200 OK\r\ncontent-LENGTH:5\r\n\r\nhello", 200, "hello"},
		{"none", "HTTP/1.1 204 No Content\r\nCache-Control: no-store\r\n\r\n", 204, ""},
		{"empty", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, ""},
		{"no reason", "HTTP/1.1 404 \r\nContent-Length: 1\r\n\r\nx", 404, "x"},
		{"one chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, "hello"},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\nA\r\nllo, world\r\n0\r\n\r\n", 200, "hello, world"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for have := range len(c.text) {
				if _, _, err := parse([]byte(c.text[:have])); !errors.Is(err, errIncomplete) {
					t.Fatalf("with %d of %d bytes: %v", have, len(c.text), err)
				}
			}
			r, used, err := parse([]byte(c.text + "more"))
			if err != nil || used != len(c.text) || r.Status != c.status || string(r.Body) != c.body {
				t.Errorf("got %+v, body %q, used %d of %d, %v", r, r.Body, used, len(c.text), err)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\n",
		"HTTP/1.1 abc\r\nContent-Length: 0\r\n\r\n",
		"\r\n\r\n",
		"HTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1", 100),
		strings.Repeat("x", MaxHead+1),
	} {
		if r, _, err := parse([]byte(text)); err == nil || errors.Is(err, errIncomplete) {
			t.Errorf("%.60q: %+v, %v", text, r, err)
		}
	}
}

func TestHeader(t *testing.T) {
	r, _, err := parse([]byte("HTTP/1.1 204 No Content\r\nLocation: /leases/a:b\r\nX-Empty:\r\n\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"location": "/leases/a:b", "X-Empty": "", "X-None": "", "Loc": ""} {
		if got := string(r.Header(name)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// Whatever Go's own server writes is read as Go's own client reads it.
func FuzzParse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		given := bytes.Clone(text)
		r, used, err := parse(text)
		if err != nil {
			return
		}
		if used > len(text) || !bytes.Equal(text, given) && len(r.Body) == 0 {
			t.Fatalf("used %d of %d", used, len(text))
		}
		theirs, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(given)), nil)
		if err != nil {
			return // stricter than we are
		}
		defer theirs.Body.Close()
		body, err := io.ReadAll(theirs.Body)
		if err == nil && theirs.StatusCode == r.Status && len(theirs.TransferEncoding) == 0 && !bytes.Equal(body, r.Body) {
			t.Fatalf("body %q, want %q", r.Body, body)
		}
	})
}

func echo(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/from"+r.URL.Path)
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/chunked" {
			for _, b := range body {
				_, _ = w.Write([]byte{b})
				_ = http.NewResponseController(w).Flush()
			}
			return
		}
		_, _ = w.Write(body)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestConn(t *testing.T) {
	c, err := Dial(t.Context(), echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	long := strings.Repeat("long ", 3000)
	for _, path := range []string{"/", "/chunked"} {
		for _, body := range []string{`{"a":1}`, "", long} {
			if path == "/chunked" && body == long {
				continue
			}
			resp, err := c.Do(t.Context(), AppendJSON(c.Buffer(), "POST", path, "X-More: yes\r\n", []byte(body)))
			if err != nil || resp.Status != 200 || string(resp.Body) != body {
				t.Fatalf("%s with %d bytes: %+v, %v", path, len(body), resp, err)
			}
		}
	}
	resp, err := c.Do(t.Context(), AppendRequest(c.Buffer(), "DELETE", "/x", ""))
	if err != nil || resp.Status != 204 || string(resp.Header("Location")) != "/from/x" {
		t.Fatalf("%+v, %v", resp, err)
	}
}

func TestConnEndsWithContext(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c, err := Dial(t.Context(), silent.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Do(ctx, AppendRequest(nil, "GET", "/", "")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// counted sends its number a few times and checks that it comes back.
type counted struct {
	number, rounds int
	err            error
}

func (c *counted) Next(resp *Response, _ time.Time, buf []byte) ([]byte, error) {
	want := fmt.Sprintf("%d/%d", c.number, c.rounds)
	if resp != nil {
		if string(resp.Body) != want {
			return nil, fmt.Errorf("got %q, want %q", resp.Body, want)
		}
		c.rounds--
	}
	if c.rounds == 0 {
		return nil, c.err
	}
	return AppendJSON(buf, "POST", "/", "", fmt.Appendf(nil, "%d/%d", c.number, c.rounds)), nil
}

func TestDriveRunsAllFlows(t *testing.T) {
	flows := make([]Flow, 50)
	for i := range flows {
		flows[i] = &counted{number: i, rounds: 20}
	}
	if err := Drive(t.Context(), []string{echo(t)}, flows); err != nil {
		t.Fatal(err)
	}
	for i, f := range flows {
		if left := f.(*counted).rounds; left != 0 {
			t.Errorf("flow %d: %d rounds left", i, left)
		}
	}
}

func TestDriveReportsErrors(t *testing.T) {
	broken := errors.New("broken")
	if err := Drive(t.Context(), []string{echo(t)}, []Flow{&counted{rounds: 3, err: broken}}); !errors.Is(err, broken) {
		t.Errorf("a failing flow: %v", err)
	}
	if err := Drive(t.Context(), []string{"127.0.0.1:1"}, []Flow{&counted{rounds: 1}}); err == nil {
		t.Error("no server listens, and there is no error")
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := Drive(ctx, []string{silent.Addr().String()}, []Flow{&counted{rounds: 1}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent server: %v", err)
	}
}

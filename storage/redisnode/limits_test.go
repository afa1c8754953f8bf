package redisnode

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// scanBy scans a text in pieces of n bytes.
func scanBy(text string, size int) bool {
	var s replyScanner
	for len(text) > 0 {
		n := min(size, len(text))
		if !s.scan([]byte(text[:n])) {
			return false
		}
		text = text[n:]
	}
	return true
}

func TestReplyLimits(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("*1\r\n", n) + ":1\r\n" }
	for _, c := range []struct {
		name, text string
		ok         bool
	}{
		{"simple", "+OK\r\n-ERR no\r\n:12\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n", true},
		{"text", "$5\r\na\r\n$9\r\n+OK\r\n", true},
		{"an announcement within a text", "$20\r\n$999999999999999999\n\r\n+OK\r\n", true},
		{"array", "*3\r\n*2\r\n:1\r\n$1\r\nx\r\n+OK\r\n*0\r\n:7\r\n", true},
		{"depth", nested(maxReplyDepth), true},
		{"too deep", nested(maxReplyDepth + 1), false},
		{"a large text", "$67108000\r\n", true},
		{"too large a text", "$67108865\r\n", false},
		{"a huge text", "$9223372036854775807\r\n", false},
		{"a text of no length", "$\r\n", false},
		{"below nothing", "$-2\r\n", false},
		{"no number", "*x\r\n", false},
		{"many elements", "*1048576\r\n", true},
		{"too many elements", "*1048577\r\n", false},
		{"too many elements in all", "*2\r\n*600000\r\n" + strings.Repeat(":1\r\n", 600000) + "*600000\r\n", false},
		{"many again in the next reply", strings.Repeat("*600000\r\n"+strings.Repeat(":1\r\n", 600000), 2), true},
		{"too much text in all", "*2\r\n$40000000\r\n" + strings.Repeat("x", 40000000) + "\r\n$40000000\r\n", false},
		{"an endless line", strings.Repeat("x", maxReplyLine+1), false},
		{"an endless line that ends", "+" + strings.Repeat("x", maxReplyLine+1) + "\r\n", false},
		{"nonsense", "HTTP/1.1 400 Bad Request\r\n", false},
		{"RESP3", "%1\r\n+a\r\n+b\r\n", false},
		{"nothing", "\r\n", false},
	} {
		for _, size := range []int{1, 7, 4096, 1 << 20} {
			if len(c.text) > 1<<20 && size < 4096 {
				continue
			}
			if got := scanBy(c.text, size); got != c.ok {
				t.Errorf("%s, by %d bytes: %v", c.name, size, got)
			}
		}
	}
}

func TestUnfitVersions(t *testing.T) {
	for version, want := range map[string]bool{
		"6.2.14": false, "5.0.0": false, "": false, "x": false, "7.0.15": true, "7.2.4": true, "8.0.0": true, "255.255.255": true,
	} {
		why := Unfit(map[string]string{"redis_version": version, "role": "master", "maxmemory_policy": "noeviction"})
		if (why == "") != want {
			t.Errorf("version %q: %q", version, why)
		}
		if !want && !strings.Contains(why, "Redis 7 or Valkey 7.2") {
			t.Errorf("version %q: %q does not say what to change", version, why)
		}
	}
}

func FuzzParseReply(f *testing.F) {
	for _, seed := range []string{
		"G 5 1000", "G 5 1000 {\"meta\": 1}", "E 5 1000 2000 meta", "C 5 1000", "H 5 1000 2000 3 owner meta", "W", "N", "O", "Q",
		"S 7", "X 0", "! ERR no", "", "G", "G -1 0 0 ", "H 9223372036854775807 9223372036854775807 9223372036854775807 1 l m",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		checkReply(t, text, func() (string, bool) {
			r := parseReply(text)
			return fmt.Sprintf("%+v", r), r.Grant >= 0 && r.Grant <= 1<<53-1 && r.Remaining >= 0 && r.TTL >= 0 && r.Epoch >= 0 && r.Waiting >= 0
		})
	})
}

func FuzzParseAnswer(f *testing.F) {
	var p packer
	p.reset()
	p.strs("H 5 1000 2000 1 owner meta", "t1 s1 holder", "12")
	f.Add(string(p.bytes()))
	f.Add("\x05")
	f.Add("\xcf\x00\x20\x00\x00\x00\x00\x00\x00") // above the largest token
	f.Add("\xcf\xff\xff\xff\xff\xff\xff\xff\xff")
	f.Add("\xce\x01")
	f.Add("\x92\xa1N\x00")
	f.Add("\xdd\xff\xff\xff\xff\xa1N\x00")
	f.Add("\xdb\xff\xff\xff\xff")
	f.Fuzz(func(t *testing.T, text string) {
		checkReply(t, text, func() (string, bool) {
			r := parseAnswer(&unpacker{rest: text}, &node.Op{Kind: node.OpAcquire, TTL: time.Second})
			return fmt.Sprintf("%+v", r), r.Waiting >= 0 && r.Remaining >= 0 && r.Grant >= 0 && r.Grant <= 1<<53-1 && len(r.Queue) <= len(text)
		})
	})
}

func checkReply(t *testing.T, text string, parse func() (string, bool)) {
	t.Helper()
	if printed, ok := parse(); !ok {
		t.Errorf("%q became %s", text, printed)
	}
}

// A process that got no processor time for a while finds that the deadline has passed and that the reply is there. It
// takes the reply. If there is no reply, the deadline counts.
func TestReplyBeforeTheDeadlineIsRead(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	plain, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, buf := limited(plain), make([]byte, 5)
	if _, err := server.Write([]byte("+OK\r\n+OK\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, buf); err != nil { // the second reply has arrived with the first
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadFull(conn, buf); err != nil || string(buf[:n]) != "+OK\r\n" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("without a reply: %v", err)
	}
}

package edge

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Strangers are requests without valid credentials, under access control. Many may come at once without
// reading their responses, so they have their own limits: they never use the share of callers with
// credentials. A stranger beyond the limits is cut off, because a refusal would be one more response that
// is not read.
const (
	maxStrangers       = 1000                     // strangers that may be served at this server at a time
	maxStrangersOfConn = 16                       // the same for one connection, since HTTP/2 allows many; a browser needs several to load the console
	strangerPause      = 50 * time.Millisecond    // the cost of a request, by which the next read of its connection is delayed
	strangerByte       = time.Second / (64 << 10) // the cost of a byte before the first request with credentials
	strangerTolerance  = 250 * time.Millisecond   // 5 requests, or 16 KB
	maxStrangerDebt    = 10 * time.Second
	maxSharedDebt      = time.Second // the maximum debt of a connection that other callers use, too

	// An HTTP/2 frame may have only nine bytes, open no stream and still need a response, so bytes cost
	// more on such a connection. The header of a usual request is free.
	freeFrames = 4 << 10
	framesByte = time.Second / (2 << 10)
)

// Strangers counts the strangers that are being served. Its zero value is ready for use.
type Strangers struct{ served atomic.Int32 }

// Enter reports whether a stranger may be served; call leave after the response. A health probe is limited
// only by its connection, so that a flood cannot make an orchestrator restart the server.
func (s *Strangers) Enter(r *http.Request, probe bool) (leave func(), ok bool) {
	conn := Of(r)
	all, own := s.served.Add(1), conn.strangers.Add(1)
	leave = func() {
		s.served.Add(-1)
		conn.strangers.Add(-1)
	}
	if own > maxStrangersOfConn || all > maxStrangers && !probe {
		leave()
		return nil, false
	}
	return leave, true
}

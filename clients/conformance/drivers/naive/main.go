// Command naive is a client as it is usually written at first. The conformance kit has to find its
// mistakes: it draws a new key for each try, has a time limit of 9 s, counts validity from the response,
// repeats every refused request at once, extends without a TTL, and knows only one server. It stops the
// work when an extend is refused but not before the lease ends, extends or releases while an extend is
// under way, and releases nothing when its caller gives up.
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

type order struct {
	Do         string   `json:"do"`
	Resource   string   `json:"resource"`
	TTLMS      int64    `json:"ttl_ms"`
	WaitMS     int64    `json:"wait_ms"`
	WorkMS     int64    `json:"work_ms"`
	Servers    string   `json:"servers"`
	Raises     []any    `json:"raises"`
	Cancel     int64    `json:"cancel_after_ms"`
	lease      lease    // not of the protocol: the lease of the previous order
	serverList []string // the addresses, from the set-up
}

type lease struct {
	LeaseID      string `json:"lease_id"`
	FencingToken int64  `json:"fencing_token"`
	ValidityMS   int64  `json:"validity_ms"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	var last order
	for lines.Scan() {
		o := order{lease: last.lease, serverList: last.serverList}
		if json.Unmarshal(lines.Bytes(), &o) != nil {
			os.Exit(1)
		}
		if o.Raises != nil { // this client has no callbacks
			fmt.Println(`{"result":"unsupported"}`)
			continue
		}
		if o.Servers != "" {
			o.serverList = strings.Split(o.Servers, ",")
			fmt.Println(`{"result":"ready"}`)
		} else {
			fmt.Println(o.obey())
		}
		last = o
	}
}

func (o *order) obey() string {
	switch o.Do {
	case "acquire":
		if !o.acquire() {
			return `{"result":"held"}`
		}
		return fmt.Sprintf(`{"result":"acquired","token":%d,"validity_ms":%d}`, o.lease.FencingToken, o.lease.ValidityMS)
	case "release":
		send(http.MethodDelete, o.serverList[0]+"/leases/current", "", o.lease.LeaseID, nil, nil)
		return `{"result":"released"}`
	case "work":
		o.acquire()
		return o.work()
	case "inside", "beside":
		o.acquire()
		if !o.acquire() {
			return `{"result":"held"}`
		}
		return fmt.Sprintf(`{"result":"acquired","token":%d}`, o.lease.FencingToken)
	case "close":
		return `{"result":"closed"}`
	case "pause":
		time.Sleep(time.Duration(o.WorkMS) * time.Millisecond)
		return `{"result":"paused"}`
	}
	return `{"result":"unsupported"}`
}

func (o *order) acquire() bool {
	body := map[string]any{"resource": o.Resource, "wait_ms": o.WaitMS}
	if o.TTLMS > 0 {
		body["ttl_ms"] = o.TTLMS
	}
	key := ""
	for try := range 20 {
		if try%2 == 0 { // otherwise it uses the previous try's key with another holder
			key = rand.Text()
		}
		body["holder"] = fmt.Sprint("try ", try)
		if status := send(http.MethodPost, o.serverList[0]+"/locks", key, "", body, &o.lease); status < 300 {
			return true
		}
	}
	return false
}

func (o *order) work() string {
	fmt.Println(`{"event":"began"}`)
	lost := make(chan bool, 100)
	go func() {
		for {
			time.Sleep(time.Duration(o.lease.ValidityMS) * time.Millisecond / 3)
			go func() {
				if send(http.MethodPost, o.serverList[0]+"/leases/current/extend", "", o.lease.LeaseID, map[string]any{}, nil) == http.StatusNotFound {
					lost <- true
				}
			}()
		}
	}()
	if o.Cancel > 0 {
		time.Sleep(time.Duration(o.Cancel) * time.Millisecond)
		return `{"result":"cancelled"}`
	}
	result := `{"result":"worked"}`
	select {
	case <-lost:
		fmt.Println(`{"event":"notified"}`)
		result = `{"result":"lost"}`
	case <-time.After(time.Duration(o.WorkMS) * time.Millisecond):
	}
	fmt.Println(`{"event":"ended"}`)
	send(http.MethodDelete, o.serverList[0]+"/leases/current", "", o.lease.LeaseID, nil, nil)
	return result
}

// send returns 599 if there is no response.
func send(method, url, key, lease string, body, into any) int {
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			panic(err)
		}
		content = bytes.NewReader(raw)
	}
	req, err := http.NewRequest(method, url, content)
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if lease != "" {
		req.Header.Set("Fencelock-Lease", lease)
	}
	const noAnswer = 599
	resp, err := (&http.Client{Timeout: 9 * time.Second}).Do(req)
	if err != nil {
		return noAnswer
	}
	defer func() { _ = resp.Body.Close() }()
	if into != nil && json.NewDecoder(resp.Body).Decode(into) != nil {
		return noAnswer
	}
	return resp.StatusCode
}

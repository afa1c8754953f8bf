package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/fencelock/fencelock/api/wire"
)

// staleError is the refusal of a token.
type staleError struct{ presented, highest int64 }

func (e *staleError) Error() string {
	return fmt.Sprintf("token %d is stale: %d was seen", e.presented, e.highest)
}

// guardedRecord is the URL of a guarded record.
type guardedRecord string

// read claims the record with the token, if it is not 0, and reads it.
func (g guardedRecord) read(ctx context.Context, token int64) (int64, error) {
	return g.ask(ctx, http.MethodGet, token, nil)
}

func (g guardedRecord) write(ctx context.Context, token, amount int64) error {
	text, err := json.Marshal(balance{amount})
	if err != nil {
		return err
	}
	_, err = g.ask(ctx, http.MethodPut, token, text)
	return err
}

// ask sends a request and reads the balance from the answer.
func (g guardedRecord) ask(ctx context.Context, method string, token int64, body []byte) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, method, string(g), bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", wire.TypeJSON)
	if token != 0 {
		req.Header.Set(wire.HeaderFencingToken, strconv.FormatInt(token, 10))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		wire.Problem

		Value balance `json:"value"`
	}
	err = json.Unmarshal(text, &answer)
	switch {
	case err == nil && answer.StaleDetails != nil:
		return 0, &staleError{presented: answer.Presented, highest: answer.Highest}
	case resp.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("%s %s: %s: %s", method, g, resp.Status, text)
	}
	return answer.Value.Balance, err
}

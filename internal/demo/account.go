package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// account is where the balance is stored: the path of a file, which accepts every write, or the URL of a
// guarded record, which checks tokens.
type account string

func (a account) guarded() bool { return strings.HasPrefix(string(a), "http") }

// read returns the balance. If the account is guarded and token is not 0, it claims the record first.
func (a account) read(ctx context.Context, token int64) (int64, error) {
	if a.guarded() {
		if token != 0 {
			return a.ask(ctx, http.MethodPost, token, "")
		}
		return a.ask(ctx, http.MethodGet, token, "")
	}
	text, err := os.ReadFile(string(a))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// write stores the balance. It fails with a *client.ProblemError, whose HighestToken is set, if the record
// has seen a larger token.
func (a account) write(ctx context.Context, token, amount int64) error {
	text := strconv.FormatInt(amount, 10)
	if a.guarded() {
		_, err := a.ask(ctx, http.MethodPut, token, text)
		return err
	}
	return os.WriteFile(string(a), []byte(text), 0o600)
}

// ask sends a request and reads the balance from the response.
func (a account) ask(ctx context.Context, method string, token int64, body string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, method, string(a), strings.NewReader(body))
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
	var answer struct {
		wire.Problem

		Value int64 `json:"value"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, fmt.Errorf("%s %s: %s: %w", method, a, resp.Status, err)
	}
	if resp.StatusCode != http.StatusOK {
		return 0, client.ProblemOf(answer.Problem)
	}
	return answer.Value, nil
}

package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// searchBudget bounds how long one page of a search collects matches. The last page that it reads may
// exceed it by the service's own limit for a page.
const searchBudget = 250 * time.Millisecond

// search lists the locks whose resource or holder contains the text, ignoring case; "" matches every lock.
// It reads until the page is full or the budget is spent. Errors are those of Service.List.
func (s *Server) search(ctx context.Context, text string, req lockcore.ListRequest) (lockcore.LockPage, error) {
	if text == "" {
		return s.Service.List(ctx, req)
	}
	text = strings.ToLower(text)
	other := func(lock lockcore.LockState) bool {
		return !strings.Contains(strings.ToLower(lock.Resource), text) && !strings.Contains(strings.ToLower(lock.Holder), text)
	}
	var found []lockcore.LockState
	for limit, until := req.Limit, time.Now().Add(searchBudget); ; {
		page, err := s.Service.List(ctx, req)
		if err != nil {
			return lockcore.LockPage{}, err
		}
		found = append(found, slices.DeleteFunc(page.Locks, other)...)
		if page.NextCursor == "" || len(found) >= limit || time.Now().After(until) {
			return lockcore.LockPage{Locks: found, NextCursor: page.NextCursor}, nil
		}
		req.Limit, req.Cursor = limit-len(found), page.NextCursor
	}
}

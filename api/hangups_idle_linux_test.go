package api

import "errors"

func (h *hangups) idle() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watched != nil {
		return errors.New("its goroutine runs although nothing is watched")
	}
	return nil
}

package dispatcher

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// unreadyAfter is how long the database may be away before the replica calls itself unready.
	unreadyAfter = 15 * time.Second
	// outageLog is how often an outage that goes on is told of.
	outageLog = 30 * time.Second
)

// health knows whether the database does what it is asked, and tells it once for all who find out.
type health struct {
	logger *slog.Logger

	mu       sync.Mutex
	began    bool // anything ever succeeded
	stopping bool
	failing  bool
	since    instant
	told     instant
}

func newHealth(logger *slog.Logger) *health {
	return &health{logger: logger, since: now()}
}

// worked notes that the database did something.
func (h *health) worked() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing {
		h.logger.Info("the database is back", "event", "store_back", "away", since(h.since).Round(time.Millisecond).String())
	}
	h.began, h.failing = true, false
}

// failed notes that it did not.
func (h *health) failed(doing string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.failing {
		h.failing, h.since, h.told = true, now(), never
	}
	if h.told == never || since(h.told) >= outageLog {
		h.told = now()
		h.logger.Warn("the database does not answer as it should, waiting for it", "event", "store_away", "doing", doing, "error", err)
	}
}

func (h *health) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = true
}

func (h *health) ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.stopping:
		return errors.New("stopping")
	case !h.began:
		return errors.New("nothing was claimed from the database yet; is it reachable, and its schema there?")
	case h.failing && since(h.since) > unreadyAfter:
		return fmt.Errorf("the database has not answered for %v", since(h.since).Round(time.Second))
	}
	return nil
}

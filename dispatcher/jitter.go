package dispatcher

import (
	"math/rand/v2"
	"time"
)

// jitter spreads what many replicas would do at the same moment: half to one and a half times d.
func jitter(d time.Duration) time.Duration {
	return d/2 + scale(d, random())
}

// random is uniform in [0, 1). It spreads load and guards nothing.
func random() float64 {
	return rand.Float64() //nolint:gosec // no secret depends on it
}

package check

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"path"
	"strconv"
	"time"
)

// Script says how a receiver answers. The first rule that applies to a request decides; without one the answer is 204.
type Script struct {
	// Seed of the chances: the same seed gives the same requests the same fate, in whatever order they come.
	Seed  uint64 `json:"seed,omitempty"`
	Rules []Rule `json:"rules,omitempty"`
}

// Rule is one kind of trouble. The zero Rule applies to every request and answers 204 at once.
type Rule struct {
	// Endpoint is whom it is for, as a pattern of path.Match. Empty: all.
	Endpoint string `json:"endpoint,omitempty"`
	// Percent of the requests that it applies to, up to 100. Zero: all of them.
	Percent float64 `json:"percent,omitempty"`
	// From and Until bound when it applies, counted from when the script began to play. Until zero: to the end.
	From  Duration `json:"from,omitzero"`
	Until Duration `json:"until,omitzero"`
	// Attempts it applies to: those up to this number. Zero: all.
	Attempts int `json:"attempts,omitempty"`

	// Delay before the answer.
	Delay Duration `json:"delay,omitzero"`
	// Status of the answer. Zero: 204.
	Status int `json:"status,omitempty"`
	// RetryAfter is sent as that header.
	RetryAfter string `json:"retry_after,omitempty"`
	// Hang gives no answer until the sender goes away; Drop closes the connection without one; Truncate closes it in the
	// middle of the answer's body; Reset resets it, so that not even the beginning of an answer arrives.
	Hang     bool `json:"hang,omitempty"`
	Drop     bool `json:"drop,omitempty"`
	Truncate bool `json:"truncate,omitempty"`
	Reset    bool `json:"reset,omitempty"`
	// Trickle answers 200 and sends a byte of the body after each such time, until the sender goes away. Zero: it does not.
	Trickle Duration `json:"trickle,omitzero"`
}

// Duration is written as in "1m30s".
type Duration time.Duration

// MarshalText writes it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads it.
func (d *Duration) UnmarshalText(text []byte) error {
	value, err := time.ParseDuration(string(text))
	*d = Duration(value)
	return err
}

// ParseScript reads a script from JSON and checks it.
func ParseScript(text []byte) (Script, error) {
	var s Script
	if err := json.Unmarshal(text, &s); err != nil {
		return Script{}, fmt.Errorf("read the receiver's script: %w", err)
	}
	for i, rule := range s.Rules {
		if _, err := path.Match(rule.Endpoint, ""); err != nil {
			return Script{}, fmt.Errorf("rules[%d].endpoint: %q is not a pattern: %w", i, rule.Endpoint, err)
		}
		if rule.Percent < 0 || rule.Percent > 100 {
			return Script{}, fmt.Errorf("rules[%d].percent: %v is not between 0 and 100", i, rule.Percent)
		}
		if rule.Status != 0 && (rule.Status < 200 || rule.Status > 599) {
			return Script{}, fmt.Errorf("rules[%d].status: %d is not between 200 and 599", i, rule.Status)
		}
	}
	return s, nil
}

// rule returns how a request is answered that came so long after the script began.
func (s Script) rule(f Fact, played time.Duration) Rule {
	for i, r := range s.Rules {
		if matched, err := path.Match(r.Endpoint, f.Endpoint); r.Endpoint != "" && (err != nil || !matched) {
			continue
		}
		if played < time.Duration(r.From) || (r.Until > 0 && played >= time.Duration(r.Until)) {
			continue
		}
		if r.Attempts > 0 && f.Attempt > r.Attempts {
			continue
		}
		if r.Percent > 0 && s.chance(i, f) >= r.Percent {
			continue
		}
		return r
	}
	return Rule{}
}

// chance is between 0 and 100, the same for the same request. It goes by the post, since event ids differ in each run.
func (s Script) chance(rule int, f Fact) float64 {
	hash := fnv.New64a()
	var number [24]byte
	binary.LittleEndian.PutUint64(number[:], s.Seed)
	binary.LittleEndian.PutUint64(number[8:], uint64(rule))
	binary.LittleEndian.PutUint64(number[16:], uint64(f.Attempt))
	_, _ = hash.Write(number[:])
	_, _ = hash.Write([]byte(f.Endpoint + " " + f.Key + " " + strconv.Itoa(f.Number) + " " + f.Post))
	x := hash.Sum64() // FNV's high bits differ little in short texts
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x>>11) / (1 << 53) * 100
}

const (
	onPurpose = "cut on purpose"
	goneAway  = "the sender had gone away"
)

// wait spends the rule's time, and returns early when the sender goes away.
func (r Rule) wait(ctx context.Context) {
	if r.Hang {
		<-ctx.Done()
		return
	}
	if r.Delay <= 0 {
		return
	}
	timer := time.NewTimer(time.Duration(r.Delay))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (r Rule) status() int {
	if r.Status == 0 {
		return http.StatusNoContent
	}
	return r.Status
}

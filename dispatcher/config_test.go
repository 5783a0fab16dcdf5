package dispatcher

import (
	"strings"
	"testing"
	"time"
)

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("Validate of the zero Config: %v", err)
	}
}

// D11: a request could outlast its lease.
func TestLeaseShorterThanTheLongestRequestIsRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		lease, timeout, record time.Duration
		ok                     bool
	}{
		{35 * time.Second, 30 * time.Second, 5 * time.Second, true},
		{34 * time.Second, 30 * time.Second, 5 * time.Second, false},
		{30 * time.Second, 30 * time.Second, 5 * time.Second, false},
		{10 * time.Second, 0, 0, false}, // by the defaults of the others
		{0, 10 * time.Minute, 0, false},
		{0, 0, time.Minute, false},
	} {
		c := Config{Lease: test.lease, MaxTimeout: test.timeout, RecordTime: test.record}
		err := c.Validate()
		if (err == nil) != test.ok {
			t.Errorf("Validate(%+v): got %v, want ok %v", test, err, test.ok)
		}
		if _, newErr := New(c, testDependencies(t, newMemory())); (newErr == nil) != test.ok {
			t.Errorf("New(%+v): got %v, want ok %v", test, newErr, test.ok)
		}
		if err != nil && !strings.Contains(err.Error(), "make it at least maxTimeout + recordTime") {
			t.Errorf("Validate(%+v): got %q, want the remedy in it", test, err)
		}
	}
}

func TestValidateReportsAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	err := Config{
		Senders: -1, Lease: time.Second, MaxTimeout: time.Millisecond, RecordTime: time.Millisecond, PollMin: time.Hour,
		PollMax: 2 * time.Hour, ClaimLanes: -1, Endpoints: -1, EventRetention: 1, AttemptRetention: 1, DeadLetterRetention: 1, EndpointRetention: 1,
	}.Validate()
	if err == nil {
		t.Fatal("Validate: got nil, want errors")
	}
	for _, field := range []string{
		"senders", "maxTimeout", "recordTime", "pollMax", "claimLanes", "endpoints",
		"eventRetention", "attemptRetention", "deadLetterRetention", "endpointRetention",
	} {
		if !strings.Contains(err.Error(), "dispatcher: "+field) {
			t.Errorf("Validate: got %q, want %s in it", err, field)
		}
	}
	if _, err := New(Config{}, Dependencies{}); err == nil {
		t.Error("New without dependencies: got nil, want an error")
	}
}

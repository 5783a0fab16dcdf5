package changes

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/api/v1alpha1"
)

// One installation goes through all changes, since bringing it up is what costs time.
func TestWhatChangesWhileItRuns(t *testing.T) {
	t.Parallel()
	in := install(t)
	in.endpoint("modest", func(*v1alpha1.WebhookEndpointSpec) {})
	in.endpoint("greedy", func(s *v1alpha1.WebhookEndpointSpec) {
		s.MaxConcurrency, s.EventTypes = 80, []v1alpha1.EventTypePattern{"nothing"}
	})
	for _, name := range []string{"modest", "greedy"} {
		in.awaitCondition(name, v1alpha1.ConditionReady, v1alpha1.ReasonSynced)
	}
	in.delivers("at first")
	for part := range in.parts {
		for _, metric := range []string{"postrider_schema_version", "postrider_schema_wanted"} {
			if value := in.metric(part, metric); value == "absent" || value == "0" {
				t.Errorf("%s of the %s: %s", metric, part, value)
			}
		}
	}

	in.testDestinations()
	in.testDefaultsAndLimits()
	in.testARefusedFile()
	in.testARotatedPassword()
	for name, part := range in.parts {
		if !part.Running() {
			t.Errorf("the %s has ended", name)
		}
	}
}

// delivers posts an event and waits for it at the receiver.
func (in *installation) delivers(when string) {
	in.t.Helper()
	before := in.received.Load()
	in.post(`{"type": "invoice.paid", "payload": {"n": 1}}`)
	in.await("a delivery "+when, func(context.Context) error {
		if n := in.received.Load(); n <= before {
			return fmt.Errorf("%d requests, as before", n)
		}
		return nil
	})
}

// A dispatcher whose policy closes the receiver's address sends nothing, and the rest once it is open again. The
// controller's policy is another file's: the endpoint stays Ready until that changes too.
func (in *installation) testDestinations() {
	in.t.Helper()
	const closed = "destination-allow-http: true\n"
	in.publish(usual, closed)
	in.awaitChange("dispatcher", 1)
	before := in.received.Load()
	in.post(`{"type": "invoice.paid", "payload": {"n": 2}}`)
	in.awaitCondition("modest", v1alpha1.ConditionDelivering, v1alpha1.ReasonFailing)
	if n := in.received.Load(); n != before {
		in.t.Errorf("%d requests reached an address that the policy forbids", n-before)
	}
	in.publish(closed, closed)
	in.awaitCondition("modest", v1alpha1.ConditionReady, v1alpha1.ReasonURLNotAllowed)
	in.publish(usual, usual)
	in.awaitCondition("modest", v1alpha1.ConditionReady, v1alpha1.ReasonSynced)
	in.awaitChange("dispatcher", 2)
	in.delivers("once the receiver's address is open again")
}

// awaitChange waits until a part has put a changed file in force so many times.
func (in *installation) awaitChange(part string, times int) {
	in.t.Helper()
	in.await("the "+part+" takes its file", func(context.Context) error {
		if n := strings.Count(in.logged(part), "the settings have changed\""); n < times {
			return fmt.Errorf("it has done so %d times, want %d", n, times)
		}
		return nil
	})
}

// New defaults and limits are applied to endpoints that nobody touches.
func (in *installation) testDefaultsAndLimits() {
	in.t.Helper()
	in.publish(usual+"default-timeout: 7s\nlimit-max-concurrency: 50\n", usual)
	in.awaitCondition("greedy", v1alpha1.ConditionReady, v1alpha1.ReasonLimitExceeded)
	in.awaitTimeout("7s")
	in.publish(usual, usual)
	in.awaitCondition("greedy", v1alpha1.ConditionReady, v1alpha1.ReasonSynced)
	in.awaitTimeout("10s")
}

// awaitTimeout waits for the timeout that dispatchers read for an endpoint that names none.
func (in *installation) awaitTimeout(want string) {
	in.t.Helper()
	in.await("a timeout of "+want, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, in.postgres.DSN("postrider"))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		var got string
		err = conn.QueryRow(ctx, `SELECT extract(epoch FROM timeout)::int || 's' FROM postrider.endpoint WHERE name = 'modest'`).Scan(&got)
		if err == nil && got != want {
			err = fmt.Errorf("it is %s", got)
		}
		return err
	})
}

// A bad file changes nothing, is said to be bad with field and remedy, and shown, until it is mended.
func (in *installation) testARefusedFile() {
	in.t.Helper()
	in.publish(usual+"default-timeout: 1h\n", usual+"senders: 5\n")
	for part, says := range map[string]string{"controller": "defaults.timeout: 1h0m0s is not from 1s to 30s", "dispatcher": "senders is read at the start alone; give it as --senders"} {
		in.await("the "+part+" refuses its file", func(context.Context) error {
			if got := in.metric(part, "postrider_settings_refused"); got != "1" {
				return fmt.Errorf("postrider_settings_refused is %s", got)
			}
			return nil
		})
		if log := in.logged(part); !strings.Contains(log, "the settings file cannot be used") || !strings.Contains(log, says) {
			in.t.Errorf("the log of the %s does not say %q", part, says)
		}
	}
	in.delivers("with the settings of before")
	in.publish(usual, usual)
	for _, part := range []string{"controller", "dispatcher"} {
		in.await("the "+part+" takes its file", func(context.Context) error {
			if got := in.metric(part, "postrider_settings_refused"); got != "0" {
				return fmt.Errorf("postrider_settings_refused is %s", got)
			}
			return nil
		})
	}
}

// The role's password changes and every connection is cut: until the file follows, everything waits and says why; then it
// goes on, and no process was restarted.
func (in *installation) testARotatedPassword() {
	in.t.Helper()
	in.exec(`ALTER ROLE ` + role + ` PASSWORD 'second-password'`)
	in.cut()
	for part := range in.parts {
		in.await("the "+part+" says that the password is refused", func(ctx context.Context) error {
			// Ingest needs no connection while nobody posts.
			if err := in.postOnce(ctx, `{"type": "invoice.paid", "payload": {"n": 3}}`); err == nil {
				in.t.Error("an event was accepted without a database")
			}
			if !strings.Contains(in.logged(part), "password authentication failed") {
				return fmt.Errorf("its log does not have it")
			}
			return nil
		})
	}
	in.putPassword("second-password")
	in.delivers("with the new password")
	in.endpoint("late", func(*v1alpha1.WebhookEndpointSpec) {})
	in.awaitCondition("late", v1alpha1.ConditionReady, v1alpha1.ReasonSynced)
	for part := range in.parts {
		for _, password := range []string{"first-password", "second-password"} {
			if strings.Contains(in.logged(part), password) {
				in.t.Errorf("the log of the %s has a password", part)
			}
		}
	}
}

// cut ends every connection of the parts.
func (in *installation) cut() {
	in.t.Helper()
	in.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, role)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/test/localstack"
)

type scene struct {
	title string
	play  func(context.Context, *stage) error
}

var scenes = []scene{
	{"1. Teams apply their endpoints", applyTwice},
	{"2. An application posts, and everybody who asked is told", fanOut},
	{"3. The same event posted five times at once is one event", idempotent},
	{"4. Receivers fail, are slow to take, and want order", failuresRateAndOrder},
	{"5. A signing key is rotated", rotate},
	{"6. A dispatcher is killed in the middle of its deliveries", killed},
	{"7. What kubectl get webhookendpoints says", table},
}

// What the samples of config/samples are called, where they receive and what they sign with.
const (
	ledgerPath   = "/kirana/ledger"
	paymentsPath = "/meridian/payments"
	framesPath   = "/pixel-forge/frames"

	ledgerSecret = "kirana-signing"
)

var renderPaths = []string{framesPath, "/pixel-forge/farm", "/pixel-forge/archive"}

func applyTwice(ctx context.Context, s *stage) error {
	first, err := s.applySamples(ctx, s.receiver.url)
	if err != nil {
		return err
	}
	if err := until(ctx, 15*time.Second, "all endpoints Ready", func(ctx context.Context) error {
		endpoints, err := s.endpoints(ctx)
		if err != nil {
			return err
		}
		for _, e := range endpoints {
			if !meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionReady) {
				return fmt.Errorf("%s is not Ready: %+v", e.Name, e.Status.Conditions)
			}
		}
		if len(endpoints) != 5 {
			return fmt.Errorf("there are %d endpoints", len(endpoints))
		}
		return nil
	}); err != nil {
		return err
	}
	s.check("five endpoints of three subscribers are Ready")
	before, err := s.generations(ctx)
	if err != nil {
		return err
	}
	second, err := s.applySamples(ctx, s.receiver.url)
	if err != nil {
		return err
	}
	after, err := s.generations(ctx)
	if err != nil {
		return err
	}
	if len(first) != len(second) || !slices.Equal(before, after) {
		return fmt.Errorf("applying again changed something:\nbefore %v\nafter  %v", before, after)
	}
	s.check("applied a second time, nothing changes: %d objects", len(second))

	for path, secret := range map[string]string{
		ledgerPath: ledgerSecret, paymentsPath: "meridian-signing",
		renderPaths[0]: "pixel-forge-signing", renderPaths[1]: "pixel-forge-signing", renderPaths[2]: "pixel-forge-signing",
	} {
		value, err := s.secret(ctx, secret)
		if err != nil {
			return err
		}
		if err := s.receiver.expect(path, value); err != nil {
			return err
		}
	}
	s.token, err = localstack.Token(ctx, s.kube.Config(), samples, "producer", "postrider")
	return err
}

func fanOut(ctx context.Context, s *stage) error {
	for _, c := range []struct {
		event string
		want  int
	}{{"render.started", 3}, {"payment.captured", 1}, {"shipment.sent", 0}} {
		a, err := s.post(ctx, post{Type: c.event, Payload: `{"amount": 12.340, "note": "<paid> 🚚"}`})
		if err != nil {
			return err
		}
		if a.Matched != c.want || len(a.Deliveries) != c.want {
			return fmt.Errorf("%s matched %d endpoints, want %d: %+v", c.event, a.Matched, c.want, a)
		}
		if c.want == 0 {
			s.check("%s matches no endpoint, and the answer says so: matched 0", c.event)
			continue
		}
		calls, err := s.receiver.await(ctx, 10*time.Second, c.want, c.event, delivered(a.ID))
		if err != nil {
			return err
		}
		for _, call := range calls {
			if call.verified != nil || string(call.body) != `{"amount": 12.340, "note": "<paid> 🚚"}` {
				return fmt.Errorf("%s arrived as %q, signature: %w", c.event, call.body, call.verified)
			}
		}
		s.check("%s is delivered %d×, signature verified, byte for byte as it was posted", c.event, c.want)
	}
	return nil
}

func idempotent(ctx context.Context, s *stage) error {
	answers := make([]accepted, 5)
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range answers {
		group.Go(func() (err error) {
			answers[i], err = s.post(groupCtx, post{Type: "invoice.paid", Payload: `{"number": 1}`, IdempotencyKey: "invoice-1"})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	fresh := 0
	for _, a := range answers {
		if a.ID != answers[0].ID || a.Matched != 1 {
			return fmt.Errorf("answers differ: %+v", answers)
		}
		if !a.Duplicate {
			fresh++
		}
	}
	if fresh != 1 {
		return fmt.Errorf("%d of five answers say that they made the event", fresh)
	}
	if _, err := s.receiver.await(ctx, 10*time.Second, 1, "invoice.paid", delivered(answers[0].ID)); err != nil {
		return err
	}
	// Whatever follows in the queue has been delivered by the time a later event is.
	later, err := s.post(ctx, post{Type: "invoice.paid", Payload: `{"number": 2}`})
	if err != nil {
		return err
	}
	if _, err := s.receiver.await(ctx, 10*time.Second, 1, "a later event", delivered(later.ID)); err != nil {
		return err
	}
	if n := len(s.receiver.seen(delivered(answers[0].ID))); n != 1 {
		return fmt.Errorf("delivered %d times, want once", n)
	}
	s.check("five answers, one id, one delivery: %s", answers[0].ID)
	return nil
}

// failuresRateAndOrder plays three acts at once, since each takes some seconds.
func failuresRateAndOrder(ctx context.Context, s *stage) error {
	s.receiver.play(func(_ context.Context, c *call) int {
		switch {
		case c.event == "invoice.flaky" && c.attempt <= 2, c.event == "invoice.doomed":
			return http.StatusServiceUnavailable
		case c.event == "render.frame" && c.attempt <= 2 && strings.Contains(string(c.body), `"frame":2`):
			return http.StatusInternalServerError
		}
		return http.StatusNoContent
	})
	group, groupCtx := errgroup.WithContext(ctx)
	for _, act := range []func(context.Context, *stage) error{recovered, dead, rateKept, ordered} {
		group.Go(func() error { return act(groupCtx, s) })
	}
	return group.Wait()
}

func recovered(ctx context.Context, s *stage) error {
	a, err := s.post(ctx, post{Type: "invoice.flaky", Payload: `{}`})
	if err != nil {
		return err
	}
	if _, err := s.receiver.await(ctx, 20*time.Second, 1, "the retried delivery", delivered(a.ID)); err != nil {
		return err
	}
	calls := s.receiver.seen(func(c call) bool { return c.id == a.ID })
	if len(calls) != 3 {
		return fmt.Errorf("%d attempts arrived, want two failures and a success", len(calls))
	}
	s.check("a receiver that fails twice and recovers is retried: attempts %d, %d, %d, one id", calls[0].attempt, calls[1].attempt, calls[2].attempt)
	return nil
}

func dead(ctx context.Context, s *stage) error {
	a, err := s.post(ctx, post{Type: "invoice.doomed", Payload: `{}`})
	if err != nil {
		return err
	}
	return until(ctx, 40*time.Second, "the dead letter", func(ctx context.Context) error {
		d, err := s.event(ctx, a.ID)
		if err != nil {
			return err
		}
		if len(d.Deliveries) != 1 || d.Deliveries[0].State != "dead" {
			return fmt.Errorf("not dead yet: %+v", d)
		}
		one := d.Deliveries[0]
		if one.Reason == "" || len(one.Attempts) != 5 || one.Attempts[4].Status != http.StatusServiceUnavailable {
			return fmt.Errorf("given up on, but not as the endpoint asks: %+v", one)
		}
		s.check("one that never recovers becomes a dead letter after %d attempts: %s, last answer %d", len(one.Attempts), one.Reason, one.Attempts[4].Status)
		return nil
	})
}

// rateKept posts 30 payments at once to Meridian, which takes five a second and five at once.
func rateKept(ctx context.Context, s *stage) error {
	const burst, rate, allowed = 30, 5, 5
	for i := range burst {
		if _, err := s.post(ctx, post{Type: "payment.burst", Payload: fmt.Sprintf(`{"n":%d}`, i)}); err != nil {
			return err
		}
	}
	calls, err := s.receiver.await(ctx, 20*time.Second, burst, "the burst of payments", func(c call) bool { return c.event == "payment.burst" })
	if err != nil {
		return err
	}
	// Between any two requests there was time for those between them, but for the burst. Sender and receiver share this
	// machine's clock; a request may be held up on its way by as much as the tolerance.
	const tolerance = 150 * time.Millisecond
	for i := range calls {
		for j := i + allowed; j < len(calls); j++ {
			need := time.Duration(j-i-allowed+1) * time.Second / rate
			if took := calls[j].at.Sub(calls[i].at); took < need-tolerance {
				return fmt.Errorf("%d requests within %s: over %d a second with a burst of %d", j-i+1, took, rate, allowed)
			}
		}
	}
	if took := calls[burst-1].at.Sub(calls[0].at); took > 2*(burst-allowed)*time.Second/rate {
		return fmt.Errorf("%d payments took %s: far below what Meridian takes", burst, took)
	}
	s.check("a burst of %d payments reaches Meridian at %d a second: in %.1f s", burst, rate, calls[burst-1].at.Sub(calls[0].at).Seconds())
	return nil
}

// ordered posts the frames of one job; the second one fails twice at each of Pixel Forge's endpoints.
func ordered(ctx context.Context, s *stage) error {
	const frames = 8
	for i := range frames {
		if _, err := s.post(ctx, post{Type: "render.frame", OrderingKey: "job-7", Payload: fmt.Sprintf(`{"job_id":"job-7","frame":%d}`, i)}); err != nil {
			return err
		}
	}
	for _, path := range renderPaths {
		calls, err := s.receiver.await(ctx, 30*time.Second, frames, "the frames at "+path, func(c call) bool {
			return c.path == path && c.event == "render.frame" && c.status/100 == 2
		})
		if err != nil {
			return err
		}
		for i, c := range calls {
			if want := fmt.Sprintf(`{"job_id":"job-7","frame":%d}`, i); string(c.body) != want {
				return fmt.Errorf("%s got %s in place %d", path, c.body, i)
			}
		}
		tries := s.receiver.seen(func(c call) bool { return c.path == path && strings.Contains(string(c.body), `"frame":2`) })
		if len(tries) != 3 {
			return fmt.Errorf("%s saw frame 2 %d times, want two failures and a success", path, len(tries))
		}
	}
	s.check("%d frames of one job reach three endpoints in order, although one fails twice at each", frames)
	return nil
}

func rotate(ctx context.Context, s *stage) error {
	old, err := s.secret(ctx, ledgerSecret)
	if err != nil {
		return err
	}
	const next = "sample-key-do-not-use-kirana-ledger-0002"
	if err := s.setSecret(ctx, ledgerSecret, next); err != nil {
		return err
	}
	if err := s.receiver.expect(ledgerPath, next); err != nil {
		return err
	}
	if err := until(ctx, 10*time.Second, "the new key in the status", func(ctx context.Context) error {
		e, err := s.endpoint(ctx, "kirana-ledger")
		if err != nil {
			return err
		}
		if len(e.Status.SigningKeys) != 2 || e.Status.SigningKeys[1].ExpiresAt == nil {
			return fmt.Errorf("signing keys: %+v", e.Status.SigningKeys)
		}
		return nil
	}); err != nil {
		return err
	}
	a, err := s.post(ctx, post{Type: "invoice.rotated", Payload: `{}`})
	if err != nil {
		return err
	}
	calls, err := s.receiver.await(ctx, 10*time.Second, 1, "an event after the rotation", delivered(a.ID))
	if err != nil {
		return err
	}
	for name, secret := range map[string]string{"old": old, "new": next} {
		key, err := signature.ParseKey([]byte(secret))
		if err != nil {
			return err
		}
		verifier := signature.Verifier{Keys: []signature.Key{key}}
		if err := verifier.Verify(calls[0].header, calls[0].body); err != nil {
			return fmt.Errorf("the %s key does not verify: %w", name, err)
		}
	}
	s.check("the request verifies with the new key alone, and with the old one alone")
	return nil
}

// killed ends the only dispatcher with kill -9 while requests of its are under way, and starts another.
func killed(ctx context.Context, s *stage) error {
	const events = 10
	waiting, release := make(chan struct{}, events), make(chan struct{})
	s.receiver.play(func(ctx context.Context, c *call) int {
		if c.event == "invoice.held" {
			waiting <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return http.StatusNoContent
	})
	ids := make([]string, events)
	for i := range ids {
		a, err := s.post(ctx, post{Type: "invoice.held", Payload: fmt.Sprintf(`{"n":%d}`, i)})
		if err != nil {
			return err
		}
		ids[i] = a.ID
	}
	for range events / 2 {
		select {
		case <-waiting:
		case <-time.After(10 * time.Second):
			return errors.New("the requests did not reach the receiver")
		}
	}
	s.dispatcher.Kill()
	cut, err := s.receiver.await(ctx, 10*time.Second, events/2, "the end of the requests under way", func(c call) bool { return c.event == "invoice.held" && c.status == 0 })
	if err != nil {
		return err
	}
	close(release)
	s.receiver.play(func(context.Context, *call) int { return http.StatusNoContent })
	next, err := s.start(ctx, "dispatcher")
	if err != nil {
		return err
	}
	s.dispatcher = next
	for _, id := range ids {
		if _, err := s.receiver.await(ctx, 25*time.Second, 1, "event "+id, delivered(id)); err != nil {
			return err
		}
	}
	if err := until(ctx, 10*time.Second, "all recorded", func(ctx context.Context) error {
		for _, id := range ids {
			d, err := s.event(ctx, id)
			if err != nil {
				return err
			}
			if len(d.Deliveries) != 1 || d.Deliveries[0].State != "delivered" {
				return fmt.Errorf("event %s: %+v", id, d)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	s.check("kill -9 cuts off %d requests under way: all %d events arrive, from the next dispatcher", len(cut), events)
	return nil
}

func (s *stage) endpoints(ctx context.Context) ([]v1alpha1.WebhookEndpoint, error) {
	var list v1alpha1.WebhookEndpointList
	err := s.client.List(ctx, &list, client.InNamespace(samples))
	return list.Items, err
}

func (s *stage) endpoint(ctx context.Context, name string) (v1alpha1.WebhookEndpoint, error) {
	var e v1alpha1.WebhookEndpoint
	err := s.client.Get(ctx, client.ObjectKey{Namespace: samples, Name: name}, &e)
	return e, err
}

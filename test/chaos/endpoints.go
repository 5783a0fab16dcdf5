package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/check"
)

// changePatience bounds how long a change of a spec may take to come into force: the API may be away, and a controller that
// was killed keeps its successor waiting until its Lease has run out, each time.
const changePatience = 4 * time.Minute

// state is what an endpoint is asked to be like at present.
type state struct {
	Endpoint
	revision int
	paused   bool
}

func (s *state) fact() check.Fact {
	return check.Fact{
		Kind: check.Changed, Endpoint: s.Name, Concurrency: s.Concurrency, Rate: float64(s.Rate), Burst: s.Burst,
		Ordered: s.Ordered, Paused: s.paused, Revision: s.revision,
	}
}

func (s *state) spec(url string) v1alpha1.WebhookEndpointSpec {
	spec := v1alpha1.WebhookEndpointSpec{
		URL:            fmt.Sprintf("%s/%s?revision=%d", url, s.Name, s.revision),
		State:          v1alpha1.StateEnabled,
		Signing:        v1alpha1.Signing{SecretRef: v1alpha1.SecretKeyReference{Name: secretName}},
		Timeout:        duration(s.timeout()),
		MaxConcurrency: int32(s.Concurrency),
		Ordering:       v1alpha1.OrderingNone,
		Retry: &v1alpha1.Retry{
			MaxAttempts: 100, MaxDuration: duration(orElse(s.MaxDuration, 168*time.Hour)),
			Backoff: &v1alpha1.Backoff{Base: "100ms", Factor: 2, Cap: duration(orElse(s.Retry, 500*time.Millisecond))},
		},
		CircuitBreaker: &v1alpha1.CircuitBreaker{FailureThreshold: 1000},
	}
	for _, t := range s.Types {
		spec.EventTypes = append(spec.EventTypes, v1alpha1.EventTypePattern(t))
	}
	if s.paused {
		spec.State = v1alpha1.StatePaused
	}
	if s.Ordered {
		spec.Ordering = v1alpha1.OrderingKey
	}
	if s.Rate > 0 {
		spec.RateLimit = &v1alpha1.RateLimit{Requests: int32(s.Rate), Per: "1s", Burst: int32(s.Burst)}
	}
	if s.Threshold > 0 {
		spec.CircuitBreaker = &v1alpha1.CircuitBreaker{
			FailureThreshold: int32(s.Threshold), Cooldown: duration(s.Cooldown), MaxCooldown: duration(2 * s.Cooldown),
		}
	}
	return spec
}

// duration is written with whole numbers, as the API wants it.
func duration(d time.Duration) v1alpha1.Duration {
	if d%time.Second == 0 {
		return v1alpha1.Duration(d.String())
	}
	return v1alpha1.Duration(strconv.FormatInt(d.Milliseconds(), 10) + "ms")
}

func orElse(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// declare makes an endpoint and waits until it is ready.
func (w *world) declare(ctx context.Context, e Endpoint) error {
	s := &state{Endpoint: e, revision: 1}
	if err := w.disruptions.Write(s.fact()); err != nil {
		return err
	}
	object := &v1alpha1.WebhookEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: e.Name}, Spec: s.spec(w.url)}
	if err := w.client.Create(ctx, object); err != nil {
		return fmt.Errorf("make the endpoint %s: %w", e.Name, err)
	}
	w.mutex.Lock()
	w.endpoints[e.Name] = s
	w.mutex.Unlock()
	return w.inForce(ctx, e.Name, object.Generation)
}

// change changes an endpoint and waits until its status says that it did. One goroutine at a time changes an endpoint.
func (w *world) change(ctx context.Context, name string, how func(*state)) error {
	w.mutex.Lock()
	s := w.endpoints[name]
	w.mutex.Unlock()
	how(s)
	f := s.fact()
	f.At = time.Now()
	object := &v1alpha1.WebhookEndpoint{}
	err := until(ctx, changePatience, "change the endpoint "+name, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
			return err
		}
		before := object.DeepCopy()
		object.Spec = s.spec(w.url)
		return w.client.Patch(ctx, object, client.MergeFrom(before))
	})
	if err == nil {
		err = w.inForce(ctx, name, object.Generation)
	}
	f.Until = time.Now()
	return errors.Join(err, w.disruptions.Write(f))
}

// inForce waits until the status of an endpoint says that a generation of it is in force.
func (w *world) inForce(ctx context.Context, name string, generation int64) error {
	return until(ctx, changePatience, "the endpoint "+name+" is ready", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		object := &v1alpha1.WebhookEndpoint{}
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != generation {
			return fmt.Errorf("generation %d is not: %+v", generation, ready)
		}
		return nil
	})
}

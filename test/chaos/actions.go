package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/test/check"
)

// act does what is planned. Each actor does one thing after the other; what it finds no time for before the load ends is
// left out, and what it began is brought to its end.
func (w *world) act(ctx, loading context.Context, plan Plan) error {
	actors := map[string][]Action{}
	for _, a := range plan.Actions {
		actors[a.Who] = append(actors[a.Who], a)
	}
	began := time.Now()
	var acting []func(context.Context) error
	for _, actions := range actors {
		acting = append(acting, func(ctx context.Context) error {
			for _, a := range actions {
				if !sleep(loading, time.Until(began.Add(a.At))) {
					return nil
				}
				if err := w.do(ctx, a); err != nil {
					return fmt.Errorf("%s: %w", a, err)
				}
			}
			return nil
		})
	}
	return together(ctx, acting...)
}

func (w *world) do(ctx context.Context, a Action) error {
	switch a.Who {
	case "postgres":
		return w.loseDatabase(ctx, a)
	case "wire":
		return w.disturbWire(ctx, a)
	case "kubernetes":
		w.kube.Stop()
		sleep(ctx, a.For)
		return w.kube.Start(ctx)
	}
	if r := w.replica(a.Who); r != nil {
		return r.end(ctx, a.Do, a.For)
	}
	return w.changeSpec(ctx, a)
}

func (w *world) loseDatabase(ctx context.Context, a Action) error {
	f := check.Fact{At: time.Now(), Problem: "Postgres " + string(a.Do)}
	if a.Do == crash {
		w.postgres.Kill()
	} else {
		w.postgres.Stop()
	}
	sleep(ctx, a.For)
	err := w.postgres.Start(ctx)
	f.Until = time.Now()
	return errors.Join(err, w.happened(f))
}

func (w *world) disturbWire(ctx context.Context, a Action) error {
	wires, whose, explains := []*wire{}, "everybody", false
	for i, r := range w.replicas {
		if all := a.Do == cutAll || a.Do == delayAll || a.Do == swallowAll; all || i == a.To%len(w.replicas) {
			wires, explains = append(wires, r.wire), explains || r.delivers()
			if !all {
				whose = r.name
			}
		}
	}
	f := check.Fact{At: time.Now(), Problem: "the wire to Postgres " + string(a.Do) + ": " + whose}
	switch a.Do {
	case cutAll, cutOne:
		for _, wire := range wires {
			wire.cut()
		}
	default:
		f.Held = true
		for _, wire := range wires {
			wire.hush(a.Do == swallowAll || a.Do == swallowOne)
		}
		sleep(ctx, a.For)
		for _, wire := range wires {
			wire.speak()
		}
	}
	f.Until = time.Now()
	if !explains {
		return nil
	}
	return w.happened(f)
}

func (w *world) changeSpec(ctx context.Context, a Action) error {
	switch a.Do {
	case readdress:
		return w.change(ctx, a.Who, func(s *state) { s.revision++ })
	case crowd:
		return w.change(ctx, a.Who, func(s *state) { s.Concurrency = a.To })
	case hurry:
		return w.change(ctx, a.Who, func(s *state) { s.Rate, s.Burst = a.To, a.Burst })
	case keepOrder:
		return w.change(ctx, a.Who, func(s *state) { s.Ordered = true })
	case pause:
		err := w.change(ctx, a.Who, func(s *state) { s.paused = true })
		sleep(ctx, a.For)
		return errors.Join(err, w.change(ctx, a.Who, func(s *state) { s.paused = false }))
	}
	return fmt.Errorf("nobody knows how to do this")
}

package chaos

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/postrider/postrider/test/check"
	"github.com/postrider/postrider/test/localstack"
)

// crashPause is how long a process that ended by itself stays away, as with a kubelet.
const crashPause = 500 * time.Millisecond

// replica is one process of a part, which is started again whenever it ends.
type replica struct {
	name, part string
	world      *world
	wire       *wire // to Postgres
	options    localstack.PartOptions

	mutex   sync.Mutex
	current *localstack.Part
	away    *time.Duration // it is being ended on purpose, and comes back so much later
}

// keep starts the process, again and again, until the context ends. The process then running is left to its owner.
func (r *replica) keep(ctx context.Context) error {
	for ctx.Err() == nil {
		o := r.options
		o.Flags = append([]string{"--database-url", r.world.databaseURL(r.wire.address())}, o.Flags...)
		part, err := r.world.postrider.Launch(ctx, r.part, o)
		if err != nil {
			return fmt.Errorf("start %s: %w", r.name, err)
		}
		r.set(part)
		select {
		case <-part.Done():
		case <-ctx.Done():
			return nil
		}
		pause, meant := r.ended()
		if !meant {
			pause = crashPause
			r.world.exited(r, part)
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
	return nil
}

func (r *replica) set(part *localstack.Part) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.current, r.away = part, nil
	r.world.addLog(r.name, part.Log())
}

// ended says for how long the process was meant to be away, or that it was not meant to end.
func (r *replica) ended() (time.Duration, bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.current = nil
	if r.away == nil {
		return 0, false
	}
	return *r.away, true
}

// running returns the process, or nil while there is none.
func (r *replica) running() *localstack.Part {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.current
}

// end ends the process, which comes back after a while. Nothing happens where it is away already.
func (r *replica) end(ctx context.Context, how deed, away time.Duration) error {
	r.mutex.Lock()
	part := r.current
	if part == nil || !part.Running() {
		r.mutex.Unlock()
		return nil
	}
	r.away = &away
	r.mutex.Unlock()
	if how == kill {
		at := time.Now()
		part.Kill()
		if !r.delivers() {
			return nil
		}
		return r.world.happened(check.Fact{At: at, Until: time.Now(), Problem: "kill -9 of " + r.name})
	}
	// Who is told to stop loses and repeats nothing, so that this is no excuse for anything.
	began := time.Now()
	if err := part.Stop(); err != nil && r.part != "controller" {
		r.world.wrong("%s was told to stop at %s and ended after %s with %v", r.name, began.Format(clock), time.Since(began).Round(time.Millisecond), err)
	}
	return ctx.Err()
}

// delivers tells that what happens to this process may explain why a delivery came again. Of the others nothing does.
func (r *replica) delivers() bool { return r.part == "dispatcher" }

// ready waits until the process is.
func (r *replica) ready(ctx context.Context) error {
	return until(ctx, time.Minute, r.name+" is ready", func(ctx context.Context) error {
		part := r.running()
		if part == nil {
			return fmt.Errorf("it is not running")
		}
		return part.Ready(ctx)
	})
}

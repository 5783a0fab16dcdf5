package main

import (
	"context"
	"time"
)

// meter measures what a stretch of work costs: CPU of each process and write-ahead log.
type meter struct {
	db       *database
	began    time.Time
	children []*child
	cpu      []time.Duration
	postgres time.Duration
	wal      float64
}

// usage is what it came to.
type usage struct {
	wall     time.Duration
	cpu      map[string]time.Duration // by the process' name; all processes of the server are "postgres"
	peak     map[string]float64       // resident memory in MiB, the most that it ever was, of the processes that are ours
	walBytes float64
}

// measure begins to watch Postgres, the sink and processes that run already.
func (db *database) measure(ctx context.Context, running ...*child) (*meter, error) {
	m := &meter{db: db}
	for _, c := range append(running, db.stage.sinkChild) {
		if err := m.watch(c); err != nil {
			return nil, err
		}
	}
	var err error
	if m.wal, err = db.walPosition(ctx); err != nil {
		return nil, err
	}
	m.postgres, err = familyTime(db.stage.postmaster)
	m.began = time.Now()
	return m, err
}

// watch adds a process that runs already: what it used before does not count.
func (m *meter) watch(c *child) error {
	used, err := cpuTime(c.cmd.Process.Pid, false)
	m.children, m.cpu = append(m.children, c), append(m.cpu, used)
	return err
}

// watchAll adds a process that was started since: all that it used counts.
func (m *meter) watchAll(c *child) { m.children, m.cpu = append(m.children, c), append(m.cpu, 0) }

// read tells what was used since the beginning.
func (m *meter) read(ctx context.Context) (usage, error) {
	u := usage{wall: time.Since(m.began), cpu: map[string]time.Duration{}, peak: map[string]float64{}}
	for i, c := range m.children {
		used, err := cpuTime(c.cmd.Process.Pid, false)
		if err != nil {
			return u, err
		}
		u.cpu[c.name] = used - m.cpu[i]
		if u.peak[c.name], err = memory(c.cmd.Process.Pid, "VmHWM"); err != nil {
			return u, err
		}
	}
	used, err := familyTime(m.db.stage.postmaster)
	if err != nil {
		return u, err
	}
	u.cpu["postgres"] = used - m.postgres
	position, err := m.db.walPosition(ctx)
	u.walBytes = position - m.wal
	return u, err
}

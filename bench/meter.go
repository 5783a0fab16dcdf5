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
	walBytes float64
}

// measure begins. Watch names processes that run already; one that starts later is watched from its start.
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

// watch adds a process.
func (m *meter) watch(c *child) error {
	used, err := cpuTime(c.cmd.Process.Pid, false)
	m.children, m.cpu = append(m.children, c), append(m.cpu, used)
	return err
}

// read tells what was used since the beginning.
func (m *meter) read(ctx context.Context) (usage, error) {
	u := usage{wall: time.Since(m.began), cpu: map[string]time.Duration{}}
	for i, c := range m.children {
		used, err := cpuTime(c.cmd.Process.Pid, false)
		if err != nil {
			return u, err
		}
		u.cpu[c.name] += used - m.cpu[i]
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

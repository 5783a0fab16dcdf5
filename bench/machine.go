package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// load is how much CPU time there was since the machine's start, and who used it.
type load struct{ all, busy, ours time.Duration }

// load reads it. Ours are this process, the server's, the sink, and whatever we have started and waited for.
func (s *stage) load() (l load, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return l, fmt.Errorf("read the machine's load: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	const idle, iowait, steal = 4, 5, 8 // proc_stat(5): what follows is counted elsewhere in the line
	for i, field := range strings.Fields(line) {
		if i == 0 || i > steal {
			continue
		}
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return l, fmt.Errorf("read the machine's load: %w", err)
		}
		l.all += time.Duration(ticks) * clockTick
		if i != idle && i != iowait {
			l.busy += time.Duration(ticks) * clockTick
		}
	}
	for _, one := range []func() (time.Duration, error){
		func() (time.Duration, error) { return cpuTime(os.Getpid(), true) },
		func() (time.Duration, error) { return familyTime(s.postmaster) },
		func() (time.Duration, error) { return cpuTime(s.sinkChild.cmd.Process.Pid, false) },
	} {
		used, err := one()
		if err != nil {
			return l, err
		}
		l.ours += used
	}
	return l, nil
}

// othersPercent is how much of the machine others used since: what disturbs the figures. -1: not known.
func (s *stage) othersPercent(since load) float64 {
	now, err := s.load()
	if err != nil || now.all <= since.all {
		return -1
	}
	others := (now.busy - since.busy) - (now.ours - since.ours)
	return math.Round(100 * max(0, others.Seconds()) / (now.all - since.all).Seconds())
}

func cores() int { return runtime.NumCPU() }

func goVersion() string { return strings.TrimPrefix(runtime.Version(), "go") }

// machineMemory in GiB; 0: not known.
func machineMemory() float64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "MemTotal: %f kB", &kib); err == nil {
			return math.Round(kib / (1 << 20))
		}
	}
	return 0
}

// moduleVersion of a dependency of this binary.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return "unknown"
}

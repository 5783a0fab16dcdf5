package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

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

package chaos

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"
)

// These tests are the suite's short form. They do not run side by side: each needs the whole machine.

// fixedSeed's plan has something of every kind.
const fixedSeed = 1

func play(t *testing.T, s Scenario, seed uint64, lasting time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute) // building included
	defer cancel()
	if err := Run(ctx, Options{Scenario: s, Seed: seed, Lasting: lasting, Out: t.Output()}); err != nil {
		t.Error(err)
	}
}

func TestNothingIsLostInChaos(t *testing.T) {
	play(t, everything(), fixedSeed, 12*time.Second)
}

func TestNothingIsLostInChaosOfARandomSeed(t *testing.T) {
	seed := rand.Uint64N(1_000_000)
	t.Logf("seed %d", seed)
	play(t, everything(), seed, 12*time.Second)
}

func TestTheRateIsNeverExceeded(t *testing.T) {
	s := rate()
	s.After = nil // how much of it is used depends on what else this machine does
	play(t, s, fixedSeed, 6*time.Second)
}

func TestMaxConcurrencyIsNeverExceededThoughDispatchersAreKilled(t *testing.T) {
	play(t, concurrency(), fixedSeed, 7*time.Second)
}

func TestADeadEndpointCostsARequestPerCooldown(t *testing.T) {
	play(t, circuitScenario(), fixedSeed, 8*time.Second)
}

func TestOrderHoldsForEachKey(t *testing.T) {
	s := ordering()
	s.Load.Keys, s.Load.Count = 100, 2_000
	s.Faults.Dispatchers = 4 * time.Second
	play(t, s, fixedSeed, 6*time.Second)
}

func TestNothingIsRepeatedWhenProcessesAreToldToStop(t *testing.T) {
	play(t, rolling(), fixedSeed, 6*time.Second)
}

func TestAllGoesOnWithoutTheKubernetesAPI(t *testing.T) {
	play(t, alone(), fixedSeed, 10*time.Second)
}

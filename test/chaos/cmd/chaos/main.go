// Command chaos plays the chaos suite in its long form: each scenario with each seed. See package chaos.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/postrider/postrider/test/chaos"
)

func main() {
	log.SetLogger(logr.Discard()) // what controller-runtime's client has to say
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos: FAILED:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	seeds := flag.String("seeds", "", "play with each of these seeds, separated by commas or spaces (default: one by chance)")
	lasting := flag.Duration("duration", 10*time.Minute, "how long load and faults last, for each seed")
	names := flag.String("scenarios", "everything", "which to play: "+strings.Join(chaos.Names(), ", ")+", or all")
	patience := flag.Duration("patience", 5*time.Minute, "how long the installation may take to deliver what is left in the end")
	flag.Parse()
	chosen, err := chaos.Choose(*names)
	if err != nil {
		return fmt.Errorf("-scenarios: %w", err)
	}
	numbers, err := parse(*seeds)
	if err != nil {
		return fmt.Errorf("-seeds: %w", err)
	}
	var errs []error
	for _, scenario := range chosen {
		for _, seed := range numbers {
			errs = append(errs, chaos.Run(ctx, chaos.Options{
				Scenario: scenario, Seed: seed, Lasting: *lasting, Out: os.Stdout, Patience: *patience,
			}))
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
	}
	return errors.Join(errs...)
}

func parse(seeds string) ([]uint64, error) {
	var numbers []uint64
	for _, text := range strings.FieldsFunc(seeds, func(r rune) bool { return r == ',' || r == ' ' }) {
		number, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no seed: whole numbers from 0 on are", text)
		}
		numbers = append(numbers, number)
	}
	if len(numbers) == 0 {
		numbers = append(numbers, rand.Uint64N(1_000_000))
	}
	return numbers, nil
}

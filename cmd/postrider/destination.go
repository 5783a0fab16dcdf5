package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider/destination"
)

// reach says where webhooks may be sent and how long that may take: the controller refuses early what the dispatcher will
// never do.
type reach struct {
	config  destination.Config
	timeout time.Duration
}

func (r *reach) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&r.config.AllowedCIDRs, "destination-allowed-cidrs", nil, "ranges that may be sent to although they are not public, such as 10.1.0.0/16")
	f.StringSliceVar(&r.config.DeniedCIDRs, "destination-denied-cidrs", nil, "ranges that may not be sent to, whatever is allowed")
	f.IntSliceVar(&r.config.AllowedPorts, "destination-allowed-ports", nil, "the only ports that may be sent to (default: any)")
	f.BoolVar(&r.config.AllowHTTP, "destination-allow-http", false, "send to http:// URLs too, not to https:// alone")
	mayChange(f, "destination-allowed-cidrs", "destination-denied-cidrs", "destination-allowed-ports", "destination-allow-http")
	f.DurationVar(&r.timeout, "limit-timeout", 30*time.Second, "ceiling of an endpoint's timeout, 1s to 30s")
}

func (r *reach) validate() error {
	if _, err := destination.New(r.config); err != nil {
		return fmt.Errorf("--destination-…: %w", err)
	}
	return nil
}

func (r *reach) policy() (*destination.Policy, error) { return destination.New(r.config) }

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"time"
)

// poolConns is the bound on database connections of whoever delivers: the product's default, and River's here.
const poolConns = 10

// part is a running part of the product.
type part struct {
	*child
	probes string // host:port
	events string // where ingest takes events, host:port
}

// dispatch starts a dispatcher on a database and returns when it is ready.
func (db *database) dispatch(ctx context.Context, flags ...string) (*part, error) {
	// A short grace, since nobody waits for what is still in flight when a unit is over.
	flags = append([]string{"--destination-allowed-cidrs", "127.0.0.0/8", "--destination-allow-http", "--grace", "1s"}, flags...)
	return db.start(ctx, "dispatcher", flags...)
}

// ingest starts an ingest that asks nobody for a credential.
func (db *database) ingest(ctx context.Context) (*part, error) {
	return db.start(ctx, "ingest", "--address", "127.0.0.1:0", "--insecure-no-auth", "--drain-delay", "0s")
}

func (db *database) start(ctx context.Context, name string, flags ...string) (*part, error) {
	s := db.stage
	if s.profile {
		flags = append(flags, "--pprof")
	}
	c, err := launch(s.dir, name, s.program, append([]string{name, "--metrics-address", "127.0.0.1:0"}, flags...), []string{
		"POSTRIDER_NAMESPACE=postrider-system",
		"POSTRIDER_DATABASE_URL=" + db.dsn,
		"POSTRIDER_DATABASE_MAX_CONNS=" + strconv.Itoa(poolConns),
		"POSTRIDER_KEYRING_FILE=" + s.keyringFile(),
	})
	if err != nil {
		return nil, err
	}
	p := &part{child: c}
	if err := p.ready(ctx, name == "ingest"); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// ready learns the part's addresses from its log, since it chose its ports itself, and waits until it is ready.
func (p *part) ready(ctx context.Context, ingest bool) error {
	err := p.line(ctx, func(line []byte) bool {
		var said struct{ Msg, Address string }
		if json.Unmarshal(line, &said) != nil {
			return false
		}
		switch said.Msg {
		case "serving probes and metrics":
			p.probes = said.Address
		case "listening":
			p.events = said.Address
		}
		return p.probes != "" && (p.events != "" || !ingest)
	})
	if err != nil {
		return err
	}
	return p.poll(ctx, func() (bool, error) {
		_, err := fetch(ctx, "http://"+p.probes+"/readyz")
		return err == nil, nil
	})
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET: %s", response.Status)
	}
	return text, err
}

// metrics are the samples of one scrape, by name with labels as they stand in the text.
type metrics map[string]float64

func (p *part) metrics(ctx context.Context) (metrics, error) {
	text, err := fetch(ctx, "http://"+p.probes+"/metrics")
	if err != nil {
		return nil, fmt.Errorf("read the metrics of the %s: %w", p.name, err)
	}
	m := metrics{}
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	for lines.Scan() {
		name, value, ok := cutLast(lines.Text())
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		if m[name], err = strconv.ParseFloat(value, 64); err != nil {
			return nil, fmt.Errorf("read the metrics of the %s: %w", p.name, err)
		}
	}
	return m, lines.Err()
}

func cutLast(line string) (before, after string, found bool) {
	i := strings.LastIndexByte(line, ' ')
	if i < 0 {
		return line, "", false
	}
	return line[:i], line[i+1:], true
}

const (
	deliveredMetric = `postrider_deliveries_total{outcome="delivered"}`
	claimsMetric    = "postrider_claim_duration_seconds"
)

// recorded waits until the dispatcher has recorded n deliveries as delivered.
func (p *part) recorded(ctx context.Context, n int) error {
	return p.poll(ctx, func() (bool, error) {
		m, err := p.metrics(ctx)
		return m[deliveredMetric] >= float64(n), err
	})
}

// quantile of a histogram between two scrapes, interpolated within its bucket as Prometheus does. NaN: no observation.
func (m metrics) quantile(since metrics, histogram string, q float64) float64 {
	type bucket struct{ upTo, count float64 }
	var buckets []bucket
	for name, value := range m {
		bound, ok := strings.CutPrefix(name, histogram+`_bucket{le="`)
		if !ok {
			continue
		}
		if upTo, err := strconv.ParseFloat(strings.TrimSuffix(bound, `"}`), 64); err == nil {
			buckets = append(buckets, bucket{upTo, value - since[name]})
		}
	}
	sort.Slice(buckets, func(i, j int) bool { return buckets[i].upTo < buckets[j].upTo })
	if len(buckets) == 0 || buckets[len(buckets)-1].count == 0 {
		return math.NaN()
	}
	rank := q * buckets[len(buckets)-1].count
	var low bucket
	for _, b := range buckets {
		switch {
		case b.count < rank:
			low = b
		case math.IsInf(b.upTo, 1):
			return low.upTo
		default:
			return low.upTo + (b.upTo-low.upTo)*(rank-low.count)/(b.count-low.count)
		}
	}
	return low.upTo
}

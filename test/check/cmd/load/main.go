// Command load posts events and writes what was acknowledged into a journal:
//
//	load -url http://postrider-ingest -token-file /var/run/postrider/token -types render.done -keys 20 -rate 50 -for 1m -journal /data/load.jsonl
//
// With -control it serves the journal, and stays after the last post until it is told to stop: GET /finished answers 200 then.
// POST /end lets it begin no further post.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/test/check"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var l check.Load
	flag.StringVar(&l.URL, "url", "", "`URL` of ingest, without a path")
	flag.StringVar(&l.TokenFile, "token-file", "", "`file` with the bearer token, read again for each request")
	flag.StringVar(&l.Namespace, "namespace", "", "post into this `namespace` instead of the token's")
	flag.IntVar(&l.Workers, "workers", 0, "posts under way at most (default 8)")
	flag.IntVar(&l.Keys, "keys", 0, "number of ordering keys; 0: none")
	flag.Float64Var(&l.Rate, "rate", 0, "posts per second; 0: each worker posts when its last post was answered")
	flag.IntVar(&l.Count, "count", 0, "end after so many posts; 0: no bound")
	flag.DurationVar(&l.For, "for", 0, "end after this time; 0: no bound")
	flag.IntVar(&l.Bytes, "bytes", 0, "size of the payloads")
	flag.DurationVar(&l.Timeout, "timeout", 0, "of one try (default 5s)")
	flag.DurationVar(&l.Patience, "patience", 0, "with one post (default 1m)")
	types := flag.String("types", "", "event `types`, separated by commas")
	journal := flag.String("journal", "", "`file` to append to")
	control := flag.String("control", "", "`address` to serve the journal at")
	flag.Parse()
	if l.URL == "" || *types == "" || *journal == "" || flag.NArg() > 0 {
		return fmt.Errorf("-url, -types and -journal are needed, and there are no arguments")
	}
	l.Types = strings.Split(*types, ",")
	var err error
	if l.Journal, err = check.OpenJournal(*journal); err != nil {
		return err
	}
	if *control == "" {
		return l.Run(ctx)
	}
	finished := make(chan struct{})
	serving, end := context.WithCancelCause(ctx)
	defer end(nil)
	posting, enough := context.WithCancel(serving)
	defer enough()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /end", func(http.ResponseWriter, *http.Request) { enough() })
	mux.Handle("/", check.Control(*journal, nil))
	mux.HandleFunc("GET /finished", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-finished:
		default:
			http.Error(w, "not yet", http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{Addr: *control, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	defer func() { _ = server.Close() }()
	go func() { end(server.ListenAndServe()) }()
	if err := l.Run(posting); err != nil {
		return err
	}
	close(finished)
	<-serving.Done()
	if ctx.Err() == nil {
		return context.Cause(serving)
	}
	return nil
}

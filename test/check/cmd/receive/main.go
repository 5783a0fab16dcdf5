// Command receive plays the subscribers and writes what arrives into a journal:
//
//	receive -listen :8080 -journal /data/receive.jsonl -secret /secrets/default -secret kirana-ledger=/secrets/kirana \
//		-script /etc/script.json -control :9090
//
// The path of a request names the endpoint. With -control it serves the journal and takes another script.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/test/check"
)

// grace is how long requests may take to end after a signal; the sender repeats what is cut off.
const grace = 5 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "receive:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	o := check.ReceiverOptions{Keys: map[string][]signature.Key{}}
	listen := flag.String("listen", ":8080", "`address` for webhooks")
	control := flag.String("control", "", "`address` to serve the journal and take scripts at")
	journal := flag.String("journal", "", "`file` to append to")
	script := flag.String("script", "", "`file` with a script, JSON")
	flag.Func("secret", "[`endpoint`=]file with a signing key; may be repeated", func(value string) error {
		endpoint, file, named := strings.Cut(value, "=")
		if !named {
			endpoint, file = "", value
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		key, err := signature.ParseKey(text)
		if err != nil {
			return err
		}
		o.Keys[endpoint] = append(o.Keys[endpoint], key)
		return nil
	})
	flag.Parse()
	if *journal == "" || len(o.Keys) == 0 || flag.NArg() > 0 {
		return errors.New("-journal and -secret are needed, and there are no arguments")
	}
	if *script != "" {
		text, err := os.ReadFile(*script)
		if err != nil {
			return err
		}
		if o.Script, err = check.ParseScript(text); err != nil {
			return err
		}
	}
	var err error
	if o.Journal, err = check.OpenJournal(*journal); err != nil {
		return err
	}
	receiver := check.NewReceiver(o)
	servers := []*http.Server{{Addr: *listen, Handler: receiver, ReadHeaderTimeout: 5 * time.Second}}
	if *control != "" {
		servers = append(servers, &http.Server{Addr: *control, Handler: check.Control(*journal, receiver), ReadHeaderTimeout: 5 * time.Second})
	}
	return serve(ctx, servers)
}

// serve runs the servers until ctx ends or one of them fails.
func serve(ctx context.Context, servers []*http.Server) error {
	serving, end := context.WithCancelCause(ctx)
	defer end(nil)
	for _, server := range servers {
		go func() { end(server.ListenAndServe()) }()
	}
	<-serving.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	for _, server := range servers {
		if err := server.Shutdown(stopping); err != nil {
			_ = server.Close() // it is stopped either way
		}
	}
	if ctx.Err() == nil {
		return context.Cause(serving)
	}
	return nil
}

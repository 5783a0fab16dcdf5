package localstack

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
)

const (
	// Below the range that Linux gives to outgoing connections, so that nobody takes the port of a server by chance
	// while it is stopped for a moment.
	firstPort, lastPort = 20000, 32000
	portsPerProcess     = 100
)

var portsAsked atomic.Uint32

// freePort returns a port on which nobody listens. Nothing can reserve it for the server to come, so test processes
// that run at the same time keep out of each other's way: each begins at a place of its own, and none asks for the
// same port again soon.
func freePort(ctx context.Context) (int, error) {
	var listen net.ListenConfig
	var lastErr error
	for range lastPort - firstPort {
		port := firstPort + (os.Getpid()*portsPerProcess+int(portsAsked.Add(1)))%(lastPort-firstPort)
		l, err := listen.Listen(ctx, "tcp", loopback(port))
		if err != nil {
			lastErr = err
			continue
		}
		if err := l.Close(); err != nil {
			return 0, fmt.Errorf("free port %d again: %w", port, err)
		}
		return port, nil
	}
	return 0, fmt.Errorf("find a free port on 127.0.0.1 between %d and %d: %w", firstPort, lastPort, lastErr)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

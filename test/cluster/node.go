package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// argument marks the process that is the node.
const argument = "postrider-cluster-node"

const (
	readyPatience = 2 * time.Minute
	listenerFD    = 3 // of the API server's port on loopback
)

// BeNode makes this process the node if Up started it for that, and does not return then. A program that calls Up calls this
// at its very beginning.
func BeNode() {
	if len(os.Args) != 3 || os.Args[1] != argument {
		return
	}
	n := &node{folder: os.Args[2]}
	if err := n.run(); err != nil {
		n.say(phaseFailed, err.Error())
	}
	// Whoever started us reads why, and ends us. Until then what runs may be looked at.
	select {}
}

// node is the first process of its namespaces. When it ends, the kernel ends all others and takes down mounts and network.
type node struct {
	folder   string // as the rest of the machine sees it; empty when that is out of sight
	mutex    sync.Mutex
	state    state
	children *children
	lock     *os.File // never closed
}

// state is what the node tells: a file in its folder.
type state struct {
	PID     int    `json:"pid"`     // as the rest of the machine sees it
	Started string `json:"started"` // in clock ticks since boot, which tells it from another process with this number
	Phase   string `json:"phase"`
	Message string `json:"message,omitempty"`
}

const (
	phaseStarting = "starting"
	phaseReady    = "ready"
	phaseFailed   = "failed"
)

// settings is what Up passes on: a file in the folder.
type settings struct {
	Programs map[string]string `json:"programs"` // where those are that were built
}

func (n *node) run() error {
	var err error
	if n.lock, err = lockFolder(n.folder); err != nil {
		return err
	}
	pid, err := os.Readlink("/proc/self") // which is still the machine's
	if err != nil {
		return fmt.Errorf("find out the own number: %w", err)
	}
	if _, err := fmt.Sscan(pid, &n.state.PID); err != nil {
		return fmt.Errorf("read the own number: %w", err)
	}
	if n.state.Started, err = startTime(n.state.PID); err != nil {
		return err
	}
	n.say(phaseStarting, "file systems")
	text, err := os.ReadFile(filepath.Join(n.folder, settingsName))
	if err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	var s settings
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	if err := enterRoot(n.folder, s.Programs); err != nil {
		return err
	}
	n.folder = "" // out of sight
	n.children = newChildren()
	if err := n.network(); err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(listenerFD, "listener"))
	if err != nil {
		return fmt.Errorf("take over the port on loopback: %w", err)
	}
	go passOn(listener, "127.0.0.1:"+apiPort)
	ctx, cancel := context.WithTimeout(context.Background(), readyPatience)
	defer cancel()
	if err := n.servers(ctx); err != nil {
		return err
	}
	n.say(phaseReady, "")
	select {}
}

// readyStill says whether a server's end is news.
func (n *node) readyStill() bool {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.state.Phase == phaseReady
}

// say replaces the file that tells how far the node is.
func (n *node) say(phase, message string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.state.Phase, n.state.Message = phase, message
	folder := inNode
	if n.folder != "" {
		folder = filepath.Join(n.folder, "node")
	}
	text, err := json.Marshal(n.state)
	if err == nil {
		name := filepath.Join(folder, stateName)
		if err = os.WriteFile(name+".new", text, 0o644); err == nil {
			err = os.Rename(name+".new", name)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", phase, message, err)
	}
}

// network lays out the node's own: loopback, and a bridge that holds its address. There is no way out.
func (n *node) network() error {
	ip, err := lookPath("ip")
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", bridge, "type", "bridge"},
		{"addr", "add", nodeAddress + "/32", "dev", bridge},
		{"link", "set", bridge, "up"},
		// A Service that nobody serves must end here too; and without a route, kube-proxy's rules would not be asked.
		{"route", "add", serviceRange, "dev", bridge},
	} {
		if err := n.children.run(logFile("network"), ip, args...); err != nil {
			return err
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}

// servers starts them, each when what it needs is ready.
func (n *node) servers(ctx context.Context) error {
	client, err := apiClient()
	if err != nil {
		return err
	}
	get := func(url string) func(context.Context) error {
		return func(ctx context.Context) error { return answers(ctx, client, url) }
	}
	ctr := func(context.Context) error {
		return n.children.run(logFile("ctr"), program("ctr"), "-a", containerdSocket, "version")
	}
	api := "https://127.0.0.1:" + apiPort
	for _, step := range []struct {
		server
		ready func(context.Context) error
	}{
		{etcdServer(), get(etcdURL + "/health")},
		{containerRuntime(), ctr},
		{apiServer(), get(api + "/readyz")},
		{controllerManager(), get("https://127.0.0.1:10257/healthz")},
		{scheduler(), nil},
		{proxy(), nil},
		{kubelet(), get(api + "/api/v1/nodes/" + nodeName)},
	} {
		n.say(phaseStarting, step.name)
		ended, err := n.children.start(logFile(step.name), program(step.name), step.args...)
		if err != nil {
			return err
		}
		failed := make(chan error, 1)
		go func() {
			err := fmt.Errorf("%s: %s; see its log", step.name, describe(<-ended))
			failed <- err
			if n.readyStill() {
				n.say(phaseFailed, err.Error())
			}
		}()
		if step.ready == nil {
			continue
		}
		if err := await(ctx, failed, step.ready); err != nil {
			return fmt.Errorf("start %s: %w", step.name, err)
		}
	}
	return nil
}

// await polls until ready returns nil, the server ends or ctx does.
func await(ctx context.Context, failed <-chan error, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case ended := <-failed:
			return ended
		case <-ctx.Done():
			return fmt.Errorf("not ready in time: %w", err)
		case <-tick.C:
		}
	}
}

func apiClient() (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(pki("admin.crt"), pki("admin.key"))
	if err != nil {
		return nil, fmt.Errorf("read the administrator's certificate: %w", err)
	}
	ca, err := os.ReadFile(pki("ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		// The controller manager's certificate is its own.
		TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, InsecureSkipVerify: true},
	}}, nil
}

func answers(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<12))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", url, response.Status, text)
	}
	return nil
}

// passOn connects callers from outside of the node's network with an address inside. The listener was made before this
// process had a network of its own, and stays in the one where it was made.
func passOn(listener net.Listener, to string) {
	for {
		caller, err := listener.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "node: the port on loopback is closed:", err)
			return
		}
		go func() {
			defer func() { _ = caller.Close() }()
			server, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(context.Background(), "tcp", to)
			if err != nil {
				return
			}
			defer func() { _ = server.Close() }()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = io.Copy(server, caller)
				halfClose(server)
			}()
			_, _ = io.Copy(caller, server)
			halfClose(caller)
			<-ended
		}()
	}
}

func halfClose(connection net.Conn) {
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}

func logFile(name string) string { return inNode + "/log/" + name + ".log" }

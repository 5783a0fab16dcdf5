package main

import (
	"os/exec"
	"strings"
	"testing"
)

// What Kubernetes' library for API servers brings along makes the binary 41 MB larger and a dispatcher 17 MiB. A new
// import may do that unnoticed.
func TestTheBinaryIsFreeOfWhatAnAPIServerNeeds(t *testing.T) {
	t.Parallel()
	command := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
	command.Env = append(command.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	list, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	packages := strings.Fields(string(list))
	if len(packages) < 100 {
		t.Fatalf("only %d packages are listed", len(packages))
	}
	for _, p := range packages {
		for _, unwanted := range []string{
			"github.com/google/cel-go", "github.com/antlr4-go/antlr", "google.golang.org/grpc", "k8s.io/apiserver",
			"go.opentelemetry.io/otel/exporters", "sigs.k8s.io/apiserver-network-proxy",
		} {
			if p == unwanted || strings.HasPrefix(p, unwanted+"/") {
				t.Errorf("the binary has %s; go mod why %s tells who imports it", p, p)
			}
		}
	}
}

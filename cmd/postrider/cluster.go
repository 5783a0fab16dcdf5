package main

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster says how to reach the Kubernetes API, and what it is asked besides the parts' own work.
type cluster struct {
	kubeconfig  string
	metricsAuth bool
}

func (k *cluster) flags(f *pflag.FlagSet) {
	f.StringVar(&k.kubeconfig, "kubeconfig", "", "file that says how to reach the Kubernetes API (default: as a pod does)")
	f.BoolVar(&k.metricsAuth, "metrics-auth", false, "serve --metrics-address over HTTPS, with a certificate of its own making, and metrics to those alone who may get the URL /metrics in the Kubernetes API")
}

func (k *cluster) validate() error { return nil }

// config never falls back on the user's own kubeconfig: which cluster is served must not be an accident.
func (k *cluster) config() (*rest.Config, error) {
	if k.kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", k.kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("reach the Kubernetes API: %w; outside a pod, give --kubeconfig", err)
	}
	return config, nil
}

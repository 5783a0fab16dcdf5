package cluster

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/postrider/postrider/test/localstack"
)

//go:embed dns.yaml
var dnsManifest []byte

// settleIn waits for the node, and brings up what every cluster has.
func (c *Cluster) settleIn(ctx context.Context) error {
	manifest := filepath.Join(c.folder, "node/dns.yaml")
	if err := os.WriteFile(manifest, dnsManifest, 0o600); err != nil {
		return err
	}
	objects, err := localstack.ReadManifests(nil, manifest)
	if err != nil {
		return err
	}
	if _, err := localstack.Apply(ctx, c.config, "cluster", objects...); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	say(c.progress, "waiting for the node and the name server")
	return c.Await(ctx, time.Minute, "the node and the name server are ready", func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := nodeReady(node); err != nil {
			return err
		}
		if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		return deploymentReady(ctx, client, "kube-system", "coredns")
	})
}

// AwaitDeployments waits until all replicas of the latest version of some Deployments are available.
func (c *Cluster) AwaitDeployments(ctx context.Context, patience time.Duration, namespace string, names ...string) error {
	client, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return c.Await(ctx, patience, fmt.Sprintf("%v in %s are available", names, namespace), func(ctx context.Context) error {
		var errs []error
		for _, name := range names {
			errs = append(errs, deploymentReady(ctx, client, namespace, name))
		}
		return errors.Join(errs...)
	})
}

// Await polls until a condition holds. The error says for what it was waited and what was missing last.
func (*Cluster) Await(ctx context.Context, patience time.Duration, what string, holds func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := holds(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for: %s: %w: %w", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

func nodeReady(node *corev1.Node) error {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		} else if condition.Type == corev1.NodeReady {
			return fmt.Errorf("the node is not ready: %s", condition.Message)
		}
	}
	return errors.New("the node does not say whether it is ready")
}

func deploymentReady(ctx context.Context, client kubernetes.Interface, namespace, name string) error {
	d, err := client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	s := d.Status
	if s.ObservedGeneration < d.Generation || s.UpdatedReplicas != want || s.Replicas != want || s.AvailableReplicas != want {
		return fmt.Errorf("deployment %s: %d of %d replicas are updated and %d available", name, s.UpdatedReplicas, want, s.AvailableReplicas)
	}
	return nil
}

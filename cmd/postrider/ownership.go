package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/postrider/postrider/store"
)

// ownInCluster refuses a database that belongs to another cluster, for a part that can ask which cluster this is. One that
// may not read kube-system, or whose API server is away, takes the installation's word: it need not wait for it.
func ownInCluster(ctx context.Context, log *slog.Logger, s *store.Store, in installation, kubernetes *rest.Config) error {
	uid, err := clusterUID(ctx, kubernetes)
	if err != nil {
		level := slog.LevelWarn
		if apierrors.IsForbidden(err) {
			level = slog.LevelInfo
		}
		log.Log(ctx, level, "cannot tell which cluster this is; only namespace and release are compared with the database's", "reason", err.Error())
		return nil
	}
	for {
		asking, cancel := context.WithTimeout(ctx, startPatience)
		err := s.Own(asking, store.Installation{Namespace: in.namespace, Release: in.release, ClusterUID: uid}, false)
		cancel()
		if err == nil || !store.IsUnavailable(err) {
			return err
		}
		log.Warn("waiting for the database", "reason", err.Error())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// clusterUID is that of the namespace kube-system, which no cluster lives without.
func clusterUID(ctx context.Context, kubernetes *rest.Config) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	client, err := corev1.NewForConfig(kubernetes)
	if err != nil {
		return "", fmt.Errorf("make a client of the Kubernetes API: %w", err)
	}
	found, err := client.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("identify the cluster by its namespace kube-system: %w", err)
	}
	return string(found.UID), nil
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/check"
)

const (
	rotatedSecret = "pixel-forge-signing"
	nextSecret    = "pixel-forge-next"
)

// rotated are the endpoints of rotatedSecret.
var rotated = []string{"pixel-forge-frames", "pixel-forge-farm", "pixel-forge-archive"}

// rotateKey changes a Secret under load. The receiver knows both keys and records which of them verify a request.
func rotateKey(ctx context.Context, w *world) error {
	return w.underLoad(ctx, "rotating", func(ctx context.Context) error {
		secrets := w.client.CoreV1().Secrets(samples)
		next, err := secrets.Get(ctx, nextSecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		secret, err := secrets.Get(ctx, rotatedSecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		w.retired = append(w.retired, string(secret.Data[keyEntry]))
		if err := w.signedBy(ctx, time.Time{}, 1); err != nil {
			return err
		}
		secret.Data[keyEntry] = next.Data[keyEntry]
		if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
			return err
		}
		if err := w.bothKeysInStatus(ctx); err != nil {
			return err
		}
		return w.signedBy(ctx, time.Now(), 1, 2)
	})
}

// signedBy waits until each endpoint of the rotated Secret got a request, since some time, that exactly these keys verify.
func (w *world) signedBy(ctx context.Context, since time.Time, keys ...int) error {
	return w.cluster.Await(ctx, patience, fmt.Sprintf("requests are signed by the keys %v", keys), func(ctx context.Context) error {
		pod, err := w.podOf(ctx, samples, "receiver")
		if err != nil {
			return err
		}
		journal, err := w.fetch(ctx, samples, pod, "9090", "/journal")
		if err != nil {
			return err
		}
		record, err := check.ReadFrom(bytes.NewReader(journal))
		if err != nil {
			return err
		}
		missing := slices.Clone(rotated)
		for _, f := range record.Facts {
			if f.Kind == check.Arrived && f.At.After(since) && slices.Equal(f.Keys, keys) {
				missing = slices.DeleteFunc(missing, func(endpoint string) bool { return endpoint == f.Endpoint })
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("none arrived at %v", missing)
		}
		return nil
	})
}

func (w *world) bothKeysInStatus(ctx context.Context) error {
	client, err := dynamic.NewForConfig(w.cluster.Config())
	if err != nil {
		return err
	}
	resource := client.Resource(v1alpha1.GroupVersion.WithResource("webhookendpoints")).Namespace(samples)
	return w.cluster.Await(ctx, patience, "the status shows both keys", func(ctx context.Context) error {
		for _, name := range rotated {
			endpoint, err := resource.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			status, _ := endpoint.Object["status"].(map[string]any)
			keys, _ := status["signingKeys"].([]any)
			if len(keys) != 2 {
				return fmt.Errorf("%s: %d keys", name, len(keys))
			}
		}
		return nil
	})
}

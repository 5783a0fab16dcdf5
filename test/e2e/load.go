package main

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/test/check"
	"github.com/postrider/postrider/test/localstack"
)

// underLoad disturbs while an application posts for a while, and then checks everything that was posted and that arrived so far.
func (w *world) underLoad(ctx context.Context, name string, lasting time.Duration, disturb func(context.Context) error) error {
	objects, err := localstack.ReadManifests(func(text []byte) []byte {
		text = bytes.ReplaceAll(text, []byte("name: application"), []byte("name: "+name))
		text = bytes.ReplaceAll(text, []byte("-count=100"), []byte("-for="+lasting.String()))
		return bytes.ReplaceAll(text, []byte("-rate=10"), []byte("-rate=16"))
	}, filepath.Join(w.top, "test/e2e/manifests/application.yaml"))
	if err != nil {
		return err
	}
	if _, err := localstack.Apply(ctx, w.cluster.Config(), "e2e", objects...); err != nil {
		return err
	}
	w.loads = append(w.loads, name)
	if err := w.cluster.Await(ctx, patience, "the application posts", func(ctx context.Context) error {
		text, err := w.fetch(ctx, samples, name, "9090", "/journal")
		if err == nil && !bytes.Contains(text, []byte(check.Accepted)) {
			err = errors.New("nothing is accepted yet")
		}
		return err
	}); err != nil {
		return err
	}
	if err := disturb(ctx); err != nil {
		return err
	}
	return w.settle(ctx, name)
}

// scaleDispatchers goes from one to four and back under load.
func scaleDispatchers(ctx context.Context, w *world) error {
	const dispatcher = release + "-dispatcher"
	scale := func(ctx context.Context, replicas int32) error {
		deployments := w.client.AppsV1().Deployments(system)
		now, err := deployments.GetScale(ctx, dispatcher, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Spec.Replicas = replicas
		if _, err := deployments.UpdateScale(ctx, dispatcher, now, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return w.cluster.AwaitDeployments(ctx, patience, system, dispatcher)
	}
	if err := w.underLoad(ctx, "scaling", 30*time.Second, func(ctx context.Context) error {
		for _, replicas := range []int32{1, 4, 1} {
			if err := scale(ctx, replicas); err != nil {
				return err
			}
			say("%d dispatchers", replicas)
		}
		return nil
	}); err != nil {
		return err
	}
	return scale(ctx, 2) // as installed
}

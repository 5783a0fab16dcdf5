package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/postrider/postrider/test/check"
	"github.com/postrider/postrider/test/localstack"
)

// underLoad disturbs while an application posts, and then checks everything that was posted and that arrived so far.
func (w *world) underLoad(ctx context.Context, name string, disturb func(context.Context) error) error {
	began := time.Now()
	objects, err := localstack.ReadManifests(func(text []byte) []byte {
		text = bytes.ReplaceAll(text, []byte("name: application"), []byte("name: "+name))
		text = bytes.ReplaceAll(text, []byte("-count=100"), []byte("-count=0"))
		return bytes.ReplaceAll(text, []byte("-rate=10"), []byte("-rate=16"))
	}, filepath.Join(w.top, "test/e2e/manifests/application.yaml"))
	if err != nil {
		return err
	}
	if _, err := localstack.Apply(ctx, w.cluster.Config(), "e2e", objects...); err != nil {
		return err
	}
	w.loads = append(w.loads, name)
	if err := w.goesOn(ctx, name, time.Time{}); err != nil {
		return err
	}
	if err := disturb(ctx); err != nil {
		return err
	}
	if err := w.goesOn(ctx, name, time.Now()); err != nil {
		return err
	}
	if err := w.client.CoreV1().RESTClient().Post().Namespace(samples).Resource("pods").Name(name + ":9090").SubResource("proxy").
		Suffix("end").Do(ctx).Error(); err != nil {
		return fmt.Errorf("end the load: %w", err)
	}
	return w.settle(ctx, name, began)
}

// goesOn waits until a few posts of each key were accepted since some time.
func (w *world) goesOn(ctx context.Context, load string, since time.Time) error {
	return w.cluster.Await(ctx, patience, "the application's posts are accepted", func(ctx context.Context) error {
		text, err := w.fetch(ctx, samples, load, "9090", "/journal")
		if err != nil {
			return err
		}
		record, err := check.ReadFrom(bytes.NewReader(text))
		if err != nil {
			return err
		}
		accepted := map[string]int{}
		for _, f := range record.Facts {
			if f.Kind == check.Accepted && f.At.After(since) {
				accepted[f.Key]++
			}
		}
		few := len(accepted) < loadKeys
		for _, n := range accepted {
			few = few || n < enoughPosts
		}
		if few {
			return fmt.Errorf("accepted so far by key: %v", accepted)
		}
		return nil
	})
}

const (
	loadKeys    = 4 // as manifests/application.yaml has it
	enoughPosts = 8 // of each key show that accepting goes on
)

// scaleDispatchers goes from one to four and back under load.
func scaleDispatchers(ctx context.Context, w *world) error {
	const dispatcher = release + "-dispatcher"
	scale := func(ctx context.Context, replicas int32) error {
		// A patch, as the Deployment's own controller writes to it at the same time.
		patch := fmt.Appendf(nil, `{"spec": {"replicas": %d}}`, replicas)
		if _, err := w.client.AppsV1().Deployments(system).Patch(ctx, dispatcher, types.MergePatchType, patch, metav1.PatchOptions{}, "scale"); err != nil {
			return fmt.Errorf("scale to %d: %w", replicas, err)
		}
		return w.cluster.AwaitDeployments(ctx, patience, system, dispatcher)
	}
	if err := w.underLoad(ctx, "scaling", func(ctx context.Context) error {
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

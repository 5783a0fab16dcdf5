package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/test/check"
	"github.com/postrider/postrider/test/localstack"
)

var parts = []string{"controller", "dispatcher", "ingest"}

// deletePods deletes a pod of each part under load. They are told to stop, so nothing is repeated.
func deletePods(ctx context.Context, w *world) error {
	return w.underLoad(ctx, "deleting", func(ctx context.Context) error {
		for _, part := range parts {
			pods, err := w.client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + part})
			if err != nil {
				return err
			}
			if len(pods.Items) == 0 {
				return fmt.Errorf("no pod of the %s", part)
			}
			if err := w.client.CoreV1().Pods(system).Delete(ctx, pods.Items[0].Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
			if err := w.cluster.AwaitDeployments(ctx, patience, system, release+"-"+part); err != nil {
				return err
			}
		}
		return nil
	})
}

// killParts kills a process of each part under load, as a crash would.
func killParts(ctx context.Context, w *world) error {
	return w.underLoad(ctx, "killing", func(ctx context.Context) error {
		for _, part := range parts {
			// Within the node: it sees no other processes than its own.
			kill, err := w.cluster.Command(ctx, "/usr/bin/pkill", "-KILL", "--newest", "--full", "^/?postrider "+part)
			if err != nil {
				return err
			}
			before, err := w.restarts(ctx, part)
			if err != nil {
				return err
			}
			at := time.Now()
			if out, err := kill.CombinedOutput(); err != nil {
				return fmt.Errorf("kill a process of the %s: %w %s", part, err, out)
			}
			if err := w.disruptions.Write(check.Fact{Kind: check.Disrupted, At: at, Problem: "kill -9 of the " + part}); err != nil {
				return err
			}
			if err := w.cluster.Await(ctx, patience, "the "+part+" is started again", func(ctx context.Context) error {
				if now, err := w.restarts(ctx, part); err != nil || now <= before {
					return errors.Join(err, fmt.Errorf("%d restarts, as before", now))
				}
				return nil
			}); err != nil {
				return err
			}
			if err := w.cluster.AwaitDeployments(ctx, patience, system, release+"-"+part); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *world) restarts(ctx context.Context, part string) (int32, error) {
	pods, err := w.client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + part})
	if err != nil {
		return 0, err
	}
	var n int32
	for _, pod := range pods.Items {
		for _, c := range pod.Status.ContainerStatuses {
			n += c.RestartCount
		}
	}
	return n, nil
}

// underLoad disturbs while an application posts, and then checks everything that was posted and that arrived so far.
func (w *world) underLoad(ctx context.Context, name string, disturb func(context.Context) error) error {
	objects, err := localstack.ReadManifests(func(text []byte) []byte {
		text = bytes.ReplaceAll(text, []byte("name: application"), []byte("name: "+name))
		text = bytes.ReplaceAll(text, []byte("-count=100"), []byte("-for="+loadTime.String()))
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

const loadTime = 40 * time.Second

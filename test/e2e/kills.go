package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/test/check"
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
			killed := check.Fact{Kind: check.Disrupted, At: time.Now(), Problem: "kill -9 of the " + part}
			if out, err := kill.CombinedOutput(); err != nil {
				return fmt.Errorf("kill a process of the %s: %w %s", part, err, out)
			}
			killed.Until = time.Now() // on a busy machine it takes a while to get there
			if err := w.disruptions.Write(killed); err != nil {
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

// loseDatabase deletes the pod of Postgres under load. Its volume stays. Nobody else has to be started again.
func loseDatabase(ctx context.Context, w *world) error {
	return w.underLoad(ctx, "losing", func(ctx context.Context) error {
		before, err := w.allRestarts(ctx)
		if err != nil {
			return err
		}
		pod, err := w.client.CoreV1().Pods(system).Get(ctx, postgresPod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		outage := check.Fact{Kind: check.Disrupted, At: time.Now(), Problem: "the pod of Postgres is deleted"}
		if err := w.client.CoreV1().Pods(system).Delete(ctx, postgresPod, metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := w.cluster.Await(ctx, patience, "another pod of Postgres is ready", func(ctx context.Context) error {
			now, err := w.client.CoreV1().Pods(system).Get(ctx, postgresPod, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if now.UID == pod.UID || !podReady(now) {
				return errors.New("not yet")
			}
			return nil
		}); err != nil {
			return err
		}
		outage.Until = time.Now()
		if err := w.disruptions.Write(outage); err != nil {
			return err
		}
		say("Postgres was away for %s", outage.Until.Sub(outage.At).Round(100*time.Millisecond))
		if after, err := w.allRestarts(ctx); err != nil || after > before { // fewer: a pod that was scaled away is gone by now
			return errors.Join(err, fmt.Errorf("%d containers were started again because Postgres was away", after-before))
		}
		return nil
	})
}

const postgresPod = release + "-postgres-0"

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (w *world) allRestarts(ctx context.Context) (int32, error) {
	var n int32
	for _, part := range parts {
		more, err := w.restarts(ctx, part)
		if err != nil {
			return 0, err
		}
		n += more
	}
	return n, nil
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

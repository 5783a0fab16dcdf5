package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// upgrade goes from the previous release to the present one, back and forth again, while an application posts all the time.
// The schema goes with the first upgrade and stays.
func upgrade(ctx context.Context, w *world) error {
	if w.previous.schema >= w.present.schema {
		return fmt.Errorf("the previous release has schema %d and the present one %d: this upgrade migrates nothing; "+
			"move test/e2e/previous to an earlier commit", w.previous.schema, w.present.schema)
	}
	if err := w.schemaIs(ctx, w.previous.schema); err != nil {
		return err
	}
	err := w.underLoad(ctx, "upgrading", func(ctx context.Context) error {
		toPresent := func(ctx context.Context) error {
			return w.chart(ctx, w.present, "upgrade", release, system, "--wait")
		}
		// What only the present chart has is removed while the present pods still run. Without the Service in front of Postgres
		// they open no new connection, which a producer may hear of as 503 until they are replaced.
		rollBack := func(ctx context.Context) error {
			_, err := w.helm(ctx, "rollback", release, "--namespace", system, "--wait", "--timeout", "4m")
			return err
		}
		if err := w.roll(ctx, "upgraded", w.present, toPresent); err != nil {
			return err
		}
		if err := w.roll(ctx, "rolled back", w.previous, rollBack); err != nil {
			return err
		}
		return w.roll(ctx, "upgraded again", w.present, toPresent)
	})
	if err != nil {
		return err
	}
	if err := w.statuses(ctx, time.Time{}, allDelivered); err != nil {
		return err
	}
	return w.table(ctx)
}

// roll replaces all pods of the parts by those of an edition, and looks at them meanwhile: the old and the new ones run side by
// side, nothing is started again for want of something, the database is left alone. Afterwards the statuses are kept up.
func (w *world) roll(ctx context.Context, what string, to edition, replace func(context.Context) error) error {
	began := time.Now()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	seen := make(chan sight, 1)
	go func() { seen <- w.watchPods(watching) }()
	err := replace(ctx)
	stop()
	s := <-seen
	if err := errors.Join(err, s.judge()); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for _, part := range parts {
		if err := w.cluster.AwaitDeployments(ctx, patience, system, release+"-"+part); err != nil {
			return err
		}
	}
	if err := w.runs(ctx, to); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := w.schemaIs(ctx, w.present.schema); err != nil {
		return err
	}
	rolled := time.Now()
	if err := w.statuses(ctx, rolled, delivering); err != nil {
		return err
	}
	say("%s in %s, old and new side by side; schema %d; statuses of later deliveries after another %s",
		what, rolled.Sub(began).Round(100*time.Millisecond), w.present.schema, time.Since(rolled).Round(100*time.Millisecond))
	return nil
}

// sight is what was seen of the release's pods while they were replaced.
type sight struct {
	together map[string]bool    // parts of which pods with two images were ready at one time
	again    map[string]string  // pods of which a container was started again, and which
	postgres map[types.UID]bool // pods of Postgres
	looks    int
}

func newSight() sight {
	return sight{together: map[string]bool{}, again: map[string]string{}, postgres: map[types.UID]bool{}}
}

// watchPods looks until ctx ends.
func (w *world) watchPods(ctx context.Context) sight {
	s := newSight()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		// A look that fails is one less: what must be seen was seen by another.
		if pods, err := w.client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release}); err == nil {
			s.look(pods.Items)
		}
		select {
		case <-ctx.Done():
			return s
		case <-tick.C:
		}
	}
}

func (s *sight) look(pods []corev1.Pod) {
	s.looks++
	ready := map[string][]string{}
	for _, pod := range pods {
		part := pod.Labels["app.kubernetes.io/component"]
		if part == "postgres" {
			s.postgres[pod.UID] = true
		}
		if !slices.Contains(parts, part) {
			continue
		}
		for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			if c.RestartCount > 0 {
				s.again[pod.Name] = fmt.Sprintf("%s × %d", c.Name, c.RestartCount)
			}
		}
		if image := pod.Spec.Containers[0].Image; podReady(&pod) && pod.DeletionTimestamp == nil && !slices.Contains(ready[part], image) {
			ready[part] = append(ready[part], image)
		}
	}
	for part, images := range ready {
		if len(images) > 1 {
			s.together[part] = true
		}
	}
}

func (s *sight) judge() error {
	var errs []error
	for _, part := range parts {
		if !s.together[part] {
			errs = append(errs, fmt.Errorf("an old and a new pod of the %s were never seen ready at one time (of %d looks)", part, s.looks))
		}
	}
	for pod, container := range s.again {
		errs = append(errs, fmt.Errorf("in pod %s a container was started again: %s", pod, container))
	}
	if len(s.postgres) != 1 {
		errs = append(errs, fmt.Errorf("%d pods of Postgres were seen, want the one that was there", len(s.postgres)))
	}
	return errors.Join(errs...)
}

// runs sees that all pods of the parts, but those that are going, have the image of an edition.
func (w *world) runs(ctx context.Context, e edition) error {
	pods, err := w.client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release})
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		image := pod.Spec.Containers[0].Image
		if pod.DeletionTimestamp == nil && slices.Contains(parts, pod.Labels["app.kubernetes.io/component"]) && image != imageRepository+":"+e.imageTag {
			return fmt.Errorf("pod %s has image %s, want tag %s", pod.Name, image, e.imageTag)
		}
	}
	return nil
}

// schemaIs asks the database which migrations were applied.
func (w *world) schemaIs(ctx context.Context, want int) error {
	text, err := w.inPostgres(ctx, `psql --host="$PGHOST" --username=postrider --no-align --tuples-only --command='SELECT max(version_id) FROM postrider.schema_version WHERE is_applied' postrider`)
	if err != nil {
		return err
	}
	if got, err := strconv.Atoi(strings.TrimSpace(text)); err != nil || got != want {
		return errors.Join(err, fmt.Errorf("the schema is %q, want %d", text, want))
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/test/cluster"
)

const (
	others   = "postrider-others" // where releases other than the first are installed
	second   = "second"
	intruder = "intruder"
)

// chart installs or upgrades a release and waits for it. Statuses are written often, since scenarios wait for them.
func (w *world) chart(ctx context.Context, e edition, verb, name, namespace string, more ...string) error {
	_, err := w.helm(ctx, append([]string{
		verb, name, e.chart, "--namespace", namespace, "--values", e.values,
		"--set", "image.tag=" + e.imageTag, "--set", "postgres.embedded.image.repository=" + cluster.PostgresRepository,
		"--set", "postgres.embedded.image.tag=" + cluster.PostgresTag, "--set", "controller.settings.statusInterval=5s", "--timeout", "4m",
	}, more...)...)
	return err
}

// selftest has a release deliver an event.
func (w *world) selftest(ctx context.Context, name, namespace string) error {
	_, err := w.helm(ctx, "test", name, "--namespace", namespace, "--timeout", "2m")
	return err
}

// installOthers installs a second release, with namespaces and a database of its own, and one that takes the first's database.
func installOthers(ctx context.Context, w *world) error {
	if err := w.apply(ctx, filepath.Join(w.top, "test/e2e/manifests/others.yaml")); err != nil {
		return err
	}
	if err := w.borrow(ctx); err != nil {
		return err
	}
	if err := w.chart(ctx, w.present, "upgrade", release, system, "--set", "watchNamespaces={"+system+","+samples+"}", "--wait"); err != nil {
		return err
	}
	values := filepath.Join(w.top, "test/e2e/manifests/others_values.yaml")
	if err := w.chart(ctx, w.present, "install", intruder, others, "--values", values, "--set", "database.existingSecret=borrowed"); err != nil {
		return err
	}
	if err := w.installInTime(ctx, w.present, second, others, "--values", values); err != nil {
		return err
	}
	if err := w.selftest(ctx, release, system); err != nil {
		return err
	}
	if err := w.refused(ctx); err != nil {
		return err
	}
	for _, name := range []string{intruder, second} {
		if _, err := w.helm(ctx, "uninstall", name, "--namespace", others); err != nil {
			return err
		}
	}
	return nil
}

// borrow gives the URL of the first release's database away.
func (w *world) borrow(ctx context.Context) error {
	secret, err := w.client.CoreV1().Secrets(system).Get(ctx, release+"-postgres", metav1.GetOptions{})
	if err != nil {
		return err
	}
	database := url.URL{
		Scheme: "postgres", User: url.UserPassword("postrider", string(secret.Data["password"])),
		Host: release + "-database." + system + ".svc:5432", Path: "/postrider", RawQuery: "sslmode=disable",
	}
	_, err = w.client.CoreV1().Secrets(others).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "borrowed"}, StringData: map[string]string{"url": database.String()},
	}, metav1.CreateOptions{})
	return err
}

// refused waits until every part of the intruder has said whose database it is, and sees that none of them is ready.
func (w *world) refused(ctx context.Context) error {
	return w.cluster.Await(ctx, patience, "the release on a foreign database is refused", func(ctx context.Context) error {
		pods, err := w.client.CoreV1().Pods(others).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + intruder})
		if err != nil {
			return err
		}
		missing := slices.Clone(parts)
		for _, pod := range pods.Items {
			part := pod.Labels["app.kubernetes.io/component"]
			if podReady(&pod) {
				return fmt.Errorf("pod %s is ready on a database that belongs to another release", pod.Name)
			}
			var said string
			for _, previous := range []bool{false, true} {
				text, err := w.client.CoreV1().Pods(others).GetLogs(pod.Name, &corev1.PodLogOptions{Container: part, Previous: previous}).DoRaw(ctx)
				if err == nil { // else it has not run yet, or only once
					said += string(text)
				}
			}
			said = strings.ReplaceAll(said, `\"`, `"`)
			if strings.Contains(said, fmt.Sprintf("the database belongs to another installation: release %q in namespace %q", release, system)) {
				missing = slices.DeleteFunc(missing, func(p string) bool { return p == part })
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("nothing is heard of it from %v", missing)
		}
		return nil
	})
}

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// kept are what `helm uninstall` leaves, as kind and name.
var kept = []string{
	"CustomResourceDefinition webhookendpoints.webhooks.postrider.dev",
	"PersistentVolumeClaim data-" + release + "-postgres-0",
	"Secret " + release + "-keyring",
	"Secret " + release + "-postgres",
}

// everyNamespaceHas are the objects that Kubernetes makes in each namespace.
var everyNamespaceHas = []string{"ConfigMap kube-root-ca.crt", "ServiceAccount default"}

// reinstall uninstalls the release, looks what is left, and installs it again over that.
func reinstall(ctx context.Context, w *world) error {
	notes, err := w.helm(ctx, "get", "notes", release, "--namespace", system)
	if err != nil {
		return err
	}
	for _, object := range kept {
		kind, name, _ := strings.Cut(object, " ")
		if !strings.Contains(notes, name) {
			return fmt.Errorf("NOTES does not say that %s %s is left", kind, name)
		}
	}
	before, err := w.events(ctx)
	if err != nil {
		return err
	}
	if _, err := w.helm(ctx, "uninstall", release, "--namespace", system, "--timeout", "2m"); err != nil {
		return err
	}
	if err := w.cluster.Await(ctx, patience, "only what NOTES lists is left", w.onlyKeptIsLeft); err != nil {
		return err
	}
	began := time.Now()
	if err := w.chart(ctx, w.present, "install", release, system, "--wait"); err != nil {
		return err
	}
	say("installed again and ready after %s", time.Since(began).Round(100*time.Millisecond))
	if err := w.endpointsReady(ctx); err != nil { // those that were there all the time
		return err
	}
	after, err := w.events(ctx)
	if err != nil {
		return err
	}
	if before == "0" || after != before {
		return fmt.Errorf("the database has %s events, before it had %s", after, before)
	}
	return w.underLoad(ctx, "reinstalled", func(context.Context) error { return nil })
}

// events counts those in the database.
func (w *world) events(ctx context.Context) (string, error) {
	n, err := w.inPostgres(ctx, `psql --host="$PGHOST" --username=postrider --no-align --tuples-only --command='SELECT count(*) FROM postrider.event' postrider`)
	return strings.TrimSpace(n), err
}

// onlyKeptIsLeft lists every object of every kind that is in the release's namespace or has its label.
func (w *world) onlyKeptIsLeft(ctx context.Context) error {
	config := w.cluster.Config()
	config.WarningHandler = rest.NoWarnings{} // that some kinds are deprecated
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	lists, err := discovery.ServerPreferredResources(w.client.Discovery())
	if err != nil {
		return err
	}
	var left []string
	for _, list := range lists {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return err
		}
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") || resource.Kind == "Event" {
				continue
			}
			objects, err := client.Resource(group.WithResource(resource.Name)).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("list %s: %w", resource.Name, err)
			}
			for _, o := range objects.Items {
				object := o.GetKind() + " " + o.GetName()
				if o.GetNamespace() == system && !slices.Contains(everyNamespaceHas, object) || o.GetLabels()["app.kubernetes.io/instance"] == release {
					left = append(left, object)
				}
			}
		}
	}
	slices.Sort(left)
	if left = slices.Compact(left); !slices.Equal(left, kept) {
		return fmt.Errorf("left is %s; NOTES lists %s", strings.Join(left, ", "), strings.Join(kept, ", "))
	}
	return nil
}

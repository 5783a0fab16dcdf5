package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/check"
)

const (
	release   = "postrider"
	system    = "postrider-system"
	samples   = "postrider-samples"
	endpoints = 5 // in config/samples

	// installBound is what is promised for an installation with its images present, up to the first delivery.
	installBound = 90 * time.Second
	patience     = 2 * time.Minute
)

// scenario is a story that is told on the cluster.
type scenario struct {
	name string
	play func(context.Context, *world) error
}

var scenarios = []scenario{
	{"install into a restricted namespace, and deliver the first event within 90 seconds", install},
	{"an application posts with its projected token, subscribers get everything in order", mainJob},
	{"a pod of each part is deleted under load: nothing lost, nothing repeated, order held", deletePods},
	{"a process of each part is killed under load: nothing lost, order held", killParts},
	{"a signing key is changed under load: requests carry signatures by both, nothing lost", rotateKey},
	{"dispatchers are scaled from 1 to 4 and back under load: nothing lost, nothing repeated, order held", scaleDispatchers},
	{"the pod of Postgres is deleted under load: 503 or broken connections, then nothing lost", loseDatabase},
	{"the database and all logs hold no key and no token, and dispatchers have none of the API", keepSecrets},
	{"a second release has namespaces and a database of its own; one on the first's database is refused", installOthers},
	{"uninstalled, the release leaves what NOTES lists; installed again, it finds its data", reinstall},
}

// install installs the chart, and has `helm test` deliver an event.
func install(ctx context.Context, w *world) error {
	if err := w.volume("postgres", 999); err != nil {
		return err
	}
	if err := w.apply(ctx, filepath.Join(w.top, "test/e2e/manifests/system.yaml")); err != nil {
		return err
	}
	began := time.Now()
	if err := w.chart(ctx, "install", release, system, "--wait"); err != nil {
		return err
	}
	say("installed and ready after %s", time.Since(began).Round(100*time.Millisecond))
	if err := w.selftest(ctx, release, system); err != nil {
		return err
	}
	took := time.Since(began)
	say("the first event was delivered after %s", took.Round(100*time.Millisecond))
	if took > installBound {
		return fmt.Errorf("from helm install to the first delivery: %s, over %s", took, installBound)
	}
	return nil
}

// volume makes the folder of a PersistentVolume, for a user: the kubelet does not hand over folders of the node.
func (w *world) volume(name string, user int) error {
	dir := filepath.Join(w.cluster.Folder(), "node/volumes", name)
	return errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, user, user))
}

// mainJob applies the samples and a receiver, has an application post, and checks what arrived.
func mainJob(ctx context.Context, w *world) error {
	if err := w.apply(ctx, filepath.Join(w.top, "config/samples"), filepath.Join(w.top, "test/e2e/manifests/receiver.yaml")); err != nil {
		return err
	}
	if err := w.cluster.AwaitDeployments(ctx, patience, samples, "receiver"); err != nil {
		return err
	}
	if err := w.endpointsReady(ctx); err != nil {
		return err
	}
	if err := w.apply(ctx, filepath.Join(w.top, "test/e2e/manifests/application.yaml")); err != nil {
		return err
	}
	w.loads = append(w.loads, "application")
	if err := w.settle(ctx, "application"); err != nil {
		return err
	}
	return w.table(ctx)
}

// settle waits until a load has come to its end and all is delivered, and prints what the check has to say.
func (w *world) settle(ctx context.Context, load string) error {
	if err := w.cluster.Await(ctx, patience, "the application has posted all", func(ctx context.Context) error {
		_, err := w.fetch(ctx, samples, load, "9090", "/finished")
		return err
	}); err != nil {
		return err
	}
	var report check.Report
	err := w.cluster.Await(ctx, patience, "all is delivered", func(ctx context.Context) error {
		now, err := w.check(ctx)
		if err != nil {
			return err
		}
		report = now // the last one that was to be had
		if missing := report.Violations[check.Lost]; missing > 0 {
			return fmt.Errorf("%d deliveries are missing", missing)
		}
		return nil
	})
	report.Print(w.progress)
	if err != nil {
		return err
	}
	if !report.OK() || report.Ambiguous > 0 || report.Keys == 0 {
		return errors.New("what arrived is not what was acknowledged")
	}
	return nil
}

// check compares the journals as they are: those of all loads so far, the receiver's, and what we disrupted.
func (w *world) check(ctx context.Context) (check.Report, error) {
	receiver, err := w.podOf(ctx, samples, "receiver")
	if err != nil {
		return check.Report{}, err
	}
	disrupted, err := os.ReadFile(w.disruptionsFile())
	if err != nil {
		return check.Report{}, err
	}
	journals := []io.Reader{bytes.NewReader(disrupted)}
	for _, pod := range append(slices.Clone(w.loads), receiver) {
		journal, err := w.fetch(ctx, samples, pod, "9090", "/journal")
		if err != nil {
			return check.Report{}, err
		}
		journals = append(journals, bytes.NewReader(journal))
	}
	record, err := check.ReadFrom(journals...)
	if err != nil {
		return check.Report{}, err
	}
	return check.Check(record, check.Options{
		Ordered: []string{"pixel-forge-frames", "pixel-forge-farm", "pixel-forge-archive"}, Recovery: 10 * time.Second,
	}), nil
}

func (w *world) endpointsReady(ctx context.Context) error {
	client, err := dynamic.NewForConfig(w.cluster.Config())
	if err != nil {
		return err
	}
	resource := client.Resource(v1alpha1.GroupVersion.WithResource("webhookendpoints")).Namespace(samples)
	return w.cluster.Await(ctx, patience, "all endpoints are Ready", func(ctx context.Context) error {
		list, err := resource.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != endpoints {
			return fmt.Errorf("%d endpoints, want %d", len(list.Items), endpoints)
		}
		var errs []error
		for _, item := range list.Items {
			if !isReady(item) {
				errs = append(errs, fmt.Errorf("%s is not Ready: %v", item.GetName(), item.Object["status"]))
			}
		}
		return errors.Join(errs...)
	})
}

func isReady(object unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return false
	}
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); ok && condition["type"] == "Ready" {
			return condition["status"] == "True"
		}
	}
	return false
}

// table prints what `kubectl get webhookendpoints` shows, which the API server prints.
func (w *world) table(ctx context.Context) error {
	text, err := w.client.Discovery().RESTClient().Get().
		AbsPath("/apis/"+v1alpha1.GroupVersion.String()+"/namespaces/"+samples+"/webhookendpoints").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
	if err != nil {
		return err
	}
	var table metav1.Table
	if err := json.Unmarshal(text, &table); err != nil {
		return err
	}
	out := tabwriter.NewWriter(w.progress, 0, 0, 3, ' ', 0)
	line := func(cell func(i int, column metav1.TableColumnDefinition) any) {
		var cells []string
		for i, column := range table.ColumnDefinitions {
			if column.Priority == 0 {
				cells = append(cells, fmt.Sprint(cell(i, column)))
			}
		}
		_, _ = fmt.Fprintln(out, "  "+strings.Join(cells, "\t"))
	}
	line(func(_ int, column metav1.TableColumnDefinition) any { return strings.ToUpper(column.Name) })
	for _, row := range table.Rows {
		line(func(i int, _ metav1.TableColumnDefinition) any { return row.Cells[i] })
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if len(table.Rows) != endpoints {
		return fmt.Errorf("the table has %d rows, want %d", len(table.Rows), endpoints)
	}
	return nil
}

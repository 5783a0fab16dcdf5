package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/postrider/postrider/api/v1alpha1"
)

// listEndpoints lists those of the samples, all of them.
func (w *world) listEndpoints(ctx context.Context) ([]unstructured.Unstructured, error) {
	client, err := dynamic.NewForConfig(w.cluster.Config())
	if err != nil {
		return nil, err
	}
	list, err := client.Resource(v1alpha1.GroupVersion.WithResource("webhookendpoints")).Namespace(samples).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(list.Items) != endpoints {
		return nil, fmt.Errorf("%d endpoints, want %d", len(list.Items), endpoints)
	}
	return list.Items, nil
}

func (w *world) endpointsReady(ctx context.Context) error {
	return w.cluster.Await(ctx, patience, "all endpoints are Ready", func(ctx context.Context) error {
		list, err := w.listEndpoints(ctx)
		if err != nil {
			return err
		}
		var errs []error
		for _, item := range list {
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

// What statuses may be waited for, beside those that are right whenever nothing fails.
const (
	delivering   = "of deliveries that go on"
	allDelivered = "with nothing pending"
)

// statuses waits until the status of every endpoint is right: observed, Ready, Delivering, with a success since some time.
func (w *world) statuses(ctx context.Context, since time.Time, which string) error {
	return w.cluster.Await(ctx, patience, "statuses "+which, func(ctx context.Context) error {
		list, err := w.listEndpoints(ctx)
		if err != nil {
			return err
		}
		errs := make([]error, 0, len(list))
		for _, item := range list {
			errs = append(errs, statusRight(item, since, which == allDelivered))
		}
		return errors.Join(errs...)
	})
}

func statusRight(object unstructured.Unstructured, since time.Time, nothingPending bool) error {
	var endpoint v1alpha1.WebhookEndpoint
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &endpoint); err != nil {
		return err
	}
	s := endpoint.Status
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s", endpoint.Name, fmt.Sprintf(format, args...))
	}
	if s.ObservedGeneration != endpoint.Generation {
		return wrong("generation %d is observed, want %d", s.ObservedGeneration, endpoint.Generation)
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionDelivering} {
		c := meta.FindStatusCondition(s.Conditions, kind)
		if c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != endpoint.Generation {
			return wrong("condition %s is %+v", kind, c)
		}
	}
	for _, kind := range []string{v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
			return wrong("condition %s is there: %+v", kind, c)
		}
	}
	switch {
	case s.LastSuccessTime == nil || s.LastSuccessTime.Time.Before(since.Truncate(time.Second)):
		return wrong("lastSuccessTime is %v, want since %v", s.LastSuccessTime, since)
	case nothingPending && count(s.PendingCount) > 0:
		return wrong("pendingCount is %d, want 0", *s.PendingCount)
	case count(s.DeadLetterCount) > 0:
		return wrong("deadLetterCount is %d, want 0", *s.DeadLetterCount)
	}
	return nil
}

func count(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
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

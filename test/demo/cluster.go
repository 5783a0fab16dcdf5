package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
)

// generations lists the objects of the samples with what changes when they do. Of the endpoints that is the generation:
// their status may be written at any time.
func (s *stage) generations(ctx context.Context) ([]string, error) {
	var all []string
	endpoints, err := s.endpoints(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range endpoints {
		all = append(all, fmt.Sprintf("%s/%d", e.Name, e.Generation))
	}
	var secrets corev1.SecretList
	if err := s.client.List(ctx, &secrets, client.InNamespace(samples)); err != nil {
		return nil, err
	}
	for _, secret := range secrets.Items {
		all = append(all, secret.Name+"/"+secret.ResourceVersion)
	}
	slices.Sort(all)
	return all, nil
}

const secretKey = "signing-key"

func (s *stage) secret(ctx context.Context, name string) (string, error) {
	var secret corev1.Secret
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: samples, Name: name}, &secret); err != nil {
		return "", err
	}
	return string(secret.Data[secretKey]), nil
}

func (s *stage) setSecret(ctx context.Context, name, value string) error {
	var secret corev1.Secret
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: samples, Name: name}, &secret); err != nil {
		return err
	}
	secret.Data[secretKey] = []byte(value)
	return s.client.Update(ctx, &secret)
}

// table prints what kubectl get prints: the API server makes the table.
func table(ctx context.Context, s *stage) error {
	if err := until(ctx, 15*time.Second, "the figures in the status", func(ctx context.Context) error {
		e, err := s.endpoint(ctx, "kirana-ledger")
		if err != nil {
			return err
		}
		if e.Status.LastSuccessTime == nil || e.Status.DeadLetterCount == nil || *e.Status.DeadLetterCount != 1 || e.Status.LastFailure == nil {
			return fmt.Errorf("status: %+v", e.Status)
		}
		endpoints, err := s.endpoints(ctx)
		if err != nil {
			return err
		}
		for _, e := range endpoints {
			if e.Status.PendingCount == nil || *e.Status.PendingCount != 0 {
				return fmt.Errorf("status of %s: %+v", e.Name, e.Status)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	s.check("the status of kirana-ledger has its last success, its last failure and one dead letter; nothing is pending anywhere")
	c, err := kubernetes.NewForConfig(s.kube.Config())
	if err != nil {
		return err
	}
	text, err := c.RESTClient().Get().
		AbsPath("/apis/"+v1alpha1.GroupVersion.String()+"/namespaces/"+samples+"/webhookendpoints").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
	if err != nil {
		return err
	}
	var printed metav1.Table
	if err := json.Unmarshal(text, &printed); err != nil {
		return err
	}
	return s.printTable(printed)
}

func (s *stage) printTable(printed metav1.Table) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	var names []string
	for _, column := range printed.ColumnDefinitions {
		if column.Priority == 0 {
			names = append(names, strings.ToUpper(column.Name))
		}
	}
	_, _ = fmt.Fprintln(w, "  "+strings.Join(names, "\t"))
	for _, row := range printed.Rows {
		var cells []string
		for i, cell := range row.Cells {
			if printed.ColumnDefinitions[i].Priority == 0 {
				cells = append(cells, fmt.Sprint(cell))
			}
		}
		_, _ = fmt.Fprintln(w, "  "+strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(printed.Rows) != 5 {
		return fmt.Errorf("%d rows, want 5", len(printed.Rows))
	}
	s.check("the API server prints five endpoints")
	return nil
}

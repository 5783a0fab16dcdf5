package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/postrider/postrider/test/check"
	"github.com/postrider/postrider/test/cluster"
	"github.com/postrider/postrider/test/localstack"
)

// Images that the scenarios use.
const (
	imageRepository = "ghcr.io/postrider/postrider"
	receiveImage    = "postrider.test/receive:local"
	loadImage       = "postrider.test/load:local"
)

var helm = localstack.Program{Name: "helm", Module: "cluster/helm", Package: "helm.sh/helm/v4/cmd/helm", Usually: "3 minutes"}

// world is what scenarios play in.
type world struct {
	top      string
	progress io.Writer
	helmPath string
	images   []string // tarballs
	present  edition
	previous edition
	first    edition // the one that is installed first, of these two
	cluster  *cluster.Cluster
	client   kubernetes.Interface

	loads       []string       // pods that post and keep a journal
	retired     []string       // signing keys that were replaced
	disruptions *check.Journal // what we did to the installation
}

func (w *world) disruptionsFile() string { return filepath.Join(w.cluster.Folder(), "disruptions") }

// provide builds what is needed beside the cluster itself. Without an upgrade the previous release is not.
func (w *world) provide(ctx context.Context, upgrade bool) error {
	var err error
	if w.helmPath, err = helm.Path(ctx, w.progress); err != nil {
		return err
	}
	if w.present, err = w.providePresent(ctx); err != nil {
		return err
	}
	w.first = w.present
	if upgrade {
		if w.previous, err = w.providePrevious(ctx); err != nil {
			return err
		}
		w.first = w.previous
		w.images = append(w.images, w.previous.image)
	}
	postgres, err := cluster.PostgresImage(ctx, w.progress)
	if err != nil {
		return err
	}
	w.images = append(w.images, w.present.image, postgres)
	for name, pkg := range map[string]string{receiveImage: "./test/check/cmd/receive", loadImage: "./test/check/cmd/load"} {
		image, err := cluster.BuildImage(ctx, w.progress, cluster.Image{Name: name, User: "65532"}, pkg)
		if err != nil {
			return err
		}
		w.images = append(w.images, image)
	}
	return nil
}

// begin makes the images known to the cluster.
func (w *world) begin(ctx context.Context) error {
	for _, image := range w.images {
		if err := w.cluster.Import(ctx, image); err != nil {
			return err
		}
	}
	var err error
	if w.client, err = kubernetes.NewForConfig(w.cluster.Config()); err != nil {
		return err
	}
	w.disruptions, err = check.OpenJournal(w.disruptionsFile()) // to the end of the process
	return err
}

// helm runs Helm against the cluster, and nothing of the user's.
func (w *world) helm(ctx context.Context, args ...string) (string, error) {
	home := filepath.Join(w.cluster.Folder(), "helm")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, w.helmPath, args...)
	cmd.Dir = w.top
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "KUBECONFIG=" + w.cluster.Kubeconfig(),
		"HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// apply applies manifests with every right.
func (w *world) apply(ctx context.Context, paths ...string) error {
	return w.applyEdited(ctx, nil, paths...)
}

func (w *world) applyEdited(ctx context.Context, edit func([]byte) []byte, paths ...string) error {
	objects, err := localstack.ReadManifests(edit, paths...)
	if err != nil {
		return err
	}
	_, err = localstack.Apply(ctx, w.cluster.Config(), "e2e", objects...)
	return err
}

// fetch asks a port of a pod by way of the API server.
func (w *world) fetch(ctx context.Context, namespace, pod, port, path string) ([]byte, error) {
	return w.client.CoreV1().Pods(namespace).ProxyGet("http", pod, port, path, nil).DoRaw(ctx)
}

// podOf returns the name of the one running pod with a label app.
func (w *world) podOf(ctx context.Context, namespace, app string) (string, error) {
	pods, err := w.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return "", err
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			return pod.Name, nil
		}
	}
	return "", fmt.Errorf("no pod of %s runs in %s", app, namespace)
}

const (
	describePatience = 30 * time.Second
	describedLines   = int64(25)
)

// describe prints what somebody wants to see of a failure: pods, warnings, last lines of the logs.
func (w *world) describe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, describePatience)
	defer cancel()
	pods, podsErr := w.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	events, eventsErr := w.client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "type=Warning"})
	if err := errors.Join(podsErr, eventsErr); err != nil {
		say("the cluster cannot be described: %v", err)
		return
	}
	for _, e := range events.Items {
		say("  warning %s %s/%s: %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	for _, pod := range pods.Items {
		say("  pod %s/%s: %s", pod.Namespace, pod.Name, pod.Status.Phase)
		if pod.Namespace == "kube-system" {
			continue
		}
		for _, c := range append(append([]corev1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
			lines := describedLines
			text, err := w.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: c.Name, TailLines: &lines}).DoRaw(ctx)
			if err != nil {
				say("    %s: %v", c.Name, err)
				continue
			}
			for line := range strings.Lines(string(text)) {
				say("    %s: %s", c.Name, strings.TrimRight(line, "\n"))
			}
		}
	}
}

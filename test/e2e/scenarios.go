package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
	base bool // the others need it, so it is always played
}

const upgrading = "the previous release is upgraded under load, rolled back and upgraded again: nothing lost, nothing repeated, order held"

var scenarios = []scenario{
	{"install into a restricted namespace, and deliver the first event within 90 seconds", install, true},
	{"an application posts with its projected token, subscribers get everything in order", mainJob, true},
	{upgrading, upgrade, false},
	{"a pod of each part is deleted under load: nothing lost, nothing repeated, order held", deletePods, false},
	{"a process of each part is killed under load: nothing lost, order held", killParts, false},
	{"a signing key is changed under load: requests carry signatures by both, nothing lost", rotateKey, false},
	{"dispatchers are scaled from 1 to 4 and back under load: nothing lost, nothing repeated, order held", scaleDispatchers, false},
	{"the pod of Postgres is deleted under load: 503 or broken connections, then nothing lost", loseDatabase, false},
	{"the database and all logs hold no key and no token, and dispatchers have none of the API", keepSecrets, false},
	{"a second release has namespaces and a database of its own; one on the first's database is refused", installOthers, false},
	{"uninstalled, the release leaves what NOTES lists; installed again, it finds its data", reinstall, false},
}

// install installs the chart, that of the previous release if it will be upgraded, and has `helm test` deliver an event.
func install(ctx context.Context, w *world) error {
	if err := w.volume("postgres", 999); err != nil {
		return err
	}
	if err := w.apply(ctx, filepath.Join(w.top, "test/e2e/manifests/system.yaml")); err != nil {
		return err
	}
	return w.installInTime(ctx, w.first, release, system)
}

// installInTime installs a release where none was, and has it deliver an event.
func (w *world) installInTime(ctx context.Context, e edition, name, namespace string, more ...string) error {
	began := time.Now()
	if err := w.chart(ctx, e, "install", name, namespace, append(more, "--wait")...); err != nil {
		return err
	}
	say("image %s is installed and ready after %s", e.imageTag, time.Since(began).Round(100*time.Millisecond))
	if err := w.selftest(ctx, name, namespace); err != nil {
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
	// One sample gives up after two seconds, which may pass on a busy machine until a request is read that is then answered: it
	// would be sent again for a reason that the receiver does not see.
	patient := func(text []byte) []byte { return bytes.ReplaceAll(text, []byte("timeout: 2s"), []byte("timeout: 20s")) }
	if err := w.applyEdited(ctx, patient, filepath.Join(w.top, "config/samples"), filepath.Join(w.top, "test/e2e/manifests/receiver.yaml")); err != nil {
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
	if err := w.settle(ctx, "application", time.Time{}); err != nil {
		return err
	}
	return w.table(ctx)
}

// settle waits until a load, begun at some time, has come to its end and all is delivered, and prints what the check has to say.
func (w *world) settle(ctx context.Context, load string, since time.Time) error {
	if err := w.cluster.Await(ctx, patience, "the application has posted all", func(ctx context.Context) error {
		_, err := w.fetch(ctx, samples, load, "9090", "/finished")
		return err
	}); err != nil {
		return err
	}
	var report check.Report
	var record check.Record
	err := w.cluster.Await(ctx, patience, "all is delivered", func(ctx context.Context) error {
		journals, err := w.readJournals(ctx)
		if err != nil {
			return err
		}
		record = journals
		report = judge(record) // the last one that was to be had
		if missing := report.Violations[check.Lost]; missing > 0 {
			return fmt.Errorf("%d deliveries are missing", missing)
		}
		return nil
	})
	report.Print(w.progress)
	refusals(record, since)
	if err != nil {
		return err
	}
	if !report.OK() || report.Ambiguous > 0 || report.Keys == 0 {
		return errors.New("what arrived is not what was acknowledged")
	}
	return nil
}

// readJournals reads the journals as they are: those of all loads so far, the receiver's, and what we disrupted.
func (w *world) readJournals(ctx context.Context) (check.Record, error) {
	receiver, err := w.podOf(ctx, samples, "receiver")
	if err != nil {
		return check.Record{}, err
	}
	disrupted, err := os.ReadFile(w.disruptionsFile())
	if err != nil {
		return check.Record{}, err
	}
	journals := []io.Reader{bytes.NewReader(disrupted)}
	for _, pod := range append(slices.Clone(w.loads), receiver) {
		journal, err := w.fetch(ctx, samples, pod, "9090", "/journal")
		if err != nil {
			return check.Record{}, err
		}
		journals = append(journals, bytes.NewReader(journal))
	}
	return check.ReadFrom(journals...)
}

func judge(record check.Record) check.Report {
	return check.Check(record, check.Options{
		Ordered: []string{"pixel-forge-frames", "pixel-forge-farm", "pixel-forge-archive"}, Recovery: 10 * time.Second,
		Recording: 10 * time.Second, // on a busy machine
	})
}

// refusals prints why tries failed since some time: each reason once, and when it was heard.
func refusals(record check.Record, since time.Time) {
	type heard struct {
		times       int
		first, last time.Duration
	}
	reasons := map[string]heard{}
	for _, f := range record.Facts {
		if f.Kind != check.Failed || f.At.Before(since) {
			continue
		}
		reason := fmt.Sprintf("%d %s", f.Status, f.Problem)
		h, again := reasons[reason]
		h.last = f.At.Sub(since).Round(100 * time.Millisecond)
		if !again {
			h.first = h.last
		}
		h.times++
		reasons[reason] = h
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		h := reasons[reason]
		say("%d × %s (%s to %s after the load was started)", h.times, strings.TrimSpace(reason), h.first, h.last)
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/test/secrecy"
)

const keyEntry = "signing-key"

// keepSecrets searches a dump of the database and the logs of all pods, those that are gone included where the node has them,
// for every key and for whatever looks like a token; and looks who has a token of the Kubernetes API.
func keepSecrets(ctx context.Context, w *world) error {
	secrets, err := w.secrets(ctx)
	if err != nil {
		return err
	}
	places, err := w.podLogs()
	if err != nil {
		return err
	}
	dump, err := w.inPostgres(ctx, `pg_dump --host="$PGHOST" --username=postrider postrider`)
	if err != nil {
		return err
	}
	// The search finds what is there.
	for _, known := range []string{"pixel-forge-frames", "CREATE TABLE postrider.event", "render.frame"} {
		if !strings.Contains(dump, known) {
			return fmt.Errorf("the dump of the database has no %q: searching it shows nothing", known)
		}
	}
	size := len(dump)
	places["the dump of the database"] = dump
	var errs []error
	for place, text := range places {
		size += len(text)
		for _, s := range secrets {
			if around, found := s.FoundIn(text); found {
				errs = append(errs, fmt.Errorf("%s: %s", place, around))
			}
		}
	}
	say("searched %d logs and a dump, %d KiB, for %d secrets", len(places)-1, size>>10, len(secrets))
	return errors.Join(append(errs, w.tokensMounted(ctx))...)
}

// secrets returns what must be found nowhere. Tokens of ServiceAccounts have the beginning in common, and that of their claims.
func (w *world) secrets(ctx context.Context) ([]secrecy.Secret, error) {
	var all []secrecy.Secret
	for i, key := range w.retired {
		all = append(all, secrecy.NewSecret(fmt.Sprintf("retired key %d", i+1), key))
	}
	for _, namespace := range []string{samples, system} {
		list, err := w.client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, secret := range list.Items {
			for _, entry := range []string{keyEntry, "keyring", "password"} {
				if value := string(secret.Data[entry]); value != "" {
					_, key, named := strings.Cut(value, ":") // of a keyring, whose keys have names
					if entry != "keyring" || !named {
						key = value
					}
					all = append(all, secrecy.NewSecret(secret.Name+"/"+entry, strings.TrimSpace(key)))
				}
			}
		}
	}
	if len(all) < 6 {
		return nil, fmt.Errorf("there are %d secrets to search for, want 6 or more: searching shows nothing", len(all))
	}
	answer, err := w.client.CoreV1().ServiceAccounts(samples).CreateToken(ctx, "producer",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"postrider"}}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	header, claims, ok := strings.Cut(answer.Status.Token, ".")
	if !ok || len(claims) < 24 {
		return nil, errors.New("a token of a ServiceAccount does not look like one")
	}
	return append(all, secrecy.NewSecret("token", header[:24]), secrecy.NewSecret("token's claims", claims[:24])), nil
}

// podLogs reads what the node keeps of all pods' logs.
func (w *world) podLogs() (map[string]string, error) {
	logs := map[string]string{}
	root := filepath.Join(w.cluster.Folder(), "var/log/pods")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // of a pod that just goes
		}
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		logs[strings.TrimPrefix(path, root+"/")] = string(text)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, container := range append(slices.Clone(parts), "postgres") {
		found := false
		for path, text := range logs {
			found = found || (filepath.Base(filepath.Dir(path)) == container && text != "")
		}
		if !found {
			return nil, fmt.Errorf("there is no log of a container %q: searching them shows nothing", container)
		}
	}
	return logs, nil
}

// inPostgres runs a script in a pod of Postgres, with that of the release as its host, and returns what it prints.
func (w *world) inPostgres(ctx context.Context, script string) (string, error) {
	pod, err := w.client.CoreV1().Pods(system).Get(ctx, postgresPod, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	password, err := w.client.CoreV1().Secrets(system).Get(ctx, release+"-postgres", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	// Within the node, then within the container.
	cmd, err := w.cluster.Command(ctx, "/bin/sh", "-c",
		`exec nsenter --target "$(pgrep --oldest --exact postgres)" --mount --net --root -- /bin/sh -c "$SCRIPT"`)
	if err != nil {
		return "", err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "PGHOST=" + pod.Status.PodIP, "PGPASSWORD=" + string(password.Data["password"]),
		"SCRIPT=PATH=$(echo /usr/lib/postgresql/*/bin):$PATH; " + script,
	}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("in Postgres' pod: %s: %w %s", script, err, stderr.String())
	}
	return string(out), nil
}

// tokensMounted looks from the node what the processes really see.
func (w *world) tokensMounted(ctx context.Context) error {
	for _, part := range parts {
		cmd, err := w.cluster.Command(ctx, "/bin/sh", "-c",
			`for p in $(pgrep --full "^/?postrider $0"); do echo "process $p"; cat /proc/$p/mounts; done`, part)
		if err != nil {
			return err
		}
		out, err := cmd.Output()
		if err != nil || !bytes.Contains(out, []byte("process ")) {
			return errors.Join(err, fmt.Errorf("what the %s has mounted cannot be seen", part))
		}
		if has := bytes.Contains(out, []byte("/var/run/secrets")) || bytes.Contains(out, []byte("serviceaccount")); has != (part != "dispatcher") {
			return fmt.Errorf("the %s has a token of the Kubernetes API: got %t", part, has)
		}
	}
	return nil
}

package main

import (
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"

	"github.com/postrider/postrider/installer"
	"github.com/postrider/postrider/keyring"
)

// ensuring says which Secrets are to be there.
type ensuring struct {
	namespace string
	keyring   string
	password  string
}

func (e *ensuring) flags(f *pflag.FlagSet) {
	f.StringVar(&e.namespace, "namespace", "", "namespace of the Secrets (required)")
	f.StringVar(&e.keyring, "keyring-secret", "", `Secret whose entry "keyring" is to hold a new keyring`)
	f.StringVar(&e.password, "password-secret", "", `Secret whose entry "password" is to hold a new password`)
}

func (e *ensuring) validate() error {
	var problems []error
	if e.namespace == "" {
		problems = append(problems, errors.New("--namespace: is missing; give the namespace of the Secrets"))
	}
	if e.keyring == "" && e.password == "" {
		problems = append(problems, errors.New("--keyring-secret, --password-secret: both are missing; give at least one"))
	}
	if e.keyring != "" && e.keyring == e.password {
		problems = append(problems, errors.New("--password-secret: names the Secret of --keyring-secret; give each its own"))
	}
	return errors.Join(problems...)
}

func (e *ensuring) wanted() []installer.Wanted {
	var wanted []installer.Wanted
	if e.keyring != "" {
		wanted = append(wanted, installer.Wanted{Name: e.keyring, Entry: "keyring", Make: func() (string, error) {
			return keyring.Generate("key-1")
		}})
	}
	if e.password != "" {
		wanted = append(wanted, installer.Wanted{Name: e.password, Entry: "password", Make: func() (string, error) {
			return rand.Text(), nil // letters and digits: nothing to escape in a connection string
		}})
	}
	return wanted
}

func secretsCommand() *cobra.Command {
	c := &cobra.Command{Use: "secrets", Short: "Make the Secrets of an installation", Args: cobra.NoArgs}
	var e ensuring
	var kube cluster
	var log logging
	c.AddCommand(configure(&cobra.Command{
		Use:   "ensure",
		Short: "Create the Secrets that are absent; never change one",
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := kube.config()
			if err != nil {
				return err
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("reach the Kubernetes API: %w", err)
			}
			outcomes, err := installer.EnsureSecrets(c.Context(), client.CoreV1().Secrets(e.namespace), e.wanted())
			logger := log.logger("secrets")
			for _, o := range outcomes {
				logger.Info("the secret is there", "secret", e.namespace+"/"+o.Name, "created", o.Created)
			}
			return err
		},
	}, &e, &kube, &log))
	return c
}

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/keyring"
)

// keys says where the keyring is: what encrypts signing keys and header values in the database.
type keys struct {
	file string
}

func (k *keys) flags(f *pflag.FlagSet) {
	f.StringVar(&k.file, "keyring-file", "", "file with the encryption keys, made with `postrider keyring generate`; the first encrypts, all decrypt (required)")
}

func (k *keys) validate() error {
	if k.file == "" {
		return fmt.Errorf("--keyring-file: is missing; there is no default key: make one with `postrider keyring generate`")
	}
	return nil
}

func (k *keys) open() (*keyring.Keyring, error) {
	text, err := os.ReadFile(k.file)
	if err != nil {
		return nil, fmt.Errorf("--keyring-file: %w", err)
	}
	ring, err := keyring.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--keyring-file: %w", err)
	}
	return ring, nil
}

func keyringCommand() *cobra.Command {
	c := &cobra.Command{Use: "keyring", Short: "Make encryption keys", Args: cobra.NoArgs}
	c.AddCommand(&cobra.Command{
		Use:   "generate [NAME]",
		Short: "Print a new key, a line for the head of the keyring file",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			name := "key-1"
			if len(args) > 0 {
				name = args[0]
			}
			line, err := keyring.Generate(name)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), line)
			return err
		},
	})
	return c
}

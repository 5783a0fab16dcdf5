package localstack

import (
	"context"
	"errors"
	"io"
	"os"
)

// Stack is a Postgres and an API server for the test processes of one command. What somebody else provides is nil.
type Stack struct {
	Postgres *Postgres
	KubeAPI  *KubeAPIServer
}

// NewStack starts both servers, except one that its variable already points to. The caller calls Close.
func NewStack(ctx context.Context, progress io.Writer) (*Stack, error) {
	if err := isolate(); err != nil {
		return nil, err
	}
	s := &Stack{}
	var err error
	if os.Getenv(EnvKubeconfig) == "" {
		s.KubeAPI, err = NewKubeAPI(ctx, KubeAPIOptions{Progress: progress})
	}
	if err == nil && os.Getenv(EnvDatabaseURL) == "" {
		s.Postgres, err = NewPostgres(ctx, PostgresOptions{Progress: progress})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Environment returns the variables, as name=value, that lead test processes to these servers.
func (s *Stack) Environment() []string {
	var variables []string
	if s.Postgres != nil {
		variables = append(variables, EnvDatabaseURL+"="+s.Postgres.DSN("postgres"))
	}
	if s.KubeAPI != nil {
		variables = append(variables, EnvKubeconfig+"="+s.KubeAPI.Kubeconfig())
	}
	return variables
}

// Close stops what was started and deletes its data.
func (s *Stack) Close() error {
	return errors.Join(s.Postgres.Close(), s.KubeAPI.Close())
}

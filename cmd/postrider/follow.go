package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

const (
	// followEvery is between two looks at the settings file. It is read whole: a mounted ConfigMap is changed by swapping
	// links, for which notifications of the file system are no simpler and not reliable on every volume.
	followEvery = 2 * time.Second
	// maxSettingsBytes is what a ConfigMap may hold.
	maxSettingsBytes = 1 << 20
	// changeable marks the flags that a settings file may hold.
	changeable = "postrider_changeable"
)

// following says which file of settings is followed while the process runs.
type following struct {
	file string
	text []byte // that was in force at the start
}

func (f *following) flags(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "settings-file", "", "YAML file with settings that may change while the process runs, `name: value` as the flag is named; a flag or variable of the same name wins")
}

func (f *following) validate() error { return nil }

// mayChange marks flags that a settings file may hold.
func mayChange(flags *pflag.FlagSet, names ...string) { annotate(flags, changeable, names...) }

func (f *following) read() ([]byte, error) {
	file, err := os.Open(f.file)
	if err != nil {
		return nil, fmt.Errorf("--settings-file: %w", err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxSettingsBytes+1))
	if err != nil {
		return nil, fmt.Errorf("--settings-file: %w", err)
	}
	if len(text) > maxSettingsBytes {
		return nil, fmt.Errorf("--settings-file: %s is longer than %d bytes; is it the right file?", f.file, maxSettingsBytes)
	}
	return text, nil
}

// begin fills flags from the file for the first time.
func (f *following) begin(flags *pflag.FlagSet) error {
	if f.file == "" {
		return nil
	}
	var err error
	if f.text, err = f.read(); err != nil {
		return err
	}
	return fileOf(f.text)(flags)
}

// fileOf fills flags that were given nowhere else from the text of a settings file, and names each problem of it.
func fileOf(text []byte) func(*pflag.FlagSet) error {
	return func(flags *pflag.FlagSet) error {
		values, err := parseSettings(text)
		if err != nil {
			return fmt.Errorf("--settings-file: %w", err)
		}
		var problems []error
		for _, name := range slices.Sorted(maps.Keys(values)) {
			f := flags.Lookup(name)
			switch {
			case f == nil:
				problems = append(problems, fmt.Errorf("--settings-file: there is no setting %q; see `postrider --help`", name))
			case f.Annotations[changeable] == nil:
				problems = append(problems, fmt.Errorf("--settings-file: %s is read at the start alone; give it as --%s or %s", name, name, variable(name)))
			case f.Changed:
			default:
				if err := give(f, values[name]); err != nil {
					problems = append(problems, fmt.Errorf("--settings-file: %s: the value is no %s", name, f.Value.Type()))
				}
			}
		}
		return errors.Join(problems...)
	}
}

// parseSettings reads one YAML mapping of names to scalars and lists of scalars.
func parseSettings(text []byte) (map[string][]string, error) {
	document, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("is no YAML: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber() // 1000000 is no 1e+06
	var values map[string]any
	if err := decoder.Decode(&values); err != nil {
		return nil, errors.New("is no mapping; write `name: value`, one a line")
	}
	parsed := make(map[string][]string, len(values))
	var problems []error
	for name, value := range values {
		list, isList := value.([]any)
		if !isList {
			list = []any{value}
		}
		texts := make([]string, 0, len(list))
		for _, one := range list {
			switch one.(type) {
			case string, bool, json.Number:
				texts = append(texts, fmt.Sprint(one))
			default:
				problems = append(problems, fmt.Errorf("%s: is neither a value nor a list of values", name))
			}
		}
		parsed[name] = texts
	}
	return parsed, errors.Join(problems...)
}

// give sets a flag to one value, or a list to some. A list may also come as one text with commas.
func give(f *pflag.Flag, values []string) error {
	list, isList := f.Value.(pflag.SliceValue)
	switch {
	case isList && len(values) != 1:
		if err := list.Replace(values); err != nil {
			return err
		}
	case len(values) == 1:
		if err := f.Value.Set(values[0]); err != nil {
			return err
		}
	default:
		return errors.New("a list is given for one value")
	}
	f.Changed = true
	return nil
}

// follow looks at the settings file until the context ends, and puts what it says in force: all of it, or nothing.
func (p *process) follow(ctx context.Context, again func([]byte) (*assembly, error)) {
	source := &p.first.follow
	if source.file == "" {
		return
	}
	refused := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "postrider_settings_refused", Help: "1 while the settings file cannot be used: what was in force before stays so.",
	})
	loaded := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "postrider_settings_loaded_timestamp_seconds", Help: "When settings were put in force last, as a Unix time.",
	})
	p.metrics.MustRegister(refused, loaded)
	loaded.SetToCurrentTime()
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	seen, said := source.text, ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		text, err := source.read()
		if err == nil && bytes.Equal(text, seen) && said == "" {
			continue
		}
		var next *assembly
		if err == nil {
			next, err = again(text)
		}
		if err == nil {
			err = p.change(next)
		}
		if err != nil {
			refused.Set(1)
			if reason := oneLine(err); reason != said {
				said = reason
				p.log.Error("the settings file cannot be used; the settings before stay in force", "reason", reason)
			}
			continue
		}
		seen, said = text, ""
		refused.Set(0)
		loaded.SetToCurrentTime()
		p.log.Info("the settings have changed")
	}
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}

// Command check compares the journals of a run, prints a report and exits with 1 if a promise was broken:
//
//	check -ordered pixel-forge-frames -timeout 15s -recovery 10s load.jsonl receive.jsonl run.jsonl
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/postrider/postrider/test/check"
)

func main() {
	var o check.Options
	ordered := flag.String("ordered", "", "`endpoints` with ordering by key, separated by commas")
	flag.DurationVar(&o.Timeout, "timeout", 0, "the longest timeout of the endpoints; 0: no repeat is explained by one")
	flag.DurationVar(&o.Recording, "recording", 0, "how long after an answer a disruption may explain that it was not recorded (default 2s)")
	flag.DurationVar(&o.Recovery, "recovery", 0, "how long a post may go on failing before it is accepted; 0: no bound")
	asJSON := flag.Bool("json", false, "print the report as JSON")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: check [flags] journal…")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if *ordered != "" {
		o.Ordered = strings.Split(*ordered, ",")
	}
	record, err := check.Read(flag.Args()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(2)
	}
	report := check.Check(record, o)
	if *asJSON {
		if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
			fmt.Fprintln(os.Stderr, "check:", err)
			os.Exit(2)
		}
	} else {
		report.Print(os.Stdout)
	}
	if !report.OK() {
		os.Exit(1)
	}
}

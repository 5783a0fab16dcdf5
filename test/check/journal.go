package check

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// Journal is a file that facts are appended to. Each is one write to the operating system and so outlives the process,
// however that ends. It may be used by many goroutines.
type Journal struct {
	mutex sync.Mutex
	file  *os.File
	last  time.Time
}

// OpenJournal opens a journal to add to it. A line that a killed writer left unfinished is ended, and passed over by readers.
func OpenJournal(path string) (*Journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	j := &Journal{file: file}
	if err := j.endLine(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return j, nil
}

func (j *Journal) endLine() error {
	size, err := j.file.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("find the end of the journal: %w", err)
	}
	if size == 0 {
		return nil
	}
	last := make([]byte, 1)
	if _, err := j.file.ReadAt(last, size-1); err != nil {
		return fmt.Errorf("read the end of the journal: %w", err)
	}
	if last[0] == '\n' {
		return nil
	}
	if _, err := j.file.WriteString("\n"); err != nil {
		return fmt.Errorf("end the last line of the journal: %w", err)
	}
	return nil
}

// Write adds a fact. Where At is zero it is set to now, and never to before the fact written last.
func (j *Journal) Write(f Fact) error {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	if f.At.IsZero() {
		f.At = time.Now().Round(0).UTC()
		if f.At.Before(j.last) {
			f.At = j.last // the clock was set back
		}
		j.last = f.At
	}
	line, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode a fact: %w", err)
	}
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write to the journal: %w", err)
	}
	return nil
}

// Close closes the file. Facts written later are refused.
func (j *Journal) Close() error { return j.file.Close() }

// Record is what journals say.
type Record struct {
	// Facts are in the order of their time; facts of one journal keep its order.
	Facts []Fact
	// Torn counts the lines that were not written to their end.
	Torn int
}

// Read reads journals, finished or still being written to.
func Read(paths ...string) (Record, error) {
	var record Record
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return Record{}, fmt.Errorf("read a journal: %w", err)
		}
		err = record.add(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return Record{}, fmt.Errorf("read the journal %s: %w", path, err)
		}
	}
	record.sort()
	return record, nil
}

// ReadFrom reads journals that came from elsewhere, for example from a pod's control port.
func ReadFrom(readers ...io.Reader) (Record, error) {
	var record Record
	for _, reader := range readers {
		if err := record.add(reader); err != nil {
			return Record{}, fmt.Errorf("read a journal: %w", err)
		}
	}
	record.sort()
	return record, nil
}

// add takes the facts of one journal. Its order counts more than its clock, which may have been set back between two runs
// of the writer.
func (r *Record) add(from io.Reader) error {
	reader := bufio.NewReaderSize(from, 1<<16)
	var last time.Time
	for {
		line, err := reader.ReadBytes('\n')
		whole := err == nil
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var f Fact
			switch {
			case !whole || json.Unmarshal(line, &f) != nil:
				r.Torn++
			default:
				if f.At.Before(last) && f.Kind != Disrupted && f.Kind != Died && f.Kind != Changed && f.Kind != GaveUp { // which tell of the past
					f.At = last
				}
				last = f.At
				r.Facts = append(r.Facts, f)
			}
		}
		if !whole {
			return nil
		}
	}
}

func (r *Record) sort() {
	slices.SortStableFunc(r.Facts, func(a, b Fact) int { return a.At.Compare(b.At) })
}

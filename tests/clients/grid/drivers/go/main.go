// Drivers for the Go clients, one file each; ../README.md says what they are asked and what they answer.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	sessionTimeout = 10 * time.Second
	commitTimeout  = 5 * time.Second
	lastCommits    = 60 * time.Second
	fromStart      = 0
	pause          = 200 * time.Millisecond // between two tries
)

// client is what each library is asked. group returns when count records (0: no limit) were written out and committed, or stop is done.
type client interface {
	assign(bootstrap []string, topic string, partitions int, count int) error
	group(stop context.Context, bootstrap []string, topic, group string, count int) error
	produce(bootstrap []string, topic string) error
	transaction(bootstrap []string, topic string) error
}

var clients = map[string]client{"franz-go": franz{}, "sarama": saramaClient{}, "kafka-go": segmentio{}}

var (
	outMutex sync.Mutex
	out      = json.NewEncoder(os.Stdout)
)

func tell(event any) {
	outMutex.Lock()
	defer outMutex.Unlock()
	if err := out.Encode(event); err != nil {
		os.Exit(1)
	}
}

func tellRecord(partition int32, offset int64, key, value []byte) {
	tell(map[string]any{"event": "record", "partition": partition, "offset": offset, "key": string(key), "value": string(value)})
}

func tellAssigned(partitions []int32) {
	tell(map[string]any{"event": "assigned", "partitions": partitions})
}

func tellCommitted(offsets map[int32]int64) {
	named := map[string]int64{}
	for partition, offset := range offsets {
		named[strconv.Itoa(int(partition))] = offset
	}
	tell(map[string]any{"event": "committed", "offsets": named})
}

func complain(what string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
}

func untilStdinEnds() context.Context {
	stop, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	return stop
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		complain("not a number", err)
		os.Exit(2)
	}
	return value
}

func main() {
	if len(os.Args) < 5 || clients[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: clients franz-go|sarama|kafka-go assign|group|produce|transaction BOOTSTRAP TOPIC …")
		os.Exit(2)
	}
	use, mode, bootstrap, topic, rest := clients[os.Args[1]], os.Args[2], strings.Split(os.Args[3], ","), os.Args[4], os.Args[5:]
	var err error
	switch mode {
	case "assign":
		err = use.assign(bootstrap, topic, number(rest[0]), number(rest[1]))
	case "group":
		err = use.group(untilStdinEnds(), bootstrap, topic, rest[0], number(rest[1]))
	case "produce", "transaction":
		write := use.produce
		if mode == "transaction" {
			write = use.transaction
		}
		if refusal := write(bootstrap, topic); refusal != nil {
			tell(map[string]any{"event": "refused", "error": refusal.Error()})
		} else {
			tell(map[string]any{"event": "written"})
		}
	}
	if err != nil {
		complain(mode, err)
		os.Exit(1)
	}
}

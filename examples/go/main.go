// A Kafka consumer in Go (franz-go): prints each trip, then commits the offsets.
//
// Started again it goes on behind the last commit. A record without a value says that the row was erased.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

// cell is what this program needs of a record's value.
type cell struct {
	Body struct {
		FareCents int64 `json:"fare_cents"`
	} `json:"body"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.ConsumerGroup("go-example"),
		kgo.ConsumeTopics("trips.BASE"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.CloseAllowingRebalance()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachRecord(show)
		if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
			log.Print(err)
		}
		client.AllowRebalance()
	}
}

func show(record *kgo.Record) {
	fare := "erased"
	if record.Value != nil {
		var trip cell
		if err := json.Unmarshal(record.Value, &trip); err != nil {
			log.Fatalf("%d/%d: %v", record.Partition, record.Offset, err)
		}
		fare = fmt.Sprint(trip.Body.FareCents)
	}
	fmt.Printf("%d/%d %s %s\n", record.Partition, record.Offset, record.Key, fare)
}

package main

import (
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"
)

// segmentio is github.com/segmentio/kafka-go.
type segmentio struct{}

func (segmentio) assign(bootstrap []string, topic string, partitions int, count int) error {
	messages := make(chan kafka.Message)
	failed := make(chan error)
	for partition := range partitions {
		reader := kafka.NewReader(kafka.ReaderConfig{Brokers: bootstrap, Topic: topic, Partition: partition, MaxWait: time.Second})
		if err := reader.SetOffset(kafka.FirstOffset); err != nil {
			return err
		}
		go func() {
			for {
				message, err := reader.ReadMessage(context.Background())
				if err != nil {
					failed <- err
					return
				}
				messages <- message
			}
		}()
	}
	for ; count > 0; count-- {
		select {
		case message := <-messages:
			tellRecord(int32(message.Partition), message.Offset, message.Key, message.Value)
		case err := <-failed:
			return err
		}
	}
	return nil
}

func (segmentio) group(stop context.Context, bootstrap []string, topic, group string, count int) error {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers:           bootstrap,
		GroupID:           group,
		Topic:             topic,
		StartOffset:       kafka.FirstOffset,
		SessionTimeout:    sessionTimeout,
		HeartbeatInterval: time.Second,
		MaxWait:           time.Second,
		JoinGroupBackoff:  pause,
	})
	// CommitMessages without a CommitInterval returns when the commit is acknowledged. The library tells nobody of a rebalance, after which it reads some records
	// again: what is behind an acknowledged commit is not committed once more.
	behind, committed := map[int]kafka.Message{}, map[int]int64{}
	commit := func() {
		ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
		defer cancel()
		for partition, message := range behind {
			if err := reader.CommitMessages(ctx, message); err != nil {
				complain("commit", err)
				return
			}
			committed[partition] = message.Offset + 1
			tellCommitted(map[int32]int64{int32(partition): message.Offset + 1})
			delete(behind, partition)
		}
	}
	left, lastCommit := count, time.Now()
	for (count == 0 || left > 0) && stop.Err() == nil {
		ctx, cancel := context.WithTimeout(stop, pause)
		message, err := reader.FetchMessage(ctx)
		cancel()
		if err == nil {
			tellRecord(int32(message.Partition), message.Offset, message.Key, message.Value)
			if message.Offset >= committed[message.Partition] {
				behind[message.Partition] = message
			}
			left--
		} else if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			complain("fetch", err)
			time.Sleep(pause)
		}
		if time.Since(lastCommit) > pause {
			commit()
			lastCommit = time.Now()
		}
	}
	for ended := time.Now(); len(behind) > 0 && time.Since(ended) < lastCommits; time.Sleep(pause) {
		commit()
	}
	return reader.Close()
}

func (segmentio) produce(bootstrap []string, topic string) error {
	// Its default asks for no acknowledgement, and then nobody is told anything.
	writer := &kafka.Writer{Addr: kafka.TCP(bootstrap...), Topic: topic, BatchTimeout: 10 * time.Millisecond, RequiredAcks: kafka.RequireAll}
	defer writer.Close()
	return writer.WriteMessages(context.Background(), kafka.Message{Value: []byte("value")})
}

// transaction asks for a producer id, which is as far as the library goes: it has no transactional writer.
func (segmentio) transaction(bootstrap []string, _ string) error {
	cl := &kafka.Client{Addr: kafka.TCP(bootstrap...), Timeout: 10 * time.Second}
	answer, err := cl.InitProducerID(context.Background(), &kafka.InitProducerIDRequest{TransactionalID: "transactions", TransactionTimeoutMs: 10_000})
	if err != nil {
		return err
	}
	return answer.Error
}

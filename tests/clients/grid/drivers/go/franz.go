package main

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// franz is github.com/twmb/franz-go.
type franz struct{}

func (franz) assign(bootstrap []string, topic string, partitions int, count int) error {
	starts := map[int32]kgo.Offset{}
	for partition := range partitions {
		starts[int32(partition)] = kgo.NewOffset().At(fromStart)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts}))
	if err != nil {
		return err
	}
	defer cl.Close()
	for count > 0 {
		fetches := cl.PollRecords(context.Background(), count)
		for _, failed := range fetches.Errors() {
			return failed.Err
		}
		fetches.EachRecord(func(r *kgo.Record) { tellRecord(r.Partition, r.Offset, r.Key, r.Value) })
		count -= fetches.NumRecords()
	}
	return nil
}

func (franz) group(stop context.Context, bootstrap []string, topic, group string, count int) error {
	var mutex sync.Mutex
	behind := map[int32]kgo.EpochOffset{} // written out and not yet committed
	forget := func(context.Context, *kgo.Client, map[string][]int32) {
		mutex.Lock()
		defer mutex.Unlock()
		clear(behind)
	}
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(time.Second),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, given map[string][]int32) { tellAssigned(given[topic]) }),
		kgo.OnPartitionsRevoked(forget),
		kgo.OnPartitionsLost(forget),
	)
	if err != nil {
		return err
	}
	commit := func() {
		mutex.Lock()
		offsets := map[int32]kgo.EpochOffset{}
		for partition, at := range behind {
			offsets[partition] = at
		}
		mutex.Unlock()
		if len(offsets) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
		defer cancel()
		committed := map[int32]int64{}
		asked := map[string]map[int32]kgo.EpochOffset{topic: offsets}
		cl.CommitOffsetsSync(ctx, asked, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
			if err != nil {
				complain("commit", err)
				return
			}
			for _, each := range answer.Topics {
				for _, partition := range each.Partitions {
					if refusal := kerr.ErrorForCode(partition.ErrorCode); refusal != nil {
						complain("commit", refusal)
					} else {
						committed[partition.Partition] = offsets[partition.Partition].Offset
					}
				}
			}
		})
		mutex.Lock()
		defer mutex.Unlock()
		for partition := range committed {
			delete(behind, partition)
		}
		if len(committed) > 0 {
			tellCommitted(committed)
		}
	}
	waiting := func() int {
		mutex.Lock()
		defer mutex.Unlock()
		return len(behind)
	}
	left := count
	for (count == 0 || left > 0) && stop.Err() == nil {
		ctx, cancel := context.WithTimeout(stop, 500*time.Millisecond)
		fetches := cl.PollRecords(ctx, left)
		cancel()
		fetches.EachError(func(_ string, _ int32, err error) {
			if ctx.Err() == nil {
				complain("fetch", err)
			}
		})
		fetches.EachRecord(func(r *kgo.Record) {
			tellRecord(r.Partition, r.Offset, r.Key, r.Value)
			mutex.Lock()
			behind[r.Partition] = kgo.EpochOffset{Epoch: r.LeaderEpoch, Offset: r.Offset + 1}
			mutex.Unlock()
			left--
		})
		commit()
		cl.AllowRebalance()
	}
	for ended := time.Now(); waiting() > 0 && time.Since(ended) < lastCommits; time.Sleep(pause) {
		commit()
	}
	cl.AllowRebalance()
	cl.LeaveGroup()
	cl.Close()
	return nil
}

func (franz) produce(bootstrap []string, topic string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.DisableIdempotentWrite())
	if err != nil {
		return err
	}
	defer cl.Close()
	return cl.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Value: []byte("value")}).FirstErr()
}

func (franz) transaction(bootstrap []string, topic string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.TransactionalID("transactions"))
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	return cl.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Value: []byte("value")}).FirstErr()
}

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// saramaClient is github.com/IBM/sarama.
type saramaClient struct{}

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = sessionTimeout
	config.Consumer.Group.Heartbeat.Interval = time.Second
	return config
}

func (saramaClient) assign(bootstrap []string, topic string, partitions int, count int) error {
	consumer, err := sarama.NewConsumer(bootstrap, saramaConfig())
	if err != nil {
		return err
	}
	messages := make(chan *sarama.ConsumerMessage)
	failed := make(chan error)
	for partition := range partitions {
		of, err := consumer.ConsumePartition(topic, int32(partition), fromStart)
		if err != nil {
			return err
		}
		go func() {
			for message := range of.Messages() {
				messages <- message
			}
		}()
		go func() {
			for err := range of.Errors() {
				failed <- err
			}
		}()
	}
	for ; count > 0; count-- {
		select {
		case message := <-messages:
			tellRecord(message.Partition, message.Offset, message.Key, message.Value)
		case err := <-failed:
			return err
		}
	}
	return nil
}

// saramaMember is the handler of a group: one ConsumeClaim per partition, all at the same time.
type saramaMember struct {
	mutex sync.Mutex
	left  int
	count int
	end   func()
}

func (m *saramaMember) Setup(session sarama.ConsumerGroupSession) error {
	for _, partitions := range session.Claims() {
		tellAssigned(partitions)
	}
	return nil
}

func (m *saramaMember) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	return nil
}

// take writes a record out and marks it as read, unless enough were written out before.
func (m *saramaMember) take(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.count > 0 && m.left == 0 {
		return
	}
	tellRecord(message.Partition, message.Offset, message.Key, message.Value)
	session.MarkMessage(message, "")
	if m.left--; m.left == 0 {
		m.end()
	}
}

func (m *saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			m.take(session, message)
		case <-tick.C:
			session.Commit() // of what is marked; its errors come through the group's channel
		case <-session.Context().Done():
			return nil
		}
	}
}

func (saramaClient) group(stop context.Context, bootstrap []string, topic, group string, count int) error {
	members, err := sarama.NewConsumerGroup(bootstrap, group, saramaConfig())
	if err != nil {
		return err
	}
	go func() {
		for err := range members.Errors() {
			complain("group", err)
		}
	}()
	ctx, end := context.WithCancel(stop)
	member := &saramaMember{left: count, count: count, end: end}
	for ctx.Err() == nil {
		if err := members.Consume(ctx, []string{topic}, member); err != nil && !errors.Is(err, context.Canceled) {
			complain("consume", err)
			time.Sleep(pause)
		}
	}
	return members.Close()
}

func (saramaClient) produce(bootstrap []string, topic string) error {
	config := saramaConfig()
	config.Producer.Return.Successes = true
	return saramaSend(bootstrap, topic, config)
}

func (saramaClient) transaction(bootstrap []string, topic string) error {
	config := saramaConfig()
	config.Producer.Return.Successes = true
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Transaction.ID = "transactions"
	config.Net.MaxOpenRequests = 1
	return saramaSend(bootstrap, topic, config)
}

func saramaSend(bootstrap []string, topic string, config *sarama.Config) error {
	producer, err := sarama.NewSyncProducer(bootstrap, config)
	if err != nil {
		return err
	}
	if config.Producer.Transaction.ID != "" {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
	}
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("value")})
	return err
}

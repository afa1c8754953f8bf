// Package deadlines has a map whose entries have deadlines.
package deadlines

import (
	"container/heap"
	"iter"
	"time"
)

// Map is a map in which every entry has a deadline. It has no clock and no timer: the caller passes the
// time to Due and TakeDue. Put, Delete and Due cost O(log n). The zero value is an empty map. It is not
// safe for concurrent use.
type Map[K comparable, V any] struct {
	entries map[K]*entry[K, V]
	order   queue[K, V]
}

type entry[K comparable, V any] struct {
	key   K
	value V
	at    time.Time
	index int // in the queue
}

// Len returns the number of entries, due or not.
func (m *Map[K, V]) Len() int { return len(m.entries) }

// Get returns the key's value, due or not; false if the key is absent.
func (m *Map[K, V]) Get(key K) (value V, ok bool) {
	e, ok := m.entries[key]
	if ok {
		value = e.value
	}
	return value, ok
}

// Put adds the key with a value and a deadline, or replaces both.
func (m *Map[K, V]) Put(key K, value V, at time.Time) {
	if e, ok := m.entries[key]; ok {
		e.value, e.at = value, at
		heap.Fix(&m.order, e.index)
		return
	}
	if m.entries == nil {
		m.entries = make(map[K]*entry[K, V])
	}
	e := &entry[K, V]{key: key, value: value, at: at}
	m.entries[key] = e
	heap.Push(&m.order, e)
}

// Delete removes the key and returns its value; false if the key was absent.
func (m *Map[K, V]) Delete(key K) (value V, ok bool) {
	e, ok := m.entries[key]
	if !ok {
		return value, false
	}
	delete(m.entries, key)
	heap.Remove(&m.order, e.index)
	return e.value, true
}

// Due returns the entry with the earliest deadline if it is due at now. The entry stays in the map.
func (m *Map[K, V]) Due(now time.Time) (key K, value V, ok bool) {
	if len(m.order) == 0 || m.order[0].at.After(now) {
		return key, value, false
	}
	return m.order[0].key, m.order[0].value, true
}

// TakeDue removes the entries that are due, and yields them in the order of their deadlines. The map may be
// changed during the iteration.
func (m *Map[K, V]) TakeDue(now time.Time) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for key, value, ok := m.Due(now); ok; key, value, ok = m.Due(now) {
			m.Delete(key)
			if !yield(key, value) {
				return
			}
		}
	}
}

// queue is a heap.Interface: the earliest deadline first.
type queue[K comparable, V any] []*entry[K, V]

func (q queue[K, V]) Len() int           { return len(q) }
func (q queue[K, V]) Less(i, j int) bool { return q[i].at.Before(q[j].at) }

func (q queue[K, V]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue[K, V]) Push(x any) {
	e, _ := x.(*entry[K, V]) // nothing else is pushed
	e.index = len(*q)
	*q = append(*q, e)
}

func (q *queue[K, V]) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}

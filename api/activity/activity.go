// Package activity is a server's summary of its last hour, for people: how many leases it granted, how many
// requests waited and how many writes it refused, minute by minute; for which resources requests waited; and
// which resources were held longest. Its size is bounded, whatever the number of resources.
package activity

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Minutes is how many minutes a Log remembers.
const Minutes = 60

const (
	periodMinutes = 5 // resources are forgotten a period at a time
	periods       = Minutes / periodMinutes
	maxContended  = 200 // the maximum number of contended resources in a period
	maxHeld       = 50  // the maximum number of held resources in a period
	shown         = 20
)

// Minute is what happened in one minute.
type Minute struct {
	Start   time.Time
	Granted int64 // leases, once for each resource
	Waited  int64 // requests that found their resource held, and waited or gave up
	Refused int64 // writes with a stale token
}

// Contended is a resource that requests found held.
type Contended struct {
	Resource string
	Requests int64
	Waited   time.Duration // the sum over all requests
}

// Held is the longest time for which a lease that has ended held its resource.
type Held struct {
	Resource string
	For      time.Duration
}

// Summary is the last hour, the oldest minute first.
type Summary struct {
	Minutes   []Minute
	Contended []Contended // most waited for first
	Held      []Held      // longest first
}

// Log remembers the last hour. Its zero value is empty. It is safe for concurrent use.
type Log struct {
	mu      sync.Mutex
	minutes [Minutes]Minute
	periods [periods]period
}

// period is the data about resources in a few minutes.
type period struct {
	number    int64
	contended map[string]*Contended
	held      []Held // longest first, each resource once
}

// Granted counts leases.
func (l *Log) Granted(now time.Time, leases int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.minute(now).Granted += int64(leases)
}

// Found counts a request that found the resource held and waited for this long (0 if it did not wait).
func (l *Log) Found(now time.Time, resource string, waited time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.minute(now).Waited++
	p := l.period(now)
	c := p.contended[resource]
	if c == nil {
		if len(p.contended) >= maxContended {
			p.forgetLeast()
		}
		c = &Contended{Resource: resource}
		p.contended[resource] = c
	}
	c.Requests++
	c.Waited += waited
}

// forgetLeast removes the least interesting resource.
func (p *period) forgetLeast() {
	var least *Contended
	for _, c := range p.contended {
		if least == nil || mostContended(*least, *c) < 0 {
			least = c
		}
	}
	delete(p.contended, least.Resource)
}

// Refused counts a write or a claim with a stale token.
func (l *Log) Refused(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.minute(now).Refused++
}

// Ended records how long a lease held a resource.
func (l *Log) Ended(now time.Time, resource string, held time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.period(now).ended(Held{Resource: resource, For: held})
}

func (p *period) ended(h Held) {
	if len(p.held) == maxHeld && p.held[maxHeld-1].For >= h.For {
		return // the usual case
	}
	if same := slices.IndexFunc(p.held, func(other Held) bool { return other.Resource == h.Resource }); same >= 0 {
		if p.held[same].For >= h.For {
			return
		}
		p.held = slices.Delete(p.held, same, same+1)
	}
	at, _ := slices.BinarySearchFunc(p.held, h, longest)
	p.held = slices.Insert(p.held, at, h)
	p.held = p.held[:min(len(p.held), maxHeld)]
}

// Summary returns the last hour, with the resources that show accepts (nil accepts all).
func (l *Log) Summary(now time.Time, show func(resource string) bool) Summary {
	l.mu.Lock()
	defer l.mu.Unlock()
	var s Summary
	for age := Minutes - 1; age >= 0; age-- {
		start := now.Truncate(time.Minute).Add(-time.Duration(age) * time.Minute)
		minute := l.minutes[index(start, time.Minute, Minutes)]
		if !minute.Start.Equal(start) {
			minute = Minute{Start: start}
		}
		s.Minutes = append(s.Minutes, minute)
	}
	contended := map[string]*Contended{}
	var all period
	for _, p := range l.periods {
		if number(now)-p.number >= periods {
			continue
		}
		for resource, c := range p.contended {
			sum := contended[resource]
			if sum == nil {
				sum = &Contended{Resource: resource}
				contended[resource] = sum
			}
			sum.Requests += c.Requests
			sum.Waited += c.Waited
		}
		for _, h := range p.held {
			all.ended(h)
		}
	}
	s.Contended = mapped(contended)
	slices.SortFunc(s.Contended, mostContended)
	s.Held = all.held
	if show != nil {
		s.Contended = slices.DeleteFunc(s.Contended, func(c Contended) bool { return !show(c.Resource) })
		s.Held = slices.DeleteFunc(s.Held, func(h Held) bool { return !show(h.Resource) })
	}
	s.Contended = s.Contended[:min(len(s.Contended), shown)]
	s.Held = s.Held[:min(len(s.Held), shown)]
	return s
}

// minute returns the counts of now's minute. The caller holds mu.
func (l *Log) minute(now time.Time) *Minute {
	start := now.Truncate(time.Minute)
	m := &l.minutes[index(start, time.Minute, Minutes)]
	if !m.Start.Equal(start) {
		*m = Minute{Start: start}
	}
	return m
}

// period returns now's period. The caller holds mu.
func (l *Log) period(now time.Time) *period {
	p := &l.periods[index(now, periodMinutes*time.Minute, periods)]
	if p.number != number(now) || p.contended == nil {
		*p = period{number: number(now), contended: map[string]*Contended{}}
	}
	return p
}

func number(now time.Time) int64 { return now.Unix() / int64(periodMinutes*time.Minute/time.Second) }

func index(now time.Time, unit time.Duration, of int64) int64 {
	return now.Unix() / int64(unit/time.Second) % of
}

func mapped(contended map[string]*Contended) []Contended {
	list := make([]Contended, 0, len(contended))
	for _, c := range contended {
		list = append(list, *c)
	}
	return list
}

func mostContended(a, b Contended) int {
	return cmp.Or(cmp.Compare(b.Waited, a.Waited), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Resource, b.Resource))
}

func longest(a, b Held) int {
	return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Resource, b.Resource))
}

package suite

import "time"

// size says how much is measured.
type size struct {
	rounds, hotRounds, faultRounds int
	minorRounds                    int // of scenarios without a check
	warm, measure                  time.Duration
	hotWarm, hotMeasure            time.Duration
	faultMeasure                   time.Duration
	levels, fsyncLevels            []int
	clients, connections, starved  []int // numbers of workers
	starvedWarm, starvedMeasure    time.Duration
	trips                          []time.Duration // round trips of simulated networks
	waiters                        []int           // of a hot resource
}

// fullSize takes about a quarter of an hour.
func fullSize() size {
	return size{
		rounds: 5, hotRounds: 3, faultRounds: 3, minorRounds: 3,
		warm: 200 * time.Millisecond, measure: 800 * time.Millisecond,
		hotWarm: 500 * time.Millisecond, hotMeasure: 1200 * time.Millisecond,
		faultMeasure: 1500 * time.Millisecond,
		levels:       []int{1, 16, 64, 256}, fsyncLevels: []int{256},
		clients: []int{1, 64, 256}, connections: []int{256, 1024, 4096},
		starved: []int{16, 64, 256}, starvedWarm: 500 * time.Millisecond, starvedMeasure: 2 * time.Second,
		trips:   []time.Duration{200 * time.Microsecond, 500 * time.Microsecond},
		waiters: []int{16, 64, 1024},
	}
}

// quickSize stays under two minutes.
func quickSize() size {
	return size{
		rounds: 2, hotRounds: 1, faultRounds: 1, minorRounds: 1,
		warm: 100 * time.Millisecond, measure: 300 * time.Millisecond,
		hotWarm: 300 * time.Millisecond, hotMeasure: 800 * time.Millisecond,
		faultMeasure: 400 * time.Millisecond,
		levels:       []int{1, 64, 256},
		clients:      []int{1, 64}, connections: []int{256, 4096},
		starved: []int{256}, starvedWarm: 300 * time.Millisecond, starvedMeasure: time.Second,
		trips:   []time.Duration{500 * time.Microsecond},
		waiters: []int{16},
	}
}

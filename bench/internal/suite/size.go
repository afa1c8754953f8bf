package suite

import "time"

// size is how much of everything is measured.
type size struct {
	rounds, hotRounds, faultRounds int
	minorRounds                    int // of scenarios without a figure that must hold
	warm, measure                  time.Duration
	hotWarm, hotMeasure            time.Duration
	faultMeasure                   time.Duration
	hotMany                        bool // with contenders that no figure speaks about
	levels, fsyncLevels            []int
	waiters                        []int // also measured without a critical section
	crowd                          []int // measured for few contenders only
	held                           int
	parked                         int
	parkedIdle                     time.Duration
	topologies                     []topology
}

// fullSize takes about a quarter of an hour.
func fullSize() size {
	return size{
		rounds: 5, hotRounds: 3, faultRounds: 3, minorRounds: 3,
		warm: 200 * time.Millisecond, measure: 800 * time.Millisecond,
		hotWarm: 500 * time.Millisecond, hotMeasure: 1200 * time.Millisecond,
		faultMeasure: 1500 * time.Millisecond, hotMany: true,
		levels: []int{1, 16, 64, 256}, fsyncLevels: []int{256},
		waiters: []int{16, 64}, crowd: []int{1024},
		held: 100_000, parked: 10_000, parkedIdle: 3 * time.Second,
		topologies: []topology{{1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 2}},
	}
}

// quickSize stays under two minutes.
func quickSize() size {
	return size{
		rounds: 2, hotRounds: 1, faultRounds: 1, minorRounds: 1,
		warm: 100 * time.Millisecond, measure: 300 * time.Millisecond,
		hotWarm: 300 * time.Millisecond, hotMeasure: 800 * time.Millisecond,
		faultMeasure: 400 * time.Millisecond,
		levels:       []int{1, 64, 256}, fsyncLevels: []int{256},
		waiters: []int{16},
		held:    10_000, parked: 2000, parkedIdle: time.Second,
	}
}

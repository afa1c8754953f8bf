package nodetest

// Weakness is a set of rules of the protocol that a Model does not keep. The
// simulation switches them on one by one, to see that it would notice.
type Weakness uint32

// The weaknesses, each with the number of its rule.
const (
	ConfirmsForAnybody Weakness = 1 << iota // 2: confirms though the lock is not the lease's
	ConfirmsAnyGrant                        // 3: confirms though the grant is above the token
	ExtendsAnyGrant                         // 3: extends though the grant is above the token
	ForgetsHigh                             // 4: a missing counter reads as 0
	RevivesAnybody                          // 5: makes an absent lock again whatever the counter
	ShortensLocks                           // 5: an extend may set an earlier end
	OpensForAnyLife                         // 6: the gate takes any incarnation
	VotesInAnyView                          // 8: votes do not look at the view
	FencesWithoutView                       // 8: a fenced read installs no view
	SharesViews                             // 9: a fenced read takes the view that stands
	AdmitsAnyLife                           // 10: an admission begun with one incarnation ends with another
	KeepsOnStaging                          // 11: staging purges nothing
	ForgetsFloor                            // 12: a founding keeps only the node's own marks
	StagesAdmitted                          // 12: a founding may take any node in an older view
	ForgetsStaging                          // 12: what a founding has closed, a rejoin of before opens in the old view
	ReleasesAnyGrant                        // 3: a release takes any grant of the owner
	RetractsAnyAttempt                      // 3: a retraction takes a vote that other attempts were told of
	RetractsAnyGrant                        // 3: a retraction takes what the attempt's lease counts on
	GrantsTooLong                           // 13: a TTL longer than the recorded one is granted
	NotesNothing                            // 13: a quarantine is the same after a flush
	ReadsInAnyView                          // 21: counters and locks are read in any view
	SkipsMissing                            // 21: a missing counter is carried as 0
	LoadsAdmitted                           // 21: carried state is written on an admitted node
)

// weak reports whether the model has the weakness.
func (m *Model) weak(w Weakness) bool { return m.opts.Weak&w != 0 }

package replica

// Weakness is a set of rules of the protocol that a Machine does not keep. It is
// for tests: the simulation switches rules off one by one, to see that it notices.
type Weakness uint64

// The weaknesses, each with the number of its rule.
const (
	ConfirmsForAnyOwner    Weakness = 1 << iota // 2: confirms though the lock is not the lease's
	ConfirmsAnyGrant                            // 3: confirms though the grant is above the token
	ExtendsAnyGrant                             // 3: extends though the grant is above the token
	ReleasesAnyGrant                            // 3: a release takes any grant of the owner
	RetractsAnyAttempt                          // 3: a retraction takes a vote that other attempts may count
	RetractsAnyGrant                            // 3: a retraction takes what the attempt's lease counts on
	CountsUnnoted                               // 3: an extend does not note that it counts on the lock
	ForgetsHighWater                            // 4: a missing counter reads as 0
	RevivesAnyLock                              // 5: makes an absent lock again whatever the counter
	ShortensLocks                               // 5: an extend may set an earlier end
	ReleasesOnlyLocks                           // 5: a release leaves the counter as it is
	PassesOnlyLocks                             // 5: a release takes the counter past the token only where it finds the lock
	RefusesForNow                               // 5: an extend that is refused leaves the counter where another's lock stands
	PassesNoOthers                              // 5: a release leaves the counter where another's lock stands
	OpensForAnyIncarnation                      // 6: the gate takes any incarnation
	VotesInAnyEpoch                             // 8: votes do not look at the epoch
	ReleasesInAnyEpoch                          // 8: a release counts in any epoch
	InstallsNoEpoch                             // 8: the reads of a rejoin install no epoch
	SharesEpochs                                // 9: the reads of a rejoin accept the epoch that the node is in
	AdmitsAnyIncarnation                        // 10: an admission begun with one incarnation ends with another
	KeepsOnStaging                              // 11: staging purges nothing
	ForgetsFloor                                // 12: a bootstrap keeps only the node's own marks
	StagesAdmitted                              // 12: a bootstrap may take any node in an older epoch
	ForgetsStaging                              // 12: an earlier rejoin opens in the old epoch what a bootstrap has closed
	GrantsTooLong                               // 13: a TTL longer than the recorded one is granted
	AdmitsAnyQuarantine                         // 13: an admission takes a later quarantine than the one that it waited for
	ReadsInAnyEpoch                             // 21: counters and locks are read in any epoch
	SkipsMissing                                // 21: a missing counter is carried as 0
	LoadsAdmitted                               // 21: carried state is written on an admitted node
	KeepsTickets                                // a ticket stays in its queue after its request has ended
	QueuesOwners                                // a request behind others in the queue does not find its own lock
	TakesAnyToken                               // 23: an operation may carry any token
	KeepsOwner                                  // 27: a release-after leaves the lock to its lease
	BreaksAnyGrant                              // 28: a break ends a later lease than its token's
	IgnoresScope                                // 29: an owner is granted whatever its key is used for
	VotesInAnyMap                               // 30: votes do not look at the map
	ReleasesInAnyMap                            // 30: a release counts though the resource may have moved
	IgnoresMapFloor                             // 30: a counter from before the resource moved away counts when it is back
)

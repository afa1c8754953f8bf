package replica

// Weakness is a set of the protocol's rules that a Machine breaks. Tests switch rules off one by one, to
// verify that other tests notice.
type Weakness uint64

// The weaknesses. Weaknesses describes each.
const (
	ConfirmsForAnyOwner Weakness = 1 << iota
	ConfirmsAnyGrant
	ConfirmsFoundLocks
	ExtendsAnyGrant
	ReleasesAnyGrant
	RetractsAnyAttempt
	RetractsAnyGrant
	CountsUnnoted
	ForgetsHighWater
	RevivesAnyLock
	ShortensLocks
	ReleasesOnlyLocks
	PassesOnlyLocks
	RefusesForNow
	PassesNoOthers
	OpensForAnyIncarnation
	VotesInAnyEpoch
	ReleasesInAnyEpoch
	InstallsNoEpoch
	SharesEpochs
	AdmitsAnyIncarnation
	KeepsOnStaging
	ForgetsFloor
	StagesAdmitted
	ForgetsStaging
	GrantsTooLong
	AdmitsAnyQuarantine
	ReadsInAnyEpoch
	SkipsMissing
	LoadsAdmitted
	KeepsTickets
	QueuesOwners
	TakesAnyToken
	KeepsOwner
	BreaksAnyGrant
	IgnoresScope
	VotesInAnyMap
	ReleasesInAnyMap
	IgnoresMapFloor
	KeepsSilently
	KeepsAliveOnce
	EveryWeakness Weakness = 1<<iota - 1
)

// Registered is a weakness with its description, listed once in Weaknesses. A Machine checks for it where the
// rule applies. With the weakness, the text of its rule in lockcore/nodetest/rules must fail, and the
// simulation must catch it. TestWeaknesses and TestEveryWeaknessIsHunted check both.
type Registered struct {
	Weakness Weakness
	Rule     string // its number, or "queue"
	Name     string // what a Machine with this weakness does wrong
	TextOnly bool   // only the text of the rule catches it: the simulation has no mutant for it
}

// Weaknesses are all of them.
var Weaknesses = []Registered{
	{Weakness: ConfirmsForAnyOwner, Rule: "2", Name: "confirm does not ask who owns the lock"},
	{Weakness: ConfirmsAnyGrant, Rule: "3", Name: "confirm takes any grant of the lease"},
	{Weakness: ConfirmsFoundLocks, Rule: "3", Name: "an attempt confirms a lock that a later one has found"},
	{Weakness: ExtendsAnyGrant, Rule: "3", Name: "extend takes any grant of the lease"},
	{Weakness: ReleasesAnyGrant, Rule: "3", Name: "a release takes a later lease under its key"},
	{Weakness: RetractsAnyAttempt, Rule: "3", Name: "a retraction takes a vote that other attempts may count"},
	{Weakness: RetractsAnyGrant, Rule: "3", Name: "a retraction takes what its attempt's lease counts on"},
	{Weakness: CountsUnnoted, Rule: "3", Name: "an extend does not note that it counts on a lock"},
	{Weakness: ForgetsHighWater, Rule: "4", Name: "a missing counter reads as 0"},
	{Weakness: RevivesAnyLock, Rule: "5", Name: "extend makes any absent lock again"},
	{Weakness: ShortensLocks, Rule: "5", Name: "extend may shorten"},
	{Weakness: ReleasesOnlyLocks, Rule: "5", Name: "a release leaves the counter as it is"},
	{Weakness: PassesOnlyLocks, Rule: "5", Name: "a release counts only where it finds its lock"},
	{Weakness: RefusesForNow, Rule: "5", Name: "a node refuses an extend for now"},
	{Weakness: PassesNoOthers, Rule: "5", Name: "a release does not count where another's lock stands"},
	{Weakness: OpensForAnyIncarnation, Rule: "6", Name: "the gate takes any incarnation"},
	{Weakness: VotesInAnyEpoch, Rule: "8", Name: "votes carry no epoch"},
	{Weakness: ReleasesInAnyEpoch, Rule: "8", Name: "a release carries no epoch"},
	{Weakness: InstallsNoEpoch, Rule: "8", Name: "the reads of a rejoin install no epoch"},
	{Weakness: SharesEpochs, Rule: "9", Name: "two rejoins may share an epoch"},
	{Weakness: AdmitsAnyIncarnation, Rule: "10", Name: "an admission outlives a restart"},
	{Weakness: KeepsOnStaging, Rule: "11", Name: "staging purges nothing"},
	{Weakness: ForgetsFloor, Rule: "12", Name: "a bootstrap has no floor"},
	{Weakness: StagesAdmitted, Rule: "12", Name: "a bootstrap purges what another opened"},
	{Weakness: ForgetsStaging, Rule: "12", Name: "an earlier rejoin opens what a bootstrap closed"},
	{Weakness: GrantsTooLong, Rule: "13", Name: "leases outlive the wait"},
	{Weakness: AdmitsAnyQuarantine, Rule: "13", Name: "a later quarantine counts as the earlier"},
	{Weakness: ReadsInAnyEpoch, Rule: "21", Name: "counters and locks are read in any epoch", TextOnly: true},
	{Weakness: SkipsMissing, Rule: "21", Name: "missing counters are skipped"},
	{Weakness: LoadsAdmitted, Rule: "21", Name: "an admitted node is written on"},
	{Weakness: KeepsTickets, Rule: "queue", Name: "who has gone stays in it"},
	{Weakness: QueuesOwners, Rule: "queue", Name: "a request behind others does not find its own lease"},
	{Weakness: KeepsSilently, Rule: "27", Name: "a release within the minimum hold wakes nobody", TextOnly: true},
	{Weakness: KeepsAliveOnce, Rule: "queue", Name: "a ticket lives for what is left of its server's last heartbeat", TextOnly: true},
	{Weakness: TakesAnyToken, Rule: "23", Name: "any token is believed"},
	{Weakness: KeepsOwner, Rule: "27", Name: "a resource that stays taken is still its lease's"},
	{Weakness: BreaksAnyGrant, Rule: "28", Name: "a break ends a later lease"},
	{Weakness: IgnoresScope, Rule: "29", Name: "an owner may have several slots"},
	{Weakness: VotesInAnyMap, Rule: "30", Name: "votes do not look at the map"},
	{Weakness: ReleasesInAnyMap, Rule: "30", Name: "a release counts though its resource may have moved"},
	{Weakness: IgnoresMapFloor, Rule: "30", Name: "a counter from before the resource moved away counts"},
}

// Registration is the registration of one weakness.
func (w Weakness) Registration() Registered {
	for _, r := range Weaknesses {
		if r.Weakness == w {
			return r
		}
	}
	panic("a weakness is not registered")
}

/*
 * The protocol of docs/PROTOCOL.md, for spin to check to the end: three nodes (N = 3,
 * m = 2, R = 2), one resource, ACQUISITIONS attempts. Names and numbers of rules are those
 * of that page. -DNO_... switches a rule off; run.sh lists the configurations.
 *
 * What happens: acquires, confirms, extends, releases and retractions that arrive at any
 * time, in any order, or never (-DLOST: or whose answer is lost); locks that expire,
 * counters that are dropped; LOSSES of a node's data, or restarts that keep them; rejoins;
 * -DBOOTSTRAPS: more than a minority is lost, and the cluster is bootstrapped again;
 * -DKEYS: the second attempt has the idempotency key of the first.
 *
 * What is checked: a token is larger than all that had been given when its attempt began,
 * and given once; no extend succeeds that began after a larger token was given, or after
 * the release was answered; two leases are not valid at once.
 *
 * Time is left out but for what it promises with sound clocks: while a lease is believed
 * valid, on the votes of its basis, these locks do not expire, and a node that lost one
 * is not admitted (rule 13). What took longer than that gives a token, and no validity
 * (rule 17). An answer that a node gave to a release before it was lost counts no more when
 * it is admitted again: the release ends earlier. Where it does not, since its server was
 * suspended, it is not final: the rejoin reads the lock on two nodes, one before and one
 * without the release, and the holder extends it there.
 *
 * Left out: more nodes, more resources, several servers' views of membership, two rejoins
 * at a time (rule 9), bootstrappers that meet and stale plans (rule 12), messages that
 * arrive twice, the queue, slots, clocks that jump (rule 22), secrets; the
 * simulation has these. Changes of node sets are in sets.pml.
 *
 * Nodes are alike, and so are attempts: the first loss is node 2's, and attempts begin in
 * their order, which leaves out no behaviour.
 */

#ifndef ACQUISITIONS
#define ACQUISITIONS 2
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef EXTENDS
#define EXTENDS 0
#endif
#define N 3
#define NONE 9 /* no node */
#define ALL 255 /* attempts that a node does not know all */

#define bitOf(n) (1 << (n))
#define has(set, n) ((set) & bitOf(n))
#define enough(set) ((set) == 3 || (set) == 5 || (set) == 6 || (set) == 7) /* a quorum */
#define larger(x, y) ((x) > (y) -> (x) : (y))
#define smaller(x, y) ((x) < (y) -> (x) : (y))

#ifdef KEYS
#define ownerOf(a) ((a) <= 1 -> 1 : (a) + 1)
#define keyed(o) ((o) == 1)
#else
#define ownerOf(a) ((a) + 1)
#define keyed(o) false
#endif

typedef Node {
  bit admitted;
  byte epoch;
  byte high;      /* the high-water mark */
  byte counter;   /* 0: missing */
  byte owner;     /* of the lock; 0: none */
  byte grant;     /* of the lock */
  byte attempts   /* that got the lock */
};

mtype = { idle, running, won, releasing, released, lost };

typedef Attempt {
  mtype state = idle;
  byte epoch;
  byte floor;      /* the largest token given when it began */
  byte token;
  byte grant[N];   /* that the server knows of; 0: none */
  byte asked;      /* nodes where its acquire arrived */
  byte confirmed;  /* nodes */
  byte withdrawn;  /* nodes where its release arrived */
  bit late;        /* it took longer than its TTL: no validity */
  bit valid;       /* its client may believe that it holds the lease */
  byte basis;      /* nodes whose votes it believes that by */
  bit extending;
  byte extends;    /* so many have begun */
  byte extEpoch;
  byte extended;   /* nodes of the round under way */
  bit stale        /* a larger token, or its release, was there when the round began */
};

Node node[N];
Attempt attempt[ACQUISITIONS];

byte begun;        /* attempts */
byte given;        /* the largest token */
byte last;         /* the largest number that any node ever counted: the clock is above it */
byte ended;        /* under the key: the largest token whose release was answered */
byte epochs = 1;   /* the last that was drawn */
byte bootstrapped; /* the epoch of the last bootstrap */
byte losses;

/* The rejoin under way. */
byte joining = NONE;
byte joinEpoch, joinHigh, joinRead, joinSurveyed, joinCounter, joinOwner, joinGrant;
bit joinLost;      /* the node was lost since */

/* Rule 4: a missing counter reads as the high-water mark. */
#ifdef NO_4
#define effective(n) (node[n].counter)
#else
#define effective(n) (node[n].counter -> node[n].counter : node[n].high)
#endif

/* The gate (rules 6 and 8). */
#ifdef NO_8
#define open(n, e) (node[n].admitted)
#else
#define open(n, e) (node[n].admitted && node[n].epoch == (e))
#endif

#define current(n) (node[n].admitted && node[n].epoch >= bootstrapped)

hidden byte number, whose, i, j, votes; /* of a step; no part of a state */

#define count(n, t) \
  number = (t); \
  node[n].counter = number; \
  node[n].high = larger(node[n].high, number); \
  last = larger(last, number); \
  forget(n)

/* A counter that is the high-water mark may as well be missing. */
#ifdef NO_4
#define forget(n) skip
#else
#define forget(n) node[n].counter = (node[n].counter == node[n].high -> 0 : node[n].counter)
#endif

inline free(n) { node[n].owner = 0; node[n].grant = 0; node[n].attempts = 0 }

/* Nothing is valid any more that took as long as a lock of the owner on the node. */
inline outlive(n) { /* whose: the owner */
  j = 0;
  do
  :: j < ACQUISITIONS ->
     if
     :: ownerOf(j) == whose && attempt[j].state == running && attempt[j].grant[n] -> attempt[j].late = 1
     :: else
     fi;
     if
     :: ownerOf(j) == whose && attempt[j].extending && has(attempt[j].extended, n) -> endRound(j)
     :: else
     fi;
     j++
  :: else -> break
  od;
  skip
}

inline endRound(a) { attempt[a].extending = 0; attempt[a].extended = 0; attempt[a].extEpoch = 0; attempt[a].stale = 0 }

/* The same of every owner, and of releases: the node's quarantine is over. */
inline outliveAll(n) {
  j = 0;
  do
  :: j < ACQUISITIONS ->
     if
     :: attempt[j].state == releasing && has(attempt[j].withdrawn, n) -> attempt[j].late = 1
     :: else
     fi;
     j++
  :: else -> break
  od;
  whose = 1;
  do
  :: whose <= ACQUISITIONS + 1 -> outlive(n); whose++
  :: else -> break
  od;
  skip
}

/* A lease is believed to be held, by these votes: no other client's may be. */
inline believe(a) {
  attempt[a].valid = 1;
  attempt[a].basis = votes;
  j = 0;
  do
  :: j < ACQUISITIONS ->
     assert(j == (a) || !attempt[j].valid || ownerOf(j) == ownerOf(a));
     j++
  :: else -> break
  od;
  skip
}

inline disbelieve(a) { attempt[a].valid = 0; attempt[a].basis = 0 }

#define inTheWay(n, o) (ACQUISITIONS > 0 && based(0, n, o) || ACQUISITIONS > 1 && based(1, n, o) || ACQUISITIONS > 2 && based(LAST, n, o))
#define LAST (ACQUISITIONS - 1)
#define based(a, n, o) (attempt[a].valid && has(attempt[a].basis, n) && ((o) == 0 || ownerOf(a) == (o)))

/* ---- acquire ---- */

inline begin(a) {
  attempt[a].state = running;
  attempt[a].epoch = epochs;
  attempt[a].floor = given;
  begun++
}

inline acquire(a, n, answered) {
  attempt[a].asked = attempt[a].asked | bitOf(n);
  if
  :: open(n, attempt[a].epoch) && node[n].owner == 0 ->
     count(n, effective(n) + 1);
     node[n].owner = ownerOf(a);
     node[n].grant = number;
     node[n].attempts = bitOf(a);
     if :: answered && attempt[a].state == running -> attempt[a].grant[n] = node[n].grant :: else fi
  :: open(n, attempt[a].epoch) && node[n].owner == ownerOf(a) ->
     if :: node[n].attempts != ALL -> node[n].attempts = node[n].attempts | bitOf(a) :: else fi;
     if :: answered && attempt[a].state == running -> attempt[a].grant[n] = node[n].grant :: else fi
  :: else
  fi
}

#define voted(a) ((attempt[a].grant[0] != 0) + 2 * (attempt[a].grant[1] != 0) + 4 * (attempt[a].grant[2] != 0))

/* Rule 1: the token is the largest grant. */
inline decide(a) {
  attempt[a].token = larger(attempt[a].grant[0], larger(attempt[a].grant[1], attempt[a].grant[2]))
}

#ifdef NO_1
#define holding(a, n) (attempt[a].grant[n] != 0)
#else
#define holding(a, n) (attempt[a].grant[n] == attempt[a].token || has(attempt[a].confirmed, n))
#endif
#define holders(a) (holding(a, 0) + 2 * holding(a, 1) + 4 * holding(a, 2))

/* Rules 2 and 3: confirm while the lock is the attempt's own. */
#ifdef NO_2
#define confirms(a, n) true
#else
#ifdef NO_3_CONFIRM
#define confirms(a, n) (node[n].owner == ownerOf(a))
#else
#define confirms(a, n) (node[n].owner == ownerOf(a) && node[n].grant <= attempt[a].token)
#endif
#endif

inline confirm(a, n) {
  attempt[a].confirmed = attempt[a].confirmed | bitOf(n);
  if :: effective(n) < attempt[a].token -> count(n, attempt[a].token) :: else fi;
  if :: node[n].owner == ownerOf(a) -> node[n].grant = attempt[a].token :: else fi
}

inline forgetVotes(a) {
  attempt[a].confirmed = 0;
  attempt[a].grant[0] = 0; attempt[a].grant[1] = 0; attempt[a].grant[2] = 0
}

#define over(a) (attempt[a].state == won || attempt[a].state == releasing || attempt[a].state == released)

inline win(a) {
  assert(attempt[a].token > attempt[a].floor || keyed(ownerOf(a)) && attempt[a].token == attempt[a].floor);
  j = 0;
  do
  :: j < ACQUISITIONS -> assert(j == (a) || !over(j) || attempt[j].token != attempt[a].token || ownerOf(j) == ownerOf(a)); j++
  :: else -> break
  od;
  given = larger(given, attempt[a].token);
  attempt[a].state = won;
  if
  :: !attempt[a].late && !(keyed(ownerOf(a)) && attempt[a].token <= ended) -> votes = holders(a); believe(a)
  :: else
  fi;
  attempt[a].floor = 0; attempt[a].late = 0;
  forgetVotes(a)
}

/* Rule 16: a retraction of an attempt that failed. Rule 3: others may count the vote. */
#ifdef NO_3_RETRACT
#define alone(a, n) true
#else
#define alone(a, n) (node[n].attempts == bitOf(a))
#endif

inline retract(a, n) {
  if :: alone(a, n) -> free(n) :: else -> node[n].attempts = node[n].attempts & ~bitOf(a) fi
}

inline abandon(a) {
  attempt[a].state = lost;
  attempt[a].floor = 0; attempt[a].token = 0; attempt[a].epoch = 0; attempt[a].late = 0;
  forgetVotes(a)
}

/* ---- extend ---- */

inline beginExtend(a) {
  attempt[a].extending = 1;
  attempt[a].extends++;
  attempt[a].extEpoch = epochs;
  attempt[a].stale = (given > attempt[a].token || attempt[a].state == released || keyed(ownerOf(a)) && ended >= attempt[a].token)
}

#ifdef NO_3_EXTEND
#define extends_(a, n) (node[n].owner == ownerOf(a))
#else
#define extends_(a, n) (node[n].owner == ownerOf(a) && node[n].grant <= attempt[a].token)
#endif
/* Rule 5: it makes a lock again under its own test. */
#ifdef NO_5_AGAIN
#define again(a, n) (node[n].owner == 0)
#else
#define again(a, n) (node[n].owner == 0 && effective(n) <= attempt[a].token)
#endif

inline extend(a, n) {
  attempt[a].extended = attempt[a].extended | bitOf(n);
  if
  :: node[n].owner == 0 -> node[n].owner = ownerOf(a); node[n].grant = attempt[a].token; node[n].attempts = ALL
  :: else
  fi
}

inline extendEnds(a) {
  assert(!attempt[a].stale);
  if :: attempt[a].state == won && !(keyed(ownerOf(a)) && attempt[a].token <= ended) -> votes = attempt[a].extended; believe(a) :: else fi;
  endRound(a)
}

/* ---- release ---- */

inline beginRelease(a) {
  attempt[a].state = releasing;
  j = 0;
  do
  :: j < ACQUISITIONS -> if :: ownerOf(j) == ownerOf(a) && attempt[j].token <= attempt[a].token -> disbelieve(j) :: else fi; j++
  :: else -> break
  od;
  skip
}

#ifdef NO_3_RELEASE
#define ends(a, n) (node[n].owner == ownerOf(a))
#else
#define ends(a, n) (node[n].owner == ownerOf(a) && (!keyed(node[n].owner) || node[n].grant <= attempt[a].token))
#endif

/* Whatever was there, the counter goes past the token (rule 5). */
inline release(a, n) {
  if
  :: node[n].admitted ->
     attempt[a].withdrawn = attempt[a].withdrawn | bitOf(n);
#ifdef NO_5_RELEASE
     skip
#else
#ifdef NO_5_OTHERS
     if :: (node[n].owner == 0 || ends(a, n)) && effective(n) <= attempt[a].token -> count(n, attempt[a].token + 1) :: else fi
#else
     if :: effective(n) <= attempt[a].token -> count(n, attempt[a].token + 1) :: else fi
#endif
#endif
  :: else
  fi;
  if :: ends(a, n) -> free(n) :: else fi
}

inline releaseEnds(a) {
  attempt[a].state = released;
  attempt[a].epoch = 0;
  if :: keyed(ownerOf(a)) -> ended = larger(ended, attempt[a].token) :: else fi
}

/* ---- nodes ---- */

inline expire(n) { whose = node[n].owner; outlive(n); free(n) }

inline lose(n) {
  losses++;
  node[n].admitted = 0; node[n].epoch = 0; node[n].high = 0; node[n].counter = 0;
  free(n);
  if :: joining == n -> joinLost = 1 :: else fi
}

inline restart(n) {
  losses++;
  node[n].admitted = 0;
  if :: joining == n -> joinLost = 1 :: else fi
}

/* Rule 13: it is admitted when no lease is valid by a vote that it gave. */
#ifdef NO_13
#define quarantined(n) false
#else
#define quarantined(n) inTheWay(n, 0)
#endif

inline endJoin() {
  joining = NONE; joinEpoch = 0; joinHigh = 0; joinRead = 0; joinSurveyed = 0; joinCounter = 0; joinOwner = 0; joinGrant = 0; joinLost = 0
}

inline beginJoin(n) {
  joining = n;
#ifndef NO_13
  outliveAll(n);
#endif
#ifndef NO_9
  epochs++;
#endif
  joinEpoch = epochs
}

/* Rules 7 and 8: the reads of the high-water marks install the epoch. */
inline read(n) {
  joinRead = joinRead | bitOf(n);
#ifndef NO_8_INSTALL
  node[n].epoch = joinEpoch;
#endif
  joinHigh = larger(joinHigh, node[n].high)
}
#ifdef NO_7
#define readAll (joinRead != 0)
#define surveyedAll (joinSurveyed != 0)
#else
#define readAll enough(joinRead)
#define surveyedAll enough(joinSurveyed)
#endif

/* Rule 21: counters and locks, after the epoch is installed. Of R reads the R-th smallest
 * counter is the largest. */
#ifdef NO_21_EPOCH
#define mayBeSurveyed(n) (n != joining && current(n))
#else
#ifdef NO_8_INSTALL
#define mayBeSurveyed(n) (n != joining && current(n) && readAll)
#else
#define mayBeSurveyed(n) (n != joining && current(n) && node[n].epoch == joinEpoch && readAll)
#endif
#endif

#ifdef NO_21_MISSING
#define surveyedCounter(n) (node[n].counter)
#else
#define surveyedCounter(n) effective(n)
#endif

inline survey(n) {
  if
  :: joinSurveyed == 0 -> joinCounter = surveyedCounter(n); joinOwner = node[n].owner; joinGrant = node[n].grant
  :: else ->
#ifdef NO_21_SMALLEST
     joinCounter = smaller(joinCounter, surveyedCounter(n));
#else
     joinCounter = larger(joinCounter, surveyedCounter(n));
#endif
     if
     :: joinOwner == node[n].owner -> 
#ifdef KEYS
        if :: keyed(joinOwner) && joinCounter > larger(joinGrant, node[n].grant) -> joinOwner = 0 :: else fi;
#endif
        joinGrant = smaller(joinGrant, node[n].grant)
     :: else -> joinOwner = 0; joinGrant = 0
     fi
  fi;
  joinSurveyed = joinSurveyed | bitOf(n)
}

/* Rule 10: not if the node was lost since. Rule 11: the mark is max(own, read). */
inline admit(n) {
  free(n);
#ifdef NO_11_OWN
  node[n].high = joinHigh;
#else
  node[n].high = larger(node[n].high, joinHigh);
#endif
  node[n].counter = joinCounter;
  node[n].high = larger(node[n].high, joinCounter);
  forget(n);
  if
  :: joinOwner && !(joinSurveyed == 1 || joinSurveyed == 2 || joinSurveyed == 4) ->
     node[n].owner = joinOwner;
#ifdef NO_21_GRANT
     node[n].grant = joinGrant;
#else
     node[n].grant = larger(joinGrant, joinCounter);
#endif
     node[n].attempts = ALL
  :: else
  fi;
  node[n].epoch = joinEpoch;
  node[n].admitted = 1;
  endJoin()
}

/* Rule 12: a bootstrap of the nodes without admission, above the clock. */
#define out(n) (!node[n].admitted && !quarantined(n))
#ifdef NO_12_LOST
#define majorityLost (out(0) || out(1) || out(2)) /* the others do not answer */
#else
#define majorityLost (out(0) + out(1) + out(2) >= 2)
#endif

inline openNode(n) {
  if
  :: out(n) ->
     outliveAll(n);
     free(n);
     node[n].counter = 0;
#ifdef NO_12_FLOOR
     skip;
#else
     node[n].high = larger(node[n].high, last + 1);
#endif
     node[n].epoch = epochs;
     node[n].admitted = 1
  :: else
  fi
}

inline bootstrap() {
  endJoin();
  epochs++;
  bootstrapped = epochs;
  openNode(0); openNode(1); openNode(2)
}

/* ---- what may happen ---- */

#define AT(event, a) :: event(a, 0) :: event(a, 1) :: event(a, 2)

#define ACQUIRE(a, n) d_step { (attempt[a].state == running || attempt[a].state == won) && !has(attempt[a].asked, n) -> acquire(a, n, true) }
#define ACQUIRE_LOST(a, n) d_step { (attempt[a].state == running || attempt[a].state == won) && !has(attempt[a].asked, n) -> acquire(a, n, false) }
#define CONFIRM(a, n) d_step { attempt[a].state == running && attempt[a].token && attempt[a].grant[n] && attempt[a].grant[n] < attempt[a].token && !has(attempt[a].confirmed, n) && open(n, attempt[a].epoch) && confirms(a, n) -> confirm(a, n) }
#define RETRACT(a, n) d_step { attempt[a].state == lost && node[n].owner == ownerOf(a) && node[n].attempts != ALL && has(node[n].attempts, a) -> retract(a, n) }
#define EXTEND(a, n) d_step { attempt[a].extending && !has(attempt[a].extended, n) && open(n, attempt[a].extEpoch) && (extends_(a, n) || again(a, n)) -> extend(a, n) }
#define RELEASE(a, n) d_step { (attempt[a].state == releasing || attempt[a].state == released) && !has(attempt[a].withdrawn, n) -> release(a, n) }

#ifdef KEYS
#define mayBegin(a) (begun == (a) && ((a) != 1 || attempt[0].state != running && attempt[0].state != releasing))
#define mayRelease(a) (attempt[a].state == won && ((a) != 0 || ACQUISITIONS < 2 || attempt[1].state != running))
#else
#define mayBegin(a) (begun == (a))
#define mayRelease(a) (attempt[a].state == won)
#endif

#ifdef LOST
#define LOST_ANSWERS(a) AT(ACQUIRE_LOST, a)
#else
#define LOST_ANSWERS(a)
#endif

#define OF_ATTEMPT(a) \
  :: d_step { mayBegin(a) -> begin(a) } \
  AT(ACQUIRE, a) \
  LOST_ANSWERS(a) \
  :: d_step { attempt[a].state == running && !attempt[a].token && enough(voted(a)) -> decide(a) } \
  AT(CONFIRM, a) \
  :: d_step { attempt[a].state == running && attempt[a].token && enough(holders(a)) -> win(a) } \
  :: d_step { attempt[a].state == running -> abandon(a) } \
  AT(RETRACT, a) \
  :: d_step { attempt[a].valid -> disbelieve(a) } \
  :: d_step { (attempt[a].state == won || attempt[a].state == releasing || attempt[a].state == released) && !attempt[a].extending && attempt[a].extends < EXTENDS -> beginExtend(a) } \
  AT(EXTEND, a) \
  :: d_step { attempt[a].extending && enough(attempt[a].extended) -> extendEnds(a) } \
  :: d_step { mayRelease(a) -> beginRelease(a) } \
  AT(RELEASE, a) \
  :: d_step { attempt[a].state == releasing && !attempt[a].late && enough(attempt[a].withdrawn) -> releaseEnds(a) }

#ifdef BOOTSTRAPS
#define mayLose(n) (losses < LOSSES && node[n].admitted && (losses || n == 2))
#else
#define mayLose(n) (losses < LOSSES && node[n].admitted && (losses || n == 2) && (current(0) + current(1) + current(2) == 3))
#endif

#ifdef NO_10
#define mayAdmit true
#else
#define mayAdmit (!joinLost)
#endif

#define OF_NODE(n) \
  :: d_step { node[n].owner && !inTheWay(n, node[n].owner) -> expire(n) } \
  :: d_step { node[n].counter -> node[n].counter = 0 } \
  :: d_step { mayLose(n) -> lose(n) } \
  :: d_step { mayLose(n) -> restart(n) } \
  :: d_step { joining == NONE && !current(n) && !quarantined(n) && (current(0) + current(1) + current(2) >= 2) -> beginJoin(n) } \
  :: d_step { joining != NONE && joining != n && current(n) && !has(joinRead, n) -> read(n) } \
  :: d_step { joining != NONE && mayBeSurveyed(n) && !has(joinSurveyed, n) -> survey(n) } \
  :: d_step { joining == n && readAll && surveyedAll && mayAdmit -> admit(n) }

init {
  d_step {
    do
    :: i < N -> node[i].admitted = 1; node[i].epoch = 1; i++
    :: else -> break
    od;
    i = 0
  }
  do
  OF_ATTEMPT(0)
#if ACQUISITIONS > 1
  OF_ATTEMPT(1)
#endif
#if ACQUISITIONS > 2
  OF_ATTEMPT(2)
#endif
  OF_NODE(0)
  OF_NODE(1)
  OF_NODE(2)
  :: d_step { joining != NONE && (joinLost || (current(0) + current(1) + current(2) < 2)) -> endJoin() }
#ifdef BOOTSTRAPS
  :: d_step { majorityLost && (current(0) + current(1) + current(2) < 2) && bootstrapped < 4 -> bootstrap() }
#endif
  od
}

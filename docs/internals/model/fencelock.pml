/*
 * The protocol of docs/PROTOCOL.md, for spin to check to the end: three nodes (N = 3,
 * m = 2, R = 2), one resource, ACQUISITIONS attempts. Names and numbers of rules are those
 * of that page. -DNO_... switches a rule off; run.sh lists the configurations.
 *
 * What happens: acquires, confirms, extends, releases and retractions that arrive at any
 * time, in any order, or never (-DLOST: or whose answer is lost), in any epoch that a server
 * may know; releases that arrive again; locks that expire, counters that are dropped; LOSSES
 * of a node's data, or restarts that keep them; rejoins; EXTENDS of each lease, also of one
 * that is over, which make locks again;
 * -DBOOTSTRAPS: more than a minority is lost, and the cluster is bootstrapped again;
 * -DCLOCK_BACK: and the clock was set back below all tokens, but no data are lost;
 * -DKEYS: the second attempt has the idempotency key of the first (-DKEYED_EXTENDS: and only
 * their leases are extended and released).
 *
 * What is checked: a token is larger than all that had been given when its attempt began,
 * and given once; no extend succeeds that began after a larger token was given, or after
 * the release was answered; two leases are not valid at once.
 *
 * Time is left out but for what it promises with sound clocks: while a lease is believed
 * valid, on the votes of its basis, these locks do not expire, and a node that lost one
 * is not admitted (rule 13). So where one of these happens, the lease has ended.
 * What took longer than a lock gives a token, and no validity (rule 17). An answer that a
 * node gave to a release before it was lost counts no more when
 * it is admitted again: the release ends earlier. Where it does not, since its server was
 * suspended, it is not final: the rejoin reads the lock on two nodes, one before and one
 * without the release, and the holder extends it there.
 *
 * Left out: more nodes, more resources, several servers' views of membership, two rejoins
 * at a time (rule 9), bootstrappers that meet and stale plans (rule 12), acquires that
 * arrive twice, the queue, slots, clocks that jump (rule 22), secrets; the
 * simulation has these. Changes of node sets are in sets.pml.
 *
 * Why it ends: states that differ in what nothing reads any more, or in names, are one.
 * - Nodes are alike, and so are attempts without a key: after each step both are sorted
 *   (-DNAMED: they keep their names, for a trail to read).
 * - What no step reads any more is 0: the votes of an attempt that has won, the epoch of an
 *   acquire that no node takes any more, the clock when no bootstrap can come. See tidy.
 * - A message without an effect does not arrive: it is as one that is lost.
 * - A lock expires, and a lease ends, in the step before which it matters: until then it
 *   allows no more than if it stood.
 * - Without a key, an attempt that is given up is as one that never goes on, and what it
 *   retracts is as a lock that expires.
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

#define bitOf(a) (1 << (a))
#define has(set, a) (((set) >> (a)) & 1)
#define quorum(test, a) (test(a, 0) + test(a, 1) + test(a, 2) >= 2)
#define larger(x, y) ((x) > (y) -> (x) : (y))
#define smaller(x, y) ((x) < (y) -> (x) : (y))

#ifdef KEYS
#define ownerOf(a) ((a) <= 1 -> 1 : (a) + 1)
#define ownedBy(o) ((o) == 1 -> 3 : bitOf((o) - 1)) /* attempts */
#define keyed(o) ((o) == 1)
#define ALL 15 /* attempts that a node does not know all */
#else
#define ownerOf(a) ((a) + 1)
#define ownedBy(o) bitOf((o) - 1)
#define keyed(o) false
#endif

typedef Node {
  bit admitted;
  unsigned epoch : 4;
  unsigned high : 4;     /* the high-water mark */
  unsigned counter : 4;  /* 0: missing */
  unsigned owner : 3;    /* of the lock; 0: none */
  unsigned grant : 4;    /* of the lock */
#ifdef KEYS
  unsigned attempts : 4; /* that got the lock; alone, an attempt is its owner */
#endif

  /* What attempts have had with the node, as sets of attempts. */
  unsigned asked : 3;     /* their acquire arrived */
  unsigned withdrawn : 3; /* their release arrived, which is under way */
  unsigned extended : 3;  /* their extend arrived, of the round under way */
  unsigned basis : 3;     /* they are believed to be valid by the node's vote */
  byte vote[ACQUISITIONS]; /* the grant that the attempt's server knows of; 0: none */

  /* What the rejoin under way has had with it. */
  bit joining;
  bit read;
  bit surveyed
#ifdef NO_10
  ;
  bit paused
#endif
};

mtype = { idle, running, won, releasing, released, lost };

typedef Attempt {
  unsigned state : 3;
  unsigned epoch : 4;
  unsigned since : 4;    /* the epoch of its lease, for the release; 0: no node is in an earlier one */
  unsigned floor : 4;    /* the largest token given when it began */
  unsigned token : 4;
  bit late;              /* it took longer than its TTL: no validity */
  bit extending;
  unsigned extends : 2;  /* so many have begun */
  unsigned extEpoch : 4;
  bit stale              /* a larger token, or its release, was there when the round began */
};

Node node[N];
Attempt attempt[ACQUISITIONS];

unsigned begun : 2;    /* attempts */
unsigned given : 4;    /* the largest token */
unsigned epochs : 4;   /* the last that was drawn */
unsigned losses : 2;
#ifdef KEYS
unsigned ended : 4;    /* under the key: the largest token whose release was answered */
unsigned ending : 4;   /* the largest whose release began: its holder gave it up */
#else
#define ended 0
#define ending 0
#endif
#ifdef BOOTSTRAPS
unsigned last : 4;     /* the largest number that any node ever counted: the clock is above it */
unsigned bootstrapped : 4; /* the epoch of the last bootstrap */
#else
#define bootstrapped 0
#endif

/* The rejoin under way. */
unsigned joinEpoch : 4; /* 0: none */
unsigned joinHigh : 4;
unsigned joinCounter : 4;
unsigned joinOwner : 3;
unsigned joinGrant : 4;
bit joinLost;          /* the node was lost since */

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
#define currentNodes (current(0) + current(1) + current(2))

hidden byte number, j, opened; /* of a step; no part of a state */
hidden int key0, key1, key2, more0, more1, more2;

/* A counter that is the high-water mark may as well be missing. */
#ifdef NO_4
#define forget(n) skip
#else
#define forget(n) node[n].counter = (node[n].counter == node[n].high -> 0 : node[n].counter)
#endif

#ifdef BOOTSTRAPS
#define tick() last = larger(last, number)
#else
#define tick() skip
#endif

#define count(n, t) \
  number = (t); \
  assert(number < 15); /* or numbers need more bits */ \
  node[n].counter = number; \
  node[n].high = larger(node[n].high, number); \
  tick(); \
  forget(n)

#ifdef KEYS
#define setAttempts(n, set) node[n].attempts = set
#else
#define setAttempts(n, set) skip
#endif

inline free(n) { node[n].owner = 0; node[n].grant = 0; setAttempts(n, 0) }

#define clear(field, a) \
  node[0].field = node[0].field & ~bitOf(a); \
  node[1].field = node[1].field & ~bitOf(a); \
  node[2].field = node[2].field & ~bitOf(a)

inline endRound(a) {
  attempt[a].extending = 0; attempt[a].extEpoch = 0; attempt[a].stale = 0;
  clear(extended, a)
}

/* Nothing is valid any more that took as long as the lock on the node. */
inline outlive(n) {
  j = 0;
  do
  :: j < ACQUISITIONS ->
     if
     :: ownerOf(j) == node[n].owner && node[n].vote[j] -> attempt[j].late = 1
     :: else
     fi;
     if
     :: ownerOf(j) == node[n].owner && has(node[n].extended, j) -> endRound(j)
     :: else
     fi;
     j++
  :: else -> break
  od;
  skip
}

/* The same of all that had an answer of the node: its quarantine is over. */
inline outliveAll(n) {
  j = 0;
  do
  :: j < ACQUISITIONS ->
     if :: node[n].vote[j] -> attempt[j].late = 1 :: else fi;
     if :: has(node[n].extended, j) -> endRound(j) :: else fi;
     if :: has(node[n].withdrawn, j) -> attempt[j].late = 1; clear(withdrawn, j) :: else fi;
     j++
  :: else -> break
  od;
  skip
}

/* Leases end that are believed to be valid by the node's vote. */
#define lapse(n, which) \
  number = node[n].basis & (which); \
  node[0].basis = node[0].basis & ~number; \
  node[1].basis = node[1].basis & ~number; \
  node[2].basis = node[2].basis & ~number

/* A lease is believed to be held, by these votes: no other client's may be. */
inline believe(a, by0, by1, by2) {
  clear(basis, a);
  assert(((node[0].basis | node[1].basis | node[2].basis) & ~ownedBy(ownerOf(a))) == 0); /* valid */
  node[0].basis = node[0].basis | ((by0) << (a));
  node[1].basis = node[1].basis | ((by1) << (a));
  node[2].basis = node[2].basis | ((by2) << (a))
}

/* ---- acquire ---- */

inline begin(a, inEpoch) {
  attempt[a].epoch = inEpoch;
  attempt[a].since = inEpoch;
  attempt[a].state = running;
  attempt[a].floor = given;
  begun++
}

/* Acquires arrive late, too. Where one has no effect, it need not arrive. Without a key, an
 * attempt that is lost is as one that is lost later. */
#ifdef KEYS
#define mayArrive(a) (attempt[a].state != idle)
#define grants(a, n) (node[n].owner == 0 || node[n].owner == ownerOf(a))
#else
#define mayArrive(a) (attempt[a].state == running || over(a))
#define grants(a, n) (node[n].owner == 0 || node[n].owner == ownerOf(a) && attempt[a].state == running)
#endif

inline acquire(a, n, answered) {
  node[n].asked = node[n].asked | bitOf(a);
  if
  :: node[n].owner == 0 ->
     count(n, effective(n) + 1);
     node[n].owner = ownerOf(a);
     node[n].grant = number;
     setAttempts(n, bitOf(a))
  :: else ->
#ifdef KEYS
     if :: node[n].attempts != ALL -> node[n].attempts = node[n].attempts | bitOf(a) :: else fi
#else
     skip
#endif
  fi;
  if :: answered && attempt[a].state == running -> node[n].vote[a] = node[n].grant :: else fi
}

#define voted(a, n) (node[n].vote[a] != 0)

/* Rule 1: the token is the largest grant. */
inline decide(a) {
  attempt[a].token = larger(node[0].vote[a], larger(node[1].vote[a], node[2].vote[a]))
}

#ifdef NO_1
#define holds(a, n) (node[n].vote[a] != 0)
#else
#define holds(a, n) (node[n].vote[a] == attempt[a].token)
#endif

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
  node[n].vote[a] = attempt[a].token;
  if :: effective(n) < attempt[a].token -> count(n, attempt[a].token) :: else fi;
  if :: node[n].owner == ownerOf(a) -> node[n].grant = attempt[a].token :: else fi
}

inline forgetVotes(a) {
  attempt[a].floor = 0; attempt[a].late = 0;
  node[0].vote[a] = 0; node[1].vote[a] = 0; node[2].vote[a] = 0
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
  :: !attempt[a].late && !(keyed(ownerOf(a)) && attempt[a].token <= ending) -> believe(a, holds(a, 0), holds(a, 1), holds(a, 2))
  :: else
  fi;
  forgetVotes(a)
}

/* Rule 16: a retraction of an attempt that failed. Rule 3: others may count the vote. */
inline retract(a, n) {
#if defined(KEYS) && !defined(NO_3_RETRACT)
  node[n].attempts = node[n].attempts & ~bitOf(a);
  if :: node[n].attempts == 0 -> free(n) :: else fi
#else
  free(n)
#endif
}

inline abandon(a) {
  attempt[a].state = lost;
  attempt[a].token = 0;
#ifndef KEYS
  attempt[a].epoch = 0;
  clear(asked, a);
#endif
  forgetVotes(a)
}

/* ---- extend ---- */

inline beginExtend(a, inEpoch) {
  attempt[a].extEpoch = inEpoch;
  attempt[a].extending = 1;
  attempt[a].extends++;
  attempt[a].stale = (given > attempt[a].token || attempt[a].state == released || keyed(ownerOf(a)) && ended >= attempt[a].token)
}

#ifdef NO_3_EXTEND
#define extends_(a, n) (node[n].owner == ownerOf(a))
#else
#define extends_(a, n) (node[n].owner == ownerOf(a) && node[n].grant <= attempt[a].token)
#endif
/* Rule 5: it makes a lock again under its own test. */
#ifdef NO_5_AGAIN
#define again(a, n) true
#else
#define again(a, n) (effective(n) <= attempt[a].token)
#endif

inline extend(a, n) {
  node[n].extended = node[n].extended | bitOf(a);
  if
  :: node[n].owner == 0 -> node[n].owner = ownerOf(a); node[n].grant = attempt[a].token; setAttempts(n, ALL)
  :: else ->
#ifndef NO_3_COUNTS
     node[n].grant = attempt[a].token; setAttempts(n, ALL)
#else
     skip
#endif
  fi
}

#define extended_(a, n) has(node[n].extended, a)

inline extendEnds(a) {
  assert(!attempt[a].stale);
  if
  :: attempt[a].state == won && !(keyed(ownerOf(a)) && attempt[a].token <= ending) -> believe(a, extended_(a, 0), extended_(a, 1), extended_(a, 2))
  :: else
  fi;
  endRound(a)
}

/* ---- release ---- */

inline beginRelease(a) {
  attempt[a].state = releasing;
#ifdef KEYS
  if :: keyed(ownerOf(a)) -> ending = larger(ending, attempt[a].token) :: else fi;
#endif
  j = 0;
  do
  :: j < ACQUISITIONS -> if :: ownerOf(j) == ownerOf(a) && attempt[j].token <= attempt[a].token -> clear(basis, j) :: else fi; j++
  :: else -> break
  od;
  skip
}

#ifdef NO_3_RELEASE
#define ends(a, n) (node[n].owner == ownerOf(a))
#else
#define ends(a, n) (node[n].owner == ownerOf(a) && (!keyed(node[n].owner) || node[n].grant <= attempt[a].token))
#endif

/* Where a release is an answer, and moves the counter (rule 8). */
#ifdef NO_8_RELEASE
#define answersRelease(a, n) (node[n].admitted)
#else
#define answersRelease(a, n) (node[n].admitted && node[n].epoch >= attempt[a].since)
#endif

/* Whatever was there, the counter goes past the token (rule 5). */
#ifdef NO_5_RELEASE
#define passes(a, n) false
#else
#ifdef NO_5_OTHERS
#define passes(a, n) ((node[n].owner == 0 || ends(a, n)) && answersRelease(a, n) && effective(n) <= attempt[a].token)
#else
#define passes(a, n) (answersRelease(a, n) && effective(n) <= attempt[a].token)
#endif
#endif

#define counts(a, n) (answersRelease(a, n) && attempt[a].state == releasing && !attempt[a].late && !has(node[n].withdrawn, a))

/* It may arrive again, since servers repeat it. */
inline release(a, n) {
  if :: counts(a, n) -> node[n].withdrawn = node[n].withdrawn | bitOf(a) :: else fi;
  if :: passes(a, n) -> count(n, attempt[a].token + 1) :: else fi;
  if :: ends(a, n) -> free(n) :: else fi
}

#define withdrew(a, n) has(node[n].withdrawn, a)

inline releaseEnds(a) {
  attempt[a].state = released;
  clear(withdrawn, a);
#ifdef KEYS
  if :: keyed(ownerOf(a)) -> ended = larger(ended, attempt[a].token) :: else fi
#endif
}

/* ---- nodes ---- */

/* It may expire at any time, and does so when that matters: before the next step that sees it. */
inline expire(n) { lapse(n, ownedBy(node[n].owner)); outlive(n); free(n) }

inline restart(n) {
  losses++;
  node[n].admitted = 0;
  /* Rule 11 purges these before they are seen again. */
  node[n].epoch = 0; node[n].counter = 0; free(n);
  if :: node[n].joining -> joinLost = 1 :: else fi
}

inline lose(n) { restart(n); node[n].high = 0 }

/* Rule 13: it is admitted when no lease is valid by a vote that it gave. */
#ifdef NO_13
#define endQuarantine(n) skip
#elif defined(NO_12_LOST) /* those that missed a bootstrap may be a quorum, and grant meanwhile */
#define endQuarantine(n) if :: !node[n].admitted -> lapse(n, 7); outliveAll(n) :: else fi
#else
#define endQuarantine(n) lapse(n, 7); outliveAll(n)
#endif

inline endJoin() {
  joinEpoch = 0; joinHigh = 0; joinCounter = 0; joinOwner = 0; joinGrant = 0; joinLost = 0;
  node[0].joining = 0; node[1].joining = 0; node[2].joining = 0;
  node[0].read = 0; node[1].read = 0; node[2].read = 0;
  node[0].surveyed = 0; node[1].surveyed = 0; node[2].surveyed = 0
}

inline beginJoin(n) {
  node[n].joining = 1;
  endQuarantine(n);
#ifndef NO_9
  epochs++;
#endif
  joinEpoch = epochs
}

/* Rules 7 and 8: the reads of the high-water marks install the epoch. */
inline read_(n) {
  node[n].read = 1;
#ifndef NO_8_INSTALL
  node[n].epoch = joinEpoch;
#endif
  joinHigh = larger(joinHigh, node[n].high)
}
/* A node that missed a change of epoch is brought up to it. */
#define missed(n, o) (current(n) && current(o) && node[n].epoch < node[o].epoch)
#if LOSSES > 0
#define BRING_UP(n, o) :: d_step { missed(n, o) -> node[n].epoch = node[o].epoch }
#else
#define BRING_UP(n, o)
#endif

#ifdef NO_7
#define R 1
#else
#define R 2
#endif
#define readers (node[0].read + node[1].read + node[2].read)
#define surveys (node[0].surveyed + node[1].surveyed + node[2].surveyed)

/* Rule 21: counters and locks, after the epoch is installed. Of R reads the R-th smallest
 * counter is the largest. */
#ifdef NO_21_EPOCH
#define mayBeSurveyed(n) (!node[n].joining && current(n))
#else
#ifdef NO_8_INSTALL
#define mayBeSurveyed(n) (!node[n].joining && current(n) && readers >= R)
#else
#define mayBeSurveyed(n) (!node[n].joining && current(n) && node[n].epoch == joinEpoch && readers >= R)
#endif
#endif

#ifdef NO_21_MISSING
#define surveyedCounter(n) (node[n].counter)
#else
#define surveyedCounter(n) effective(n)
#endif

inline survey(n) {
  if
  :: surveys == 0 -> joinCounter = surveyedCounter(n); joinOwner = node[n].owner; joinGrant = node[n].grant
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
  node[n].surveyed = 1
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
  :: joinOwner && surveys >= 2 ->
     node[n].owner = joinOwner;
#ifdef NO_21_GRANT
     node[n].grant = joinGrant;
#else
     node[n].grant = larger(joinGrant, joinCounter);
#endif
     setAttempts(n, ALL)
  :: else
  fi;
  node[n].epoch = joinEpoch;
  node[n].admitted = 1;
  endJoin()
}

#ifdef NO_10
/* An admitter pauses, and wakes when others have admitted the node, and it was lost. */
byte pausedEpoch, pausedHigh, pausedCounter;
inline pause(n) {
  node[n].paused = 1;
  pausedEpoch = joinEpoch; pausedHigh = joinHigh; pausedCounter = joinCounter;
  endJoin()
}
inline wake(n) {
  endJoin();
  joinEpoch = pausedEpoch; joinHigh = pausedHigh; joinCounter = pausedCounter;
  admit(n);
  node[n].paused = 0; pausedEpoch = 0; pausedHigh = 0; pausedCounter = 0
}
#define PAUSE(n) \
  :: d_step { node[n].joining && readers >= R && surveys >= R && !pausedEpoch -> pause(n) } \
  :: d_step { node[n].paused && !node[n].admitted -> wake(n) }
#else
#define PAUSE(n)
#endif

/* Rule 12: a bootstrap of the nodes without admission, and of those that missed an earlier
 * one, but for one whose quarantine is not over. Its floor is above the clock or, where that was set back, the nodes' own marks. */
#define out(n) (!current(n))
#ifdef NO_12_LOST
#define LOST_NODES 1 /* the others do not answer */
#else
#define LOST_NODES 2
#endif

inline openNode(n, left) {
  if
  :: out(n) && n != left ->
     endQuarantine(n);
     free(n);
     node[n].counter = 0;
#ifdef NO_11_OWN
     node[n].high = 0;
#endif
#if defined(NO_12_FLOOR) || defined(CLOCK_BACK)
     skip;
#else
     node[n].high = larger(node[n].high, last + 1);
     assert(node[n].high < 15);
#endif
     opened = opened | bitOf(n)
  :: else
  fi
}

#ifdef BOOTSTRAPS
inline bootstrap(left) {
  endJoin();
  epochs++;
  opened = 0;
  openNode(0, left); openNode(1, left); openNode(2, left);
  bootstrapped = epochs;
  if :: has(opened, 0) -> node[0].admitted = 1; node[0].epoch = epochs :: else fi;
  if :: has(opened, 1) -> node[1].admitted = 1; node[1].epoch = epochs :: else fi;
  if :: has(opened, 2) -> node[2].admitted = 1; node[2].epoch = epochs :: else fi;
  opened = 0
}
#endif

#define BOOTSTRAP(left) :: d_step { (out(0) && left != 0) + (out(1) && left != 1) + (out(2) && left != 2) >= LOST_NODES && (currentNodes < 2 || LOST_NODES < 2) && bootstrapped < 4 -> bootstrap(left) }

/* ---- states that are alike become one ---- */

/* Epochs are never drawn twice: an acquire or an extend in one that no node is in, nor will
 * be, does not arrive any more. */
#define gone(e) (joinEpoch != (e) && !open(0, e) && !open(1, e) && !open(2, e))

#define isBefore(n, a) (node[n].admitted && node[n].epoch < attempt[a].since)

inline tidyVote(a, n) {
#if LOSSES > 0 && !defined(NO_8) && !defined(NO_9)
  if
  :: has(node[n].asked, a) && !open(n, attempt[a].epoch) -> node[n].asked = node[n].asked & ~bitOf(a)
  :: else
  fi;
#endif
  /* Once the token is known, it matters which grants are smaller, equal and larger. */
  if
  :: attempt[a].token && node[n].vote[a] ->
     node[n].vote[a] = (node[n].vote[a] < attempt[a].token -> 1 : smaller(node[n].vote[a], attempt[a].token + 1))
  :: else
  fi
}

inline tidy() {
#ifdef BOOTSTRAPS
  /* Where no bootstrap can come any more, the clock does not matter. */
  if
  :: N - currentNodes + LOSSES - losses < LOST_NODES -> last = 0
  :: else
  fi;
#endif
  j = 0;
  do
  :: j < begun ->
#if LOSSES > 0 && !defined(NO_8) && !defined(NO_9)
     if :: attempt[j].epoch && gone(attempt[j].epoch) -> attempt[j].epoch = 0 :: else fi;
     if :: attempt[j].since && !isBefore(0, j) && !isBefore(1, j) && !isBefore(2, j) -> attempt[j].since = 0 :: else fi;
     if
     :: attempt[j].extending && gone(attempt[j].extEpoch) && !quorum(extended_, j) -> endRound(j)
     :: else
     fi;
#endif
     tidyVote(j, 0); tidyVote(j, 1); tidyVote(j, 2);
     j++
  :: else -> break
  od;
  skip
}

#define SWAP(x, y) number = x; x = y; y = number

#define keyOf(n) (node[n].admitted | node[n].epoch << 1 | node[n].high << 5 | node[n].counter << 9 | node[n].owner << 13 | node[n].grant << 16 | node[n].asked << 20 | node[n].withdrawn << 23 | node[n].extended << 26)
#if ACQUISITIONS > 2
#define votesOf(n) (node[n].vote[0] << 6 | node[n].vote[1] << 10 | node[n].vote[2] << 14)
#elif ACQUISITIONS > 1
#define votesOf(n) (node[n].vote[0] << 6 | node[n].vote[1] << 10)
#else
#define votesOf(n) (node[n].vote[0] << 6)
#endif
#ifdef KEYS
#define moreOf(n) (node[n].basis | node[n].joining << 3 | node[n].read << 4 | node[n].surveyed << 5 | votesOf(n) | node[n].attempts << 18)
#else
#define moreOf(n) (node[n].basis | node[n].joining << 3 | node[n].read << 4 | node[n].surveyed << 5 | votesOf(n))
#endif

inline swapNodes(n, o) {
  SWAP(node[n].admitted, node[o].admitted);
  SWAP(node[n].epoch, node[o].epoch);
  SWAP(node[n].high, node[o].high);
  SWAP(node[n].counter, node[o].counter);
  SWAP(node[n].owner, node[o].owner);
  SWAP(node[n].grant, node[o].grant);
#ifdef KEYS
  SWAP(node[n].attempts, node[o].attempts);
#endif
  SWAP(node[n].asked, node[o].asked);
  SWAP(node[n].withdrawn, node[o].withdrawn);
  SWAP(node[n].extended, node[o].extended);
  SWAP(node[n].basis, node[o].basis);
  SWAP(node[n].joining, node[o].joining);
  SWAP(node[n].read, node[o].read);
  SWAP(node[n].surveyed, node[o].surveyed);
#ifdef NO_10
  SWAP(node[n].paused, node[o].paused);
#endif
  SWAP(node[n].vote[0], node[o].vote[0]);
#if ACQUISITIONS > 1
  SWAP(node[n].vote[1], node[o].vote[1]);
#endif
#if ACQUISITIONS > 2
  SWAP(node[n].vote[2], node[o].vote[2]);
#endif
  skip
}

inline sort(n, o, key, keyO, more, moreO) {
  if
  :: key < keyO || key == keyO && more < moreO ->
     swapNodes(n, o);
     key = key ^ keyO; keyO = key ^ keyO; key = key ^ keyO;
     more = more ^ moreO; moreO = more ^ moreO; more = more ^ moreO
  :: else
  fi
}

inline sortNodes() {
  key0 = keyOf(0); key1 = keyOf(1); key2 = keyOf(2);
  more0 = moreOf(0); more1 = moreOf(1); more2 = moreOf(2);
  sort(0, 1, key0, key1, more0, more1);
  sort(1, 2, key1, key2, more1, more2);
  sort(0, 1, key0, key1, more0, more1);
  key0 = 0; key1 = 0; key2 = 0; more0 = 0; more1 = 0; more2 = 0
}

#define known(field, a) (has(node[0].field, a) + has(node[1].field, a) + has(node[2].field, a))
#define keyOfAttempt(a) (attempt[a].state | attempt[a].token << 3 | attempt[a].floor << 7 | attempt[a].epoch << 11 | attempt[a].extending << 15 | attempt[a].extends << 16 | attempt[a].extEpoch << 18 | attempt[a].stale << 22 | attempt[a].late << 23 | known(asked, a) << 24 | known(extended, a) << 26 | known(basis, a) << 28)

#define swapBits(set, a, b) set = (set & ~(bitOf(a) | bitOf(b))) | has(set, a) << (b) | has(set, b) << (a)
#define swapOwner(o, a, b) o = (o == (a) + 1 -> (b) + 1 : (o == (b) + 1 -> (a) + 1 : o))
#define swapAt(n, a, b) \
  swapOwner(node[n].owner, a, b); \
  swapBits(node[n].asked, a, b); \
  swapBits(node[n].withdrawn, a, b); \
  swapBits(node[n].extended, a, b); \
  swapBits(node[n].basis, a, b); \
  SWAP(node[n].vote[a], node[n].vote[b])

inline sortAttempts(a, b) {
  key0 = keyOfAttempt(a); key1 = keyOfAttempt(b);
  if
  :: b < begun && key0 < key1 ->
     SWAP(attempt[a].state, attempt[b].state);
     SWAP(attempt[a].epoch, attempt[b].epoch);
     SWAP(attempt[a].since, attempt[b].since);
     SWAP(attempt[a].floor, attempt[b].floor);
     SWAP(attempt[a].token, attempt[b].token);
     SWAP(attempt[a].late, attempt[b].late);
     SWAP(attempt[a].extending, attempt[b].extending);
     SWAP(attempt[a].extends, attempt[b].extends);
     SWAP(attempt[a].extEpoch, attempt[b].extEpoch);
     SWAP(attempt[a].stale, attempt[b].stale);
     swapOwner(joinOwner, a, b);
     swapAt(0, a, b); swapAt(1, a, b); swapAt(2, a, b)
  :: else
  fi
}

inline sortAll() {
#if ACQUISITIONS > 1 && !defined(KEYS)
  sortAttempts(0, 1);
#if ACQUISITIONS > 2
  sortAttempts(1, 2);
  sortAttempts(0, 1);
#endif
#endif
  sortNodes()
}

/* For a trail to read: spin -t -DSHOW. */
#ifdef SHOW
#define showNode(n) printf("node %d: admitted %d epoch %d high %d counter %d lock %d/%d asked %d withdrawn %d extended %d basis %d votes %d %d join %d%d%d\n", n, node[n].admitted, node[n].epoch, node[n].high, node[n].counter, node[n].owner, node[n].grant, node[n].asked, node[n].withdrawn, node[n].extended, node[n].basis, node[n].vote[0], node[n].vote[ACQUISITIONS - 1], node[n].joining, node[n].read, node[n].surveyed)
#define showAttempt(a) printf("attempt %d: %e epoch %d floor %d token %d late %d extending %d in %d stale %d\n", a, attempt[a].state, attempt[a].epoch, attempt[a].floor, attempt[a].token, attempt[a].late, attempt[a].extending, attempt[a].extEpoch, attempt[a].stale)
#define show() printf("----\n"); showAttempt(0); showAttempt(1 % ACQUISITIONS); showAttempt(ACQUISITIONS - 1); showNode(0); showNode(1); showNode(2); printf("join: epoch %d high %d counter %d lock %d/%d\n", joinEpoch, joinHigh, joinCounter, joinOwner, joinGrant)
#else
#define show() skip
#endif

/* ---- what may happen ---- */

#define AT(event, a) :: event(a, 0) :: event(a, 1) :: event(a, 2)

#define MAY_ACQUIRE(a, n) mayArrive(a) && !has(node[n].asked, a) && open(n, attempt[a].epoch)
#define ACQUIRE(a, n) d_step { MAY_ACQUIRE(a, n) && grants(a, n) -> acquire(a, n, true) }
#define ACQUIRE_LOST(a, n) d_step { MAY_ACQUIRE(a, n) && grants(a, n) -> acquire(a, n, false) }
#define ACQUIRE_EXPIRED(a, n) d_step { MAY_ACQUIRE(a, n) && node[n].owner -> expire(n); acquire(a, n, true) }
#define ACQUIRE_EXPIRED_LOST(a, n) d_step { MAY_ACQUIRE(a, n) && node[n].owner -> expire(n); acquire(a, n, false) }
#define CONFIRM(a, n) d_step { attempt[a].state == running && attempt[a].token && node[n].vote[a] && node[n].vote[a] < attempt[a].token && open(n, attempt[a].epoch) && confirms(a, n) -> confirm(a, n) }
#define MAY_EXTEND(a, n) attempt[a].extending && !extended_(a, n) && open(n, attempt[a].extEpoch)
#define EXTEND(a, n) d_step { MAY_EXTEND(a, n) && (extends_(a, n) || node[n].owner == 0 && again(a, n)) -> extend(a, n) }
#define EXTEND_EXPIRED(a, n) d_step { MAY_EXTEND(a, n) && node[n].owner && again(a, n) -> expire(n); extend(a, n) }
#define RELEASE(a, n) d_step { (attempt[a].state == releasing || attempt[a].state == released) && (counts(a, n) || passes(a, n) || ends(a, n)) -> release(a, n) }

#ifdef KEYS
#define RETRACT(a, n) d_step { attempt[a].state == lost && node[n].owner == ownerOf(a) && node[n].attempts != ALL && has(node[n].attempts, a) -> retract(a, n) }
#define ABANDON(a) \
  :: d_step { attempt[a].state == running -> abandon(a) } \
  AT(RETRACT, a)
#else
/* Alone, an attempt that is abandoned is as one that never goes on, and a retraction as a
 * lock that expires. */
#define ABANDON(a)
#endif

#ifdef KEYS
#define mayBegin(a) (begun == (a) && ((a) != 1 || attempt[0].state != running && attempt[0].state != releasing))
#ifdef KEYED_EXTENDS
#define releases(a) keyed(ownerOf(a))
#else
#define releases(a) true
#endif
#define mayRelease(a) (attempt[a].state == won && releases(a) && ((a) != 0 || ACQUISITIONS < 2 || attempt[1].state != running))
#else
#define mayBegin(a) (begun == (a))
#define mayRelease(a) (attempt[a].state == won)
#endif

#ifdef LOST
#define LOST_ANSWERS(a) AT(ACQUIRE_LOST, a) AT(ACQUIRE_EXPIRED_LOST, a)
#else
#define LOST_ANSWERS(a)
#endif

/* In the epoch of any node, or of the rejoin under way: servers learn of epochs late. */
#if LOSSES > 0
#define IN_EPOCHS(event, a) \
  :: event(a, node[0].epoch, node[0].admitted) \
  :: event(a, node[1].epoch, node[1].admitted && node[1].epoch != node[0].epoch) \
  :: event(a, node[2].epoch, node[2].admitted && node[2].epoch != node[0].epoch && node[2].epoch != node[1].epoch) \
  :: event(a, joinEpoch, joinEpoch && node[0].epoch != joinEpoch && node[1].epoch != joinEpoch && node[2].epoch != joinEpoch)
#else
#define IN_EPOCHS(event, a) :: event(a, 1, true)
#endif
#define BEGIN(a, e, there) d_step { mayBegin(a) && (there) -> begin(a, e) }
#ifdef KEYED_EXTENDS
#define mayExtend(a) (keyed(ownerOf(a)) && over(a))
#else
#define mayExtend(a) over(a)
#endif
#define BEGIN_EXTEND(a, e, there) d_step { mayExtend(a) && !attempt[a].extending && attempt[a].extends < EXTENDS && (there) -> beginExtend(a, e) }

#define OF_ATTEMPT(a) \
  IN_EPOCHS(BEGIN, a) \
  AT(ACQUIRE, a) \
  AT(ACQUIRE_EXPIRED, a) \
  LOST_ANSWERS(a) \
  :: d_step { attempt[a].state == running && !attempt[a].token && quorum(voted, a) -> decide(a) } \
  AT(CONFIRM, a) \
  :: d_step { attempt[a].state == running && attempt[a].token && quorum(holds, a) -> win(a) } \
  ABANDON(a) \
  IN_EPOCHS(BEGIN_EXTEND, a) \
  AT(EXTEND, a) \
  AT(EXTEND_EXPIRED, a) \
  :: d_step { attempt[a].extending && attempt[a].extends < EXTENDS -> endRound(a) } \
  :: d_step { attempt[a].extending && quorum(extended_, a) -> extendEnds(a) } \
  :: d_step { mayRelease(a) -> beginRelease(a) } \
  AT(RELEASE, a) \
  :: d_step { attempt[a].state == releasing && !attempt[a].late && quorum(withdrew, a) -> releaseEnds(a) }

#ifdef BOOTSTRAPS
#define mayLose(n) (losses < LOSSES && node[n].admitted)
#else
#define mayLose(n) (losses < LOSSES && node[n].admitted && currentNodes == 3)
#endif

#ifdef CLOCK_BACK
#define LOSE(n)
#else
#define LOSE(n) :: d_step { mayLose(n) -> lose(n) }
#endif

#define OF_NODE(n) \
  :: d_step { node[n].counter -> node[n].counter = 0 } \
  LOSE(n) \
  :: d_step { mayLose(n) -> restart(n) } \
  :: d_step { !joinEpoch && !current(n) && currentNodes >= 2 -> beginJoin(n) } \
  :: d_step { joinEpoch && !node[n].joining && current(n) && !node[n].read -> read_(n) } \
  :: d_step { joinEpoch && mayBeSurveyed(n) && !node[n].surveyed -> survey(n) } \
  :: d_step { joinEpoch && mayBeSurveyed(n) && !node[n].surveyed && node[n].owner -> expire(n); survey(n) } \
  :: d_step { node[n].joining && readers >= R && surveys >= R && !joinLost -> admit(n) } \
  PAUSE(n)

init {
  d_step {
    epochs = 1;
    j = 0;
    do
    :: j < N -> node[j].admitted = 1; node[j].epoch = 1; j++
    :: else -> break
    od;
    j = 0
  }
  do
  :: atomic {
    if
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
    BRING_UP(0, 1) BRING_UP(1, 0) BRING_UP(0, 2) BRING_UP(2, 0) BRING_UP(1, 2) BRING_UP(2, 1)
    :: d_step { joinEpoch && (joinLost || currentNodes < 2) -> endJoin() }
#ifdef BOOTSTRAPS
    BOOTSTRAP(N) BOOTSTRAP(0) BOOTSTRAP(1) BOOTSTRAP(2)
#endif
    fi;
    d_step {
      tidy();
      show();
#ifndef NAMED
      sortAll();
#endif
      number = 0; j = 0
    }
  }
  od
}

/*
 * Rule 26 of docs/PROTOCOL.md, for spin to check to the end: the first start of servers that
 * may have different lists of node sets. L0, L1 and L2 are the servers' lists, as sums of
 * 1 (set A), 2 (B) and 4 (C); 0 is no server. -DNO_... switches a part of the rule off;
 * run.sh lists the configurations.
 *
 * A set is one node here, whose steps are atomic, as in sets.pml. Its map is 0 while it has no
 * data, the list under which it is shut and new, or OPEN and the list. The map without a name,
 * which a set that is alone has, is OPEN and its own list.
 *
 * What happens: a server looks at its sets one by one, at any time, so what it knows is old;
 * one that it cannot reach has been looked at, too. It bootstraps sets without data, opens
 * new ones, and grants the one resource on its home, which is the first of its list in an order
 * that is drawn. Leases end. -DLOSS: a set loses everything, once every server has seen the map
 * that it has: without that the rule does not notice everything, as the protocol says.
 *
 * What is checked: the resource has one valid lease at most.
 *
 * Left out: lists that have no set in common, whose servers no node can tell apart.
 */

#ifndef L2
#define L2 0
#endif
#ifndef SERVERS
#define SERVERS 2
#endif
#define SETS 3
#define OPEN 8
#define NONE 0

#define has(list, n) (((list) >> (n)) & 1)
#define alone(list) ((list) == 1 || (list) == 2 || (list) == 4)

byte map[SETS];
bit lock[SETS], valid[SETS];

typedef Seen {
  byte now[SETS];  /* the map at the last look */
  byte last[SETS]; /* the last map that it has shown */
  bit looked[SETS]
};
Seen seen[SERVERS];
byte list[SERVERS];
byte first, second; /* of the sets, for the home */
byte lost;

/* A map that this server does not know. */
#define foreign(me, n) (seen[me].last[n] != NONE && seen[me].last[n] != list[me] && seen[me].last[n] != OPEN + list[me])
#define theirs(me, n) (has(list[me], n) && foreign(me, n))
#define unseen(me, n) (has(list[me], n) && !seen[me].looked[n])

#define lookedAtAll(me) (!unseen(me, 0) && !unseen(me, 1) && !unseen(me, 2))
#ifdef NO_OTHER_LIST
#define otherList(me) false
#else
#define otherList(me) (theirs(me, 0) || theirs(me, 1) || theirs(me, 2))
#endif

/* Another set of the list shows that it is open, or all others that they are new. */
#define isOpen(me, n, k) ((k) != (n) && has(list[me], k) && seen[me].now[k] == OPEN + list[me])
#define isNew(me, n, k) ((k) == (n) || !has(list[me], k) || seen[me].now[k] == list[me])
#define anyNew(me, n, k) ((k) != (n) && has(list[me], k) && seen[me].now[k] == list[me])
#define oneOpen(me, n) (isOpen(me, n, 0) || isOpen(me, n, 1) || isOpen(me, n, 2))
#ifdef NO_ALL
#define known(me, n) (oneOpen(me, n) || anyNew(me, n, 0) || anyNew(me, n, 1) || anyNew(me, n, 2))
#else
#define known(me, n) (oneOpen(me, n) || (isNew(me, n, 0) && isNew(me, n, 1) && isNew(me, n, 2)))
#endif

#define home(l) (has(l, first) -> first : (has(l, second) -> second : 3 - first - second))
#ifdef NO_VOTES_MAP
#define votes(n, l) (map[n] != NONE)
#else
#define votes(n, l) (map[n] == OPEN + (l))
#endif

proctype Server(byte me) {
  byte n;
end:
  do
  :: atomic { /* it looks at a set, or fails to */
      if :: n = 0 :: n = 1 :: n = 2 fi;
      if
      :: has(list[me], n) ->
        seen[me].looked[n] = true;
        if
        :: seen[me].now[n] = map[n];
          if :: map[n] != NONE -> seen[me].last[n] = map[n] :: else fi
        :: seen[me].now[n] = NONE
        fi
      :: else
      fi;
      n = 0
    }
  :: atomic { /* it bootstraps a set, when all leases there have ended (rule 13) */
      if :: n = 0 :: n = 1 :: n = 2 fi;
      if
      :: has(list[me], n) && map[n] == NONE && !valid[n] && lookedAtAll(me) && !otherList(me) ->
#ifdef NO_NEW
        map[n] = OPEN + list[me];
#else
        map[n] = (alone(list[me]) -> OPEN + list[me] : list[me]);
#endif
        lock[n] = 0
      :: else
      fi;
      n = 0
    }
  :: atomic { /* it opens a new set, by compare-and-set */
      if :: n = 0 :: n = 1 :: n = 2 fi;
      if
      :: has(list[me], n) && map[n] == list[me] && !alone(list[me]) && known(me, n) -> map[n] = OPEN + list[me]
      :: else
      fi;
      n = 0
    }
  :: atomic { /* its vote arrives */
      n = home(list[me]);
      if
      :: votes(n, list[me]) && !lock[n] ->
        assert(!valid[0] && !valid[1] && !valid[2]); /* valid */
        lock[n] = 1; valid[n] = 1
      :: else
      fi;
      n = 0
    }
  od
}

/* What every server that has the set in its list has seen of it is the map that it has. */
#define aware(me, n) (!has(list[me], n) || seen[me].last[n] == map[n])

proctype Time() {
  byte n;
end:
  do
  :: atomic {
      if :: n = 0 :: n = 1 :: n = 2 fi;
      if :: valid[n] -> valid[n] = 0; lock[n] = 0 :: else fi;
      n = 0
    }
#ifdef LOSS
  :: atomic {
      if :: n = 0 :: n = 1 :: n = 2 fi;
      if
      :: lost < LOSS && map[n] != NONE && aware(0, n) && aware(1, n)
#if SERVERS > 2
        && aware(2, n)
#endif
        -> lost++; map[n] = NONE; lock[n] = 0
      :: else
      fi;
      n = 0
    }
#endif
  od
}

init {
  byte i;
  atomic {
    list[0] = L0; list[1] = L1;
#if SERVERS > 2
    list[2] = L2;
#endif
    if
    :: first = 0; second = 1
    :: first = 0; second = 2
    :: first = 1; second = 0
    :: first = 1; second = 2
    :: first = 2; second = 0
    :: first = 2; second = 1
    fi;
    do
    :: i < SERVERS -> run Server(i); i++
    :: else -> break
    od;
    run Time()
  }
}

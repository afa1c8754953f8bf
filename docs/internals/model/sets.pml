/*
 * Rule 30 of docs/PROTOCOL.md, for spin to check to the end: the node sets change, and one
 * resource moves from set A to set B. The sets have an order: A, B, or with -DB_FIRST
 * B, A, and with -DTHIRD another one before them. -DNO_... switches a part of the rule off;
 * run.sh lists the configurations.
 *
 * A set is one node here, whose steps are atomic: a quorum that is in one epoch is as one
 * (rules 8, 9 and 21, in fencelock.pml and the simulation).
 *
 * What happens: two clients acquire, extend and release, through servers that route by the
 * present map or by the next one, whatever the sets have; what they send arrives at any
 * time. A third one's lease, of an earlier stay of the resource on B, was released since,
 * and its lock was left there; that client extends it. OPERATORS apply the change or take
 * it back, and stop anywhere. Locks expire when nobody counts on them any more. -DLOSS: a
 * set loses everything and is bootstrapped, above all tokens (rule 12).
 *
 * What is checked: a token is larger than all that had been given when its acquire began,
 * and given once; no extend succeeds that began after a larger token was given, or after
 * the release was answered; two leases are not valid at once.
 *
 * Left out: what is read where nodes do not answer ("in doubt"), more resources, secrets,
 * and what the operators repeat. The simulation has these.
 */

#ifndef OPERATORS
#define OPERATORS 2
#endif
#define CLIENTS 3

#define A 0
#define B 1
#define C 2
#ifdef THIRD
#define SETS 3
#define FIRST C
#elif defined(B_FIRST)
#define SETS 2
#define FIRST B
#else
#define SETS 2
#define FIRST A
#endif

/* The maps. Each operator's moving map has a name of its own. */
#define PRESENT 0
#define NEXT 1
#define CLOSED 2
#define LOST 3 /* none: it has lost everything, and is not bootstrapped yet */
#ifdef NO_NAMES
#define MOVING(o) 4
#else
#define MOVING(o) (4 + (o))
#endif
#define isMoving(n) (set[n].map >= MOVING(0))

#define larger(x, y) ((x) > (y) -> (x) : (y))

typedef Set {
  byte map;      /* PRESENT */
  byte high;     /* the high-water mark */
  byte counter;  /* 0: missing */
  byte floor;    /* of the counter while the resource is not locked */
  byte owner;    /* of the lock: a client + 1; 0: none */
  byte grant
};

typedef Client {
  byte token;
  bit valid;     /* it may believe that it holds the lease */
  bit released   /* that was answered */
};

Set set[SETS];
Client client[CLIENTS];
byte given;      /* the largest token */
byte begun;      /* clients, in their order: they are alike */

hidden byte s, number; /* of a step; no part of a state */

#define seen(n) (set[n].counter -> set[n].counter : set[n].high)
#ifdef NO_FLOOR
#define effective(n) seen(n)
#else
#define effective(n) (set[n].owner == 0 && seen(n) < set[n].floor -> set[n].floor : seen(n))
#endif

#ifdef NO_MOVING /* then the present map is what a change begins from */
#define mine PRESENT
#else
#define mine MOVING(me)
#endif

#define at(by) ((by) == NEXT -> B : A)
#ifdef NO_VOTES_MAP
#define votes(n, by) true
#else
#define votes(n, by) (set[n].map == (by))
#endif
#ifdef NO_RELEASE_MAP
#define counts(n, by) true
#else
#define counts(n, by) (set[n].map == (by))
#endif

#define count(n, t) \
  number = (t); \
  set[n].counter = number; \
  set[n].high = larger(set[n].high, number)

#define free(n) set[n].owner = 0; set[n].grant = 0

#define route() if :: by = PRESENT :: by = NEXT fi

/* An extend, by a client that may have released its lease. */
inline extend() {
  atomic { route(); stale = given > client[me].token || client[me].released };
  atomic { /* it arrives */
    s = at(by);
    if
    :: votes(s, by) && set[s].owner == me + 1 -> assert(!stale) /* stale */
    :: votes(s, by) && set[s].owner == 0 && effective(s) <= client[me].token ->
      assert(!stale); /* stale */
      count(s, larger(effective(s), client[me].token));
      set[s].owner = me + 1; set[s].grant = client[me].token
    :: else
    fi;
    by = 0; stale = 0
  }
}

inline release() {
  atomic { /* it arrives */
    route();
    s = at(by);
    client[me].valid = false;
    if
    :: set[s].owner == me + 1 -> free(s)
    :: else
    fi;
    if
    :: counts(s, by) ->
      client[me].released = true;
      if
      :: effective(s) <= client[me].token -> count(s, client[me].token + 1)
      :: else
      fi
    :: else
    fi;
    by = 0
  }
}

proctype Earlier(byte me) { byte by; bit stale; extend() }

proctype Holder(byte me) {
  byte by, below;
  bit stale;

  atomic { begun == me - 1 -> begun = me; route(); below = given };
  atomic { /* the vote arrives */
    s = at(by);
    if
    :: votes(s, by) && set[s].owner == 0 ->
      count(s, effective(s) + 1);
      assert(number > below); /* floor */
      assert(number != client[0].token && number != client[1].token && number != client[2].token); /* token */
      assert(!client[1].valid && !client[2].valid); /* valid */
      set[s].owner = me + 1; set[s].grant = number;
      client[me].token = number; client[me].valid = true;
      given = larger(given, number);
      by = 0; below = 0
    :: else -> goto end
    fi
  };
#ifdef EXTENDS
  if
  :: extend() /* late, or before the release */
  :: release(); extend()
  fi;
#endif
  release();
end: skip
}

/* A set gets the moving map, unless it has the next one: then the change is decided. */
inline moving(n) {
  atomic {
    if
    :: set[n].map == LOST -> goto stop
    :: set[n].map == NEXT -> decided = true
    :: else -> set[n].map = MOVING(me)
    fi
  }
}

/* A set gets the last map, from the moving map of this operator alone. */
inline settle(n, name) {
  atomic {
    if
    :: set[n].map == name
    :: set[n].map != name && set[n].map == mine -> set[n].map = name
    :: else -> goto stop
    fi;
#ifdef NO_FLOOR_BACK
    if :: name == PRESENT -> floor = 0 :: else fi;
#endif
    set[n].floor = larger(set[n].floor, floor);
    set[n].high = larger(set[n].high, floor)
  }
}

/* All sets, the first before the others. */
inline settleAll(name) {
#ifndef NO_ORDER
  settle(FIRST, name);
#endif
  if
  :: true -> settle(A, name); settle(B, name)
  :: true -> settle(B, name); settle(A, name)
  fi
}

inline mayRead(n) {
  if
  :: set[n].map == mine
  :: else -> goto stop
  fi
}

inline readFloor() {
  atomic {
    if
    :: set[A].map == LOST || set[B].map == LOST -> goto stop
    :: else -> floor = larger(set[A].high, set[B].high)
    fi
  }
}

proctype Operator(byte me) {
  byte floor, counter, owner, grant;
  bit decided;

#ifndef NO_MOVING
#ifdef THIRD
  moving(C);
#endif
#ifdef B_FIRST
  moving(B);
  moving(A);
#else
  moving(A);
  moving(B);
#endif
#endif
  if
#ifdef NO_DECIDED
  :: true
#else
  :: decided -> goto finish
  :: !decided
#endif
  fi;
  if
  :: true -> goto takeBack
  :: true -> skip
  fi;

  /* All sets are read, each under that map. */
  atomic { mayRead(A); owner = set[A].owner; grant = set[A].grant; counter = effective(A) };
  atomic { mayRead(B) };
  atomic { /* the copy */
    mayRead(B);
    if
    :: owner != 0 ->
#ifndef NO_COPY
      set[B].owner = owner; set[B].grant = grant;
      count(B, counter)
#else
      skip
#endif
    :: else ->
#ifndef NO_DELETE
      if
      :: set[B].owner != 0 -> free(B); set[B].counter = 0
      :: else
      fi
#else
      skip
#endif
    fi
  };
finish: /* or what another operator has decided */
  readFloor();
  settleAll(NEXT);
  goto stop;

takeBack:
  readFloor();
  settleAll(PRESENT);
stop: skip
}

/* Leases end, and locks expire when nobody counts on them; a set may be lost. */
proctype Time() {
  byte n;
#ifdef LOSS
  byte lost, since;
#endif
end:
  do
  :: atomic { client[1].valid -> client[1].valid = false }
  :: atomic { client[2].valid -> client[2].valid = false }
  :: atomic { set[A].owner != 0 && !client[set[A].owner - 1].valid -> free(A) }
  :: atomic { set[B].owner != 0 && !client[set[B].owner - 1].valid -> free(B) }
#ifdef LOSS
  :: atomic { /* a set loses everything */
      lost == 0 && set[FIRST].map != PRESENT ->
      lost = 1;
      n = A;
      do :: n + 1 < SETS -> n++ :: break od;
      set[n].map = LOST; free(n); set[n].counter = 0; set[n].floor = 0; set[n].high = 0;
      since = 0;
      if :: isMoving(A) -> since = since | 1 :: else fi;
      if :: isMoving(B) -> since = since | 2 :: else fi
    }
  :: atomic { /* It is bootstrapped when every lease has ended that was there, and is not extended: */
      lost == 1 && !client[1].valid && !client[2].valid &&
      !((since & 1) && isMoving(A) && set[A].owner) && !((since & 2) && isMoving(B) && set[B].owner) ->
      lost = 2;
      /* its clock is above all tokens (rule 12). */
      set[n].high = larger(larger(set[A].high, set[B].high), given) + 1;
#ifdef NO_CLOSED
      set[n].map = PRESENT;
#else
      set[n].map = CLOSED;
#endif
      n = 0; since = 0
    }
#endif
  od
}

init {
  byte o;
  atomic {
    /* The resource was on B, with the token 1, and then on A, with tokens up to 3. */
    set[B].counter = 1; set[B].high = 1; set[B].owner = 1; set[B].grant = 1;
    client[0].token = 1; client[0].released = true;
    set[A].counter = 3; set[A].high = 3; given = 3;
    run Earlier(0);
    run Holder(1);
    run Holder(2);
    do
    :: o < OPERATORS -> run Operator(o); o++
    :: else -> break
    od;
    run Time()
  }
}

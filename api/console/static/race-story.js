// The story of the race: its steps in order, and the words for them. `fencelock demo` reads it, too, as JSON from
// the first brace to the last. A step with a question mark need not happen: B finds the lock held only if it
// asks before A's lease has expired. Under "thread" is what the console says, whose workers are threads.
export default {
  "title": "A lock is not enough: two workers, one account, a pause at the wrong moment",
  "lede": "Two workers deposit into the same account, each under the same lock. Worker A checks its lease and is stopped right before its write, until the lease has expired. Worker B takes the lock over and deposits. Then A continues, unaware of it, and writes.",
  "opening": 100,
  "deposits": { "A": 30, "B": 20 },
  "rounds": [
    {
      "title": "Round one: storage that takes every write",
      "storage": "a plain file",
      "want": 130,
      "good": "Round one: an update was lost.",
      "because": "The balance is {final}, but {sum} are {all}: B's deposit is gone.",
      "bad": "Round one did not lose an update as it should have.",
      "steps": [
        "A started", "A acquired", "A read", "A checked", "A stopped",
        "B started", "B held?", "A expired?", "B acquired", "B read", "B checked", "B wrote", "B released",
        "A continued", "A wrote", "A too-late"
      ],
      "thread": "a variable of this page"
    },
    {
      "title": "Round two: storage that checks the token",
      "storage": "a guarded record",
      "guarded": true,
      "want": 150,
      "good": "Round two: the late write was refused, and nothing was lost.",
      "because": "The balance is {final}: {sum}. A got 412 and began again.",
      "bad": "Round two did not protect the account as it should have.",
      "steps": [
        "A started", "A acquired", "A read", "A checked", "A stopped",
        "B started", "B held?", "A expired?", "B acquired", "B read", "B checked", "B wrote", "B released",
        "A continued", "A refused", "A acquired", "A read", "A checked", "A wrote", "A released"
      ],
      "thread": "a guarded record of this service"
    }
  ],
  "says": {
    "started": "starts as process {pid}",
    "held": "finds the lock held by {other} for another {left}, waits in the queue",
    "acquired": "has the lock: token {token}, good for {left}",
    "read": "reads the balance: {balance}",
    "read guarded": "claims the record with token {short} and reads: {balance}",
    "checked": "checks its lease before it writes: good for {left}",
    "stopped": "is stopped (SIGSTOP), as by a long garbage collection",
    "expired": "its lease expires, which it cannot know",
    "continued": "continues (SIGCONT), unaware of it",
    "wrote": "writes the balance: {balance}",
    "wrote guarded": "writes the balance with token {short}: {balance}",
    "refused": "writes with token {short}: 412 stale-token, {highest} has been seen",
    "released": "releases the lock",
    "too-late": "releases the lock: 404, its lease had expired"
  },
  "thread": {
    "note": "The workers are threads of this page. Their lock is a real one on this service, and both rounds run at once.",
    "started": "starts as a thread of this page",
    "stopped": "is stopped (its thread stands still), as by a long garbage collection",
    "continued": "continues, unaware of it"
  },
  "labels": {
    "wait": ["waits in the queue", "waits"],
    "stopped": ["stopped (SIGSTOP)", "stopped"],
    "refused": ["refused: 412 stale-token"],
    "overwritten": ["{other}'s deposit is overwritten"]
  },
  "recorded": "This is a recording of real processes over HTTP, made by fencelock demo. Both rounds are shown at once.",
  "again": "This time B did not deposit while A was stopped. Run it again.",
  "lesson": [
    ["The lock did its work, both times", "At no moment were two leases valid. A looked at its own right before it wrote. Between the look and the write it stood still, and it could not have known by itself."],
    ["The storage has to take part", "Every lease comes with a token larger than all before it. Storage that remembers the largest it has seen can tell a late write from a good one."],
    ["Claim before you read", "POST /guarded/… with Fencing-Token raises the mark first and reads then. What was read cannot be changed any more by anyone who had the lock before."]
  ]
};

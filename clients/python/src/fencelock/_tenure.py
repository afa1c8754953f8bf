"""The owners of a lease, so that no lease outlives its with statement."""

from __future__ import annotations

import math
import threading
import weakref
from typing import Any, Callable, List, Optional

from ._acquisition import Acquisition
from ._grant import Grant


class Owner(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to the object of a with statement. Nothing else in the client refers to that object, so it is
    gone when the statement is over, in whatever way that happened. A C function then reports it, which no exception
    can interrupt."""

    tenure: Optional["Tenure"] = None
    left = False  # the statement's exit has run


class Call:
    """The owner of a grant of ``acquire`` until ``acquire`` returns."""

    def _notify(self) -> None:
        """Does nothing: the caller has no lease yet that could be lost."""

    def _observer(self) -> Callable[[], object]:
        return self._notify


class Tenure:
    """Everything that the service may have for one acquisition, from before its first request until it certainly has
    nothing.

            asking ───granted───► held ───lost───► over
              │                    │                │
              │ failed, or         │ left by its last owner, or that owner is gone
              │ its owner is gone  │                │
              ▼                    ▼                ▼
            ending: cancelled under its key, or released ───► settled

    Invariant: a client knows every tenure that is not settled. It extends those that have an owner, and ends those that
    have none. An exception may come at any point: before the grant is known, in the block, or within the exit. All that
    it can do is remove the owner, which ends the lease. There is no step that it could skip."""

    def __init__(self, acquisition: Acquisition, owner: object, gone: Callable[[Any], object]) -> None:
        self.acquisition = acquisition
        self.grant: Optional[Grant] = None  # None until it is granted
        self.settled = False
        self.due = math.inf  # when its renewal continues; never while it is asking or ending
        self._counting = threading.Lock()
        self._gone = gone  # implemented in C
        self._owners: List[Owner] = []
        self._own(owner)

    def _own(self, owner: object) -> bool:
        mine = Owner(owner, self._gone)
        mine.tenure = self
        self._owners.append(mine)
        return True

    @property
    def owned(self) -> bool:
        """Whether a with statement works under the lease."""
        return any(not owner.left and owner() is not None for owner in self._owners)

    @property
    def orphaned(self) -> bool:
        """Whether nobody is left to end the lease: all owners are gone, including one that may have been leaving as
        the last."""
        return not self.settled and all(owner() is None for owner in self._owners)

    def owners(self) -> List[Any]:
        """The objects of the with statements that work under the lease."""
        alive = [owner() for owner in self._owners if not owner.left]
        return [each for each in alive if each is not None]

    def join(self, owner: object) -> bool:
        """Adds an owner. Returns False if the last one has left."""
        with self._counting: return self.owned and self._own(owner)

    def leave(self, owner: object) -> bool:
        """Removes an owner. Returns whether it was the last one, which must end the lease. The last one stays
        referenced until then."""
        with self._counting: return self._leave(owner)

    def _leave(self, owner: object) -> bool:
        for mine in [each for each in self._owners if each() is owner]:
            mine.left = True
            if self.owned:
                self._owners.remove(mine)
        return not self.owned

    def settle(self) -> None:
        """Records that the service has nothing any more."""
        self.settled, self._owners = True, []

"""How long the tries of a call may take."""

FIRST_PAUSE, MAX_PAUSE = 0.05, 1.0  # seconds between tries
ABANDON = 10.0  # seconds to end what a given-up request may have at the service
GRACE = 1.0  # seconds: how long after its wait an acquire may end, and how long a release at the end of a block may take

"""The one exception of this package."""


class TimingError(Exception):
    """A dump folder from which no time can be predicted; the message says why."""

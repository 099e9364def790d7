"""What can go wrong with a Mooncake master. None of these ever changes what is believed about its blocks."""

from indexer.errors import CacheIndexerError


class MasterError(CacheIndexerError):
    """Root: this poll of a master told nothing. The message names the URL."""


class MasterUnreachableError(MasterError):
    """Refused, reset, or no answer in time."""


class MasterNotServingError(MasterError):
    """It answers, but does not serve: a standby, or one that is starting (5xx)."""


class MasterAnswerError(MasterError):
    """An answer that no known Mooncake master gives; perhaps another program listens there."""

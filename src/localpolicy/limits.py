"""Numbers and names that several packages share, without importing each other, or torch."""

LARGEST_SEED = 2**32 - 1  # the largest that every generator accepts
NO_FILTER, UNKNOWN_FILTER = -1, -2  # in place of a filter's number: none; one whose items the log does not state
CONTEXT = "context"  # event of a row that is history only: no policy chose it, so it is never a target
NO_ANSWER = "none"  # event of an item that was shown and not answered
FALLBACK = "fallback"  # policy that a log names for lists drawn from popularity, if the policy failed to answer
SMOOTHING = 0.5  # added to every item's count in popularity, so that each can be shown and log p is finite
DAY = 86_400_000  # ms

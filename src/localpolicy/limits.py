"""Numbers and names that several rooms share: none needs to import another, or torch, for them."""

LARGEST_SEED = 2**32 - 1  # what every generator takes
NO_FILTER, UNKNOWN_FILTER = -1, -2  # in place of a filter's number: none; one whose items the log does not state
CONTEXT = "context"  # event of a row that is history only: no policy chose it, so it is never a target
NO_ANSWER = "none"  # event of an item that was shown and not answered

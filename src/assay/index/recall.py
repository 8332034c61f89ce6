"""How well a back end finds what exact search finds, measured on a sample after each build."""

from dataclasses import dataclass

from assay.records.codec import Record


@dataclass(frozen=True)
class Quality(Record):
    """The recall of a back end, as measured when it was built.

    Args:
        recall_at_10: share of the 10 exact nearest rows that it finds.
        finds_itself: share of the stored rows that it finds first, or at the same score as the
            first, when they are the query.
        queries: stored rows that were searched for.
        effort: how hard a search tries, of the back end's `efforts`; None: it has no choice.
    """

    recall_at_10: float
    finds_itself: float
    queries: int
    effort: int | None

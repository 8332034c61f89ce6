"""The study that several samplers are from."""

from assay.registry import Paper

REVISITING = Paper(
    "Revisiting Training Strategies and Generalization Performance in Deep Metric Learning",
    2020,
    "arxiv.org/abs/2002.08473",
)

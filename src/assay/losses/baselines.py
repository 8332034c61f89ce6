"""The baselines: features of a trunk without training. They have no loss and nothing to search.

`as_is` is what the user has already: the trunk's features or the given vectors in full width.
`pretrained` and `untrained` have as many dimensions as a trained embedding, by a PCA fitted on
trainval, never on the test half.
"""

from assay.fitters import pca
from assay.losses.loss import Method, methods
from assay.records.benches import AS_IS
from assay.space import Space

methods.add(
    Method(
        AS_IS,
        None,
        space=Space(),
        baseline=True,
        about="the trunk's features or the given vectors, all of them, no PCA",
    ),
    Method(
        "pretrained",
        None,
        space=Space(),
        fitter=pca,
        baseline=True,
        starts="pretrained",
        about=(
            "the pretrained trunk's features or the given vectors, reduced by a PCA to the"
            " protocol's dim"
        ),
    ),
    Method(
        "untrained",
        None,
        space=Space(),
        fitter=pca,
        baseline=True,
        starts="random",
        about="the features of a trunk with random weights, reduced by a PCA to the protocol's dim",
    ),
)

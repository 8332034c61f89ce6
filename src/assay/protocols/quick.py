"""`quick`: the whole procedure in minutes on two cores, for any small image set and for features.

    assay bench --data glyphs --protocol quick --methods contrastive,triplet

Cost of v2: 4 searches, each with 6 quasi-random trials on 1 fold and 1 reproduction on 4 folds, are
40 runs per method, about three seconds each on glyphs with one thread. Cost of v1: 5 trials and 3
reproductions of 4 folds are 32 runs. docs/protocols.md has the scores to expect.
"""

from dataclasses import replace

from assay.protocols.batch import Batch
from assay.protocols.protocol import Augment, Optimiser, Protocol

QUICK = Protocol(
    name="quick.v1",
    trunk="auto",
    dim=64,
    folds=4,
    batch=Batch(embedding=(8, 4), classification=(32, 1)),
    optimiser=Optimiser(lr=1e-3, momentum=0.9, weight_decay=1e-4),
    iterations=50,
    epochs=4,
    validate_every=2,
    patience=4,
    trials=5,
    startup=2,
    reproductions=3,
    threads=1,
    shrink_batch=True,
    departures=(
        (
            "follows no paper: a few hundred iterations of a small trunk from scratch, or of a head"
            " on the features of a frozen pretrained one, for trying things out"
        ),
        (
            "3 reproductions see only large differences; use --set reproductions=10 to tell close"
            " methods apart"
        ),
    ),
    about="minutes on two cores, images or features",
)

QUICK_V2 = replace(
    QUICK,
    name="quick.v2",
    about="4 searches, minutes on two cores",
    augment=Augment(flip=0.0),
    batch=Batch(embedding=None, classification=None),
    searches=4,
    search="quasi-random",
    trials=6,
    trial_folds=1,
    reproductions=1,
    optimiser=Optimiser(lr=None, weight_decay=1e-4, kind="adamw", schedule=None),
    iterations=None,
    shortest_epoch=None,
    epochs=None,
    validate_every=None,
    patience=None,
    departures=(
        (
            "follows no paper: a small trunk from scratch for three passes, which is far from"
            " converged, or a head on the features of a frozen pretrained one until its validation"
            " stops rising, for trying things out"
        ),
    ),
)

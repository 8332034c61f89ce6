"""Rho-regularisation at four probabilities of a swap, for two methods.

    assay bench --data glyphs --import examples/rho_values.py --out assay-runs/rho-contrastive \
        --methods rho_contrastive_00,rho_contrastive_10,rho_contrastive_20,rho_contrastive_40
    assay bench --data glyphs --import examples/rho_values.py --out assay-runs/rho-triplet \
        --methods rho_triplet_00,rho_triplet_10,rho_triplet_20,rho_triplet_40

Each method has the probability in percent in its name. It is fixed; all other parameters are
searched with the same budget, so that a difference is one of the probability at its best settings.
At 0 a method is distance-weighted sampling with one triplet for each anchor.
"""

from dataclasses import replace

from assay.methods import Space, methods

for name in ("rho_contrastive", "rho_triplet"):
    usual = methods[name]
    others = {one: range_ for one, range_ in usual.space.items() if one != "swap_probability"}
    for percent in (0, 10, 20, 40):
        methods.add(
            replace(
                usual,
                name=f"{name}_{percent:02d}",
                space=Space(**others),
                fixed={**usual.fixed, "swap_probability": percent / 100},
                about=f"{name} with {percent}% of negatives swapped for samples of the same class",
            )
        )

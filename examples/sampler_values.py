"""Two methods with five samplers, each searched by itself.

    assay bench --data glyphs --import examples/sampler_values.py --out assay-runs/samplers-triplet
        --methods triplet_balanced,triplet_spc_r,triplet_coreset,triplet_ddm,triplet_frd

and likewise with `contrastive_...`.

`assay sweep --vary sampler=...` runs the parameters that were chosen under one sampler with all of
them. Here each sampler has a search of its own with the same budget, so that verdicts are about
samplers at their best settings.
"""

from dataclasses import replace

from assay.methods import methods

for name in ("contrastive", "triplet"):
    for sampler in ("balanced", "spc_r", "coreset", "ddm", "frd"):
        about = f"{name} in batches of the sampler {sampler}"
        methods.add(replace(methods[name], name=f"{name}_{sampler}", sampler=sampler, about=about))

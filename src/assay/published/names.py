"""Names in the papers, and the names of Assay."""

import csv
from functools import cache
from importlib.resources import files

DATA = {"cub": "CUB200", "cars": "Cars196", "sop": "SOP"}
"""Our data sets by the names that the reality check has for them."""

REALITY_CHECK = {
    "Contrastive": "contrastive",
    "Triplet": "triplet",
    "NT-Xent": "nt_xent",
    "NTXent": "nt_xent",
    "ProxyNCA": "proxy_nca",
    "Margin": "margin",
    "Margin/class": "margin_per_class",
    "Margin / class": "margin_per_class",
    "N. Softmax": "normalized_softmax",
    "Normalized Softmax": "normalized_softmax",
    "CosFace": "cosface",
    "ArcFace": "arcface",
    "FastAP": "fastap",
    "SNR": "snr_contrastive",
    "SNR Contrastive": "snr_contrastive",
    "MS": "multi_similarity",
    "Multi Similarity": "multi_similarity",
    "MS+Miner": "multi_similarity_mined",
    "Multi Similarity + Miner": "multi_similarity_mined",
    "SoftTriple": "soft_triple",
    "Pretrained": "pretrained",
}
"""The reality check's methods; its tables and its list of parameters do not spell them alike."""

PARAMETERS = {
    "proxy lr": "weights_lr",
    "beta lr": "weights_lr",
    "weights lr": "weights_lr",
    "softmax_scale": "scale",
    "la": "scale",
    "init beta": "beta",
    "num_bins": "bins",
    "regularizer_weight": "regularisation",
    "reg_weight": "regularisation",
}
"""The reality check's parameters where we call them otherwise. Units agree: ArcFace's margin is in
degrees on both sides.
"""

UNBIASED = {
    "Triplet Semihard": "triplet_semihard_squared",
    "Lifted Struct": "lifted",
    "N-Pairs": "n_pairs",
    "Angular Loss": "angular_raw",
    "Margin Loss": "margin_distance_weighted",
    "Ranked List Loss": "ranked_list",
    "Struct Clust": "structured_clustering",
    "Prototype Loss": "prototypical",
    "Proxy-Triplet": "proxy_triplet",
    "Proxy-NCA": "proxy_nca_strict",
    "Proxy-Softmax": "proxy_softmax",
    "DREML": "dreml",
}
"""The methods of the unbiased evaluation."""

REVISITING = {
    "Angular": "angular",
    "ArcFace": "arcface",
    "GenLifted": "lifted_generalized",
    "Histogram": "histogram",
    "Multisimilarity": "multi_similarity_mined",
    "Margin (D) beta=1.2": "margin_distance_weighted",
    "N-Pair": "n_pairs",
    "Margin (D) beta=0.6": "margin_distance_weighted_near",
    "ProxyNCA": "proxy_nca_strict",
    "SoftTriple": "soft_triple",
    "Softmax (normalized)": "normalized_softmax",
    "Triplet (S)": "triplet_semihard",
    "R-Contrastive (D)": "rho_contrastive",
    "R-Margin (D) beta=1.2": "rho_margin",
    "R-SNR (D)": "rho_snr",
    "R-Triplet (D)": "rho_triplet",
}
"""The methods of the revisiting study that we have in the same form; (D), (R) and (H) name miners
that ours do not use.
"""


@cache
def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a packaged file."""
    text = (files("assay.published") / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))

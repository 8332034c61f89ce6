"""Settings of a protocol in words."""

from assay.protocols.resolve import ResolvedAugment


def describe_augment(augment: ResolvedAugment) -> str:
    """What is done to training images, in one line; every range is settled, none is `auto`.

    A preregistration holds the ranges as plain data:
    `describe_augment(ResolvedAugment(**resolved["augment"]))`.

    >>> describe_augment(ResolvedAugment(area=(0.4, 1.0), aspect=(0.75, 1.3333), flip=0.0, rotation=0.0, shear=0.0))
    'crops of 40-100% of the area, width over height from 0.75 to 1.33; no mirror images'
    >>> describe_augment(ResolvedAugment(area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.5, rotation=10.0, shear=0.0))
    'no crops, turned by up to 10 degrees; 50% are mirrored'
    """
    (least, most), (narrow, wide) = augment.area, augment.aspect
    parts = [
        (
            "no crops"
            if least == most == 1
            else f"crops of {100 * least:g}-{100 * most:g}% of the area"
        )
    ]
    if (narrow, wide) != (1, 1):
        parts.append(f"width over height from {narrow:.3g} to {wide:.3g}")
    parts += [
        f"{done} by up to {angle:g} degrees"
        for done, angle in (("turned", augment.rotation), ("sheared", augment.shear))
        if angle
    ]
    return (
        f"{', '.join(parts)};"
        f" {f'{100 * augment.flip:g}% are mirrored' if augment.flip else 'no mirror images'}"
    )

"""An image index: from a folder of images and a model to a search, its back ends, calibration and
export.
"""

"""The error for what the user can fix; the command line prints its message and exits with 2."""


class BadInput(ValueError):
    """A value, file or option that Assay cannot use; the message names it and the remedy."""

"""What the user can mend: the command line prints the message on one line and exits with 2."""


class BadInput(ValueError):
    """A value, file or option that Assay cannot use; the message names it and the remedy."""

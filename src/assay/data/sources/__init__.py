"""Kinds of data sets, one file for each: what `kind:path` reads, and how it is checked."""

"""Pages and HTTP interface over an index."""

"""Pages and HTTP interface over an index."""

from assay.web.app import create_app
from assay.web.server import serve
from assay.web.settings import Settings

__all__ = ["Settings", "create_app", "serve"]

"""The application: its routes, and what they answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from assay.files import read_bytes
from assay.hashing import digest_bytes
from assay.index import Index
from assay.version import __version__
from assay.web.asked import read_id
from assay.web.docs_page import render
from assay.web.documents import Answer, Facts, Health
from assay.web.gate import Gate
from assay.web.guard import Guard
from assay.web.metrics import TEXT
from assay.web.openapi import PROBLEMS, SEARCH_BODY, THUMBNAIL_ID, problems
from assay.web.refusal import Refusal, answer_json
from assay.web.service import Service
from assay.web.settings import Settings

STATIC = Path(__file__).parent / "static"

TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

DESCRIPTION = "Search for images in an index. Errors are JSON: what is wrong, and what to do."


def create_app(open_index: Callable[[], Index], settings: Settings) -> FastAPI:
    """Return the application, which opens the index at once; its `state.service` is the `Service`.

    Args:
        open_index: opens the present version of the index.
        settings: settings of the service.
    """
    service = Service(open_index, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watch())
        yield
        watching.cancel()
        await asyncio.wait([watching])
        service.close()

    app = FastAPI(
        title="Assay",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=PROBLEMS,
    )
    app.state.service = service
    guard = Guard(settings)

    def is_stopping() -> bool:
        return service.stopping

    app.add_middleware(Gate, guard=guard, metrics=service.metrics, is_stopping=is_stopping)
    _add_pages(app, service)
    _add_api(app, service)
    _add_errors(app, service)
    return app


def _add_api(app: FastAPI, service: Service) -> None:
    settings = service.settings

    @app.post(
        "/api/search",
        response_model=Answer,
        responses=problems(400, 404, 408, 413, 415, 503),
        openapi_extra={"requestBody": SEARCH_BODY},
    )
    async def search(request: Request) -> Response:
        """Search for the images that are most similar to an uploaded image, or to one of the index.

        Send a form with the file `image`, or JSON or a form with the `id` of an image of the index.
        """
        service.searches.check_room()
        kind = request.headers.get("content-type", "")
        async with service.uploads.reading(request, settings.seconds) as body:
            return await service.searches.run(lambda: service.answer(kind, body), settings.seconds)

    @app.get("/api/index", response_model=Facts, responses=problems(503))
    async def index() -> Response:
        """Describe the index that is served, and the limits of a request."""
        return answer_json(await service.pictures.run(service.facts, settings.seconds))

    @app.get("/api/health", response_model=Health, responses={503: {"model": Health}})
    async def health() -> Response:
        """Say whether the service works; its status is 503 while it shuts down."""
        found = service.health()
        return answer_json(found, 200 if found.ok else 503)

    @app.get(
        "/api/thumbnail",
        response_class=Response,
        responses={
            200: {"content": {"image/jpeg": {}}, "description": "A small JPEG."},
            304: {"description": "The client has it."},
            **problems(400, 404, 410, 503),
        },
        openapi_extra={"parameters": [THUMBNAIL_ID]},
    )
    async def thumbnail(request: Request) -> Response:
        """Return a small picture of an image of the index."""
        id_, known = read_id(request.query_params), request.headers.get("if-none-match")
        return await service.pictures.run(lambda: service.thumbnail(id_, known), settings.seconds)

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus's text."}},
    )
    async def metrics() -> Response:
        """Return counts and times of requests, for Prometheus."""
        text = service.metrics.text(service.gauges())
        return Response(text, headers={"content-type": TEXT, "cache-control": "no-store"})


def _add_pages(app: FastAPI, service: Service) -> None:
    files = {path.name: read_bytes(path) for path in sorted(STATIC.iterdir())}

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return _file("index.html", files["index.html"], request)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        origin = f"{request.url.scheme}://{request.headers['host']}"
        text = render(app.openapi(), origin, needs_token=service.settings.token is not None)
        return _file("docs.html", text.encode(), request)

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404)
        return _file(name, files[name], request)


def _add_errors(app: FastAPI, service: Service) -> None:
    """Let all errors be JSON with what is wrong and what to do."""
    reject = service.metrics.reject

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return error.response(reject)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:100]
        if error.status_code == 405:
            refusal = Refusal(405, f"{path} does not take {request.method}", "see /docs")
        elif error.status_code == 404:
            refusal = Refusal(404, f"there is no {path}", "see /docs")
        else:
            refusal = Refusal(error.status_code, error.detail, "see /docs")
        response = refusal.response(reject)
        response.headers.update(error.headers or {})
        return response


def _file(name: str, content: bytes, request: Request) -> Response:
    """Return a file of the page, or say that the browser has it."""
    tag = f'"{digest_bytes(content)[:32]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=TYPES[Path(name).suffix])

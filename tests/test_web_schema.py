"""What the OpenAPI document promises, tried by schemathesis: no request of it is a failure."""

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serving import FakeIndex, make_pictures, serving, with_settings

OPERATIONS = [
    ("POST", "/api/search"), ("GET", "/api/index"), ("GET", "/api/health"),
    ("GET", "/api/thumbnail"), ("GET", "/metrics"),
]  # fmt: skip

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    pictures = make_pictures(tmp_path_factory.mktemp("pictures"))
    index = FakeIndex(pictures, calibrated=True)
    with serving(lambda: index, with_settings(queue=1000)) as running:
        yield running


def try_operation(served, method, path, examples):
    """Send examples of an operation, valid and invalid ones; return how many were sent."""
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    operation = schema[path][method]
    sent = []
    with requests.Session() as session:
        for mode in modes_of(path):

            @hypothesis.settings(
                max_examples=examples, deadline=None, database=None,
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=operation.as_strategy(generation_mode=mode), ignored=st.text(max_size=50))
            def send(case, ignored):
                # An operation without parameters has one request: it is sent with others beside it.
                more = {} if len(modes_of(path)) > 1 else {"ignored": ignored}
                answer = case.call(session=session, params=more)
                sent.append(answer.status_code)
                case.validate_response(answer, checks=CHECKS)

            send()
    return sent


def modes_of(path):
    """Operations without parameters cannot be called in a wrong way."""
    if path in ("/api/search", "/api/thumbnail"):
        return [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    return [GenerationMode.POSITIVE]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_of_the_document_is_a_failure(served, method, path):
    sent = try_operation(served, method, path, 25)
    assert sent and max(sent) < 500


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_of_five_hundred_is_a_failure(served, method, path):
    sent = try_operation(served, method, path, 500)
    print(method, path, len(sent), {status: sent.count(status) for status in set(sent)})
    assert max(sent) < 500
    assert len(sent) >= 500


def test_the_document_names_all_operations(served):
    document = served.client.get("/openapi.json").json()
    found = {(method.upper(), path) for path, one in document["paths"].items() for method in one}
    assert found == set(OPERATIONS)


def test_a_planted_failure_is_found(served):
    """The check sees what it is for."""
    with served.service.index.using() as index:
        index.fail = RuntimeError("planted")
    try:
        with pytest.raises(BaseException, match=r"(?i)server error"):
            try_operation(served, "POST", "/api/search", 60)
    finally:
        index.fail = None

"""The service: what it finds, what it refuses, and that it stays up."""

import asyncio
import json
import logging
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from assay.cli.serve import serve as command
from assay.data.images import FORMATS, endings
from assay.errors import BadInput
from assay.hashing import digest_bytes
from assay.index import Index
from assay.index.calibration import TooFew
from assay.index.manifest import DamagedIndex
from assay.web import Settings, create_app
from assay.web.admission import Admission
from assay.web.asked import MOST_FILTERS
from assay.web.gate import HEADERS, POLICY
from assay.web.metrics import BOUNDS, Metrics
from assay.web.pictures import SIDE, Thumbnails, shrink
from assay.web.refusal import Refusal, without_path
from assay.web.served_index import ServedIndex
from assay.web.server import PatientProtocol
from serving import (
    FakeIndex,
    build_index,
    calibrate_index,
    draw,
    make_pictures,
    png,
    process,
    serving,
    wait_until,
    with_settings,
)

TOKEN = "a-secret-of-more-than-16-characters"
RED = png(draw("red", "disc", 7))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def served(pictures):
    with serving(lambda: FakeIndex(pictures, calibrated=True)) as running:
        yield running


def ids(response):
    assert response.status_code == 200, response.text
    return [match["id"] for match in response.json()["matches"]]


def check_problem(response, status, *words):
    """Check that an answer says in JSON what is wrong and what to do."""
    assert response.status_code == status, response.text
    problem = response.json()
    assert set(problem) == {"error", "remedy"} and all(problem.values())
    for word in words:
        assert word in json.dumps(problem), problem


# --- searching ------------------------------------------------------------------------------------


def test_an_upload_finds_images_of_the_same_thing_best_first(served):
    response = served.search(RED, k=6)
    matches = response.json()["matches"]
    assert {match["words"]["colour"] for match in matches} == {"red"}
    assert [match["rank"] for match in matches] == [1, 2, 3, 4, 5, 6]
    scores = [match["score"] for match in matches]
    assert scores == sorted(scores, reverse=True) and response.json()["more"]
    assert all(0 <= match["confidence"] <= 1 for match in matches)


def test_matches_are_those_of_the_index_itself(served, pictures):
    pixels = np.asarray(Image.open(BytesIO(RED)))
    expected = FakeIndex(pictures).search(pixels, 24)
    assert ids(served.search(RED, k=24)) == [match.id for match in expected.matches]


def test_an_image_of_the_index_as_query_is_left_out_itself(served):
    found = ids(served.search(id="blue/disc 0.png", k=30))
    assert len(found) == 23 and "blue/disc 0.png" not in found
    as_json = served.client.post("/api/search", json={"id": "blue/disc 0.png", "k": 30})
    assert ids(as_json) == found


def test_pages_follow_each_other_without_gap_or_overlap(served):
    whole = ids(served.search(RED, k=24))
    answers = [served.search(RED, k=7, skip=skip) for skip in range(0, 24, 7)]
    assert [id_ for answer in answers for id_ in ids(answer)] == whole
    assert [answer.json()["more"] for answer in answers] == [True, True, True, False]
    assert ids(served.search(RED, k=7, skip=24)) == []


def test_ranks_go_on_over_pages(served):
    assert [m["rank"] for m in served.search(RED, k=2, skip=4).json()["matches"]] == [5, 6]


def test_filters_join_words_of_a_column_by_or_and_columns_by_and(served):
    found = ids(served.search(RED, k=30, where=["colour=gold", "colour=blue", "shape=disc"]))
    assert len(found) == 6
    assert all(re.match("(gold|blue)/disc", id_) for id_ in found)
    as_json = {"id": "red/disc 0.png", "where": ["colour=gold", "shape=disc"]}
    assert len(ids(served.client.post("/api/search", json=as_json))) == 3


def test_filters_are_read_as_on_the_command_line(served):
    plain = ids(served.search(RED, k=30, where=["colour=gold"]))
    assert ids(served.search(RED, k=30, where=[" colour = gold "])) == plain
    shown = served.search(RED, where=["=gold"])
    check_problem(shown, 400, "a column")
    assert "--where" not in shown.text


def test_as_many_filters_as_the_document_says_are_taken(served):
    schema = served.client.get("/openapi.json").json()["paths"]["/api/search"]["post"]
    for content in schema["requestBody"]["content"].values():
        assert content["schema"]["properties"]["where"]["maxItems"] == MOST_FILTERS
    where = ["colour=gold"] * MOST_FILTERS
    fields = {
        "id": "red/disc 0.png", "where": where, "k": 5, "skip": 0, "min_score": -1,
        "min_precision": 0.1,
    }  # fmt: skip
    assert ids(served.search(**fields))
    assert ids(served.search(RED, where=where))
    assert ids(served.client.post("/api/search", json=fields))
    fields["where"] = [*where, "colour=red"]
    for answer in (
        served.search(**fields),
        served.search(RED, where=fields["where"]),
        served.client.post("/api/search", json=fields),
    ):
        check_problem(answer, 400, f"more than {MOST_FILTERS}")


def test_a_precision_that_no_match_reaches_gives_no_match(served):
    answer = served.search(png(draw("gold", "disc", 5)), where="colour=blue", min_precision=0.999)
    assert ids(answer) == [] and answer.json()["more"] is False


def test_a_precision_is_refused_with_the_remedy_where_the_index_is_not_calibrated(pictures):
    with serving(lambda: FakeIndex(pictures)) as served:
        check_problem(served.search(RED, min_precision=0.9), 400, "calibrated", "assay calibrate")
        assert served.search(RED).json()["matches"][0]["confidence"] is None


def test_a_precision_that_so_few_classes_cannot_show_is_refused_with_the_reason(pictures):
    index = FakeIndex(pictures, calibrated=True)
    with serving(lambda: index) as served:
        index.fail = TooFew("0.99 cannot be shown from 9 classes; give at least 344, or less")
        answer = served.search(RED, min_precision=0.99)
        check_problem(answer, 400, "with so few classes", "lower precision", "at least 344")


def test_matches_below_the_least_score_are_left_out(served):
    whole = served.search(RED, k=24).json()["matches"]
    least = (whole[0]["score"] + whole[-1]["score"]) / 2
    kept = [match["id"] for match in whole if match["score"] > least]
    assert ids(served.search(RED, k=24, min_score=least)) == kept and 0 < len(kept) < 24
    as_json = {"id": "red/disc 0.png", "k": 24}
    document = served.client.post("/api/search", json=as_json).json()
    kept = [match["id"] for match in document["matches"] if match["score"] > least]
    answer = served.client.post("/api/search", json={**as_json, "min_score": least})
    assert ids(answer) == kept and 0 < len(kept) < 23


def test_facts_say_which_precisions_can_be_asked_for_and_why_not(pictures):
    index = FakeIndex(pictures, calibrated=True)
    index.unshown = {
        0.9: BadInput("/home/somebody/birds-index has no class for most of its images; say it"),
        0.95: TooFew("9 classes are too few; give more"),
        0.99: np.inf,
    }
    with serving(lambda: index) as served:
        found = served.client.get("/api/index").json()["precisions"]
        problems = {one["precision"]: one["problem"] for one in found}
    assert list(problems) == [0.8, 0.9, 0.95, 0.99] and problems[0.8] is None
    assert "not known how many" in problems[0.9]
    assert problems[0.95] == "this index is calibrated on too few classes for this precision"
    assert "sure enough" in problems[0.99]
    with serving(lambda: FakeIndex(pictures)) as served:
        assert served.client.get("/api/index").json()["precisions"] == []


def test_facts_of_a_real_index_agree_with_its_searches(pictures, tmp_path):
    """What is offered is answered; what is not offered is refused, or finds nothing."""
    folder = calibrate_index(build_index(pictures, tmp_path / "shapes"))
    with serving(lambda: Index.open(folder)) as served:
        precisions = served.client.get("/api/index").json()["precisions"]
        assert len(precisions) == 4
        for one in precisions:
            answer = served.search(RED, min_precision=one["precision"])
            if one["problem"] is None:
                assert answer.status_code == 200
            elif answer.status_code == 200:
                assert ids(answer) == []
            else:
                check_problem(answer, 400)
        assert {one["problem"] is None for one in precisions} == {True, False}


def test_bad_input_that_names_no_remedy_still_has_one(pictures):
    index = FakeIndex(pictures)
    with serving(lambda: index) as served:
        index.fail = BadInput("it cannot be searched so")
        check_problem(served.search(RED), 400, "searched so", "change the request")


def test_an_index_of_vectors_is_searched_by_id_only(pictures):
    with serving(lambda: FakeIndex(pictures, takes="vectors")) as served:
        check_problem(served.search(RED), 400, "vectors", "id")
        assert ids(served.search(id="red/disc 0.png"))


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_turned_photograph_is_searched_upright(pictures, orientation):
    seen = []

    class Watching(FakeIndex):
        def search(self, query, k=10, **options):
            seen.append(query)
            return super().search(query, k, **options)

    upright = Image.new("RGB", (60, 30), "#d22")
    upright.paste("#25d", (0, 0, 10, 10))
    turn = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90,
            8: Image.Transpose.ROTATE_270}[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = png(upright if turn is None else upright.transpose(turn), exif=exif)
    with serving(lambda: Watching(pictures)) as served:
        assert served.search(content).status_code == 200
    assert np.array_equal(seen[-1], np.asarray(upright))


@pytest.mark.parametrize("format_", [name for name in FORMATS if name != "HEIF"])
def test_every_format_is_read(served, format_):
    stream = BytesIO()
    draw("green", "square", 3).save(stream, format_)
    assert ids(served.search(stream.getvalue(), k=1, name="picture"))[0].startswith("green/")


def test_an_animation_is_searched_by_its_first_picture(served):
    stream = BytesIO()
    draw("blue", "disc", 1).save(
        stream, "GIF", save_all=True, append_images=[draw("red", "disc", 1)] * 3
    )
    assert ids(served.search(stream.getvalue(), k=1))[0].startswith("blue/")


# --- what is refused ------------------------------------------------------------------------------

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"hello", "not a format"),
        (SVG, "not a format"),
        (RED[: len(RED) // 2], "cannot be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a format"),
    ],
)
def test_what_is_no_image_is_refused(served, content, words):
    check_problem(served.search(content, name="owl.png"), 400, words, "owl.png", "JPEG")


@pytest.mark.skipif(".heic" in endings(), reason="the reader of HEIC is installed")
@pytest.mark.parametrize("name", ["owl.heic", "owl.HEIF"])
def test_heic_without_its_reader_is_refused_in_words_for_a_visitor(served, name):
    content = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200)
    answer = served.search(content, name=name)
    check_problem(answer, 400, name, "does not read", "save it as JPEG")
    assert "pip" not in answer.text


def test_facts_have_the_endings_of_the_formats_that_are_read(served):
    found = served.client.get("/api/index").json()["endings"]
    assert set(found) == endings() and found == sorted(found)


def header_of(width, height):
    """Return a PNG whose header promises pixels that never come."""
    content = bytearray(png(Image.new("RGB", (1, 1))))
    content[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    import zlib

    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize(("width", "height"), [(40_000, 40_000), (10_000, 9_000), (8_000, 7_000)])
def test_an_enormous_image_is_refused_by_its_header(served, monkeypatch, width, height):
    def decode(content, path):
        pytest.fail("its pixels were unpacked")

    monkeypatch.setattr("assay.web.pictures.decode_image", decode)
    check_problem(served.search(header_of(width, height)), 413, "50,000,000 pixels")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"k": "3"}, "not both"),
        ({"id": "a", "k": "0"}, "'k'"),
        ({"id": "a", "k": "201"}, "from 1 to 200"),
        ({"id": "a", "k": "ten"}, "'k'"),
        ({"id": "a", "k": "١٠"}, "'k'"),
        ({"id": "a", "k": ["1", "2"]}, "given 2 times"),
        ({"id": "a", "skip": "-1"}, "'skip'"),
        ({"id": "a", "skip": "9001"}, "'skip'"),
        ({"id": "a", "min_precision": "1"}, "min_precision"),
        ({"id": "a", "min_score": "inf"}, "'min_score' is not a finite number"),
        ({"id": "a", "min_score": "high"}, "'min_score' is not a finite number"),
        ({"id": "a", "min_precision": "nan"}, "min_precision"),
        ({"id": "a", "where": "colour"}, "the filter 'colour' lacks an ="),
        ({"id": "a", "where": "colour= "}, "column=word, such as colour=red"),
        ({"id": "a", "where": ["colour=red"] * (MOST_FILTERS + 1)}, "more than 300"),
        ({"id": "red/disc 0.png", "where": "taste=sweet"}, "no column 'taste'"),
        ({"id": "a", "depth": "3"}, "no field 'depth'"),
        ({"id": "a\0b"}, "texts"),
        ({"id": "a" * 5000}, "4096"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused(served, fields, words):
    check_problem(served.search(**fields), 400, words)


def test_an_image_that_is_no_file_is_refused(served):
    check_problem(served.client.post("/api/search", data={"image": "owl.png"}), 400, "not a file")
    files = {"picture": ("a.png", RED)}
    check_problem(served.client.post("/api/search", files=files), 400, "not named 'image'")
    files = [("image", ("a.png", RED)), ("image", ("b.png", RED))]
    check_problem(served.client.post("/api/search", files=files), 400, "2 images")
    files = {"image": ("a.png", RED)}
    both = served.client.post("/api/search", files=files, data={"id": "red/disc 0.png"})
    check_problem(both, 400, "not both")


@pytest.mark.parametrize(
    "body",
    [
        "", "{", "[]", "null", '{"id": 3}', '{"id": null}', '{"id": "a", "k": true}',
        '{"id": "a", "k": 1.5}', '{"id": "a", "k": 1e400}', '{"id": "a", "where": "colour=red"}',
        '{"id": "a", "where": [3]}', '{"id": ["a"]}', '{"id": "\\ud800"}', '{"id": NaN}',
        '{"id": "a", "min_precision": true}', '{"id": "a", "image": "b"}', "[" * 50_000,
        '{"id": "a", "k": 123456789012345678901234567890}', "\xff",
        '{"id": "a", "min_score": 1e400}', '{"id": "a", "min_score": [0]}',
        '{"id": "a", "min_score": false}',
    ],
)  # fmt: skip
def test_json_that_makes_no_sense_is_refused(served, body):
    headers = {"content-type": "application/json"}
    content = body.encode("latin-1")
    check_problem(served.client.post("/api/search", content=content, headers=headers), 400)


@pytest.mark.parametrize("name", ["k", "skip", "min_score", "min_precision"])
def test_a_text_in_json_is_no_number(served, name):
    answer = served.client.post("/api/search", json={"id": "red/disc 0.png", name: "2"})
    check_problem(answer, 400, f"'{name}' is a text, not a number")


def test_an_unknown_id_is_not_found(served):
    check_problem(served.search(id="red/../red/disc 0.png"), 404, "no image with this id")
    check_problem(served.client.get("/api/thumbnail", params={"id": "../secret"}), 404)


def test_a_body_of_another_type_is_refused(served):
    for kind in ("text/plain", "image/png", "", "application/xml; charset=utf-8"):
        answer = served.client.post("/api/search", content=RED, headers={"content-type": kind})
        check_problem(answer, 415, "multipart/form-data")


def test_other_methods_and_addresses_are_refused(served):
    check_problem(served.client.get("/api/search"), 405, "GET")
    assert "POST" in served.client.get("/api/search").headers["allow"]
    check_problem(served.client.delete("/api/health"), 405)
    check_problem(served.client.get("/nothing"), 404, "/nothing")
    for path in ("/static/../app.py", "/static/..%2Fapp.py", "/static/%2e%2e/app.py", "/static/"):
        assert served.client.get(path).status_code == 404
    check_problem(served.client.get("/api/thumbnail"), 400, "id")


def test_an_upload_that_says_it_is_too_large_is_refused_before_it_is_read(pictures):
    with serving(lambda: FakeIndex(pictures), with_settings(most_bytes=10_000)) as served:
        head = (
            f"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
            "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 999999999999\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", served.port), 5) as connection:
            connection.sendall(head.encode())
            assert b" 413 " in connection.recv(1000).split(b"\r\n")[0]


def test_an_upload_that_turns_out_too_large_is_refused_while_it_is_read(pictures):
    sent = 0

    def endless():
        nonlocal sent
        yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        while sent < 200_000_000:
            sent += 100_000
            yield bytes(100_000)

    with serving(lambda: FakeIndex(pictures), with_settings(most_bytes=10_000)) as served:
        headers = {"content-type": "multipart/form-data; boundary=x"}
        with socket.create_connection(("127.0.0.1", served.port), 5) as connection:
            head = (
                f"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
                f"Content-Type: {headers['content-type']}\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            connection.sendall(head.encode())
            for part in endless():
                connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
                if sent >= 1_000_000:
                    break
            assert b" 413 " in connection.recv(1000).split(b"\r\n")[0]
        assert served.service.uploads.held == 0


def test_uploads_together_are_bounded(pictures):
    with serving(lambda: FakeIndex(pictures), with_settings(most_bytes=1_000_000)) as served:
        served.service.uploads.most_together = 300_000
        answer = served.search(bytes(500_000))
        check_problem(answer, 503, "too many uploads")
        assert answer.headers["retry-after"] == "1"
        assert served.service.uploads.held == 0


# --- room and time --------------------------------------------------------------------------------


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(pictures):
    index = FakeIndex(pictures)
    with serving(lambda: index, with_settings(workers=1, queue=1)) as served:
        with ThreadPoolExecutor(2) as pool, index.holding():
            admitted = [pool.submit(served.search, RED) for _ in range(2)]
            wait_until(lambda: served.service.searches.is_full)
            for _ in range(4):
                answer = served.search(RED)
                check_problem(answer, 503, "queue is full")
                assert answer.headers["retry-after"] == "1"
            assert not any(one.done() for one in admitted)
        assert [one.result().status_code for one in admitted] == [200, 200]
        assert served.search(RED).status_code == 200
        assert 'assay_rejected_total{reason="queue_full"} 4' in served.client.get("/metrics").text


def test_a_search_that_takes_too_long_is_given_up_and_keeps_its_place(pictures):
    index = FakeIndex(pictures)
    with serving(lambda: index, with_settings(workers=1, queue=0, seconds=1)) as served:
        with index.holding():
            answer = served.search(RED)
            check_problem(answer, 503, "longer than 1 s")
            assert answer.headers["retry-after"]
            check_problem(served.search(RED), 503, "queue is full")  # the thread still works
        wait_until(lambda: not served.service.searches.taken)
        assert served.search(RED).status_code == 200


def test_work_that_waits_too_long_is_never_done():
    async def overload():
        admission = Admission("test", 1, 5)
        go_on, done = threading.Event(), []
        first = asyncio.create_task(admission.run(lambda: go_on.wait(60), 60))
        await asyncio.sleep(0)  # lets the task begin
        with pytest.raises(Refusal, match=r"longer than 0.1 s"):
            await admission.run(lambda: done.append("given up"), 0.1)
        go_on.set()
        await first
        await admission.run(lambda: done.append("after it"), 60)
        admission.close()
        return done, admission.taken

    assert asyncio.run(overload()) == (["after it"], 0)


def test_work_that_comes_after_the_end_takes_no_place():
    async def come_late():
        admission = Admission("test", 1, 0)
        admission.close()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await admission.run(lambda: None, 60)
        return admission.taken

    assert asyncio.run(come_late()) == 0


def test_an_error_of_the_work_frees_its_place():
    async def fail():
        admission = Admission("test", 1, 0)
        for error in (KeyError("x"), TimeoutError("of the work itself")):
            with pytest.raises(type(error)):
                await admission.run(lambda error=error: (_ for _ in ()).throw(error), 5)
        admission.close()
        return admission.taken

    assert asyncio.run(fail()) == 0


def test_a_slow_search_does_not_stop_other_requests(pictures):
    index = FakeIndex(pictures)
    with serving(lambda: index) as served:
        before = index.searches
        with ThreadPoolExecutor(1) as pool, index.holding():
            searching = pool.submit(served.search, RED)
            wait_until(lambda: index.searches > before)
            for path in ("/api/health", "/metrics", "/", "/static/app.js", "/docs"):
                assert served.client.get(path).status_code == 200
            assert not searching.done()
        assert searching.result().status_code == 200


def post_slowly(served, content, head_only=False):
    connection = socket.create_connection(("127.0.0.1", served.port), 10)
    head = (
        f"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
        f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {len(content)}\r\n"
    )
    connection.sendall(head.encode() + (b"" if head_only else b"\r\n"))
    return connection


def test_a_slow_upload_holds_no_place_and_is_given_up(pictures):
    settings = with_settings(workers=1, queue=0, seconds=2)
    with serving(lambda: FakeIndex(pictures), settings) as served:
        slow = post_slowly(served, bytes(50_000))
        with slow:
            slow.sendall(b"--x\r\n")
            wait_until(lambda: served.service.uploads.held)
            assert served.search(RED).status_code == 200  # its only place is free
            assert b" 408 " in slow.recv(1000).split(b"\r\n")[0]
        assert served.service.uploads.held == 0


def test_a_client_that_leaves_during_its_upload_does_no_harm(served):
    for _ in range(5):
        with post_slowly(served, bytes(50_000)) as leaving:
            leaving.sendall(bytes(1000))
            wait_until(lambda: served.service.uploads.held)
        wait_until(lambda: not served.service.metrics.in_flight)
        assert served.service.uploads.held == 0
    assert served.search(RED).status_code == 200


def send_drops(connection, letter):
    """Send a letter now and then, for much longer than a service waits."""
    for _ in range(300):
        connection.sendall(letter)
        time.sleep(0.1)


class Impatient(PatientProtocol):
    head_seconds, unread_seconds = 0.5, 0.5


class Small(PatientProtocol):
    most_connections = 20


def test_a_head_that_comes_drop_by_drop_is_given_up(pictures):
    with serving(lambda: FakeIndex(pictures), protocol=Impatient) as served:
        slow = post_slowly(served, b"", head_only=True)
        with slow, pytest.raises(ConnectionError):
            send_drops(slow, b"x")
        silent = socket.create_connection(("127.0.0.1", served.port), 30)
        with silent:
            assert silent.recv(1) == b""  # closed
        assert served.search(RED).status_code == 200


def test_a_head_after_an_answer_has_the_same_time(pictures):
    with serving(lambda: FakeIndex(pictures), protocol=Impatient) as served:
        host = f"Host: 127.0.0.1:{served.port}\r\n"
        connection = socket.create_connection(("127.0.0.1", served.port), 5)
        with connection:
            connection.sendall(f"GET /api/health HTTP/1.1\r\n{host}\r\n".encode())
            assert b" 200 " in connection.recv(5000)
            with pytest.raises(ConnectionError):
                send_drops(connection, b"G")


def test_connections_are_bounded(pictures):
    with serving(lambda: FakeIndex(pictures), protocol=Small) as served:
        kept = served.server.server_state.connections
        opened = [socket.create_connection(("127.0.0.1", served.port), 5) for _ in range(40)]
        wait_until(lambda: len(select.select(opened, [], [], 0)[0]) == 20)  # these were closed
        wait_until(lambda: len(kept) == 20)
        for connection in opened:
            connection.close()
        wait_until(lambda: not kept)
        assert served.search(RED).status_code == 200


# --- who may use it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "[::2]:80",
        "localhost.evil.example", "0.0.0.0", "127.0.0.1@evil.example", "localhost:80:80",
        "2130706433",
    ],
)  # fmt: skip
def test_a_foreign_host_is_refused(served, host):
    for path in ("/", "/api/index", "/static/app.js", "/nothing"):
        check_problem(served.client.get(path, headers={"host": host}), 421, "--host-name")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9", "127.0.0.1", "[::1]:8000", "127.0.0.2"]
)
def test_a_host_of_this_machine_is_served(served, host):
    assert served.client.get("/api/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "file://", "", "x"],
)
def test_a_foreign_origin_is_refused(served, origin):
    files = {"image": ("a.png", RED)}
    answer = served.client.post("/api/search", files=files, headers={"origin": origin})
    check_problem(answer, 403, "another site")
    assert "access-control-allow-origin" not in answer.headers


def test_the_own_origin_is_served(served):
    for host, origin in (
        (f"127.0.0.1:{served.port}", f"http://127.0.0.1:{served.port}"),
        ("localhost:5", "http://LOCALHOST:5"),
    ):
        headers = {"host": host, "origin": origin}
        assert served.client.get("/api/health", headers=headers).status_code == 200


def test_a_request_that_a_foreign_page_makes_is_refused_but_a_link_on_it_works(served):
    for site in ("cross-site", "same-site"):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        check_problem(served.client.get("/api/index", headers=headers), 403)
        headers["sec-fetch-mode"] = "navigate"
        assert served.client.get("/", headers=headers).status_code == 200
    headers = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert served.client.get("/api/index", headers=headers).status_code == 200


@pytest.fixture(scope="module")
def guarded(pictures):
    with serving(lambda: FakeIndex(pictures), with_settings(token=TOKEN)) as running:
        yield running


@pytest.mark.parametrize("path", ["/", "/docs", "/api/index", "/api/health", "/metrics", "/x"])
def test_every_address_needs_the_token(guarded, path):
    answer = guarded.client.get(path)
    check_problem(answer, 401, "token")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert guarded.client.get("/static/style.css").status_code == 200


def test_a_person_without_the_token_reads_a_page(guarded):
    answer = guarded.client.get("/", headers={"accept": "text/html,*/*"})
    assert answer.status_code == 401 and answer.headers["content-type"].startswith("text/html")
    assert "This service needs a token." in answer.text and "?token=" in answer.text
    assert answer.headers["www-authenticate"] and not Parts(answer.text).inline


@pytest.mark.parametrize(
    "header",
    [
        "Bearer wrong",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer",
        "\xff",
    ],
)
def test_a_wrong_token_is_refused(guarded, header):
    headers = [(b"authorization", header.encode("latin-1"))]
    check_problem(guarded.client.get("/api/index", headers=headers), 401)
    cookie = {"cookie": f"assay_token={TOKEN}"}
    check_problem(guarded.client.get("/api/index", headers=cookie), 401)


def test_the_right_token_is_taken_from_the_header(guarded):
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert guarded.client.get("/api/index", headers=headers).status_code == 200
    assert guarded.client.get(
        "/api/index", headers={"authorization": f"bearer  {TOKEN}"}
    ).is_success


def test_the_token_in_an_address_becomes_a_cookie_that_is_not_the_token(guarded):
    with httpx.Client(base_url=guarded.url) as browser:
        check_problem(browser.get("/", params={"token": "wrong"}), 401)
        check_problem(browser.get("/api/index", params={"token": TOKEN}), 401)
        welcome = browser.get("/", params={"token": TOKEN})
        assert welcome.status_code == 200 and TOKEN not in welcome.text
        cookie = welcome.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
        assert browser.get("/").status_code == 200
        assert browser.get("/api/index").status_code == 200
    assert guarded.client.get("/").status_code == 401


def test_the_docs_page_says_how_to_send_the_token(guarded):
    text = guarded.client.get("/docs", headers={"authorization": f"Bearer {TOKEN}"}).text
    assert "Bearer $ASSAY_TOKEN" in text and TOKEN not in text


def test_the_token_is_never_in_the_log(guarded, caplog):
    caplog.set_level(logging.DEBUG)
    guarded.client.get("/", params={"token": TOKEN})
    guarded.client.get(f"/nothing?token={TOKEN}")
    guarded.client.get("/api/index", headers={"authorization": f"Bearer {TOKEN}"})
    own = [record for record in caplog.records if not record.name.startswith("http")]
    assert len(own) >= 2 and all(TOKEN not in record.getMessage() for record in own)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": "0.0.0.0"}, "--allow-public"),
        ({"host": "::"}, "--allow-public"),
        ({"host": "example.org"}, "--allow-public"),
        ({"host": "0.0.0.0", "allow_public": True}, "--token"),
        ({"token": "short"}, "5 characters"),
        ({"token": "with spaces in it which no header has"}, "header"),
        ({"token": ""}, "0 characters"),
        ({"token": "a"}, "1 character,"),
        ({"host_names": ("a b",)}, "--host-name"),
        ({"host_names": ("find.local:80",)}, "--host-name"),
        ({"port": 70000}, "--port"),
        ({"workers": 0}, "--workers"),
        ({"queue": -1}, "--queue"),
        ({"seconds": 0}, "--timeout"),
        ({"seconds": float("nan")}, "--timeout"),
        ({"most_bytes": 0}, "--max-upload"),
        ({"most_pixels": 10**9}, "most_pixels"),
    ],
)
def test_unsafe_settings_are_refused(changes, words):
    with pytest.raises(BadInput, match=re.escape(words)):
        replace(Settings(), **changes).check()


def test_safe_settings_are_taken():
    Settings().check()
    Settings(host="::1").check()
    Settings(host="0.0.0.0", allow_public=True, token=TOKEN, host_names=("find.local",)).check()


def test_a_public_service_is_called_by_its_names_and_by_numbers_only(pictures):
    settings = with_settings(
        host="0.0.0.0", allow_public=True, token=TOKEN, host_names=("find.local",)
    )
    with serving(lambda: FakeIndex(pictures), settings) as served:
        headers = {"authorization": f"Bearer {TOKEN}"}
        for host in ("find.local", "FIND.local:80", "192.168.1.5:8000", "[2001:db8::1]"):
            found = served.client.get("/api/health", headers={**headers, "host": host})
            assert found.status_code == 200
        foreign = {**headers, "host": "evil.example"}
        check_problem(served.client.get("/api/health", headers=foreign), 421)


# --- thumbnails -----------------------------------------------------------------------------------


def test_every_match_has_a_small_upright_picture_of_its_image(served):
    for match in served.search(RED, k=24).json()["matches"]:
        answer = served.client.get(match["thumbnail"])
        assert answer.headers["content-type"] == "image/jpeg"
        image = Image.open(BytesIO(answer.content))
        assert image.format == "JPEG" and max(image.size) <= SIDE


@pytest.fixture
def photograph(tmp_path):
    """A large photograph that lies on its side, with a place, a comment and a colour profile."""
    wide = Image.new("RGB", (1200, 600), "#d22")
    wide.paste("#25d", (0, 0, 300, 300))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x9286] = "SECRET comment"
    exif.get_ifd(0x8825)[1] = "N"
    path = tmp_path / "red" / "disc.png"
    path.parent.mkdir()
    lying = wide.transpose(Image.Transpose.ROTATE_90)
    lying.save(
        path, "JPEG", exif=exif, comment=b"SECRET", icc_profile=b"SECRET profile", quality=95
    )
    return path


def test_a_thumbnail_is_upright_and_carries_no_notes(photograph):
    content = shrink(photograph.read_bytes(), photograph)
    image = Image.open(BytesIO(content))
    assert image.size == (256, 128)
    assert image.getpixel((10, 10))[2] > 150 > image.getpixel((200, 100))[2]
    assert not image.getexif() and not {"exif", "icc_profile", "comment"} & set(image.info)
    assert b"SECRET" not in content and b"SECRET" in photograph.read_bytes()


def test_a_thumbnail_of_a_file_that_changed_or_is_gone_is_refused(photograph):
    index, thumbnails = FakeIndex(photograph.parents[1]), Thumbnails()
    made = thumbnails.find(index, "red/disc.png")
    assert thumbnails.find(index, "red/disc.png") is made  # from memory
    before = photograph.read_bytes()
    photograph.write_bytes(RED)
    refusal_of_thumbnail(index)
    photograph.unlink()
    refusal_of_thumbnail(index)
    photograph.write_bytes(before)
    assert thumbnails.find(index, "red/disc.png") == made


def refusal_of_thumbnail(index, id_="red/disc.png"):
    """Return what is said where a thumbnail is refused since its file is gone or changed."""
    with pytest.raises(Refusal, match="not there any more, or was changed") as refused:
        Thumbnails().find(index, id_)
    return refused.value.status, refused.value.problem


def test_a_refused_thumbnail_does_not_tell_which_files_the_disk_has(photograph, monkeypatch):
    index = FakeIndex(photograph.parents[1])
    before, said = photograph.read_bytes(), []
    photograph.write_bytes(RED)
    said.append(refusal_of_thumbnail(index))
    photograph.unlink()
    said.append(refusal_of_thumbnail(index))
    os.mkfifo(photograph)  # it is not opened: that would wait for ever
    said.append(refusal_of_thumbnail(index))
    photograph.unlink()
    photograph.mkdir()
    said.append(refusal_of_thumbnail(index))
    monkeypatch.setattr(index, "file_of", lambda id_: None)  # a link out of the root
    said.append(refusal_of_thumbnail(index))
    monkeypatch.undo()
    photograph.rmdir()
    photograph.write_bytes(b"no image")
    index.entries["red/disc.png"] = replace(
        index.entries["red/disc.png"], content=digest_bytes(b"no image")
    )
    said.append(refusal_of_thumbnail(index))
    assert before and len(said) == 6 and all(one == said[0] for one in said)
    assert said[0][0] == 410 and str(photograph.parents[1]) not in str(said[0][1])


def test_thumbnails_in_memory_are_bounded(pictures):
    index, thumbnails = FakeIndex(pictures), Thumbnails(most_bytes=5000)
    for id_ in index.entries:
        thumbnails.find(index, id_)
        assert thumbnails.bytes <= 5000
    assert thumbnails.bytes == sum(len(kept.content) for kept in thumbnails._kept.values()) > 0


def test_a_browser_that_has_a_thumbnail_does_not_get_it_again(served):
    address = "/api/thumbnail?id=red%2Fdisc%200.png"
    first = served.client.get(address)
    again = served.client.get(address, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = served.client.get("/api/thumbnail?id=red%2Fdisc%201.png")
    assert other.headers["etag"] != first.headers["etag"]


# --- versions -------------------------------------------------------------------------------------


class Writer:
    """Stands for the folder of an index: puts versions in place."""

    def __init__(self, pictures):
        self.pictures, self.opened, self.broken = pictures, [], None
        self.number = 1

    def open(self):
        if self.broken:
            raise self.broken
        self.opened.append(FakeIndex(self.pictures, self.number))
        return self.opened[-1]

    def write(self):
        self.number += 1
        for index in self.opened:
            index.current = False


def test_a_new_version_takes_the_place_of_the_old_one(pictures):
    writer = Writer(pictures)
    with serving(writer.open) as served:
        assert served.search(RED).json()["version"] == 1
        writer.write()
        wait_until(lambda: served.client.get("/api/health").json()["version"] == 2)
        assert served.search(RED).json()["version"] == 2
        assert served.client.get("/api/index").json()["version"] == 2
        assert [index.closed for index in writer.opened] == [1, 0]
    assert [index.closed for index in writer.opened] == [1, 1]


def test_the_old_version_is_closed_once_when_its_last_user_is_done(pictures):
    writer = Writer(pictures)
    served_index = ServedIndex(writer.open, lambda text: None)
    with served_index.using() as first, served_index.using() as second:
        writer.write()
        assert served_index.refresh()
        assert first is second and first.closed == 0
        with served_index.using() as third:
            assert third.manifest.version == 2
    assert first.closed == 1
    served_index.close()
    assert third.closed == 1


def test_a_version_that_opens_after_the_end_is_closed_at_once(pictures):
    writer = Writer(pictures)
    served_index = ServedIndex(writer.open, lambda text: None)

    def open_late():
        served_index.close()
        return writer.open()

    with served_index.using() as first:
        writer.write()
        served_index._open = open_late
        assert not served_index.refresh()
        assert [index.closed for index in writer.opened] == [0, 1] and first is writer.opened[0]
    served_index.close()
    assert not served_index.refresh()
    assert [index.closed for index in writer.opened] == [1, 1]


def test_the_index_is_closed_after_nothing_looks_for_newer_versions(pictures):
    order = []

    async def watch():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            order.append("the watch ended")

    async def run():
        app = create_app(lambda: FakeIndex(pictures), Settings())
        service = app.state.service
        close, service.watch = service.close, watch
        service.close = lambda: order.append("closed")
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
        close()

    asyncio.run(run())
    assert order == ["the watch ended", "closed"]


def test_no_request_is_lost_while_versions_change(pictures):
    writer = Writer(pictures)
    said = []
    served_index = ServedIndex(writer.open, said.append)
    stop, searched = threading.Event(), []

    def search():
        pixels = np.asarray(draw("red", "disc", 7))
        while not stop.is_set():
            searched.append(served_index.search(lambda index: len(index.search(pixels, 3).matches)))

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(search) for _ in range(4)]
        try:
            for _ in range(15):
                before = len(searched)
                writer.write()
                served_index.refresh()
                wait_until(lambda before=before: len(searched) > before + 4)
        finally:
            stop.set()
        for one in working:
            one.result()
    assert set(searched) == {3} and len(searched) > 60
    assert [index.closed for index in writer.opened] == [1] * 15 + [0]
    assert said[-1] == "version 16 of the index is in place"


def test_a_request_that_fails_since_a_writer_removed_its_files_is_asked_anew(pictures):
    writer = Writer(pictures)
    served_index = ServedIndex(writer.open, lambda text: None)
    writer.write()
    writer.opened[0].fail = BadInput("catalog.sqlite cannot be read")
    pixels = np.asarray(draw("red", "disc", 7))
    found = served_index.search(lambda index: (index.manifest.version, index.search(pixels, 2)))
    assert found[0] == 2 and len(found[1].matches) == 2


def test_a_version_that_cannot_be_opened_leaves_the_old_one_in_place(pictures):
    writer, now, said = Writer(pictures), [0.0], []
    served_index = ServedIndex(writer.open, said.append, clock=lambda: now[0])
    writer.write()
    writer.broken = BadInput("index.json is damaged")
    assert not served_index.refresh()
    with served_index.using() as index:
        assert index.manifest.version == 1 and not index.closed
    assert "index.json is damaged" in served_index.problem
    assert len(said) == 1 and "version 1 is still served" in said[0]
    writer.broken = None
    assert not served_index.refresh()  # too early: it is tried again later
    now[0] += 1.5
    assert served_index.refresh() and served_index.problem is None
    with served_index.using() as index:
        assert index.manifest.version == 2


def test_a_version_whose_model_fails_is_not_put_in_place(pictures):
    writer = Writer(pictures)
    served_index = ServedIndex(writer.open, lambda text: None)
    writer.write()

    def open_broken():
        index = FakeIndex(pictures, 2)
        index.fail = RuntimeError("weights are damaged")
        writer.opened.append(index)
        return index

    served_index._open = open_broken
    assert not served_index.refresh() and "weights are damaged" in served_index.problem
    assert writer.opened[-1].closed == 1 and writer.opened[0].closed == 0


def test_health_says_that_a_newer_version_cannot_be_opened(pictures):
    writer = Writer(pictures)
    with serving(writer.open) as served:
        writer.broken = BadInput("index.json is damaged")
        writer.write()
        served.service.index.refresh()
        health = served.client.get("/api/health").json()
        assert health["ok"] and health["version"] == 1 and "damaged" in health["problem"]
        assert "assay_index_problem 1" in served.client.get("/metrics").text
        assert served.search(RED).json()["version"] == 1


def test_health_says_that_the_folder_of_the_index_is_gone(pictures, tmp_path):
    folder = build_index(pictures, tmp_path / "shapes")
    with serving(lambda: Index.open(folder)) as served:
        (folder / "index.json").rename(tmp_path / "index.json")
        served.service.index.refresh()
        health = served.client.get("/api/health").json()
        assert health["problem"] == (
            "the folder of the index has no index.json any more; version 1 is still served"
        )
        shutil.rmtree(folder)
        wait_until(
            lambda: (
                served.client.get("/api/health").json()["problem"]
                == "the folder of the index is gone; version 1 is still served"
            )
        )
        assert served.client.get("/api/health").json()["ok"]
        assert served.search(RED).json()["version"] == 1


def test_no_answer_holds_the_path_of_the_index(pictures):
    writer = Writer(pictures)
    with serving(writer.open) as served:
        index = writer.opened[0]
        folder = str(index.root)
        index.fail = BadInput(
            f"{folder} is not calibrated; run `assay calibrate {folder} --data D`"
        )
        answer = served.search(RED, min_precision=0.9)
        check_problem(answer, 400, "birds-index is not calibrated", "calibrate birds-index --data")
        assert str(pictures.parent) not in answer.text
        index.fail = None
        writer.broken = DamagedIndex(f"{folder}/versions/v000002/catalog.sqlite cannot be read")
        writer.write()
        served.service.index.refresh()
        health = served.client.get("/api/health")
        assert "birds-index/versions/v000002/catalog.sqlite cannot be read" in health.text
        assert str(pictures.parent) not in health.text


def test_a_folder_without_a_name_gets_one():
    here = Path().resolve().name
    assert without_path(". is not calibrated. Run `a . --b`.", Path()) == (
        f"{here} is not calibrated. Run `a {here} --b`."
    )


def test_a_search_that_cannot_be_done_at_present_may_be_tried_again(pictures, caplog):
    index = FakeIndex(pictures)
    with serving(lambda: index) as served:
        index.fail = RuntimeError("Milvus at http://secret:19530 failed at searching")
        answer = served.search(RED)
        check_problem(answer, 503, "at present", "try again")
        assert answer.headers["retry-after"] == "1"
        assert "secret" not in answer.text and "secret" in caplog.text
        index.fail = None
        assert served.search(RED).status_code == 200


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a bug with /secret/paths"),
        DamagedIndex("a file is missing"),
        DamagedIndex("its server is gone", "; start it"),
    ],
)
def test_a_failure_of_the_service_is_logged_and_not_shown(pictures, error, caplog):
    index = FakeIndex(pictures)
    with serving(lambda: index) as served:
        index.fail = error
        answer = served.search(RED)
        check_problem(answer, 500, "log")
        assert str(error) not in answer.text and str(error) in caplog.text
        assert answer.headers["content-security-policy"] == POLICY
        index.fail = None
        assert served.search(RED).status_code == 200
        text = served.client.get("/metrics").text
        assert 'route="/api/search",method="POST",status="500"} 1' in text


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/static/app.js", "/api/index", "/metrics", "/nothing", "/api/search"]
)
def test_every_answer_asks_the_browser_to_be_strict(served, path):
    headers = served.client.get(path).headers
    for name, value in HEADERS.items():
        assert headers[name] == value
    assert "unsafe" not in POLICY and "default-src 'none'" in POLICY and "*" not in POLICY
    assert "server" not in headers


class Parts(HTMLParser):
    """Collects what a page loads and holds."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside, self.inline = [], None, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside in ("script", "style") and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag):
        self.inside = None


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_loads_own_files_only_and_has_nothing_inline(served, path):
    parts = Parts(served.client.get(path).text)
    assert not parts.inline
    for tag, attributes in parts.tags:
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes)
        address = attributes.get("src") or (attributes.get("href") if tag == "link" else None)
        if address:
            assert address.startswith("/static/")
            assert served.client.get(address).status_code == 200
    assert ("html", {"lang": "en"}) in parts.tags
    assert any(attributes.get("name") == "viewport" for _, attributes in parts.tags)


def test_every_control_has_a_label_and_every_image_an_alternative(served):
    tags = Parts(served.client.get("/").text).tags
    labels = {attributes.get("for") for tag, attributes in tags if tag == "label"}
    for tag, attributes in tags:
        if tag in ("input", "select"):
            assert attributes["id"] in labels
        if tag == "img":
            assert "alt" in attributes
        if tag == "svg":
            assert attributes["aria-hidden"] == "true"
    live = [attributes.get("aria-live") for _, attributes in tags]
    assert "polite" in live and ("alert" in [attributes.get("role") for _, attributes in tags])


def test_static_files_hold_no_foreign_address():
    import assay.web

    for path in (Path(assay.web.__file__).parent / "static").iterdir():
        found = set(re.findall(r"\w+://[^\s\"')]+", path.read_text()))
        assert found <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"innerHTML|insertAdjacent|eval\(|document\.write", path.read_text())


def test_the_docs_page_has_every_route_with_its_fields(served):
    text = served.client.get("/docs").text
    document = served.client.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/api/search", "/api/index", "/api/health", "/api/thumbnail", "/metrics",
    }  # fmt: skip
    for path, operations in document["paths"].items():
        assert f"<code>{path}</code>" in text
        for operation in operations.values():
            assert "422" not in operation["responses"]
            assert {"200", "401", "403", "421", "500"} <= set(operation["responses"])
    assert f"{served.url}/api/search" in text and "Bearer" not in text
    for field in (
        "image",
        "min_precision",
        "min_score",
        "precisions",
        "endings",
        "where",
        "confidence",
        "recall_at_10",
    ):
        assert f"<code>{field}</code>" in text


def test_pages_are_cached_by_their_content(served):
    first = served.client.get("/static/app.js")
    again = served.client.get("/static/app.js", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    assert "no-store" in served.client.get("/api/index").headers["cache-control"]


def test_facts_name_no_path_of_the_machine(served):
    facts = served.client.get("/api/index").json()
    assert facts["model"] == "histogram" and facts["name"] == "birds-index"
    assert facts["recall_at_10"] == 0.987 and facts["images"] == 24
    assert {column["name"]: len(column["words"]) for column in facts["columns"]} == {
        "colour": 4, "shape": 2,
    }  # fmt: skip
    assert "/home/" not in served.client.get("/api/index").text


# --- counts ---------------------------------------------------------------------------------------


def counts_of(text):
    """Read the samples of Prometheus's text by its grammar."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", line)
            continue
        match = re.fullmatch(r'([a-z_]+)(\{(?:[a-z]+="(?:[^"\\]|\\.)*",?)+\})? (\S+)', line)
        found[match[1] + (match[2] or "")] = float(match[3])
    return found


def test_requests_are_counted_by_route_and_status(pictures):
    with serving(lambda: FakeIndex(pictures)) as served:
        for _ in range(3):
            served.search(RED)
        served.search(b"no image")
        for number in range(5):
            served.client.get(f"/nothing/{number}")
        answer = served.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = counts_of(answer.text)
    requests = "assay_requests_total"
    assert found[requests + '{route="/api/search",method="POST",status="200"}'] == 3
    assert found[requests + '{route="/api/search",method="POST",status="400"}'] == 1
    assert found[requests + '{route="other",method="GET",status="404"}'] == 5
    assert found['assay_rejected_total{reason="not_an_image"}'] == 1
    assert found['assay_request_seconds_count{route="/api/search"}'] == 4
    assert found["assay_requests_in_flight"] == 1  # this one
    assert found["assay_index_version"] == 1 and found["assay_index_images"] == 24
    assert found["process_resident_memory_bytes"] > 10_000_000


def test_times_are_counted_in_classes_that_add_up():
    metrics, seconds = Metrics(), [0.001, 0.005, 0.006, 0.2, 31.0]
    for one in seconds:
        metrics.observe("/", "GET", 200, one)
    found = counts_of(metrics.text({}))
    for bound in BOUNDS:
        expected = sum(one <= bound for one in seconds)
        assert found[f'assay_request_seconds_bucket{{route="/",le="{bound}"}}'] == expected
    assert found['assay_request_seconds_bucket{route="/",le="+Inf"}'] == 5
    assert found['assay_request_seconds_sum{route="/"}'] == pytest.approx(sum(seconds))


# --- the process ----------------------------------------------------------------------------------

PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import logging
from serving import FakeIndex
from assay.web import Settings, serve
logging.basicConfig(level=logging.INFO)
class Held(FakeIndex):
    held = False
    def search(self, *words, **options):
        if self.held:
            print("searching", flush=True)
            sys.stdin.readline()
        return super().search(*words, **options)
index = Held(sys.argv[1])
def say(address):
    index.held = True
    print(address, flush=True)
sys.exit(serve(lambda: index, Settings(port=0, seconds=float(sys.argv[2])), say))
"""
"""A service whose searches print that they begin, and then wait for a line."""


def begin_search(pool, running, address):
    """Return the answer to come of a search that waits for a line."""
    files = {"image": ("a.png", RED)}
    searching = pool.submit(httpx.post, f"{address}api/search", files=files, timeout=60)
    assert running.stdout.readline() == "searching\n"
    return searching


def wait_for_the_end_to_begin(address):
    wait_until(lambda: httpx.get(f"{address}api/health", timeout=20).status_code == 503)


def end(running):
    return running.wait(60)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_after_the_requests_in_flight(pictures, how):
    with process("-c", PROGRAM, pictures, 600) as (running, line), ThreadPoolExecutor(1) as pool:
        address = line.strip()
        searching = begin_search(pool, running, address)
        running.send_signal(how)
        wait_for_the_end_to_begin(address)
        assert httpx.get(f"{address}api/health").json()["ok"] is False
        refused = httpx.get(f"{address}api/index")
        check_problem(refused, 503, "shutting down")
        assert refused.headers["retry-after"] and not searching.done()
        running.stdin.write("\n")
        running.stdin.flush()
        assert searching.result().status_code == 200
        assert end(running) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(address)
        assert "Traceback" not in running.stderr.read()


def test_a_second_interrupt_ends_the_service_before_the_requests_in_flight(pictures):
    with process("-c", PROGRAM, pictures, 600) as (running, line), ThreadPoolExecutor(1) as pool:
        address = line.strip()
        searching = begin_search(pool, running, address)
        running.send_signal(signal.SIGINT)
        wait_for_the_end_to_begin(address)
        running.send_signal(signal.SIGINT)
        assert end(running) == 130
        cut = isinstance(searching.exception(), httpx.HTTPError)
        assert cut or searching.result().status_code == 500


def test_a_search_without_end_does_not_keep_the_service_from_ending(pictures):
    with process("-c", PROGRAM, pictures, 1) as (running, line):
        answer = httpx.post(f"{line.strip()}api/search", files={"image": ("a", RED)}, timeout=20)
        check_problem(answer, 503, "longer than 1 s")
        running.terminate()
        assert end(running) == 1


# --- the command ----------------------------------------------------------------------------------


def run_command(*words):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [*map(str, words)])


def test_a_folder_that_is_no_index_is_refused(tmp_path):
    refused = run_command(tmp_path, "--port", 0)
    assert isinstance(refused.exception, BadInput) and "is not an index" in str(refused.exception)


def test_a_current_folder_that_is_no_index_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = run_command("--port", 0)
    assert isinstance(refused.exception, BadInput)
    assert str(refused.exception).endswith("give the folder of an index: assay serve INDEX")
    (tmp_path / ".pending").mkdir()
    assert "never finished" in str(run_command("--port", 0).exception)


def test_a_port_in_use_is_refused_with_the_remedy(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = run_command(tmp_path, "--port", taken.getsockname()[1])
    assert isinstance(refused.exception, BadInput)
    assert "is in use" in str(refused.exception) and "--port" in str(refused.exception)


def test_the_command_serves_a_real_index_until_a_signal_ends_it(pictures, tmp_path):
    folder = build_index(pictures, tmp_path / "shapes")
    with process("-m", "assay", "serve", folder, "--port", 0) as (running, line):
        address = re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
        answer = httpx.post(f"{address}api/search", files={"image": ("a.png", RED)}, timeout=30)
        assert ids(answer)[0].startswith("red/")
        running.terminate()
        _, logged = running.communicate(timeout=30)
    assert running.returncode == 0
    assert "POST /api/search 200" in logged and "Traceback" not in logged


def test_the_command_ends_with_2_where_it_cannot_begin(tmp_path):
    words = [sys.executable, "-m", "assay", "serve", tmp_path, "--port", "0"]
    refused = subprocess.run(words, capture_output=True, text=True)
    assert refused.returncode == 2 and "is not an index" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "--allow-public"),
        (["--host", "no.such.host.invalid"], "--allow-public"),
        (["--token", "short"], "--token"),
        (["--max-upload", "0"], "--max-upload"),
        (["--port", "-1"], "--port"),
    ],
)
def test_bad_options_are_refused(tmp_path, words, said):
    refused = run_command(tmp_path, *words)
    assert isinstance(refused.exception, BadInput) and said in str(refused.exception)


def test_a_missing_library_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("assay.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("assay.web", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    refused = run_command(tmp_path)
    assert isinstance(refused.exception, BadInput)
    assert "pip install 'assay-dml[serve]'" in str(refused.exception)


def test_an_application_can_be_made_without_a_server(pictures):
    async def ask():
        app = create_app(lambda: FakeIndex(pictures), Settings())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.post("/api/search", files={"image": ("a.png", RED)})
        app.state.service.close()
        return answer

    assert ids(asyncio.run(ask()))[0].startswith("red/")
